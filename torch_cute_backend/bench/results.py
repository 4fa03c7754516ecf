"""Result rows: one JSON object a line under ``benchmarks/results/``."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_cute_backend.bench.protocol import Timing

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
        commit=os.environ.get("TORCH_CUTE_BACKEND_COMMIT") or _git_commit(),
        date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    )


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
    with path.open("a") as f:
        for r in rows:
            f.write(json.dumps(r) + "\n")


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
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split("\n")[0].strip() if done.returncode == 0 else "unknown"
