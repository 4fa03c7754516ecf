"""A stand-in for the benchmark child process that needs no GPU.

It speaks the protocol of ``torch_cute_backend.bench.child`` with made-up times, and
crashes, hangs or fails on the entries that ``BENCH_CHILD_FAULTS`` names: a JSON object
from a part of an entry's name to ``"crash"``, ``"hang"`` or ``"wrong"``. Every request
is appended to the file ``BENCH_CHILD_LOG``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

ENVIRONMENT = {
    "gpu": "No GPU",
    "driver": "none",
    "torch": "none",
    "dsl": "none",
    "commit": "test",
    "date": "2000-01-01",
}


def made_up_us(name: str) -> float:
    """A time that depends on the name only: smaller tiles are faster here."""
    parts = name.split("|")
    if len(parts) < 3:
        return 30.0
    schedule = json.loads(parts[2])
    return 10.0 + schedule["tile_n"] / 64 + schedule["tile_m"] / 1024


def handle(request: dict) -> dict:
    op, name = request["op"], request.get("name", "")
    faults = json.loads(os.environ.get("BENCH_CHILD_FAULTS", "{}"))
    if op == "sweep":
        name = json.dumps(request["schedule"], sort_keys=True)
    for part, fault in faults.items():
        if part not in name:
            continue
        if fault == "crash":
            os.abort()
        if fault == "hang":
            time.sleep(3600)
        return {"error": f"{part} has wrong numbers"}
    if op == "environment":
        return {"environment": ENVIRONMENT, "arch": "sm_90a"}
    if op == "add":
        return {"kernel": f"kernel_of_{name[:8]}", "extra": {}, "seconds": 0.0}
    if op == "time":
        us = {n: made_up_us(n) for n in request["names"]}
        return {"us": {n: [t, t * 0.9, t * 1.1] for n, t in us.items()}}
    if op == "sweep":
        return {"kernel": "k", "right": len(request["shapes"]), "wrong": []}
    return {}


def main() -> None:
    log = os.environ.get("BENCH_CHILD_LOG")
    for line in sys.stdin:
        if log:
            with Path(log).open("a") as file:
                file.write(line)
        print(json.dumps(handle(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
