"""The list of schedules to try: it can be read, and every schedule fits its shape."""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from pathlib import Path

from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.arch import SM90
from torch_cute_backend.errors import UserError

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "try_variants.py"


def load():
    spec = importlib.util.spec_from_file_location("try_variants", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class TestVariants(TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.module = load()

    def test_listed_schedules_fit(self):
        lists = sorted(self.module.LIST.parent.glob("*.jsonl"))
        lines = [line for path in lists for line in self.module.read_lines(path)]
        self.assertGreaterEqual(len(lines), 19 + 15 + 10 + 14)
        for line in lines:
            problem = line.case.problem(line.accum)
            for label, schedule in line.variants.items():
                status = schedule.validate(problem, SM90)
                self.assertTrue(status, f"{line.describe()} {label}: {status}")

    def test_variants_build_on_each_other(self):
        full = self.module._resolve(
            {
                "a": {"tile_m": 64, "tile_n": 64, "tile_k": 128, "ab_stages": 4},
                "b": {"from": "a", "ab_stages": 6},
                "c": {"from": "b", "tile_n": 32},
            }
        )
        self.assertEqual((full["c"].tile_n, full["c"].ab_stages), (32, 6))
        self.assertEqual(full["a"].ab_stages, 4)

    def test_a_bad_line_is_named(self):
        row = {"kind": "fp8", "shape": [1, 16, 16], "accum": "fast"}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "list.jsonl"
            path.write_text("\n" + json.dumps({**row, "variants": {"a": {}}}))
            with self.assertRaisesRegex(UserError, r"list\.jsonl:2: schedule"):
                self.module.read_lines(path)


if __name__ == "__main__":
    run_tests()
