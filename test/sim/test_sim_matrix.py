"""Every kernel of ``kernel_cases`` in the simulator: clean, exact, each element written
once; and what was simulated passes the build gate (no spills).

Small ragged sizes with few CTAs, so that each CTA runs several tiles and the pipelines
wrap; in ``lazy`` and two random schedules. One child process serves the whole file.
"""

from __future__ import annotations

import _paths  # noqa: F401
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

MODES = ("lazy", "random:1", "random:2")
CHOSEN = [
    case
    for case in CASES
    if case.name
    in ("tensorwise_bias", "bf16_mn", "cluster_2x1", "direct_store", "one_acc_stage")
]


def named(cases: list[Case] | tuple[Case, ...]) -> list[subtest]:
    return [subtest(case, name=str(case)) for case in cases]


def ragged(case: Case, k_tiles: int) -> tuple[int, int, int]:
    """Sizes that leave tails in m, n and k, within what the case's layouts allow."""
    s, p = case.schedule, case.problem
    m = max(s.tile_m * s.cluster_m * 2 - 27, s.tile_m + 5)
    n = max(s.tile_n * s.cluster_n * 2 - 8, 16)
    k = (s.tile_k * k_tiles + 48) // 16 * 16
    if p.a_major.value == "mn":
        m = -(-m // 16) * 16
    if p.b_major.value == "mn":
        n = -(-n // 16) * 16
    return m, n if p.out_aligned else n - 3, k


class MatrixTest(TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.child = SimChild()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.child.close()
        super().tearDownClass()

    def check(
        self, case: Case, sizes: tuple[int, int, int], num_ctas: int, modes=MODES
    ) -> None:
        build = case.build()
        operands = gemm_case.make(build, *sizes, num_ctas=num_ctas)
        for mode in modes:
            operands.poison()
            report = self.child.simulate(
                build.source, operands.tensors, num_ctas=num_ctas, mode=mode
            )
            self.assertEqual(report.findings, (), mode)
            self.assertEqual([str(n) for n in report.notes if n.kind == "build"], [])
            self.assertTrue(report.tiles_written_once, mode)
            if "erf" in str(case.problem.epilogue):
                self.assertLess(operands.worst(), 1e-6, mode)
            else:
                self.assertTrue(
                    operands.exact(), f"{mode}: worst {operands.worst():.1e}"
                )

    @parametrize("case", named(CASES))
    def test_case(self, case: Case):
        s = case.schedule
        self.check(case, ragged(case, s.ab_stages + 2), 2 * s.cluster_size)

    @parametrize("case", named(CHOSEN))
    @parametrize("tiles", ["short_k", "one_tile", "many_tiles"])
    def test_tiles_per_cta(self, case: Case, tiles: str):
        s = case.schedule
        if (
            tiles == "short_k"
        ):  # K fits into a part of the pipeline; some CTAs have no tile
            m, n, k = ragged(case, 0)
            self.check(
                case, (m, n, max(k, 16)), 16 * s.cluster_size, ("lazy", "random:3")
            )
        elif tiles == "one_tile":
            self.check(case, ragged(case, 2), 4 * s.cluster_size, ("lazy", "random:3"))
        else:
            m, n, k = ragged(case, 2)
            self.check(
                case, (m + 4 * s.tile_m, n, k), s.cluster_size, ("lazy", "random:3")
            )


instantiate_parametrized_tests(MatrixTest)

if __name__ == "__main__":
    run_tests()
