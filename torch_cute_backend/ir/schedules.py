"""Order by named barriers, fences and drains, on finite traces of the roles.

In: the threads of a program. Out: whether one access is complete, and passed on by a
named barrier, before another one.

Barriers are matched by count: the n-th time one role runs a barrier meets the n-th time
the other does. Traces of zero and of two trips of the tile loop stand for all: a
barrier that orders tile 0 against tile 1 runs in every tile, so it orders tile 0
against later tiles too; and zero trips are the one case where barriers inside the loop
do not run. Between two roles this needs both to run the barrier equally often before
the loop and in each trip, and unconditionally; otherwise it is not used. The warps of
one role take one path, so there a barrier, fence or drain counts if it happens whenever
one of the two accesses does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from torch_cute_backend.ir.effects import (
    Alloc,
    Drain,
    Effect,
    Free,
    Issue,
    NamedSync,
    ProxyFence,
    Queue,
    Read,
    Write,
)
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.threads import (
    Section,
    Site,
    Step,
    Thread,
    trace,
)
from torch_cute_backend.ir.values import NamedBarrier, Proxy, Role, Space

TRIPS = (0, 2)


class _Trace:
    """One role's steps for one trip count."""

    def __init__(self, role: Role, steps: tuple[Step, ...]) -> None:
        self.role = role
        self.steps = steps
        self._positions: dict[int, list[int]] = {}
        self._syncs: dict[NamedBarrier, list[int]] = {}
        for i, step in enumerate(steps):
            self._positions.setdefault(step.site.order, []).append(i)
            for effect in step.site.effects:
                if isinstance(effect, NamedSync):
                    self._syncs.setdefault(effect.barrier, []).append(i)

    def positions(self, site: Site) -> list[int]:
        return self._positions.get(site.order, [])

    def surely(
        self, effect: type[Effect], after: int, path: frozenset[int]
    ) -> Iterator[tuple[int, Effect]]:
        """Effects of that class behind position ``after`` that happen if ``path``
        does."""
        for i in range(after + 1, len(self.steps)):
            step = self.steps[i]
            if step.path <= path:
                for found in step.site.effects:
                    if isinstance(found, effect):
                        yield i, found

    def between(self, i: int, j: int, found: Callable[[Stmt], bool]) -> bool:
        """Is there such a statement between two positions?"""
        first, last = sorted((i, j))
        return any(found(s.site.stmt) for s in self.steps[first + 1 : last])

    def runs(self, barrier: NamedBarrier) -> tuple[Step, ...]:
        return tuple(self.steps[i] for i in self._syncs.get(barrier, []))

    def syncs_before(self, barrier: NamedBarrier, position: int) -> int:
        return bisect_left(self._syncs.get(barrier, []), position)


class Schedules:
    """Traces of all roles, and the questions asked of them."""

    def __init__(self, roles: tuple[Thread, ...]) -> None:
        self._traces = {
            (thread.role.name, trips): _Trace(thread.role, trace(thread, trips))
            for thread in roles
            if thread.role is not None
            for trips in TRIPS
        }
        barriers: dict[NamedBarrier, None] = {}
        for thread in roles:
            for site in thread.sites():
                for effect in site.effects:
                    if isinstance(effect, NamedSync):
                        barriers[effect.barrier] = None
        names = tuple(thread.role.name for thread in roles if thread.role is not None)
        self._counted = {
            (barrier, name): self._counts(barrier, name)
            for barrier in barriers
            for name in names
            if name in barrier.roles
        }
        self._barriers = tuple(barriers)

    def ordered(
        self,
        x: Site,
        fx: Effect,
        y: Site,
        fy: Effect,
        apart: Callable[[Stmt], bool] | None = None,
    ) -> bool:
        """Is every execution of ``x`` ordered with every one of ``y``? Of one role,
        those with a statement between them that sets them ``apart`` do not count."""
        if x.role is None or y.role is None:
            return False
        return all(
            self._pair(t, i, fx, u, j, fy)
            for t, u in (self._of(x.role, y.role, trips) for trips in TRIPS)
            for i in t.positions(x)
            for j in u.positions(y)
            if not _different_stage(t.steps[i], fx, u.steps[j], fy)
            and not (apart is not None and t is u and t.between(i, j, apart))
        )

    def fenced(self, site: Site, ends: Callable[[Stmt], bool]) -> bool:
        """Is every execution followed by a proxy fence before a statement that ends its
        hold?"""
        if site.role is None:
            return False
        both = (self._traces[(site.role.name, trips)] for trips in TRIPS)
        return all(
            any(
                not t.between(i, at, ends)
                for at, _ in t.surely(ProxyFence, i, t.steps[i].path)
            )
            for t in both
            for i in t.positions(site)
        )

    def drained(self, site: Site, effect: Effect) -> bool:
        """Is every execution complete when its role ends?"""
        if site.role is None:
            return False
        both = (self._traces[(site.role.name, trips)] for trips in TRIPS)
        return all(
            _completed_at(t, i, effect, t.steps[i].path) is not None
            for t in both
            for i in t.positions(site)
        )

    def _of(self, x: Role, y: Role, trips: int) -> tuple[_Trace, _Trace]:
        return self._traces[(x.name, trips)], self._traces[(y.name, trips)]

    def _pair(
        self, t: _Trace, i: int, fx: Effect, u: _Trace, j: int, fy: Effect
    ) -> bool:
        if t is u:
            if i == j:
                # One elected warp allocates or frees; a write is every warp's.
                return t.role.warps == 1 or isinstance(fx, (Alloc, Free))
            if i > j:
                i, fx, j, fy = j, fy, i, fx
            return self._before(t, i, fx, u, j, fy)
        return self._before(t, i, fx, u, j, fy) or self._before(u, j, fy, t, i, fx)

    def _before(
        self, t: _Trace, i: int, fx: Effect, u: _Trace, j: int, fy: Effect
    ) -> bool:
        path = t.steps[i].path
        if t is u:
            path |= u.steps[j].path
        done = _completed_at(t, i, fx, path)
        if done is not None and _needs_fence(fx, fy):
            done = next((at for at, _ in t.surely(ProxyFence, done, path)), None)
        if done is None:
            return False
        if t is u:
            return self._met(t, done, j, path)
        return any(
            u.syncs_before(barrier, j) > t.syncs_before(barrier, done + 1)
            for barrier in self._barriers
            if self._usable(barrier, t.role, u.role)
        )

    def _met(self, t: _Trace, done: int, j: int, path: frozenset[int]) -> bool:
        """Do the role's warps meet between ``done`` and ``j``?"""
        if t.role.warps == 1:
            return done < j
        return any(
            at < j and self._own(found, t.role)
            for at, found in t.surely(NamedSync, done, path)
        )

    def _own(self, effect: Effect, role: Role) -> bool:
        """A barrier of this role alone, or one that all its roles run in step."""
        if not isinstance(effect, NamedSync) or role.name not in effect.barrier.roles:
            return False
        names = effect.barrier.roles
        counts = {self._counted.get((effect.barrier, name)) for name in names}
        return names == (role.name,) or (len(counts) == 1 and None not in counts)

    def _usable(self, barrier: NamedBarrier, x: Role, y: Role) -> bool:
        """Do both roles take part, in step, on every path?"""
        counts = {self._counted.get((barrier, role.name)) for role in (x, y)}
        return len(counts) == 1 and None not in counts

    def _counts(self, barrier: NamedBarrier, name: str) -> tuple[int, int] | None:
        """(runs before the loop, runs a trip), or None if some run is conditional."""
        runs = self._traces[(name, 2)].runs(barrier)
        if not all(s.certain for s in runs):
            return None
        before = (Section.PROLOGUE, Section.HEAD)
        head = sum(s.site.section in before for s in runs)
        return head, sum(s.site.section is Section.LOOP for s in runs) // 2


def _completed_at(
    t: _Trace, i: int, effect: Effect, path: frozenset[int]
) -> int | None:
    """Position behind which the access of step ``i`` is complete, if there is one and
    ``path`` happens."""
    if not isinstance(effect, (Read, Write)) or effect.proxy is not Proxy.ASYNC:
        return i
    issued = [e for e in t.steps[i].site.effects if isinstance(e, Issue)]
    if len(issued) != 1 or not _drains(issued[0].queue, effect):
        return None
    queue = issued[0].queue
    groups = [at for at, e in t.surely(Issue, i, path) if e == Issue(queue)]
    for at, drain in t.surely(Drain, i, path):
        if not isinstance(drain, Drain) or drain.queue is not queue:
            continue
        if sum(g < at for g in groups) >= drain.pending:
            return at
    return None


def _drains(queue: Queue, effect: Read | Write) -> bool:
    """A drain of bulk stores waits for their reads of shared memory only."""
    return queue is not Queue.STORE or isinstance(effect, Read)


def _needs_fence(fx: Effect, fy: Effect) -> bool:
    """A generic write of shared memory that the async proxy accesses next."""
    return (
        isinstance(fx, Write)
        and fx.proxy is Proxy.GENERIC
        and fx.buffer.space is Space.SMEM
        and isinstance(fy, (Read, Write))
        and fy.proxy is Proxy.ASYNC
    )


def _different_stage(x: Step, fx: Effect, y: Step, fy: Effect) -> bool:
    stages = (_stage(x, fx), _stage(y, fy))
    return None not in stages and stages[0] != stages[1]


def _stage(step: Step, effect: Effect) -> int | None:
    if not isinstance(effect, (Read, Write)) or effect.stage is None:
        return None
    index = step.env.get(effect.stage)
    return None if index is None else index % effect.buffer.stages
