"""MXFP8 under Inductor without a GPU: block scales reach the kernel as they are, and
what no kernel takes is refused in words. See ``inductor_helper``."""

from __future__ import annotations

from typing import Any

import torch
from fake_gpu import B200, H200
from grouped_reference import grouped_product
from inductor_helper import InductorTestCase, integers
from torch._dynamo.exc import TorchRuntimeError
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)
from wrapper_runner import kernel_names, our_calls, specs

from torch_cute_backend.problem import Grouping, scale_count
from torch_cute_backend.runtime.block_scales import from_tiles, to_tiles

BF16, E4M3, E8M0 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e8m0fnu
M, N, K, G = 200, 272, 352, 4


def scales(rows: int, k: int = K, seed: int = 0) -> torch.Tensor:
    """Tiles of powers of two from a quarter to four."""
    exponents = 127 + integers(rows, k // 32, seed=seed).to(torch.int32)
    return to_tiles(exponents.to(torch.uint8).view(E8M0))


def operands(m: int = M, n: int = N, k: int = K) -> list[torch.Tensor]:
    a, w = integers(m, k, dtype=E4M3), integers(n, k, seed=1, dtype=E4M3)
    return [a, w, scales(m, k), scales(n, k, seed=1)]


def scaled_mm(out: torch.dtype = BF16, **kw: Any) -> Any:
    def fn(a: Any, w: Any, sa: Any, sb: Any, bias: Any = None) -> Any:
        y = torch._scaled_mm(a, w.t(), sa, sb, bias=bias, out_dtype=out, **kw)
        return torch.relu(y) if out is not BF16 else y

    return fn


def product(a: Any, w: Any, sa: Any, sb: Any) -> torch.Tensor:
    a, w = a.float() * from_tiles(sa, *a.shape), w.float() * from_tiles(sb, *w.shape)
    return a @ w.t()


class TestDense(InductorTestCase):
    def check(self, fn: Any, tensors: Any, wanted: Any, **kw: Any) -> Any:
        compiled = self.compile(fn, tensors, capability=B200, **kw)
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        self.assertEqual(len(kernel_names(compiled.code)), 1, compiled.code)
        self.check_numbers(compiled, tensors, wanted)
        (spec,) = specs(compiled.code)
        self.assertEqual(spec.problem.scaling, "mxfp8")
        return spec.problem

    def test_plain(self) -> None:
        tensors = operands()
        self.check(scaled_mm(), tensors, product(*tensors).to(BF16))

    def test_one_kernel_for_fast_and_exact(self) -> None:
        tensors = operands()
        wanted = product(*tensors).to(BF16)
        kinds = {
            self.check(scaled_mm(use_fast_accum=fast), tensors, wanted).accum
            for fast in (False, True)
        }
        self.assertEqual(len(kinds), 1)

    def test_consumer_is_fused(self) -> None:
        tensors = operands()
        fn = scaled_mm(torch.float32)
        self.check(fn, tensors, torch.relu(product(*tensors)))

    def test_bias(self) -> None:
        tensors = [*operands(), integers(N)]
        wanted = product(*tensors[:4]) + tensors[4].float()
        self.check(scaled_mm(), tensors, wanted.to(BF16))

    def test_matrix_of_scales(self) -> None:
        """As many frameworks hand them over: (padded rows, padded blocks)."""
        a, w, sa, sb = operands()
        tensors = [a, w, sa.view(256, -1), sb.view(384, -1)]
        self.check(scaled_mm(), tensors, product(a, w, sa, sb).to(BF16))

    def test_hopper_leaves_it_to_aten(self) -> None:
        compiled = self.compile(scaled_mm(), operands(), capability=H200)
        self.assertEqual(our_calls(compiled.code), [])
        self.assertRegex(self.reasons(), "no schedule of sm_90a fits|needs tcgen05")

    def test_dynamic_rows_are_refused(self) -> None:
        tensors = operands()
        tensors[0].dynamic_dims = (0,)
        tensors[2].dynamic_dims = (0,)
        compiled = self.compile(scaled_mm(), tensors, capability=B200)
        self.assertEqual(our_calls(compiled.code), [])
        self.assertRegex(self.reasons(), "block scales of a dynamic size")


class TestGrouped(InductorTestCase):
    ENDS = (0, 131, 160, 190)

    def tensors(self) -> list[torch.Tensor]:
        a, w = integers(M, K, dtype=E4M3), integers(G, N, K, seed=1, dtype=E4M3)
        sizes = [y - x for x, y in zip((0, *self.ENDS), self.ENDS, strict=False)]
        parts = [scales(size, seed=size).view(torch.uint8) for size in sizes]
        # Room for any groups: a tile of rows more for each.
        spare = torch.zeros(G * scale_count(1, K), dtype=torch.uint8)
        sa = torch.cat([*parts, spare]).view(E8M0).view(-1, scale_count(1, K) // 128)
        stack = [scales(N, seed=g).view(torch.uint8) for g in range(G)]
        sb = torch.stack(stack).view(E8M0)
        offs = torch.tensor(self.ENDS, dtype=torch.int32)
        return [a, w.mT, sa, sb, offs]

    @staticmethod
    def fn(a: Any, b: Any, sa: Any, sb: Any, offs: Any) -> Any:
        return torch._scaled_grouped_mm(a, b, sa, sb, offs=offs, out_dtype=BF16)

    def test_groups_along_m(self) -> None:
        tensors = self.tensors()
        compiled = self.compile(self.fn, tensors, capability=B200)
        self.assertEqual(len(our_calls(compiled.code)), 1, self.reasons())
        a, b, sa, sb, offs = tensors
        wanted = grouped_product(Grouping.M, a, b.mT, (sa, sb), offs).to(BF16)
        self.check_numbers(compiled, tensors, wanted)
        (spec,) = specs(compiled.code)
        self.assertEqual(spec.problem.family, "mxfp8-grouped-m")

    @parametrize("backends", ["TRITON", "TORCH_CUTE"])
    def test_eager_serves_whatever_the_backends(self, backends: str) -> None:
        """As without the plugin: Inductor leaves block scales to eager, so neither a
        list without us nor one without ATen that we cannot serve may stop it."""
        tensors = self.tensors()
        if backends == "TORCH_CUTE":
            # Not whole tiles of scales: refused by us, unchecked by a trace.
            tensors[2] = tensors[2][:-1].contiguous()
        options = {"max_autotune_gemm_backends": backends}
        compiled = self.compile(self.fn, tensors, capability=B200, options=options)
        self.assertEqual(our_calls(compiled.code), [])
        self.assertIn("_scaled_grouped_mm", compiled.code)

    def test_parts_of_tiles_are_refused(self) -> None:
        tensors = self.tensors()
        tensors[2] = tensors[2][:-1].contiguous()
        compiled = self.compile(self.fn, tensors, capability=B200)
        self.assertEqual(our_calls(compiled.code), [])
        self.assertRegex(self.reasons(), "not a multiple of")

    def test_another_size_of_b_is_refused_by_torch(self) -> None:
        tensors = self.tensors()
        tensors[3] = tensors[3][:, :-512].contiguous()
        with self.assertRaisesRegex(TorchRuntimeError, "scale shape of"):
            self.compile(self.fn, tensors, capability=B200)


instantiate_parametrized_tests(TestGrouped)

if __name__ == "__main__":
    run_tests()
