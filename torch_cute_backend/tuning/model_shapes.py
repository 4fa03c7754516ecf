"""The GEMMs of a person's model, found by compiling it once.

``of_script`` runs a script in a child process, where the plugin notes every GEMM that
Inductor asks it about and offers nothing, so that only ATen's choices are timed. As a
module it is that child: ``python -m ... SCRIPT REPORT``.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch_cute_backend import config
from torch_cute_backend.bench.cases import kind_of, problem_of
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.tuning import lookup
from torch_cute_backend.tuning.search import Job

TIMEOUT_S = 1800.0


def of_script(
    script: Path, timeout_s: float = TIMEOUT_S
) -> tuple[list[Job], list[str]]:
    """Jobs for the GEMMs that ``script`` compiles, and a line for each that is of no
    kind that can be tuned.

    Raises:
        UserError: there is no such script, or it fails; the message ends with its
            last words.
    """
    if not script.is_file():
        raise UserError(f"{script} is not a file")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "problems.json"
        environ = dict(os.environ)
        environ["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
        environ[config.PREFIX + "ENABLED"] = "1"
        environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1"
        environ["TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS"] = "ATEN,TORCH_CUTE"
        # A cached graph would never ask.
        environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
        done = subprocess.run(
            [sys.executable, "-m", __name__, str(script), str(report)],
            env=environ,
            timeout=timeout_s,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or not report.exists():
            words = done.stderr.strip()[-500:]
            raise UserError(f"{script} failed ({done.returncode}): {words}")
        return jobs_of(json.loads(report.read_text(encoding="utf-8")))


def jobs_of(rows: Iterable[dict[str, Any]]) -> tuple[list[Job], list[str]]:
    """Child's report to jobs, each once, and what was left out."""
    jobs, skipped = [], []
    for row in rows:
        if row["kind"] is None:
            skipped.append(row["text"])
            continue
        m, n, k = row["shape"]
        jobs.append(Job.of(row["kind"], (m, n, k), row["accum"]))
    return list(dict.fromkeys(jobs)), list(dict.fromkeys(skipped))


def row_of(problem: GemmProblem) -> dict[str, Any]:
    """One problem, without its epilogue: scales, bias and consumers hardly move the
    best schedule."""
    kind = kind_of(problem)
    shape = (problem.m, problem.n, problem.k)
    if kind is not None and not problem_of(kind, shape, problem.accum).validate():
        kind = None
    return {
        "kind": kind,
        "shape": list(shape),
        "accum": problem.accum.value,
        "text": problem.describe(),
    }


def main() -> None:
    script, report = sys.argv[1:]
    seen: list[dict[str, Any]] = []

    def note(problem: GemmProblem, *_: object, **__: object) -> tuple[()]:
        seen.append(row_of(problem))
        return ()

    lookup.candidates = note
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")
    Path(report).write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main()
