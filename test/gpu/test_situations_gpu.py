"""Situations that went wrong in this field, run on a GPU: the report is named at each.

Small integers with scales that are powers of two are exact, so results must be equal,
element by element; outputs are poisoned first.
"""

from __future__ import annotations

import math
import unittest

import torch
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.dtypes import BFLOAT16, E4M3, FLOAT16, DType
from torch_cute_backend.epilogue.graph import EpilogueGraph
from torch_cute_backend.problem import SCALE_INPUTS, Accum, GemmProblem
from torch_cute_backend.runtime import device, gemm
from torch_cute_backend.tuning.lookup import choose

PLACE = "cuda"
FP8 = torch.float8_e4m3fn


def integers(rows: int, columns: int, seed: int, limit: int = 2) -> torch.Tensor:
    """e4m3, made where it is used: some operands here have more than 2^31 elements."""
    generator = torch.Generator(PLACE).manual_seed(seed)
    shape = (rows, columns)
    values = torch.randint(
        -limit, limit + 1, shape, generator=generator, device=PLACE, dtype=torch.int8
    )
    return values.to(FP8)


def powers(count: int, seed: int) -> torch.Tensor:
    return torch.exp2(integers(1, count, seed, 1)[0].float())


def product(
    a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor
) -> torch.Tensor:
    """``b`` is (N, K); fp32, one scale a row of each."""
    return (a.float() @ b.float().t()) * sa[:, None] * sb[None, :]


@unittest.skipUnless(device.default_arch() is not None, "needs a supported GPU")
class TestSituations(TestCase):
    def build(
        self,
        m: int,
        n: int,
        k: int,
        scaling: str = "rowwise",
        accum: Accum = Accum.FAST,
        out: DType = BFLOAT16,
    ) -> KernelBuild:
        arch = device.default_arch()
        self.assertIsNotNone(arch)
        epilogue = EpilogueGraph.linear(out, *SCALE_INPUTS[scaling])
        problem = GemmProblem(
            "scaled_mm",
            m,
            n,
            k,
            E4M3,
            E4M3,
            scaling=scaling,
            accum=accum,
            epilogue=epilogue,
        )
        choice = choose(problem, arch)
        self.assertTrue(choice, str(choice))
        built = build_kernel(problem, choice.schedule, arch)
        self.assertTrue(built, str(built))
        return built

    def run_poisoned(
        self,
        built: KernelBuild,
        a: torch.Tensor,
        b: torch.Tensor,
        *scales: torch.Tensor,
    ) -> torch.Tensor:
        kind = getattr(torch, built.problem.out_dtype.name)
        shape = (a.shape[0], b.shape[0])
        out = torch.full(shape, math.nan, dtype=kind, device=PLACE)
        gemm.run(built, a, b.t(), *scales, out=[out])
        return out

    @parametrize("accum", list(Accum), name_fn=lambda a: a.value)
    @parametrize("special", (0.0, math.inf, math.nan))
    def test_specials_reach_their_row_and_column_alone(
        self, accum: Accum, special: float
    ) -> None:
        """pytorch/ao#4713, #3356: IEEE products, nothing is clamped."""
        m, n, k = 65, 256, 512
        a, b = integers(m, k, 1), integers(n, k, 2)
        a[9, 3] = math.nan
        sa, sb = powers(m, 3), powers(n, 4)
        sa[5], sb[7] = special, special
        out = self.run_poisoned(self.build(m, n, k, accum=accum), a, b, sa, sb)
        want = product(a, b, sa, sb).bfloat16()
        self.assertTrue(torch.equal(out.isnan(), want.isnan()))
        self.assertTrue(torch.equal(out.nan_to_num(0), want.nan_to_num(0)))
        self.assertTrue(bool(out[9].isnan().all()))

    def test_scaled_in_fp32_before_the_cast(self) -> None:
        """llvm/torch-mlir#4616: the unscaled sum overflows fp16."""
        a = torch.full((64, 128), 448.0, device=PLACE).to(FP8)
        b = torch.full((256, 128), 448.0, device=PLACE).to(FP8)
        scale = torch.full((1,), 1e-3, device=PLACE)
        built = self.build(64, 256, 128, "tensorwise", out=FLOAT16)
        out = self.run_poisoned(built, a, b, scale, scale).float()
        self.assertTrue(bool(((out - 25.690112).abs() <= 25.7 * 2**-9).all()))

    @parametrize("sizes", [(8352, 1536, 4096), (20480, 12840, 256)])
    def test_ragged_rows_and_columns(self, sizes: tuple[int, int, int]) -> None:
        """pytorch/pytorch#133334, NVIDIA/cutlass#2751."""
        m, n, k = sizes
        tensors = integers(m, k, 1), integers(n, k, 2), powers(m, 3), powers(n, 4)
        out = self.run_poisoned(self.build(m, n, k), *tensors)
        self.assertTrue(torch.equal(out, product(*tensors).bfloat16()))

    @parametrize("sizes", [(4096, 256, 1024), (64, 5120, 5120), (4096, 4096, 512)])
    def test_a_thousand_launches_agree_bit_for_bit(
        self, sizes: tuple[int, int, int]
    ) -> None:
        """NVIDIA/cutlass#3643: a missing wait shows in a quarter of the launches."""
        m, n, k = sizes
        a, b = integers(m, k, 1, 8), integers(n, k, 2, 8)
        tensors = a, b, powers(m, 3), powers(n, 4)
        built = self.build(m, n, k)
        first = self.run_poisoned(built, *tensors)
        out = torch.empty_like(first)
        wrong = torch.zeros((), dtype=torch.int64, device=PLACE)
        launch = gemm.bind(built, a, b.t(), *tensors[2:], out=[out])
        for _ in range(1000):
            out.fill_(math.nan)
            launch()
            wrong += (out != first).sum()
        self.assertEqual(int(wrong), 0)
        self.assertFalse(bool(first.isnan().any()))

    @parametrize(
        "sizes",
        [
            (2**31 // 4096 + 1000, 16, 4096),
            (64, 2**31 // 4096 + 1008, 4096),
            (2**31 // 16400 + 1000, 16400, 32),
        ],
    )
    def test_past_32_bit_indices(self, sizes: tuple[int, int, int]) -> None:
        """pytorch/torchtitan#1932, NVIDIA/cutlass#2312: A, B or the output has more
        than 2^31 elements. Inductor is refused such sizes where they are static; a
        dynamic M can reach them."""
        m, n, k = sizes
        a, b = integers(m, k, 1, 1), integers(n, k, 2, 1)
        sa, sb = powers(m, 3), powers(n, 4)
        out = self.run_poisoned(self.build(64, n, k), a, b, sa, sb)
        step = 8192
        for i in range(0, m, step):
            for j in range(0, n, step):
                rows, columns = slice(i, i + step), slice(j, j + step)
                want = product(a[rows], b[columns], sa[rows], sb[columns]).bfloat16()
                where = f"rows from {i}, columns from {j}"
                self.assertTrue(torch.equal(out[rows, columns], want), where)


instantiate_parametrized_tests(TestSituations)

if __name__ == "__main__":
    run_tests()
