"""Happens-before by vector clocks.

Agents are warps (generic proxy) and asynchronous engines: the tensor core of a CTA, a
warpgroup's wgmma pipe, one agent per mbarrier for TMA loads into it, one per warp for
bulk stores. Each agent orders its own accesses; everything else is ordered only through
barriers, commits and waits. A clock is an integer row indexed by agent; entry ``none``
stands for "never written" and is always -1.

Two rows per warp: row 0 orders everything; row 1 holds what the *async proxy* may rely
on, i.e. generic accesses behind which a ``fence.proxy.async`` stands somewhere on the
causality path.

``Shadow`` keeps, per granule of a memory, the last writer and the last read of each
agent, and reports unordered pairs, missing proxy fences and reads of unwritten
granules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .report import SimError

Where = Any  # slice or index array
Report = Callable[[str, str, int], None]


class Clocks:
    """Agent registry of one group of CTAs that run together."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.none = capacity
        self.names: list[str] = []
        self.generic = np.zeros(capacity + 1, np.bool_)

    def add(self, name: str, generic: bool = False) -> int:
        """New agent; returns its index."""
        if len(self.names) == self.capacity:
            raise SimError(
                "too many asynchronous agents: more than 64 mbarriers with loads a CTA?"
            )
        self.names.append(name)
        self.generic[len(self.names) - 1] = generic
        return len(self.names) - 1

    def rows(self) -> np.ndarray:
        """A fresh (2, agents) clock."""
        rows = np.zeros((2, self.capacity + 1), np.int32)
        rows[:, self.none] = -1
        return rows


class Stamp:
    """What an asynchronous operation may rely on when it was issued.

    ``order`` covers accesses of any proxy; ``need`` demands proxy fences for generic
    accesses.
    """

    __slots__ = ("need", "order", "rows")

    def __init__(self, rows: np.ndarray, generic: np.ndarray) -> None:
        self.rows = rows.copy()
        self.order = self.rows[0]
        self.need = np.where(generic, self.rows[1], self.order)


class AgentClock:
    """The clock of one warp; ticks lazily, so that silent stretches cost nothing."""

    __slots__ = ("agent", "clocks", "rows", "stale", "stamp")

    def __init__(self, clocks: Clocks, agent: int) -> None:
        self.clocks = clocks
        self.agent = agent
        self.rows = clocks.rows()
        self.rows[0, agent] = 1
        self.stale = False
        self.stamp: Stamp | None = None

    def epoch(self) -> int:
        """Clock value for an access now."""
        if self.stale:
            self.rows[0, self.agent] += 1
            self.stale = False
            self.stamp = None
        return int(self.rows[0, self.agent])

    def acquire(self, rows: np.ndarray) -> None:
        """Everything in ``rows`` happened before what follows."""
        np.maximum(self.rows, rows, out=self.rows)
        self.stamp = None

    def acquire_agent(self, agent: int, clock: int) -> None:
        """Accesses of one asynchronous agent up to ``clock`` happened before."""
        if self.rows[0, agent] < clock:
            self.rows[:, agent] = clock
            self.stamp = None

    def release(self) -> np.ndarray:
        """Rows to publish; later accesses get a new epoch."""
        self.stale = True
        return self.rows

    def issue(self) -> Stamp:
        """Stamp for an asynchronous operation issued now."""
        self.stale = True
        if self.stamp is None:
            self.stamp = Stamp(self.rows, self.clocks.generic)
        return self.stamp

    def fence_async(self) -> None:
        """fence.proxy.async: all ordered generic accesses become visible to the async
        proxy.
        """
        np.maximum(self.rows[0], self.rows[1], out=self.rows[1])
        self.stale = True
        self.stamp = None


class Shadow:
    """Access history of one memory, by granule."""

    def __init__(
        self,
        name: str,
        granules: int,
        clocks: Clocks,
        report: Report,
        describe: Callable[[int], str],
    ) -> None:
        self.name = name
        self.clocks = clocks
        self.report = report
        self.describe = describe
        self.writer = np.full(granules, clocks.none, np.intp)
        self.written = np.zeros(granules, np.int32)
        self.reads: dict[int, np.ndarray] = {}
        self.latest: dict[int, int] = {}
        self.granules = granules

    def read(
        self,
        where: Where,
        agent: int,
        clock: int,
        stamp_need: np.ndarray,
        stamp_order: np.ndarray,
        line: int,
    ) -> None:
        """Check and record a read."""
        bad = self.written[where] > stamp_need[self.writer[where]]
        if bad.any():
            self._bad_write(
                where, bad, stamp_order, agent, line, "read of", check_unwritten=True
            )
        row = self.reads.get(agent)
        if row is None:
            row = self.reads[agent] = np.zeros(self.granules, np.int32)
        row[where] = clock
        self.latest[agent] = clock

    def write(
        self,
        where: Where,
        agent: int,
        clock: int,
        stamp_need: np.ndarray,
        stamp_order: np.ndarray,
        line: int,
    ) -> None:
        """Check and record a write."""
        bad = self.written[where] > stamp_need[self.writer[where]]
        if bad.any():
            self._bad_write(where, bad, stamp_order, agent, line, "write over", False)
        for reader, latest in self.latest.items():
            if latest > stamp_order[reader] and reader != agent:
                late = self.reads[reader][where] > stamp_order[reader]
                if late.any():
                    self._report_first(
                        "race",
                        where,
                        late,
                        f"write by {self.clocks.names[agent]} is not ordered "
                        f"behind the read by {self.clocks.names[reader]}",
                        line,
                    )
        self.writer[where] = agent
        self.written[where] = clock

    def forget(self, where: Where) -> None:
        """Mark as never written (freed or fresh memory)."""
        self.writer[where] = self.clocks.none
        self.written[where] = 0

    def _bad_write(
        self,
        where: Where,
        bad: np.ndarray,
        order: np.ndarray,
        agent: int,
        line: int,
        verb: str,
        check_unwritten: bool,
    ) -> None:
        writers = self.writer[where]
        never = bad & (writers == self.clocks.none)
        if check_unwritten and never.any():
            self._report_first(
                "uninitialised", where, never, "read of memory never written", line
            )
        rest = bad & ~never
        if not rest.any():
            return
        first = int(np.flatnonzero(rest)[0])
        writer = int(writers[first])
        who, by = self.clocks.names[agent], self.clocks.names[writer]
        if self.written[where][first] <= order[writer]:
            self._report_first(
                "proxy",
                where,
                rest,
                f"{verb} generic-proxy writes of {by} by the async "
                f"proxy ({who}) without fence.proxy.async between",
                line,
            )
        else:
            self._report_first(
                "race",
                where,
                rest,
                f"{verb} the write by {by}, not ordered before {who}",
                line,
            )

    def _report_first(
        self, kind: str, where: Where, bad: np.ndarray, text: str, line: int
    ) -> None:
        index = np.arange(self.granules)[where]
        granule = int(index[np.flatnonzero(bad)[0]])
        self.report(kind, f"{self.name} {self.describe(granule)}: {text}", line)


class NoShadow(Shadow):
    """Stands in when checks are off."""

    def __init__(self) -> None:
        pass

    def read(self, *_: Any, **__: Any) -> None:
        return

    def write(self, *_: Any, **__: Any) -> None:
        return

    def forget(self, where: Where) -> None:
        return
