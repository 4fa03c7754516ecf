"""Synchronisation objects: mbarriers, named barriers, the cluster barrier.

Pure state machines with clocks; they wake warps through a callback and know nothing
about instructions. ``rows`` are (2, agents) clocks, see ``clocks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Wake = Callable[[Iterable[Any]], None]


class MBarrier:
    """A shared-memory mbarrier: pending arrivals, pending transaction bytes, phase
    counter.
    """

    def __init__(self, address: int, count: int, rows: np.ndarray, wake: Wake) -> None:
        self.address = address
        self.count = count
        self.pending = count
        self.tx = 0
        self.phase = 0
        self.rows = rows
        self.done = [rows.copy(), rows.copy()]
        self.waiters: list[Any] = []
        self.wake = wake
        self.agent = -1
        self.loads = 0
        self.init_agent = 0
        self.init_clock = 0
        self.init_fenced = False

    def complete(self, parity: int) -> bool:
        """Has the phase with this parity completed?"""
        return (self.phase & 1) != parity

    def arrive(self, count: int, rows: np.ndarray) -> str | None:
        """``count`` arrivals; returns a complaint on over-arrival."""
        np.maximum(self.rows, rows, out=self.rows)
        if count > self.pending:
            text = f"{count} arrivals, but the phase has only {self.pending} pending"
            self.pending = 0
            self._advance()
            return text
        self.pending -= count
        self._advance()
        return None

    def expect(self, tx_bytes: int) -> None:
        """Raise the transaction count."""
        self.tx += tx_bytes

    def transfer(self, tx_bytes: int, agent: int, clock: int) -> None:
        """complete_tx of an asynchronous copy by ``agent``."""
        self.rows[:, agent] = np.maximum(self.rows[:, agent], clock)
        self.tx -= tx_bytes
        self._advance()

    def _advance(self) -> None:
        if self.pending or self.tx:
            return
        np.copyto(self.done[self.phase & 1], self.rows)
        self.phase += 1
        self.pending = self.count
        waiters, self.waiters = self.waiters, []
        self.wake(waiters)

    def __str__(self) -> str:
        return (
            f"mbarrier {self.address:#x}: phase {self.phase & 1} (number "
            f"{self.phase}), "
            f"{self.pending} of {self.count} arrivals pending, tx {self.tx} bytes"
        )


class NamedBarrier:
    """bar.sync / bar.arrive number ``number`` of a CTA.

    Counts threads in whole warps.
    """

    def __init__(self, number: int, rows: np.ndarray, wake: Wake) -> None:
        self.number = number
        self.expected = 0
        self.arrived = 0
        self.generation = 0
        self.blank = rows
        self.rows = rows.copy()
        self.done = rows.copy()
        self.waiters: list[Any] = []
        self.wake = wake

    def arrive(self, expected: int, rows: np.ndarray) -> str | None:
        """One warp arrives; returns a complaint when counts disagree."""
        complaint = None
        if self.arrived and expected != self.expected:
            counts = f"{self.expected} and {expected}"
            complaint = f"barrier {self.number}: thread counts {counts} differ"
        self.expected = expected
        self.arrived += 32
        np.maximum(self.rows, rows, out=self.rows)
        if self.arrived >= self.expected:
            if self.arrived > self.expected:
                complaint = (
                    f"barrier {self.number}: {self.arrived} threads for {expected}"
                )
            self.done = self.rows
            self.rows = self.blank.copy()
            self.arrived = 0
            self.generation += 1
            waiters, self.waiters = self.waiters, []
            self.wake(waiters)
        return complaint

    def __str__(self) -> str:
        return (
            f"barrier {self.number}: {self.arrived} of {self.expected} threads arrived"
        )


class ClusterBarrier:
    """barrier.cluster of all live warps of a cluster."""

    def __init__(self, warps: int, rows: np.ndarray, wake: Wake) -> None:
        self.live = warps
        self.arrived = 0
        self.generation = 0
        self.blank = rows
        self.rows = rows.copy()
        self.done = rows.copy()
        self.waiters: list[Any] = []
        self.wake = wake

    def arrive(self, rows: np.ndarray | None) -> None:
        """One warp arrives; ``None`` rows for the relaxed form.

        Which orders nothing.
        """
        self.arrived += 1
        if rows is not None:
            np.maximum(self.rows, rows, out=self.rows)
        self.check()

    def check(self) -> None:
        """Release the generation when all live warps have arrived."""
        if self.arrived and self.arrived >= self.live:
            self.done = self.rows
            self.rows = self.blank.copy()
            self.arrived = 0
            self.generation += 1
            waiters, self.waiters = self.waiters, []
            self.wake(waiters)

    def __str__(self) -> str:
        return f"cluster barrier: {self.arrived} of {self.live} warps arrived"
