"""The scheduler: warps, asynchronous operations, modes, deadlock.

Modes: ``eager`` completes asynchronous operations as soon as possible; ``lazy``
completes them one at a time and only when every warp is blocked (bulk stores last);
``random:SEED`` interleaves warps and operations in a seeded order and lets ``try_wait``
fail spuriously. Tensor-core and wgmma operations are FIFO queues; TMA loads and bulk
stores are unordered.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from .codegen import BLOCKED, EXITED, FORKED
from .global_history import GlobalHistory, NoHistory
from .memory import GlobalMemory
from .report import Finding, SimError, UnsupportedPtx

Task = Callable[[], None]
_FINDING_LIMIT = 200
_IDLE_LIMIT = 400


class Engine:
    """Runs warps to completion and collects findings."""

    def __init__(self, mode: str = "lazy", checks: bool = True, sms: int = 132) -> None:
        self.mode, self.rng = _parse_mode(mode)
        self.checks = checks
        self.sms = sms
        self.findings: dict[tuple[Any, ...], Finding] = {}
        self.memory: GlobalMemory
        self.history: GlobalHistory = NoHistory()
        self.params = b""
        self.maps: dict[int, Any] = {}
        self.cores: dict[str, Any] = {}
        self.strict_wait = False
        # Clusters that have not been launched: cluster launch control takes from here.
        self.waiting_clusters: deque[list[tuple[int, int, int]]] = deque()
        self.loads: list[Task] = []
        self.stores: list[Task] = []
        self.queues: dict[Hashable, deque[Callable[[], bool]]] = {}
        self.runnable: deque[Any] = deque()
        self.roles: dict[int, str] = {}
        self.source_line: Callable[[int], str | None] = lambda line: None
        self.deadlocked = False
        # Warps may spin on global memory: then they run in slices, and ``events`` (any
        # progress that another warp could see) tells spinning from working.
        self.slice = -1
        self.events = 0
        self.idle = 0
        self.steps = 0
        self.trace: Any = None

    def report(
        self, kind: str, message: str, line: int, warp: Any = None, advice: bool = False
    ) -> None:
        """Record a finding once per kind and PTX line."""
        key = (kind, line, advice)
        if key in self.findings or len(self.findings) >= _FINDING_LIMIT:
            return
        role = None
        if warp is not None:
            role = self.role_of(warp)
        self.findings[key] = Finding(
            kind, message, line or None, self.source_line(line), role, advice
        )

    def spurious(self) -> bool:
        """Should a successful try_wait fail this time? (random mode only)"""
        return self.rng is not None and self.rng.random() < 0.25

    def global_acquire(self, warp: Any) -> None:
        """A load that may observe another CTA's release."""
        self.history.acquire(warp.cluster.number)

    def global_release(self, warp: Any) -> None:
        """A store, fence or atomic that publishes earlier accesses grid-wide."""
        self.history.release(warp.cluster.number)

    def wake(self, warps: Iterable[Any]) -> None:
        """Make blocked warps runnable."""
        for warp in warps:
            self.events += 1
            if warp.waiting is not None:
                if self.trace is not None:
                    self.trace.wait_ends(warp, self.role_of(warp))
                warp.waiting = None
                self.runnable.append(warp)

    def role_of(self, warp: Any) -> str:
        """Role name of a warp, or ``warp N``."""
        return self.roles.get(warp.index, f"warp {warp.index}")

    def post_load(self, task: Task) -> None:
        """Queue a TMA load."""
        if self.mode == "eager":
            task()
        else:
            self.loads.append(task)

    def post_store(self, task: Task) -> None:
        """Queue a bulk store."""
        if self.mode == "eager":
            task()
        else:
            self.stores.append(task)

    def queue(self, key: Hashable) -> deque[Callable[[], bool]]:
        """FIFO queue of a tensor pipe.

        An entry returns False while it cannot run yet.
        """
        found = self.queues.get(key)
        if found is None:
            found = self.queues[key] = deque()
        return found

    def drain(self, key: Hashable) -> None:
        """Run a queue as far as possible (eager mode, at commits)."""
        queue = self.queue(key)
        while queue and queue[0]():
            queue.popleft()

    def run(self, warps: list[Any]) -> None:
        """Run to the end; a deadlock becomes a finding and ends the run."""
        self.runnable.extend(warps)
        step = self._step_random if self.rng else self._step_ordered
        while step():
            pass
        stuck = [warp for warp in warps if not warp.done]
        if stuck:
            self._deadlock(stuck)

    def _step_ordered(self) -> bool:
        while self.runnable:
            self._run_slice(self.runnable.popleft(), self.slice)
            limit = 2 * (len(self.runnable) + 1)
            spinning = self.slice > 0 and self.idle > limit
            if spinning and not self._complete_one() and self._livelocked():
                return False
        return self._complete_one()

    def _run_slice(self, warp: Any, budget: int) -> None:
        before = self.events
        self.execute(warp, budget)
        self.idle = self.idle + 1 if self.events == before else 0

    def _livelocked(self) -> bool:
        """Nothing but spinning for a long time."""
        return self.idle > _IDLE_LIMIT * (len(self.runnable) + 1)

    def _complete_one(self) -> bool:
        """Complete one asynchronous operation; False when there is none."""
        if self.loads:
            self.loads.pop(0)()
            return self._progress()
        for queue in self.queues.values():
            if queue and queue[0]():
                queue.popleft()
                while queue and not self.runnable and queue[0]():
                    queue.popleft()
                return self._progress()
        if self.stores:
            self.stores.pop(0)()
            return self._progress()
        return False

    def _progress(self) -> bool:
        self.events += 1
        self.idle = 0
        return True

    def _step_random(self) -> bool:
        rng = self.rng
        assert rng is not None
        queues = [q for q in self.queues.values() if q]
        choices = len(self.runnable) + len(self.loads) + len(self.stores) + len(queues)
        if not choices:
            return False
        pick = rng.randrange(choices)
        if pick < len(self.runnable):
            warp = self.runnable[pick]
            del self.runnable[pick]
            self._run_slice(warp, rng.choice((1, 4, 16, 64)))
            return not self._livelocked()
        pick -= len(self.runnable)
        for tasks in (self.loads, self.stores):
            if pick < len(tasks):
                tasks.pop(pick)()
                return self._progress()
            pick -= len(tasks)
        if queues[pick][0]():
            queues[pick].popleft()
            return self._progress()
        return bool(self.runnable or self.loads or self.stores) or self._complete_one()

    def execute(self, warp: Any, budget: int) -> None:
        """Run one warp until it blocks, ends, or has used its budget of blocks."""
        if self.trace is None:
            self._execute(warp, budget)
            return
        trace = self.trace
        start, before = trace.now, sum(warp.counts)
        self._execute(warp, budget)
        trace.now += sum(warp.counts) - before
        trace.ran(warp, self.role_of(warp), start)
        if warp.waiting is not None:
            trace.wait_begins(warp)

    def _execute(self, warp: Any, budget: int) -> None:
        functions = warp.program.functions
        counts = warp.counts
        defs = warp.program.defs
        while budget:
            budget -= 1
            group = warp.group
            pc = group.pc
            try:
                following = functions[pc](group)
            except UnsupportedPtx as error:
                if error.ptx_line is None:
                    raise UnsupportedPtx(str(error), warp.program.line(pc)) from None
                raise
            if following >= 0:
                counts[pc] += 1
                group.pc = following
                if len(warp.groups) > 1:
                    group.written |= defs[pc]
                    warp.select()
            elif following == BLOCKED:
                return
            elif following == FORKED:
                counts[pc] += 1
                if len(warp.groups) > 2:
                    group.written |= defs[pc]
                    warp.groups[-1].written |= defs[pc]
                warp.select()
            elif following == EXITED:
                counts[pc] += 1
                warp.groups.remove(group)
                if not warp.groups:
                    warp.finish()
                    return
                warp.select()
            else:
                raise SimError(f"block {pc} returned {following}")
        self.runnable.append(warp)

    def _deadlock(self, stuck: list[Any]) -> None:
        self.deadlocked = True
        lines = []
        for warp in stuck:
            role = self.roles.get(warp.index, "")
            who = f"{warp.name}{f' ({role})' if role else ''}"
            if warp.waiting is None:
                at = warp.program.line(warp.group.pc)
                lines.append(f"{who} spins at PTX line {at}")
            else:
                where = f"PTX line {warp.wait_line}"
                lines.append(f"{who} waits at {where} for {warp.waiting}")
        pending = sum(1 for queue in self.queues.values() if queue)
        if pending:
            lines.append(
                f"{pending} tensor pipes hold operations that not all warps have issued"
            )
        first = stuck[0]
        self.report("deadlock", "; ".join(lines[:24]), first.wait_line, first)


def _parse_mode(mode: str) -> tuple[str, random.Random | None]:
    name, _, seed = mode.partition(":")
    if name == "random" and seed.lstrip("-").isdigit():
        return name, random.Random(int(seed))
    if mode in ("eager", "lazy"):
        return mode, None
    raise SimError(f"unknown mode {mode!r}: use eager, lazy or random:SEED")
