"""Happens-before over declared effects: which conflicting accesses nothing orders?

In: a partitioned program, in the form whose barriers one wants to rely on (to ignore
the residual loop, take it out first). Out: :class:`Race` values, none if every
conflicting pair (:mod:`ir.accesses`) is ordered.

A pair is ordered, and only then, if

* a barrier of all threads stands between them at top level;
* a pipeline that carries the buffer and is in step (:mod:`ir.pipelines`) brackets both:
  the producer between acquire and commit, the consumer between wait and release;
* one of them follows its role's loop, where the consumer has seen every commit, or the
  producer's tail, which has seen every release; or
* a named barrier both roles run falls between them in every interleaving
  (:mod:`ir.schedules`), after the first access is complete.

Whatever is not understood orders nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

from torch_cute_backend.ir.accesses import (
    Access,
    End,
    Race,
    accesses,
    conflict,
    conflicts,
    end_of,
    unordered,
)
from torch_cute_backend.ir.dataflow import ConsumerRelease, ConsumerWait, MmaDrain
from torch_cute_backend.ir.effects import (
    Alloc,
    Arrive,
    Free,
    Issue,
    Queue,
    Scope,
    Sync,
    SyncArrive,
    SyncWait,
)
from torch_cute_backend.ir.lifetimes import is_tail, lifetime_races
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.pipelines import imbalance
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.schedules import Schedules
from torch_cute_backend.ir.threads import Site, Thread, threads
from torch_cute_backend.ir.values import Pipeline, PipelineKind, Role, Space


def races(program: Program) -> tuple[Race, ...]:
    """Every unordered conflict of ``program``, each pair of statements once."""
    check = _Check(program)
    found: dict[tuple[Stmt, Stmt | None, str], Race] = {}
    for race in check.run():
        second = None if race.second is None else race.second.site.stmt
        found.setdefault((race.first.site.stmt, second, race.what), race)
    return tuple(found.values())


class _Check:
    """One analysis of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.threads = threads(program)
        self.syncs = _sync_intervals(program)
        self.in_step = tuple(
            p for p in program.pipelines if imbalance(program, p) is None
        )
        self.schedules = Schedules(self.threads)

    def run(self) -> Iterator[Race]:
        for one, other in combinations(self.threads, 2):
            for x, y in conflicts(accesses(one), accesses(other)):
                if not self._ordered(x, y):
                    yield unordered(x, y)
        for thread in self.threads:
            yield from self._within(thread)
        yield from lifetime_races(self.program, self.threads, self.syncs, self._settled)

    # --- pairs of different roles

    def _ordered(self, x: Access, y: Access) -> bool:
        return (
            self._by_sync(x, y)
            or self._by_pipeline(x, y)
            or self._after_pipeline(x, y)
            or self._after_pipeline(y, x)
            or self.schedules.ordered(x.site, x.effect, y.site, y.effect)
        )

    def _by_sync(self, x: Access, y: Access) -> bool:
        first, second = (x, y) if x.site.top < y.site.top else (y, x)
        separated = any(
            first.site.top < arrive and wait < second.site.top
            for arrive, wait, _ in self.syncs
        )
        return separated and self._complete_at_end(first)

    def _complete_at_end(self, access: Access) -> bool:
        """Is it complete once every role has reached the end of its region?"""
        if not access.asynchronous:
            return True
        pipeline = self._bracket(access)
        if pipeline is None:
            return self.schedules.drained(access.site, access.effect)
        if end_of(pipeline, access.site.role) is End.PRODUCER:
            return True
        return self._consumer_done(pipeline)

    def _settled(self, access: Access) -> bool:
        """Handed over by a pipeline, or drained before its role ends?"""
        if self._bracket(access) is not None:
            return True
        return self.schedules.drained(access.site, access.effect)

    def _consumer_done(self, pipeline: Pipeline) -> bool:
        """Are the consumer's asynchronous reads known to be complete at its end?"""
        return any(
            is_tail(site, pipeline)
            or (isinstance(site.stmt, MmaDrain) and site.stmt.pipeline == pipeline)
            for thread in self.threads
            for site in thread.sites()
        )

    def _bracket(self, access: Access) -> Pipeline | None:
        """The pipeline whose held stage covers this access and its completion."""
        for pipeline in self.in_step:
            end = end_of(pipeline, access.site.role)
            held = access.site.holds_pipeline(pipeline) is not None
            if not held or access.buffer not in pipeline.carries:
                continue
            covered = {End.PRODUCER: _announced, End.CONSUMER: self._given_back}
            if end in covered and covered[end](access, pipeline):
                return pipeline
        return None

    def _given_back(self, access: Access, pipeline: Pipeline) -> bool:
        """Does the release wait for this consumer access to complete?

        A release of a wgmma pipeline waits for its group first, tcgen05.commit arrives
        after the MMAs before it; neither covers the other's operations. TMA fills the
        stage next, so a change of it by ordinary stores needs a proxy fence before.
        """
        if access.mutates and access.asynchronous:
            return False
        if access.mutates:
            return self.schedules.fenced(access.site, _releases(pipeline))
        if not access.asynchronous:
            return True
        wgmma = Issue(Queue.WGMMA) in access.site.effects
        if pipeline.kind is PipelineKind.TMA_WGMMA:
            return wgmma
        return pipeline.kind is PipelineKind.TMA_UMMA and not wgmma

    def _by_pipeline(self, x: Access, y: Access) -> bool:
        pipeline = self._bracket(x)
        if pipeline is None or pipeline != self._bracket(y):
            return False
        return end_of(pipeline, x.site.role) != end_of(pipeline, y.site.role)

    def _after_pipeline(self, x: Access, y: Access) -> bool:
        """Is bracketed ``x`` over when ``y``, behind its role's loop, runs?"""
        pipeline = self._bracket(x) or self._committed(x)
        if pipeline is None or not y.site.section.after_loop:
            return False
        if end_of(pipeline, y.site.role) is End.PRODUCER:
            # The tail follows every release, hence every wait, hence every commit.
            return pipeline in y.site.tailed
        return end_of(pipeline, x.site.role) is End.PRODUCER and (
            end_of(pipeline, y.site.role) is End.CONSUMER
        )

    def _committed(self, access: Access) -> Pipeline | None:
        """The pipeline whose next commit waits for this tensor-memory access, whatever
        buffer it is of: tcgen05.commit covers all tcgen05 operations that its thread
        issued before, as the only thread of a role of one warp does."""
        role = access.site.role
        if role is None or role.warps != 1 or not _tensor_order(access):
            return None
        for pipeline in self.in_step:
            commits = pipeline.kind is PipelineKind.UMMA_EPILOGUE
            held = access.site.holds_pipeline(pipeline) is not None
            if commits and held and end_of(pipeline, role) is End.PRODUCER:
                return pipeline
        return None

    # --- pairs of one role

    def _within(self, thread: Thread) -> Iterator[Race]:
        mine = accesses(thread)
        pairs = [*combinations(mine, 2), *((a, a) for a in mine)]
        for x, y in pairs:
            if not conflict(x, y) or (x.disjoint and y.disjoint):
                continue
            if thread.role is None:
                once = isinstance(x.effect, (Alloc, Free)) and x is y
                fine = once or self._by_sync(x, y)
            else:
                fine = self._ordered_within(thread.role, x, y)
            if not fine:
                yield unordered(x, y)

    def _ordered_within(self, role: Role, x: Access, y: Access) -> bool:
        if self._by_sync(x, y):
            return True
        if role.warps == 1 and _tensor_order(x) and _tensor_order(y):
            return True
        if self._after_pipeline(x, y) or self._after_pipeline(y, x):
            return True
        if self._same_ring(x, y) or self._same_stage(x, y):
            return True
        return self.schedules.ordered(x.site, x.effect, y.site, y.effect)

    def _same_ring(self, x: Access, y: Access) -> bool:
        """Producer writes of one ring: the next one follows the acquire, hence the
        release, hence the completion of the one before. Two writes of one stage have
        no such order, unless it is the same statement run once a stage."""
        pipeline = self._bracket(x)
        if pipeline is None or pipeline != self._bracket(y):
            return False
        if end_of(pipeline, x.site.role) is not End.PRODUCER:
            return False
        since = (x.site.holds_pipeline(pipeline), y.site.holds_pipeline(pipeline))
        if since[0] != since[1]:
            return True
        same = x.site.order == y.site.order
        return same and self._once_a_stage(x.site, pipeline)

    def _same_stage(self, x: Access, y: Access) -> bool:
        """Consumer accesses of one ring: between two holds of one stage lie its release
        and the producer's next commit, so the order within each hold is all there is
        to see."""
        pipeline = self._bracket(x)
        if pipeline is None or pipeline != self._bracket(y):
            return False
        if end_of(pipeline, x.site.role) is not End.CONSUMER:
            return False
        ends = _waits(pipeline)
        return self.schedules.ordered(x.site, x.effect, y.site, y.effect, ends)

    def _once_a_stage(self, site: Site, pipeline: Pipeline) -> bool:
        hold = site.holds_pipeline(pipeline)
        for other in (s for t in self.threads for s in t.sites()):
            if other.role == site.role and hold and other.order == hold.since:
                return other.nesting == site.nesting
        return False


def _sync_intervals(program: Program) -> tuple[tuple[int, int, Scope], ...]:
    """(arrive, wait, scope) of every barrier of all threads at top level."""
    found: list[tuple[int, int, Scope]] = []
    arrived: dict[Scope, int] = {}
    for top, stmt in enumerate(program.top()):
        if stmt.role is not None or stmt.bodies():
            continue
        for effect in stmt.effects():
            if isinstance(effect, Sync):
                found.append((top, top, effect.scope))
            elif isinstance(effect, SyncArrive):
                arrived[effect.scope] = top
            elif isinstance(effect, SyncWait) and effect.scope in arrived:
                found.append((arrived.pop(effect.scope), top, effect.scope))
    return tuple(found)


def _announced(access: Access, pipeline: Pipeline) -> bool:
    """Does the full barrier wait for this producer access to complete?

    TMA counts its bytes at the barrier it was given; tcgen05.commit covers every MMA
    before it. A generic store would need a proxy fence, which no kind here has.
    """
    if not access.asynchronous:
        return False
    if pipeline.kind is PipelineKind.UMMA_EPILOGUE:
        return access.buffer.space is Space.TMEM
    return Arrive(pipeline, full=True) in access.site.effects


def _releases(pipeline: Pipeline) -> Callable[[Stmt], bool]:
    """Does a statement give a stage back?"""
    kinds = (ConsumerRelease, MmaDrain)
    return lambda s: isinstance(s, kinds) and s.pipeline == pipeline


def _waits(pipeline: Pipeline) -> Callable[[Stmt], bool]:
    """Does a statement begin the hold of another stage?"""
    return lambda s: isinstance(s, ConsumerWait) and s.pipeline == pipeline


def _tensor_order(access: Access) -> bool:
    """tcgen05 operations that one thread issues on tensor memory run in order."""
    return access.asynchronous and access.buffer.space is Space.TMEM
