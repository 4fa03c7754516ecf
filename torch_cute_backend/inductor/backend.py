"""``torch.compile(backend="cute")``: Inductor with ``max_autotune`` and our kernels.

The same as importing the package and asking for ``mode="max-autotune-no-cudagraphs"``;
``mode`` and ``options`` mean what they mean for Inductor and win over that.

``backend="cute_sim"`` does it for models on the CPU, whose GEMMs then run on a
simulated GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import torch_cute_backend
from torch_cute_backend import config
from torch_cute_backend.arch import arch_spec
from torch_cute_backend.errors import UserError
from torch_cute_backend.status import Status


def compile_cute(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """A Dynamo backend: the compiled function of ``gm``."""
    from torch_cute_backend.inductor.compat import BACKEND_NAME

    return _compile(gm, example_inputs, BACKEND_NAME, mode, options)


def compile_cute_sim(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """As :func:`compile_cute` for CPU tensors: GEMMs run in the PTX simulator.

    ``options`` may hold ``sim_arch``; the default is ``config.sim_arch``.

    Raises:
        UserError: an unknown arch, or kernels are not offered at all.
    """
    from torch_cute_backend.inductor.compat import SIMULATOR_PREFIX, supported

    status = supported() & Status.check(
        (config.get().enabled, f"{config.PREFIX}ENABLED=0"),
    )
    if not status:
        raise UserError(f"nothing would be simulated: {status}")
    rest = dict(options or {})
    arch = arch_spec(str(rest.pop("sim_arch", config.get().sim_arch)))
    name = SIMULATOR_PREFIX + arch.name.upper()
    return _compile(gm, example_inputs, name, mode, rest)


def _compile(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    name: str,
    mode: str | None,
    options: dict[str, Any] | None,
) -> Any:
    """Inductor with ``max_autotune`` and ``name`` among its GEMM backends."""
    from torch._inductor import config as inductor_config
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    torch_cute_backend.enable()
    patches: dict[str, Any] = {"max_autotune": True}
    if mode is not None and mode != "default":
        patches.update(list_mode_options(mode))
    patches.update(options or {})
    key = "max_autotune_gemm_backends"
    backends = str(patches.get(key, inductor_config.max_autotune_gemm_backends))
    if name not in backends.upper().replace(" ", "").split(","):
        patches[key] = f"{backends},{name}"
    return compile_fx(gm, example_inputs, config_patches=patches)
