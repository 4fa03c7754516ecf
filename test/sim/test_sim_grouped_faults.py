"""What grouped kernels stand on, taken out one at a time, and seen by the numbers or by
the simulator: zeroed parts of K, ends held within the tensor, stores held within the
group. ``test_sim_grouped`` shows the same kernels clean, with the same operands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import ir_examples as ex
import torch
from build_helper import build
from grouped_kernel_cases import BAD, ENDS, S64, T128, K, M, N, small
from grouped_sim import GroupedSimTest
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.arch import SM90, SM100
from torch_cute_backend.codegen.module import print_module
from torch_cute_backend.ir.dataflow import TmaStore, ZeroTail
from torch_cute_backend.ir.expr import Const
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.structure import If
from torch_cute_backend.sim import grouped_case

Edit = Callable[[Stmt], Stmt | None]
SCHEDULES = {"sm_90a": (SM90, S64), "sm_100a": (SM100, T128)}
BEHIND = (2000, 2000, 2000)
"""Ends beyond all tensors."""


def no_zeros(stmt: Stmt) -> Stmt | None:
    branch = isinstance(stmt, If) and any(isinstance(s, ZeroTail) for s in stmt.body)
    return None if branch else stmt


def no_zeros_ahead(stmt: Stmt) -> Stmt:
    """K before the group stays, behind it is zeroed."""
    return replace(stmt, skip=None) if isinstance(stmt, ZeroTail) else stmt


def no_zeros_behind(stmt: Stmt) -> Stmt:
    """K behind the group stays, before it is zeroed."""
    whole = Const(1 << 16)
    return replace(stmt, left=whole) if isinstance(stmt, ZeroTail) else stmt


def always_whole(stmt: Stmt) -> Stmt:
    """The bulk store takes the tile whether it ends with its group or not."""
    return replace(stmt, spare=None) if isinstance(stmt, TmaStore) else stmt


EDITS = {
    # Groups without K behind a whole tile of others: only these go wrong.
    "groups_without_k": (K, (64, 64, 128, 128, 192), no_zeros, [1, 3]),
    "k_before_the_group": (K, (64, 67, 70, 133), no_zeros_ahead, [2, 3]),
    "k_behind_the_group": (K, (64, 67, 125, 304), no_zeros_behind, [1, 2]),
}
FREE = ("groups - 1)], extent)", "groups - 1)], 1 << 20)")
TEXTS = {
    "reads_of_ends": (
        *(small(M), S64, ENDS),
        *("cutlass.min(first + lane, groups - 1)", "first + lane"),
    ),
    "ends_of_m": (small(M), S64, BEHIND, *FREE),
    # A bulk store would stop at the last column by itself.
    "ends_of_n": (
        small(N, n=296, out_aligned=False),
        *(replace(S64, store="direct", epi_stages=1), BEHIND, *FREE),
    ),
    "ends_that_decrease": (
        *(small(M), S64, BAD),
        *("if cute.arch.vote_any_sync(end < begin)", "if end < end"),
    ),
}
"""What holds ends within a tensor, and what stands there instead."""


class TestFaults(GroupedSimTest):
    @parametrize("arch", list(SCHEDULES))
    @parametrize("name", [subtest(n, name=n) for n in EDITS])
    def test_zeros(self, name, arch):
        grouping, ends, edit, wrong = EDITS[name]
        spec, schedule = SCHEDULES[arch]
        problem = small(grouping)
        kernel = build(problem, schedule, spec)
        broken = ex.edited(kernel.after, edit)
        source = print_module(broken, problem, schedule, spec, ["A test."])
        operands = grouped_case.make(kernel, problem, ends)
        self.child.simulate(source, operands.tensors, num_ctas=3)
        out, reference = operands.outputs["d"], operands.references["d"]
        equal = [torch.equal(out[g], reference[g]) for g in range(len(ends))]
        self.assertEqual([g for g, same in enumerate(equal) if not same], wrong)

    @parametrize("arch", list(SCHEDULES))
    @parametrize("grouping", [M, N], name_fn=lambda g: g.name)
    def test_stores_within_the_group(self, grouping, arch):
        """A tile stored as a whole writes on into the next group."""
        spec, schedule = SCHEDULES[arch]
        problem = small(grouping)
        kernel = build(problem, schedule, spec)
        broken = ex.edited(kernel.after, always_whole)
        source = print_module(broken, problem, schedule, spec, ["A test."])
        operands = grouped_case.make(kernel, problem, ENDS)
        report = self.child.simulate(source, operands.tensors, num_ctas=3)
        self.assertIn("double_write", {f.kind for f in report.findings})

    @parametrize("name", [subtest(n, name=n) for n in TEXTS])
    def test_ends(self, name):
        problem, schedule, ends, held, free = TEXTS[name]
        kernel = build(problem, schedule, SM90)
        text = kernel.source.text.replace(held, free)
        self.assertNotEqual(text, kernel.source.text)
        operands = grouped_case.make(kernel, problem, ends)
        source = replace(kernel.source, text=text)
        report = self.child.simulate(source, operands.tensors, num_ctas=3)
        found = {f.kind for f in report.findings} - {"missing_write"}
        self.assertTrue(found or not operands.exact(), name)


instantiate_parametrized_tests(TestFaults)

if __name__ == "__main__":
    run_tests()
