"""Groups of cases in child processes with a time limit each: what a kernel that hangs
or crashes costs is its group.

In: a script that prints ``{"case": ..., "ok": ..., "seconds": ..., "detail": ...}``
lines for ``SCRIPT GROUP``. Out: its rows by case name, run once a group.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch_cute_backend.bench import results

Row = dict[str, Any]


class CaseGroups:
    """Runs groups of one script and remembers their rows.

    Args:
        environ: environment of a group's process.
        limits: seconds for a group, where they differ from ``limit_s``.
    """

    def __init__(
        self,
        script: str,
        environ: Callable[[str], dict[str, str]],
        limits: Mapping[str, int],
        limit_s: int = 180,
    ) -> None:
        self._script = script
        self._environ = environ
        self._limits = limits
        self._limit_s = limit_s
        self._rows: dict[str, dict[str, Row]] = {}
        self.ended: dict[str, str] = {}

    def run(self, group: str) -> dict[str, Row]:
        """Rows of a group by case name; ``ended`` says how its process ended."""
        if group in self._rows:
            return self._rows[group]
        limit = self._limits.get(group, self._limit_s)
        command = [sys.executable, self._script, group]
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(
                command, stdout=out, stderr=err, env=self._environ(group), text=True
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
        self._rows[group] = rows
        self.ended[group] = f"child ended with {code}\n{tail}"
        for row in rows.values():
            state = "ok" if row["ok"] else "FAILED"
            print(f"{group}/{row['case']}: {state} in {row['seconds']} s", end=" ")
            print(row["detail"].splitlines()[-1] if row["detail"] else "")
        return rows


def record(test: str, ok: bool, seconds: float) -> None:
    """A result row as ``conftest`` writes them, where a file for them is named."""
    path = os.environ.get("TORCH_CUTE_BACKEND_GPU_RESULTS")
    if not path:
        return
    row = {
        "suite": "gpu-tests",
        "test": test,
        "outcome": "passed" if ok else "failed",
        "seconds": seconds,
        **vars(results.environment()),
    }
    results.append(Path(path), [row])
