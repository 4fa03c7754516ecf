"""``torch.compile(backend="cute")``: Inductor with ``max_autotune`` and our kernels.

The same as importing the package and asking for ``mode="max-autotune-no-cudagraphs"``;
``mode`` and ``options`` mean what they mean for Inductor and win over that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import torch_cute_backend


def compile_cute(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """A Dynamo backend: the compiled function of ``gm``."""
    from torch._inductor import config, list_mode_options
    from torch._inductor.compile_fx import compile_fx

    from torch_cute_backend.inductor.compat import BACKEND_NAME

    torch_cute_backend.enable()
    patches: dict[str, Any] = {"max_autotune": True}
    if mode is not None and mode != "default":
        patches.update(list_mode_options(mode))
    patches.update(options or {})
    key = "max_autotune_gemm_backends"
    backends = str(patches.get(key, config.max_autotune_gemm_backends))
    if BACKEND_NAME not in backends.upper():
        patches[key] = f"{backends},{BACKEND_NAME}"
    return compile_fx(gm, example_inputs, config_patches=patches)
