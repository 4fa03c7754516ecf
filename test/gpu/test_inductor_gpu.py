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

import json
import os
import subprocess
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

LIMIT_S = {"decide": 560, "compete": 560}
"""Seconds for a whole group; 180 for the others."""

_scratch = tempfile.TemporaryDirectory()
_results: dict[str, dict[str, dict[str, Any]]] = {}
_ended: dict[str, str] = {}


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


def run_group(group: str) -> dict[str, dict[str, Any]]:
    """Run a group once; its rows by case name."""
    if group in _results:
        return _results[group]
    command = [sys.executable, inductor_cases.__file__, group]
    limit = LIMIT_S.get(group, 180)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, stdout=out, stderr=err, env=_environ(group), text=True
        )
        try:
            code: int | str = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = f"killed after {limit} s"
        out.seek(0)
        err.seek(0)
        lines = [x for x in out.read().splitlines() if x.startswith('{"case"')]
        tail = err.read()[-3000:]
    rows = {row["case"]: row for row in map(json.loads, lines)}
    _results[group] = rows
    _ended[group] = f"child ended with {code}\n{tail}"
    for row in rows.values():
        state = "ok" if row["ok"] else "FAILED"
        print(f"{group}/{row['case']}: {state} in {row['seconds']} s", end=" ")
        print(row["detail"].splitlines()[-1] if row["detail"] else "")
    return rows


def _supported_gpu() -> bool:
    return device.default_arch() is not None


@unittest.skipUnless(_supported_gpu(), "needs a GPU that has kernels (sm_90a, sm_100a)")
class TestInductorGpu(TestCase):
    def run_case(self, group: str, name: str) -> None:
        if group in ("cache_second", "cache_without_plugin"):
            run_group("cache_first")
        row = run_group(group).get(name)
        if row is None:
            self.fail(f"{group}/{name} gave no result: {_ended[group]}")
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
