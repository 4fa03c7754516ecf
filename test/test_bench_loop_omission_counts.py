"""``benchmarks/loop_omission_counts.py``: what is committed is what it counts now."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import loop_omission_counts as script

from torch_cute_backend.arch import ARCHS
from torch_cute_backend.sim.child import SimChild

RESULTS = Path(script.__file__).parent / "results"
ROWS = [
    script.Count(**json.loads(line))
    for line in (RESULTS / "loop_omission.jsonl").read_text().splitlines()
]


class TestCounts(TestCase):
    def test_all_tile_counts_and_forms_are_there(self):
        found = {(c.kernel, c.arch, c.tiles_per_cta, c.form) for c in ROWS}
        wanted = {
            (kernel, arch, tiles, form)
            for kernel, counts in script.TILES.items()
            for arch in ARCHS
            for tiles in counts
            for form in script.NAMES.values()
        }
        self.assertEqual(found, wanted)
        self.assertEqual((RESULTS / "loop_omission.md").read_text(), script.table(ROWS))

    @parametrize("arch", list(ARCHS))
    def test_a_run_now_gives_the_committed_counts(self, arch):
        few = {"dense": (1,), "grouped": (0, 1)}
        rows = [c for c in ROWS if c.tiles_per_cta in few[c.kernel] and c.arch == arch]
        before, script.TILES = script.TILES, few
        try:
            with SimChild() as child:
                found = list(script.measure(child, ARCHS[arch]))
        finally:
            script.TILES = before
        self.assertEqual(found, rows)

    def test_omission_never_adds_a_barrier(self):
        barriers = {
            (c.kernel, c.arch, c.tiles_per_cta, c.role, c.form): c.barriers
            for c in ROWS
        }
        for (*key, form), count in barriers.items():
            if form == "omitted":
                self.assertLess(count, barriers[(*key, "kept")])
                self.assertLess(count, barriers[(*key, "inline")])


instantiate_parametrized_tests(TestCounts)

if __name__ == "__main__":
    run_tests()
