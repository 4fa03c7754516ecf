"""Situations that went wrong in this field, in the simulator: one kernel at many sizes.

A kernel is compiled once and takes its sizes at run time, so each of these is a launch
of a fraction of a second. Public reports are named by repository and number.
"""

from __future__ import annotations

import _paths  # noqa: F401
import torch
from kernel_cases import CASES, Case
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.sim import gemm_case
from torch_cute_backend.sim.child import SimChild

CHOSEN = [
    subtest(case, name=str(case)) for case in CASES if case.name == "tensorwise_bias"
]
"""One FP8 kernel of each arch."""
N = 16


def widened(tensor: torch.Tensor, fill: float) -> torch.Tensor:
    """The same values in rows twice as wide, the rest of which is ``fill``."""
    rows, cols = tensor.shape
    wide = torch.full((rows, 2 * cols), fill).to(tensor.dtype)
    wide[:, :cols] = tensor
    return wide[:, :cols]


class SituationsTest(TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.child = SimChild()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.child.close()
        super().tearDownClass()

    def check(self, case: Case, operands: gemm_case.Operands, what: str = "") -> None:
        s = case.build().schedule
        report = self.child.simulate(
            case.build().source, operands.tensors, num_ctas=s.cluster_size
        )
        self.assertEqual(report.findings, (), what)
        self.assertTrue(report.tiles_written_once, what)
        self.assertTrue(operands.exact(), what)

    @parametrize("case", CHOSEN)
    def test_every_m(self, case: Case) -> None:
        """Zeros at some M only (flashinfer-ai/flashinfer#3398)."""
        tile = case.schedule.tile_m
        for m in (1, 2, 7, 8, 9, 15, 16, 17, tile - 1, tile, tile + 1):
            self.check(case, gemm_case.make(case.build(), m, N, 16), f"M={m}")

    @parametrize("case", CHOSEN)
    def test_every_k_up_to_two_tiles(self, case: Case) -> None:
        """Wrong for small K only (CuTe DSL 4.4's change log)."""
        for k in range(16, 2 * case.schedule.tile_k + 17, 16):
            self.check(case, gemm_case.make(case.build(), 3, N, k), f"K={k}")

    @parametrize("case", CHOSEN)
    def test_windows_of_wider_buffers(self, case: Case) -> None:
        """A pitch taken from the shape (vllm-project/vllm#55534). A write between the
        rows of the output is a finding."""
        build = case.build()
        operands = gemm_case.make(build, 70, 80, 144)
        wide = {}
        for i, arg in enumerate(build.source.args):
            if len(arg.shape) == 2:
                fill = 0.0 if arg.output else float("nan")
                operands.tensors[i] = wide[arg.name] = widened(
                    operands.tensors[i], fill
                )
        operands.outputs.update((x, wide[x]) for x in operands.outputs)
        self.check(case, operands)


instantiate_parametrized_tests(SituationsTest)

if __name__ == "__main__":
    run_tests()
