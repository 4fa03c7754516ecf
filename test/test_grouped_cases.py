"""The GPU cases of grouped kernels with a stand-in for the kernels: the cases are
right, and a wrong kernel fails them. The kernels themselves run on a GPU only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

GPU = Path(__file__).parent / "gpu"
GROUPS = (
    *("situations", "wgrad", "bad_offsets", "frames", "guard_pages", "random", "aten"),
    *("forms", "graphs", "soak_dense_kept", "soak_rank3_rhs_kept"),
    "soak_grouped_static_inline",
)
KINDS = ("bf16_m_k_k", "fp8_m", "bf16_n_mn_mn", "bf16_k_mn_mn", "fp8_batch_exact")
RIGHT = [[group] for group in GROUPS] + [["exact", f"exactly_{k}"] for k in KINDS]
WRONG = [
    ["exact", "exactly_bf16_m_k_k"],
    ["wgrad", "wgrad_with_empty_groups"],
    ["situations", "rows_beyond_the_last_group"],
    ["frames", "poisoned_surroundings_fp8_m"],
    ["random", "within_a_bound_bf16_n_k_k"],
    ["forms", "tile_counts"],
    ["graphs", "offsets_rewritten_between_replays_bf16_m_k_k"],
    ["graphs", "a_kernel_twice_in_a_graph"],
]
PROGRAM = """
import json, sys
import grouped_cases, grouped_lib
real = grouped_lib.stand_in
def wrong(built, x):
    real(built, x)
    covered = (~x.out.isnan()).nonzero()
    if len(covered):
        x.out[tuple(covered[len(covered) // 2])] += 256
for spoil in (False, True):
    chosen = json.loads(sys.argv[1 + spoil])
    if spoil:
        grouped_lib.stand_in = grouped_cases.grouped_loop_cases.stand_in = wrong
    for group, *names in chosen:
        print(json.dumps({"group": group, "spoil": spoil}), flush=True)
        grouped_cases.main(group, names)
"""
LOST = """
import grouped_cases, grouped_lib
def wrong(built, x):
    x.out.zero_()
grouped_lib.stand_in = wrong
grouped_cases.context_is_lost = lambda: True
grouped_cases.main("wgrad", [])
"""
ENVIRON = {
    **os.environ,
    "CUTE_TEST_STAND_IN": "1",
    "PYTHONPATH": os.pathsep.join([str(GPU.parents[1]), str(GPU)]),
}


@cache
def rows() -> dict[tuple[str, bool], dict[str, dict]]:
    """Rows of all cases, by group and whether the stand-in was wrong, then by name.

    One process runs them all: importing torch takes longer than most cases."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(RIGHT), json.dumps(WRONG)],
        env=ENVIRON,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    found: dict[tuple[str, bool], dict[str, dict]] = {}
    for line in map(json.loads, done.stdout.splitlines()):
        if "group" in line:
            some = found.setdefault((line["group"], line["spoil"]), {})
        else:
            some[line["case"]] = line
    if done.returncode:
        raise AssertionError(done.stderr[-2000:])
    return found


class TestGroupedCases(TestCase):
    @parametrize("group", [*GROUPS, "exact"])
    def test_pass_with_right_products(self, group):
        found = rows()[group, False]
        self.assertGreater(len(found), 0)
        for name, row in found.items():
            self.assertTrue(row["ok"], f"{name}: {row['detail']}")

    @parametrize("group,case", WRONG)
    def test_fail_with_one_wrong_element(self, group, case):
        row = rows()[group, True][case]
        self.assertFalse(row["ok"], case)
        self.assertRegex(row["detail"], r"elements, first at|right\(\) is not")

    def test_a_lost_context_costs_one_case(self):
        """The others run in a fresh process, and the group has failed."""
        done = subprocess.run(
            [sys.executable, "-c", LOST],
            env=ENVIRON,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        first, *others = map(json.loads, done.stdout.splitlines())
        self.assertEqual((first["ok"], done.returncode), (False, 1))
        self.assertGreater(len(others), 1)
        self.assertTrue(all(row["ok"] for row in others), others)


instantiate_parametrized_tests(TestGroupedCases)

if __name__ == "__main__":
    run_tests()
