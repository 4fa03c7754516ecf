"""The GPU cases of grouped kernels with a stand-in for the kernels: the cases are
right, and a wrong kernel fails them. The kernels themselves run on a GPU only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

GPU = Path(__file__).parent / "gpu"
GROUPS = (
    *("situations", "wgrad", "bad_offsets", "frames", "random", "aten", "forms"),
    *("graphs", "soak_dense_kept", "soak_rank3_rhs_kept", "soak_grouped_static_inline"),
)
PROGRAM = """
import sys
import grouped_cases, grouped_lib
group, spoil = sys.argv[1:3]
real = grouped_lib.stand_in
def wrong(built, x):
    real(built, x)
    covered = (~x.out.isnan()).nonzero()
    if len(covered):
        x.out[tuple(covered[len(covered) // 2])] += 256
    elif spoil == "more":
        x.out.zero_()
if spoil != "no":
    grouped_lib.stand_in = wrong
    grouped_cases.grouped_loop_cases.stand_in = wrong
sys.exit(grouped_cases.main(group, sys.argv[3:]))
"""


def rows(group: str, spoil: str = "no", *names: str) -> list[dict]:
    environ = {**os.environ, "CUTE_TEST_STAND_IN": "1"}
    environ["PYTHONPATH"] = os.pathsep.join([str(GPU.parents[1]), str(GPU)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, group, spoil, *names],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
    if not found:
        raise AssertionError(done.stderr[-2000:])
    return found


class TestGroupedCases(TestCase):
    @parametrize("group", GROUPS)
    def test_pass_with_right_products(self, group):
        for row in rows(group):
            self.assertTrue(row["ok"], f"{row['case']}: {row['detail']}")

    @parametrize("kind", ("bf16_m_k_k", "fp8_m", "bf16_n_mn_mn", "fp8_batch_exact"))
    def test_every_schedule_of_a_kind(self, kind):
        (row,) = rows("exact", "no", f"exactly_{kind}")
        self.assertTrue(row["ok"], row["detail"])

    @parametrize(
        "group,case",
        [
            ("exact", "exactly_bf16_m_k_k"),
            ("wgrad", "wgrad_with_empty_groups"),
            ("situations", "rows_beyond_the_last_group"),
            ("frames", "poisoned_surroundings_fp8_m"),
            ("random", "within_a_bound_bf16_n_k_k"),
            ("forms", "tile_counts"),
            ("graphs", "offsets_rewritten_between_replays_bf16_m_k_k"),
            ("graphs", "a_kernel_twice_in_a_graph"),
        ],
    )
    def test_fail_with_one_wrong_element(self, group, case):
        (row,) = rows(group, "yes", case)
        self.assertFalse(row["ok"], case)
        self.assertRegex(row["detail"], r"elements, first at|right\(\) is not")


instantiate_parametrized_tests(TestGroupedCases)

if __name__ == "__main__":
    run_tests()
