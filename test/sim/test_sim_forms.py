"""Inline, kept and omitted loops of dense kernels are exact and give the same bits: for
one tile, fewer than a cluster's, as many as CTAs, one more, many, and with fewer CTAs
than that. ``test_sim_grouped`` does so for grouped kernels, with no tile as well.

Sums are of small integers: the simulator adds up what a run of MMAs gives in an order
that depends on its schedule, so that sums which round would differ by that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import _paths  # noqa: F401
import torch
from build_helper import build, fp8, mm, two_roots
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.arch import SM90, SM100, ArchSpec
from torch_cute_backend.build import KernelBuild
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.sim import gemm_case
from torch_cute_backend.sim.child import SimChild

CTAS = 4
RUNS = ((1, CTAS), (CTAS, CTAS), (CTAS + 1, CTAS), (11, CTAS), (11, 2))
"""(tiles, CTAs)"""
TWO = mm(epilogue=two_roots())
S90 = GemmSchedule(64, 32, 64, 3, epi_n=32)
S100 = replace(S90, tile_m=128, acc_stages=2)


@dataclass(frozen=True)
class Family:
    name: str
    arch: ArchSpec
    problem: GemmProblem
    schedule: GemmSchedule
    decisions: tuple[str, ...] = ("omitted", "kept", "kept")

    def __str__(self) -> str:
        return f"{self.arch.name}_{self.name}"

    def forms(self) -> list[KernelBuild]:
        return [
            build(self.problem, replace(self.schedule, shared_loop=form), self.arch)
            for form in ("auto", "keep", "inline")
        ]


FAMILIES = (
    Family("fp8_cluster", SM90, fp8(), replace(S90, tile_k=128, cluster_n=2)),
    Family("two_roots", SM90, TWO, S90, ("kept",) * 3),
    Family(
        "fp8_pair", SM100, fp8(), replace(S100, tile_k=128, cluster_m=2, cta_group=2)
    ),
)


class TestForms(TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.child = SimChild()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.child.close()
        super().tearDownClass()

    def bits(
        self, kernel: KernelBuild, tiles: int, num_ctas: int
    ) -> list[torch.Tensor]:
        """Outputs of one row of tiles, the last one not whole."""
        s = kernel.schedule
        sizes = (s.tile_m * s.cluster_m - 3, s.tile_n * tiles - 8, s.tile_k + 16)
        operands = gemm_case.make(kernel, *sizes)
        operands.poison()
        report = self.child.simulate(
            kernel.source, operands.tensors, num_ctas=num_ctas, mode="random:5"
        )
        self.assertEqual(report.findings, ())
        self.assertTrue(report.tiles_written_once)
        self.assertTrue(operands.exact())
        outputs = operands.outputs.values()
        return [o.contiguous().view(torch.uint8) for o in outputs]

    @parametrize("family", [subtest(f, name=str(f)) for f in FAMILIES])
    def test_same_bits(self, family):
        forms = family.forms()
        decisions = tuple(kernel.omission.decision for kernel in forms)
        self.assertEqual(decisions, family.decisions)
        for tiles, num_ctas in RUNS:
            first, *others = [self.bits(k, tiles, num_ctas) for k in forms]
            for other in others:
                self.assertEqual(other, first)


instantiate_parametrized_tests(TestForms)

if __name__ == "__main__":
    run_tests()
