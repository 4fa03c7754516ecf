"""What the tests of Inductor's code generation share: operands, compile, compare.

Models are compiled for a GPU that is not there (``fake_gpu``); the wrapper runs on the
CPU with reference GEMMs (``wrapper_runner``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fake_gpu import compile_fake, empty, fake_mode
from torch.testing._internal.common_utils import TestCase
from wrapper_runner import run_wrapper

import torch_cute_backend
from torch_cute_backend import config
from torch_cute_backend.inductor import reasons
from torch_cute_backend.inductor.request import OpCall, gemm_request

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn

torch_cute_backend.enable()
import torch._inductor.compile_fx  # noqa: E402


def integers(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Small integers: every product sum is exact in fp32."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).to(dtype)


class InductorTestCase(TestCase):
    def setUp(self) -> None:
        super().setUp()
        reasons.clear()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache_dir = Path(folder.name) / "cache"
        patch = config.patch(cache_dir=self.cache_dir)
        patch.__enter__()
        self.addCleanup(patch.__exit__, None, None, None)

    def compile(
        self, fn: Callable[..., Any], tensors: Sequence[torch.Tensor], **kw: Any
    ) -> Any:
        """Compile for tensors like these (dtype, size, stride)."""
        with fake_mode():
            fakes = [empty(*t.shape, dtype=t.dtype, stride=t.stride()) for t in tensors]
            for fake, real in zip(fakes, tensors, strict=True):
                for dim in getattr(real, "dynamic_dims", ()):
                    torch._dynamo.mark_dynamic(fake, dim)
            return compile_fake(fn, fakes, **kw)

    def check_numbers(
        self,
        compiled: Any,
        tensors: Sequence[torch.Tensor],
        expected: Any,
        **tolerance: float,
    ) -> None:
        """Run the wrapper on ``tensors`` and compare."""
        rows = tensors[0].shape[0]
        args = [rows if i is None else tensors[i] for i in compiled.order]
        results = run_wrapper(compiled.code, args)
        wanted = expected if isinstance(expected, (tuple, list)) else [expected]
        self.assertEqual(len(results), len(wanted))
        for result, want in zip(results, wanted, strict=True):
            self.assertEqual(result.dtype, want.dtype)
            self.assertEqual(result.shape, want.shape)
            if tolerance:
                self.assertEqual(result.float(), want.float(), **tolerance)
            else:
                self.assertEqual(result.float(), want.float(), atol=0, rtol=0)

    def reasons(self) -> str:
        return "; ".join(r.reason for r in reasons.recorded())


def node(tensor: torch.Tensor) -> Any:
    """An Inductor input buffer like ``tensor``."""
    from torch._inductor import ir

    layout = ir.FixedLayout(
        tensor.device, tensor.dtype, list(tensor.size()), list(tensor.stride())
    )
    return ir.InputBuffer(name=f"arg{id(tensor)}", layout=layout)


def lowered_request(call: OpCall, nodes: Sequence[Any], **graph: Any) -> Any:
    """``gemm_request`` as a lowering in a graph with these attributes."""
    from torch._inductor.sizevars import SizeVarAllocator
    from torch._inductor.virtualized import V

    attributes = {"cpp_wrapper": False, "aot_mode": False, "parent": None, **graph}
    handler = SimpleNamespace(
        sizevars=SizeVarAllocator(), unaligned_buffers=set(), **attributes
    )
    with V.set_graph_handler(handler):
        return gemm_request(call, nodes)


def scaled(
    out: torch.dtype = BF16, fast: bool = True, post: Callable[[Any], Any] | None = None
) -> Callable[..., Any]:
    """``_scaled_mm`` of K-major operands, with or without a bias."""

    def fn(a: Any, w: Any, sa: Any, sb: Any, bias: Any = None) -> Any:
        y = torch._scaled_mm(
            a, w.t(), sa, sb, bias=bias, out_dtype=out, use_fast_accum=fast
        )
        return y if post is None else post(y)

    return fn


def scaled_operands(
    m: int = 64, n: int = 208, k: int = 256, rowwise: bool = True
) -> list[torch.Tensor]:
    a, w = integers(m, k, dtype=E4M3), integers(n, k, seed=1, dtype=E4M3)
    if not rowwise:
        return [a, w, torch.tensor(0.5), torch.tensor(0.25)]
    return [a, w, 2.0 ** integers(m, 1).float(), 2.0 ** integers(1, n).float()]


def scaled_reference(a: Any, w: Any, sa: Any, sb: Any, bias: Any = None) -> Any:
    y = (a.float() @ w.float().t()) * sa * sb
    return y if bias is None else y + bias.float()
