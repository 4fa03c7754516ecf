"""Every grouped kernel in the simulator: clean, exact, and each element of a group
written once, others never.

Operands hold NaN where no group is, so what a load reads beyond a group must not show.
Reads and writes outside a tensor are findings, as are races. What is simulated passes
the build gate (no spills).
"""

from __future__ import annotations

from dataclasses import replace

import _paths  # noqa: F401
import torch
from build_helper import build
from grouped_kernel_cases import (
    BAD,
    BATCH,
    ENDS,
    GROUPED,
    MN,
    RANK3,
    S64,
    T128,
    TRANK3,
    GroupedCase,
    K,
    M,
    N,
    small,
)
from grouped_sim import GroupedSimTest
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.arch import SM90, SM100
from torch_cute_backend.sim import grouped_case
from torch_cute_backend.sim.faults import Fault

MODES = ("lazy", "random:1", "random:2")
FORMS = ("auto", "keep", "inline")
TAIL_FAULTS = {
    "fence": Fault("no fence behind the zeros", r"^\tfence\.proxy\.async[^;]*;"),
    "zeros": Fault(
        "A's tail is not zeroed", r"^\tst\.shared\.v4[^;]*;", after=r"^\tmax\.s32"
    ),
}
UNALIGNED = (
    "grouped_m_mn",
    "grouped_n",
    "grouped_n_mn",
    "grouped_n_direct",
    "grouped_n_fp8",
    "grouped_k",
    "grouped_k_fp8",
    "grouped_k_direct",
)
SCHEDULES = {"sm_90a": (SM90, S64, RANK3), "sm_100a": (SM100, T128, TRANK3)}


class GroupedTest(GroupedSimTest):
    @parametrize("case", [subtest(c, name=str(c)) for c in GROUPED])
    def test_case(self, case: GroupedCase):
        self.check(case.problem, case.schedule, case.ends, modes=MODES, arch=case.arch)

    @parametrize("num_ctas", [1, 5, 64])
    @parametrize("arch", list(SCHEDULES))
    @parametrize("grouping", [M, N, K, BATCH], name_fn=lambda g: g.name)
    def test_forms_agree(self, grouping, arch, num_ctas):
        """More CTAs than tiles, about as many, and one."""
        spec, base, _ = SCHEDULES[arch]
        problem = small(grouping)
        ends = () if grouping is BATCH else (7, 7, 64, 100, 193, 257)
        found = [
            self.check(
                problem, replace(base, shared_loop=form), ends, num_ctas, arch=spec
            )
            for form in FORMS
        ]
        self.assertEqual(found[1], found[0])
        self.assertEqual(found[2], found[0])

    @parametrize("rank3", [False, True])
    @parametrize("arch", list(SCHEDULES))
    @parametrize(
        "ends",
        [
            subtest((0, 0, 0), name="all_empty"),
            subtest((300,), name="one_group"),
            subtest((1,), name="one_row"),
            subtest((0, 0, 0, 300), name="last_only"),
            subtest((300, 300), name="first_only"),
            subtest((64, 128, 192), name="whole_tiles"),
            subtest((63, 127, 191), name="a_row_less"),
            subtest((65, 130, 195), name="a_row_more"),
            subtest(BAD, name="bad"),
            subtest((-1, -5, -(2**31)), name="negative"),
            subtest((2**31 - 1, 0, 5), name="beyond"),
            subtest(tuple(range(0, 300, 4)), name="75_groups"),
            subtest((*range(0, 160, 5), 100, 10, 200, -5, 250), name="37_bad"),
        ],
    )
    def test_ends_of_m(self, rank3, arch, ends):
        spec, *schedules = SCHEDULES[arch]
        self.check(small(M), schedules[rank3], ends, arch=spec)

    @parametrize(
        "ends",
        [
            subtest((0, 0), name="all_empty"),
            subtest((0, 8, 16, 16, 32), name="empty_between"),
            subtest((1, 2, 3), name="one_each"),
            subtest((64, 128, 304), name="whole_tiles"),
            subtest(BAD, name="bad"),
        ],
    )
    @parametrize("arch", list(SCHEDULES))
    @parametrize("grouping", [N, K], name_fn=lambda g: g.name)
    def test_other_ends(self, grouping, arch, ends):
        spec, schedule, _ = SCHEDULES[arch]
        self.check(small(grouping), schedule, ends, arch=spec)

    @parametrize("name", UNALIGNED)
    @parametrize(
        "ends",
        [
            subtest((1, 2, 3, 9, 9, 20, 90, 161, 290), name="odd"),
            subtest((15, 17, 80, 145, 209, 304), name="a_tile_from_15"),
            subtest(tuple(range(3, 300, 7)), name="43_groups"),
            subtest((5, 5, 2, 70, 60, 299), name="bad"),
        ],
    )
    @parametrize("arch", list(SCHEDULES))
    def test_starts_within_16_bytes(self, arch, ends, name):
        """Groups of a contiguous dimension that start at any element of it."""
        (case,) = (c for c in GROUPED if (c.arch.name, c.name) == (arch, name))
        self.check(case.problem, case.schedule, ends, arch=case.arch)

    @parametrize("arch", list(SCHEDULES))
    def test_mixed_majors_of_ragged_k(self, arch):
        """Columns before the start are zeroed in the M-major operand too."""
        spec, schedule, _ = SCHEDULES[arch]
        for majors in ({"a_major": MN}, {"b_major": MN}):
            problem = small(K, m=136, **majors)
            self.check(problem, schedule, (3, 3, 5, 70, 133, 290), arch=spec)

    @parametrize("arch", list(SCHEDULES))
    def test_rank3_of_contiguous_m(self, arch):
        spec, _, schedule = SCHEDULES[arch]
        problem = small(M, m=304, a_major=MN)
        self.check(problem, schedule, (1, 2, 9, 9, 20, 85, 150, 300), arch=spec)

    @parametrize("arch", list(SCHEDULES))
    def test_empty_k_is_exactly_zero(self, arch):
        spec, schedule, _ = SCHEDULES[arch]
        problem = small(K, m=16, n=16, k=32)
        (out,) = self.check(problem, schedule, (0, 8, 16, 16, 32), arch=spec)
        values = out.view(torch.bfloat16).reshape(5, 16, 16)
        self.assertEqual(int(values[[0, 3]].view(torch.int16).abs().max()), 0)

    @parametrize("arch", list(SCHEDULES))
    @parametrize("fault", list(TAIL_FAULTS))
    def test_zeroed_tails_need(self, arch, fault):
        """The checks see what a zeroed tail stands on. (They follow warps, not lanes:
        that the lanes of sm_100a's one MMA warp meet is beyond them.)"""
        spec, schedule, _ = SCHEDULES[arch]
        problem = small(K)
        kernel = build(problem, schedule, spec)
        operands = grouped_case.make(kernel, problem, ENDS)
        operands.poison()
        report = self.child.simulate(
            kernel.source, operands.tensors, num_ctas=3, faults=[TAIL_FAULTS[fault]]
        )
        kinds = {f.kind for f in report.findings}
        if not operands.exact():
            kinds.add("wrong result")
        self.assertIn({"fence": "proxy", "zeros": "wrong result"}[fault], kinds)


instantiate_parametrized_tests(GroupedTest)

if __name__ == "__main__":
    run_tests()
