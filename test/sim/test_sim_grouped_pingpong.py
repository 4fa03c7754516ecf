"""Grouped kernels whose two warpgroups take turns: with groups that leave work indices
without a tile, few and many CTAs, and with what their turns stand on taken out.
``test_sim_grouped`` runs the cases of ``grouped_kernel_cases`` in all modes.
"""

from __future__ import annotations

from dataclasses import replace

import _paths  # noqa: F401
import ir_examples as ex
from build_helper import build
from grouped_kernel_cases import BAD, ENDS, KEPT, PING, S64, M, small
from grouped_sim import GroupedSimTest
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.arch import SM90
from torch_cute_backend.codegen.module import print_module
from torch_cute_backend.ir.dataflow import SkipStages
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.sync import TakeTurn
from torch_cute_backend.sim import grouped_case


class TestPingpong(GroupedSimTest):
    @parametrize(
        "ends,num_ctas",
        [
            subtest(((0, 0, 0), 2), name="all_empty"),
            subtest(((1,), 1), name="one_row"),
            subtest(((0, 0, 0, 300), 64), name="last_only"),
            subtest((BAD, 1), name="bad"),
            subtest((tuple(range(0, 300, 4)), 5), name="75_groups"),
        ],
    )
    def test_ends(self, ends, num_ctas):
        self.check(small(M), PING, ends, num_ctas)

    def test_agrees_with_one_tile_at_a_time(self):
        """To the bit, with its shared loop and without."""
        ends = (7, 7, 64, 100, 193, 257)
        found = [
            self.check(small(M), s, ends, 2) for s in (S64, PING, replace(PING, **KEPT))
        ]
        self.assertEqual(found[1], found[0])
        self.assertEqual(found[2], found[0])

    @parametrize(
        "taken_out,seen",
        [
            subtest((TakeTurn, "race"), name="turns"),
            subtest((SkipStages, "deadlock"), name="skipped_stages"),
        ],
    )
    def test_needs(self, taken_out: type[Stmt], seen: str):
        kernel = build(small(M), PING, SM90)
        operands = grouped_case.make(kernel, kernel.problem, ENDS)
        operands.poison()
        broken = ex.without(kernel.after, taken_out)
        source = print_module(broken, kernel.problem, PING, SM90, ["A test."])
        report = self.child.simulate(source, operands.tensors, num_ctas=3)
        self.assertIn(seen, {f.kind for f in report.findings})
        self.assertFalse(operands.exact())


instantiate_parametrized_tests(TestPingpong)

if __name__ == "__main__":
    run_tests()
