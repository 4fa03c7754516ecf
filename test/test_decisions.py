"""What becomes of the shared loop of real kernels, with and without ``python -O``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from grouped_kernel_cases import ALL_CASES
from torch.testing._internal.common_utils import TestCase, run_tests

EXPECTED = {
    "headline": ("omitted", None),
    "kept": ("kept", None),
    "inline": ("kept", None),
    "single_tile": ("not_applicable", None),
    "two_roots": ("kept", "single_root"),
    "swiglu": ("omitted", None),
    "walk_end": ("kept", "post_loop_use"),
    "pair": ("omitted", None),
    "grouped_m": ("omitted", None),
    "grouped_m_rank3": ("kept", "residual_work"),
    "grouped_m_rank3_drop": ("omitted", None),
    "grouped_k": ("omitted", None),
}


def decisions() -> list[str]:
    """One line a kernel: its decision and a digest of its remarks."""
    lines = []
    for case in ALL_CASES:
        name = case.name.replace("scale_mm_cute_m64_k5120_n5120", "headline")
        if name in EXPECTED:
            omission = case.build().omission
            head = f"{case.arch.name} {name} {omission.decision} {omission.rule}"
            lines.extend([head, *map(str, omission.remarks)])
    return lines


class TestDecisions(TestCase):
    def process(self, *flags: str) -> list[str]:
        here = Path(__file__).parent
        path = os.pathsep.join([str(here.parent), str(here)])
        done = subprocess.run(
            [sys.executable, *flags, __file__, "--print"],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        return done.stdout.splitlines()

    def test_as_expected_and_the_same_under_python_O(self):
        plain, optimised = self.process(), self.process("-O")
        self.assertEqual(plain, optimised)
        heads = [line for line in plain if line.startswith("sm_")]
        for arch in ("sm_90a", "sm_100a"):
            for name, (decision, rule) in EXPECTED.items():
                if (arch, name) != ("sm_90a", "pair"):
                    self.assertIn(f"{arch} {name} {decision} {rule}", heads)

    def test_O_drops_asserts(self):
        # If it did not, the comparison above could not fail.
        code = "assert False"
        for flags, expected in (((), 1), (("-O",), 0)):
            done = subprocess.run(
                [sys.executable, *flags, "-c", code], capture_output=True, check=False
            )
            self.assertEqual(done.returncode, expected)


if __name__ == "__main__":
    if "--print" in sys.argv:
        print("\n".join(decisions()))
    else:
        run_tests()
