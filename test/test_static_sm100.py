"""Instructions, barriers and registers of sm_100a kernels, without a GPU.

No more than NVIDIA's example has at the same schedule, and no more than they had. The
example's figures are committed (``benchmarks/results/static_sm100.jsonl``); ours are
counted anew.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import static_sm100 as static

RESULTS = Path(static.__file__).parent / "results" / "static_sm100.jsonl"
FORM = "omitted"


def committed(provider: str) -> dict[str, dict]:
    """Rows of kernels without their shared loop, by kernel."""
    rows = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    return {
        r["kernel"]: r for r in rows if (r["provider"], r["form"]) == (provider, FORM)
    }


class TestStatic(TestCase):
    @parametrize("case", static.CASES, name_fn=lambda case: case.name)
    def test_no_more_than_the_example_and_than_before(self, case):
        with tempfile.TemporaryDirectory() as folder:
            row = static.ours(case, FORM, Path(folder))
        example = committed(static.REFERENCE)[case.name]
        self.assertEqual(static.worse(row, example, static.COMPARED), [])
        room = example["smem_bytes"] + static.BARRIER_BLOCK
        self.assertLessEqual(row["smem_bytes"], room)
        self.assertEqual(row["spill_bytes"], 0)
        before = committed(static.OURS)[case.name]
        if row["dsl"] == before["dsl"]:
            self.assertEqual(static.worse(row, before, static.OWN), [])

    def test_one_more_is_worse(self):
        for before in committed(static.OURS).values():
            for name in static.OWN:
                grown = {**before, name: before[name] + 1}
                self.assertEqual(len(static.worse(grown, before, static.OWN)), 1)

    def test_both_are_committed_for_every_case(self):
        names = {case.name for case in static.CASES}
        self.assertEqual(set(committed(static.OURS)), names)
        self.assertEqual(set(committed(static.REFERENCE)), names)


instantiate_parametrized_tests(TestStatic)

if __name__ == "__main__":
    run_tests()
