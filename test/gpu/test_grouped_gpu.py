"""Grouped GEMM kernels, and every kernel whose shared loop stays, on a real GPU.

Groups of cases (``grouped_cases``) run in child processes with a time limit each, so
that a kernel that hangs fails its group and not the machine. Kernels that are in no
cache are compiled first; ``grouped_cases.py compile`` does that ahead of time.
"""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.runtime import device

sys.path.insert(0, str(Path(__file__).parent))
import grouped_cases
from case_groups import CaseGroups

LIMIT_S = {"exact": 420, "situations": 240, "forms": 300}
SOAK_LIMIT_S = 120


def _environ(group: str) -> dict[str, str]:
    root = Path(__file__).parents[2]
    environ = dict(os.environ)
    environ["PYTHONPATH"] = os.pathsep.join([str(root), environ.get("PYTHONPATH", "")])
    environ["TORCH_CUTE_BACKEND_COUNT_LAUNCHES"] = "1"
    workers = str(min(12, os.cpu_count() or 2))
    environ.setdefault("TORCH_CUTE_BACKEND_COMPILE_WORKERS", workers)
    return environ


_groups = CaseGroups(grouped_cases.__file__, _environ, LIMIT_S, SOAK_LIMIT_S)


@unittest.skipUnless(device.default_arch() is not None, "needs a supported GPU")
class TestGroupedGpu(TestCase):
    def run_case(self, group: str, name: str) -> None:
        row = _groups.run(group).get(name)
        if row is None:
            self.fail(f"{group}/{name} gave no result: {_groups.ended[group]}")
        self.assertTrue(row["ok"], row["detail"])


def _add_tests() -> None:
    for group, cases in grouped_cases.CASES.items():
        for name in cases:

            def test(self: Any, group: str = group, name: str = name) -> None:
                self.run_case(group, name)

            setattr(TestGroupedGpu, f"test_{group}_{name}", test)


_add_tests()

if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("no GPU: every test will be skipped")
    run_tests()
