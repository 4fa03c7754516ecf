"""Outcomes of GPU tests as result rows: where ``TORCH_CUTE_BACKEND_GPU_RESULTS`` names
a file, one JSON line for each test is added, with GPU, driver, versions, commit, date.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

import pytest

from torch_cute_backend.bench import results


@cache
def where() -> dict[str, str]:
    return vars(results.environment())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path = os.environ.get("TORCH_CUTE_BACKEND_GPU_RESULTS")
    # A test that fails before or after its call counts; one that passes does so once.
    if not path or (report.when != "call" and report.passed):
        return
    row = {
        "suite": "gpu-tests",
        "test": report.nodeid,
        "outcome": report.outcome,
        "seconds": round(report.duration, 1),
        **where(),
    }
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
