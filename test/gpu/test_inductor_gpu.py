"""``torch.compile`` with our kernels on a real GPU (an H200, torch 2.11 to 2.14).

Groups of cases (``inductor_cases``) run in child processes with a time limit each, so
that a kernel that hangs fails its group and not the machine:

* ``decide``: our kernel is taken without benchmark (path A), for every shape;
* ``pretuned``: the same, only where the table has the shape;
* ``compete``: only choices of ours, timed and tried fused by Inductor (path B);
* ``open``: all choices compete;
* ``cache_*``: three processes share one compile cache.
"""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.runtime import device

sys.path.insert(0, str(Path(__file__).parent))
import inductor_cases
from case_groups import CaseGroups

LIMIT_S = {"decide": 560, "compete": 560}
"""Seconds for a whole group; 180 for the others."""

_scratch = tempfile.TemporaryDirectory()


def _environ(group: str) -> dict[str, str]:
    root = Path(__file__).parents[2]
    environ = dict(os.environ)
    environ["PYTHONPATH"] = os.pathsep.join([str(root), environ.get("PYTHONPATH", "")])
    shared = "cache" if group.startswith("cache_") else group
    environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(_scratch.name) / shared)
    environ["CUTE_TEST_UUID"] = str(Path(_scratch.name) / "uuid.json")
    environ["TORCH_CUTE_BACKEND_COUNT_LAUNCHES"] = "1"
    workers = str(min(8, os.cpu_count() or 2))
    environ.setdefault("TORCH_CUTE_BACKEND_COMPILE_WORKERS", workers)
    if group == "compete" or group.startswith("cache_"):
        environ["TORCHINDUCTOR_AUTOTUNE_CHOICE_NAME_REGEX"] = "^torch_cute"
    if group == "pretuned":
        environ["TORCH_CUTE_BACKEND_DECIDE_EARLY"] = "1"
    return environ


_groups = CaseGroups(inductor_cases.__file__, _environ, LIMIT_S)


def _supported_gpu() -> bool:
    return device.default_arch() is not None


@unittest.skipUnless(_supported_gpu(), "needs a GPU that has kernels (sm_90a, sm_100a)")
class TestInductorGpu(TestCase):
    def run_case(self, group: str, name: str) -> None:
        if group in ("cache_second", "cache_without_plugin"):
            _groups.run("cache_first")
        row = _groups.run(group).get(name)
        if row is None:
            self.fail(f"{group}/{name} gave no result: {_groups.ended[group]}")
        self.assertTrue(row["ok"], row["detail"])


def _add_tests() -> None:
    for group, cases in inductor_cases.CASES.items():
        for name in cases:

            def test(self: Any, group: str = group, name: str = name) -> None:
                self.run_case(group, name)

            setattr(TestInductorGpu, f"test_{group}_{name}", test)


_add_tests()

if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("no GPU: every test will be skipped")
    run_tests()
