"""Child process of ``test_inductor_install``: prints generated code for a few models.

    python inductor_child.py stock|off|disabled|on

``stock`` never imports the package; ``off`` imports it under
TORCH_CUTE_BACKEND_ENABLED=0, which the caller sets; ``disabled`` imports it and calls
``disable()``; ``on`` leaves it on. Output: one JSON object with the wrappers' text and
the compile cache's key.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.nn.functional as F
from fake_gpu import OURS_WIN, Timings, compile_code, empty, fake_mode

E4M3, F32 = torch.float8_e4m3fn, torch.float32


def models() -> dict[str, tuple[Any, list[torch.Tensor]]]:
    def scaled(a: Any, w: Any, sa: Any, sb: Any) -> Any:
        y = torch._scaled_mm(a, w.t(), sa, sb, out_dtype=torch.bfloat16)
        return torch.relu(y)

    fp8 = [empty(64, 256, dtype=E4M3), empty(512, 256, dtype=E4M3)]
    scales = [empty(64, 1, dtype=F32), empty(1, 512, dtype=F32)]
    linear = [empty(4, 128, 256), empty(512, 256), empty(512)]
    return {
        "mm_relu": (
            lambda a, w: torch.relu(a @ w.t()),
            [empty(96, 128), empty(64, 128)],
        ),
        "linear_gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), linear),
        "scaled_relu": (scaled, [*fp8, *scales]),
    }


def cache_key() -> str:
    """FxGraphCache's key of an empty CPU graph."""
    from torch._inductor.codecache import compiled_fx_graph_hash
    from torch._inductor.codegen.common import init_backend_registration

    init_backend_registration()
    import torch._inductor.compile_fx

    graph = torch.fx.symbolic_trace(torch.nn.Identity())
    return str(compiled_fx_graph_hash(graph, [], {}, [])[0])


def main(how: str) -> None:
    if how != "stock":
        import torch_cute_backend

        if how == "disabled":
            torch_cute_backend.disable()
    code = {}
    with fake_mode():
        for name, (fn, args) in models().items():
            timings = Timings(OURS_WIN, {"ours": 0.9, "triton": 0.9})
            code[name] = compile_code(fn, args, timings=timings)
    json.dump({"code": code, "key": cache_key()}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
