"""Happens-before over declared effects: which conflicting accesses nothing orders?

In: a partitioned program, in the form whose barriers one wants to rely on (to ignore
the residual loop, take it out first). Out: :class:`Race` values, none if every
conflicting pair is ordered. Two accesses of one shared, tensor-memory or global buffer
conflict if one of them changes it. Registers belong to a thread and are left out.

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

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from torch_cute_backend.ir.dataflow import ConsumerRelease, MmaDrain, ProducerTail
from torch_cute_backend.ir.effects import (
    Alloc,
    Arrive,
    Effect,
    Free,
    Init,
    Issue,
    Read,
    Scope,
    Sync,
    SyncArrive,
    SyncWait,
    Wait,
    Write,
)
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.pipelines import imbalance
from torch_cute_backend.ir.printer import print_statement
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.schedules import Schedules
from torch_cute_backend.ir.threads import Site, Thread, threads
from torch_cute_backend.ir.values import (
    Buffer,
    Pipeline,
    PipelineKind,
    Proxy,
    Role,
    Space,
)

MemoryEffect = Read | Write | Alloc | Free


@dataclass(frozen=True)
class Access:
    """One memory effect of one site."""

    site: Site
    effect: MemoryEffect

    @property
    def buffer(self) -> Buffer:
        return self.effect.buffer

    @property
    def mutates(self) -> bool:
        return not isinstance(self.effect, Read)

    @property
    def asynchronous(self) -> bool:
        effect = self.effect
        return isinstance(effect, (Read, Write)) and effect.proxy is Proxy.ASYNC

    @property
    def disjoint(self) -> bool:
        return isinstance(self.effect, Write) and self.effect.disjoint

    def __str__(self) -> str:
        kind = type(self.effect).__name__.lower()
        role = self.site.role
        stmt = self.site.stmt
        tag = f"[{role}] " if role and not stmt.role else ""
        return f"{kind} in {tag}{print_statement(stmt)}"


@dataclass(frozen=True)
class Race:
    """Two conflicting accesses without order, or one that outlives the CTA."""

    first: Access
    second: Access | None
    what: str

    @property
    def in_post(self) -> bool:
        """Does it involve what runs after the loops?"""
        accesses = (self.first,) if self.second is None else (self.first, self.second)
        return self.second is None or any(a.site.section.after_loop for a in accesses)

    @property
    def statement(self) -> Stmt:
        """The statement to name first: the later one, where order is evident."""
        return (self.second or self.first).site.stmt

    def __str__(self) -> str:
        if self.second is None:
            return f"{self.what}: {self.first}"
        return f"{self.what}: {self.first} and {self.second}"


def races(program: Program) -> tuple[Race, ...]:
    """Every unordered conflict of ``program``, each pair of statements once."""
    check = _Check(program)
    found: dict[tuple[Stmt, Stmt | None, str], Race] = {}
    for race in check.run():
        second = None if race.second is None else race.second.site.stmt
        found.setdefault((race.first.site.stmt, second, race.what), race)
    return tuple(found.values())


def memory_effects(effects: tuple[Effect, ...]) -> tuple[MemoryEffect, ...]:
    return tuple(e for e in effects if isinstance(e, (Read, Write, Alloc, Free)))


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
            for x, y in _conflicts(_accesses(one), _accesses(other)):
                if not self._ordered(x, y):
                    yield Race(x, y, f"unordered accesses of {x.buffer}")
        for thread in self.threads:
            yield from self._within(thread)
        yield from self._barrier_set_up()
        yield from self._exit()

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
        if _side(pipeline, access.site.role) == "producer":
            return True
        return self._consumer_done(pipeline)

    def _consumer_done(self, pipeline: Pipeline) -> bool:
        """Are the consumer's asynchronous reads known to be complete at its end?"""
        kinds = (ProducerTail, MmaDrain)
        sites = (s for t in self.threads for s in t.sites())
        return any(
            isinstance(s.stmt, kinds) and s.stmt.pipeline == pipeline for s in sites
        )

    def _bracket(self, access: Access) -> Pipeline | None:
        """The pipeline whose held stage covers this access and its completion."""
        for pipeline in self.in_step:
            side = _side(pipeline, access.site.role)
            held = access.site.holds_pipeline(pipeline) is not None
            if held and side and access.buffer in pipeline.carries:
                if side == "consumer" or _announced(access, pipeline):
                    return pipeline
        return None

    def _by_pipeline(self, x: Access, y: Access) -> bool:
        pipeline = self._bracket(x)
        if pipeline is None or pipeline != self._bracket(y):
            return False
        return _side(pipeline, x.site.role) != _side(pipeline, y.site.role)

    def _after_pipeline(self, x: Access, y: Access) -> bool:
        """Is bracketed ``x`` over when ``y``, behind its role's loop, runs?"""
        pipeline = self._bracket(x)
        if pipeline is None or not y.site.section.after_loop:
            return False
        if _side(pipeline, x.site.role) == "producer":
            return _side(pipeline, y.site.role) == "consumer"
        return pipeline in y.site.tailed and (
            _side(pipeline, y.site.role) == "producer"
        )

    # --- pairs of one role

    def _within(self, thread: Thread) -> Iterator[Race]:
        accesses = _accesses(thread)
        pairs = [*combinations(accesses, 2), *((a, a) for a in accesses)]
        for x, y in pairs:
            if not _conflict(x, y) or (x.disjoint and y.disjoint):
                continue
            if thread.role is None:
                once = isinstance(x.effect, (Alloc, Free)) and x is y
                fine = once or self._by_sync(x, y)
            else:
                fine = self._ordered_within(thread.role, x, y)
            if not fine:
                yield Race(x, y, f"unordered accesses of {x.buffer}")

    def _ordered_within(self, role: Role, x: Access, y: Access) -> bool:
        if self._by_sync(x, y):
            return True
        if role.warps == 1 and _tensor_order(x) and _tensor_order(y):
            return True
        if self._same_ring(x, y):
            return True
        return self.schedules.ordered(x.site, x.effect, y.site, y.effect)

    def _same_ring(self, x: Access, y: Access) -> bool:
        """Producer writes of one ring: the next one follows the acquire, hence the
        release, hence the completion of the one before. Two writes of one stage have
        no such order, unless it is the same statement run once a stage."""
        pipeline = self._bracket(x)
        if pipeline is None or pipeline != self._bracket(y):
            return False
        if _side(pipeline, x.site.role) != "producer":
            return False
        since = (x.site.holds_pipeline(pipeline), y.site.holds_pipeline(pipeline))
        if since[0] != since[1]:
            return True
        same = x.site.order == y.site.order
        return same and self._once_a_stage(x.site, pipeline)

    def _once_a_stage(self, site: Site, pipeline: Pipeline) -> bool:
        hold = site.holds_pipeline(pipeline)
        for other in (s for t in self.threads for s in t.sites()):
            if other.role == site.role and hold and other.order == hold.since:
                return other.nesting == site.nesting
        return False

    # --- barriers' own memory, and the end of the CTA

    def _barrier_set_up(self) -> Iterator[Race]:
        """An mbarrier is initialised before any thread of the cluster touches it."""
        needed = Scope.CLUSTER if self.program.cluster_size > 1 else None
        sites = [s for t in self.threads for s in t.sites()]
        for pipeline in self.program.pipelines:
            starts = [s for s in sites if Init(pipeline) in s.stmt.effects()]
            if not starts:
                continue
            for site in sites:
                if not _touches_barrier(site, pipeline):
                    continue
                if all(self._published(s, site, needed) for s in starts):
                    continue
                fake = Access(starts[0], Alloc(Buffer(pipeline.name, Space.SMEM, "")))
                use = Access(site, Read(fake.buffer))
                yield Race(fake, use, f"barriers of {pipeline} used unpublished")
                break

    def _published(self, start: Site, use: Site, needed: Scope | None) -> bool:
        return any(
            start.top < arrive and wait < use.top and needed in (None, scope)
            for arrive, wait, scope in self.syncs
        )

    def _exit(self) -> Iterator[Race]:
        """CTA exit frees shared memory: no bulk store may still read it, and no CTA of
        the cluster may still arrive at its barriers."""
        for access in (a for t in self.threads for a in _accesses(t)):
            if access.buffer.space is not Space.SMEM or not access.asynchronous:
                continue
            issued = any(isinstance(e, Issue) for e in access.site.stmt.effects())
            if issued and self._bracket(access) is None:
                if not self.schedules.drained(access.site, access.effect):
                    yield Race(access, None, "the CTA may exit before it has read")
        yield from self._late_arrivals()

    def _late_arrivals(self) -> Iterator[Race]:
        """Releases that may arrive at the barriers of a CTA that has exited."""
        sites = [s for t in self.threads for s in t.sites()]
        for pipeline in self.program.pipelines:
            if not self._arrives_late(pipeline):
                continue
            if any(_is_tail(s, pipeline) for s in sites):
                continue
            for site in sites:
                stmt = site.stmt
                if isinstance(stmt, ConsumerRelease) and stmt.pipeline == pipeline:
                    target = Buffer(pipeline.name, Space.SMEM, "")
                    what = "the CTA may exit before this arrives"
                    yield Race(Access(site, Write(target)), None, what)
                    break

    def _arrives_late(self, pipeline: Pipeline) -> bool:
        """tcgen05.commit arrives by itself, long after the thread moved on; a thread's
        own arrival can only be late at a peer."""
        if pipeline.kind is PipelineKind.TMA_UMMA:
            return True
        if pipeline.kind is PipelineKind.TMA_WGMMA:
            return self.program.cluster_size > 1 and not self._cluster_meets_last()
        return self.program.cta_group > 1

    def _cluster_meets_last(self) -> bool:
        sites = (s for t in self.threads for s in t.sites())
        last = max((s.top for s in sites if s.role is not None), default=-1)
        return any(
            scope is Scope.CLUSTER and last < arrive for arrive, _, scope in self.syncs
        )


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


def _accesses(thread: Thread) -> tuple[Access, ...]:
    found = []
    for site in thread.sites():
        for effect in memory_effects(site.stmt.effects()):
            if effect.buffer.space is not Space.RMEM:
                found.append(Access(site, effect))
    return tuple(found)


def _conflict(x: Access, y: Access) -> bool:
    return x.buffer == y.buffer and (x.mutates or y.mutates)


def _conflicts(
    ones: tuple[Access, ...], others: tuple[Access, ...]
) -> Iterator[tuple[Access, Access]]:
    for x in ones:
        for y in others:
            if _conflict(x, y):
                yield x, y


def _side(pipeline: Pipeline, role: Role | None) -> str | None:
    if role is None:
        return None
    if role.name == pipeline.producer:
        return "producer"
    return "consumer" if role.name == pipeline.consumer else None


def _announced(access: Access, pipeline: Pipeline) -> bool:
    """Does the full barrier wait for this producer access to complete?

    TMA counts its bytes at the barrier it was given; tcgen05.commit covers every MMA
    before it. A generic store would need a proxy fence, which no kind here has.
    """
    if not access.asynchronous:
        return False
    if pipeline.kind is PipelineKind.UMMA_EPILOGUE:
        return access.buffer.space is Space.TMEM
    return Arrive(pipeline, full=True) in access.site.stmt.effects()


def _tensor_order(access: Access) -> bool:
    """tcgen05 operations that one thread issues on tensor memory run in order."""
    return access.asynchronous and access.buffer.space is Space.TMEM


def _is_tail(site: Site, pipeline: Pipeline) -> bool:
    """The producer's tail, behind its loop."""
    stmt = site.stmt
    return (
        isinstance(stmt, ProducerTail)
        and stmt.pipeline == pipeline
        and site.section.after_loop
        and _side(pipeline, site.role) == "producer"
    )


def _touches_barrier(site: Site, pipeline: Pipeline) -> bool:
    return any(
        isinstance(e, (Arrive, Wait)) and e.pipeline == pipeline
        for e in site.stmt.effects()
    )
