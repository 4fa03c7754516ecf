"""A benchmark session on the stand-in child process, for tests without a GPU."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from torch_cute_backend.bench.session import Session

HERE = str(Path(__file__).parent)


@contextmanager
def stand_in(faults: dict[str, str] | None = None):
    """Children started here can be the stand-in; yields the path of its request log."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        environ = {
            "BENCH_CHILD_FAULTS": json.dumps(faults or {}),
            "BENCH_CHILD_LOG": str(log),
        }
        # Children find their modules through ``sys.path``.
        path = sys.path if HERE in sys.path else [HERE, *sys.path]
        with mock.patch.dict(os.environ, environ), mock.patch.object(sys, "path", path):
            yield log


@contextmanager
def fake_session(faults: dict[str, str] | None = None):
    """A session with the stand-in child, and the path of its request log."""
    with stand_in(faults) as log, Session("bench_child") as session:
        yield session, log


def requests(log: Path, op: str) -> list[dict]:
    sent = [json.loads(line) for line in log.read_text().splitlines()]
    return [request for request in sent if request["op"] == op]


def fault(tile_n: int) -> str:
    """Part of the names of entries with this tile."""
    return f'"tile_n": {tile_n}'
