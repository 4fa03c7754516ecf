"""Chrome / Perfetto trace of a simulated launch.

One process row per CTA; one thread row per warp (named by role) and per asynchronous
engine (TMA loads, tensor core, wgmma, bulk stores). Waiting is a span that names the
barrier; an asynchronous operation is a span from issue to completion, with its mbarrier
as pipeline stage. Time is *logical*: one unit per executed PTX block of any warp. It
shows order and overlap in one schedule, never duration.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ENGINE_ROWS = {"tma": 1000, "tensor core": 1001, "wgmma": 1002, "bulk store": 1003}


class Trace:
    """Collects events while the engine runs; ``write`` makes the JSON file."""

    def __init__(self, limit: int = 400_000) -> None:
        self.now = 0
        self.limit = limit
        self.dropped = 0
        self.events: list[dict[str, Any]] = []
        self.rows: dict[tuple[str, int], str] = {}
        self.started: dict[int, tuple[int, str]] = {}
        self.ctas: dict[str, int] = {}
        self.serial = 1

    def _pid(self, cta: str) -> int:
        return self.ctas.setdefault(cta, len(self.ctas) + 1)

    def span(
        self, cta: str, row: int, name: str, start: int, args: dict[str, Any]
    ) -> None:
        """A finished span on a row."""
        if len(self.events) >= self.limit:
            self.dropped += 1
            return
        self.events.append(
            {
                "name": name,
                "ph": "X",
                "pid": self._pid(cta),
                "tid": row,
                "ts": start,
                "dur": max(self.now - start, 1),
                "args": args,
            }
        )

    def wait_begins(self, warp: Any) -> None:
        """A warp blocks."""
        self.started[id(warp)] = (self.now, str(warp.waiting))

    def wait_ends(self, warp: Any, role: str) -> None:
        """A blocked warp goes on."""
        begun = self.started.pop(id(warp), None)
        if begun is not None:
            self.rows[(warp.cta.label, warp.index)] = role
            name = "wait " + begun[1].split(":")[0].strip()
            self.span(
                warp.cta.label,
                warp.index,
                name,
                begun[0],
                {"reason": begun[1], "PTX line": warp.wait_line},
            )

    def ran(self, warp: Any, role: str, start: int) -> None:
        """A warp executed from ``start`` to now."""
        if self.now > start:
            self.rows[(warp.cta.label, warp.index)] = role
            self.span(warp.cta.label, warp.index, role, start, {})

    def operation(
        self, engine: str, cta: str, name: str, issued: int, **args: Any
    ) -> None:
        """An asynchronous operation completed."""
        if len(self.events) >= self.limit:
            self.dropped += 1
            return
        row = ENGINE_ROWS[engine]
        self.rows[(cta, row)] = engine
        # Asynchronous events, because operations of one engine overlap.
        base = {
            "name": name,
            "cat": engine,
            "pid": self._pid(cta),
            "tid": row,
            "id": self.serial,
        }
        self.serial += 1
        self.events.append({**base, "ph": "b", "ts": issued, "args": args})
        self.events.append({**base, "ph": "e", "ts": max(self.now, issued + 1)})

    def write(self, path: str) -> None:
        """Write the trace file."""
        names = [
            {
                "name": "thread_name",
                "ph": "M",
                "pid": self._pid(cta),
                "tid": row,
                "args": {"name": name},
            }
            for (cta, row), name in sorted(self.rows.items())
        ]
        names += [
            {
                "name": "process_name",
                "ph": "M",
                "pid": pid,
                "args": {"name": f"CTA {cta}"},
            }
            for cta, pid in self.ctas.items()
        ]
        meta = {"clock": "logical: executed PTX blocks", "dropped events": self.dropped}
        Path(path).write_text(
            json.dumps({"traceEvents": names + self.events, "otherData": meta})
        )
