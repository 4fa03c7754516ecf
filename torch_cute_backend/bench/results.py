"""Result rows: one JSON object a line under ``benchmarks/results/``."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import logging
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_cute_backend.bench.protocol import Timing

log = logging.getLogger(__name__)

OURS = "torch_cute_backend"


@dataclass(frozen=True)
class Environment:
    """Where and with what the rows were measured."""

    gpu: str
    driver: str
    torch: str
    dsl: str
    commit: str
    date: str


def environment(device: int = 0) -> Environment:
    """Facts of this process. ``TORCH_CUTE_BACKEND_COMMIT`` names the commit where the
    code was copied without its repository."""
    return Environment(
        gpu=torch.cuda.get_device_name(device),
        driver=_driver(),
        torch=torch.__version__,
        dsl=_version("nvidia-cutlass-dsl"),
        commit=commit(),
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    )


def commit() -> str:
    """Of the code that measures, as :func:`environment` names it; needs no GPU."""
    return os.environ.get("TORCH_CUTE_BACKEND_COMMIT") or _git_commit()


def row(
    environment: Environment,
    suite: str,
    shape: dict[str, int],
    dtype: str,
    scaling: str,
    accum: str,
    provider: str,
    timing: Timing,
    protocol: str,
    **extra: Any,
) -> dict[str, Any]:
    """One result row with the fields every suite shares, and ``extra`` ones."""
    return {
        "suite": suite,
        "shape": shape,
        "dtype": dtype,
        "scaling": scaling,
        "accum": accum,
        "provider": provider,
        "us": round(timing.us, 3),
        "us_min": round(timing.us_min, 3),
        "us_max": round(timing.us_max, 3),
        "protocol": protocol,
        **vars(environment),
        **extra,
    }


def append(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Add rows to a file, which is made if need be; they are on disk on return."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.read_bytes() if path.exists() else b""
    with path.open("a", encoding="utf-8") as f:
        if data and not data.endswith(b"\n"):
            f.write("\n")
        for r in rows:
            f.write(json.dumps(r) + "\n")
        f.flush()
        os.fsync(f.fileno())


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a file; none if it does not exist. A line that is not a JSON
    object, as a crash while writing leaves it, is logged and left out.
    """
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line) if line.strip() else None
        except json.JSONDecodeError:
            value = line
        if isinstance(value, dict):
            rows.append(value)
        elif value is not None:
            log.warning("%s:%d is not a result row; left out", path, number)
    return rows


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _git_commit() -> str:
    here = Path(__file__).parent
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def _driver() -> str:
    if shutil.which("nvidia-smi") is None:
        return "unknown"
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split("\n")[0].strip() if done.returncode == 0 else "unknown"
