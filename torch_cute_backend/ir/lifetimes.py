"""Barriers before they are initialised, and shared memory after the CTA has gone.

In: a partitioned program, its threads, and the barriers of all threads at top level.
Out: a :class:`Race` for each mbarrier used before its initialisation is published, each
bulk store that may still read shared memory at CTA exit, and each arrival that may come
after it. CTA exit frees all shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch_cute_backend.ir.accesses import Access, End, Race, accesses, end_of
from torch_cute_backend.ir.dataflow import ConsumerRelease, ProducerTail
from torch_cute_backend.ir.effects import (
    Alloc,
    Arrive,
    Init,
    Issue,
    Read,
    Scope,
    Wait,
    Write,
)
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.threads import Site, Thread
from torch_cute_backend.ir.values import Buffer, Pipeline, PipelineKind, Space

Syncs = tuple[tuple[int, int, Scope], ...]
"""(arrive, wait, scope): top-level positions of the halves of each barrier."""


def lifetime_races(
    program: Program,
    threads: tuple[Thread, ...],
    syncs: Syncs,
    settled: Callable[[Access], bool],
) -> Iterator[Race]:
    """``settled``: is an asynchronous access complete before its role ends?"""
    sites = tuple(s for t in threads for s in t.sites())
    for pipeline in program.pipelines:
        yield from _unpublished(program, pipeline, sites, syncs)
        if _arrives_late(program, pipeline, sites, syncs):
            yield from _late_release(pipeline, sites)
    for access in (a for t in threads for a in accesses(t)):
        shared = access.buffer.space is Space.SMEM and access.asynchronous
        issued = any(isinstance(e, Issue) for e in access.site.effects)
        if shared and issued and not settled(access):
            yield Race(access, None, "the CTA may exit before it has read")


def is_tail(site: Site, pipeline: Pipeline) -> bool:
    """The producer's tail, behind its loop and on every path."""
    stmt = site.stmt
    return (
        isinstance(stmt, ProducerTail)
        and stmt.pipeline == pipeline
        and site.section.after_loop
        and not site.nesting
        and end_of(pipeline, site.role) is End.PRODUCER
    )


def _unpublished(
    program: Program, pipeline: Pipeline, sites: tuple[Site, ...], syncs: Syncs
) -> Iterator[Race]:
    """An mbarrier is initialised before any thread of the cluster touches it."""
    scopes = (Scope.CLUSTER,) if program.cluster_size > 1 else tuple(Scope)
    barriers = Buffer(pipeline.name, Space.SMEM, "mbarrier")
    for start in (s for s in sites if Init(pipeline) in s.effects):
        for use in sites:
            published = any(
                start.top < arrive and wait < use.top and scope in scopes
                for arrive, wait, scope in syncs
            )
            if _touches(use, pipeline) and not published:
                pair = Access(start, Alloc(barriers)), Access(use, Read(barriers))
                yield Race(*pair, f"barriers of {pipeline} used unpublished")
                return


def _touches(site: Site, pipeline: Pipeline) -> bool:
    return any(
        isinstance(e, (Arrive, Wait)) and e.pipeline == pipeline for e in site.effects
    )


def _arrives_late(
    program: Program, pipeline: Pipeline, sites: tuple[Site, ...], syncs: Syncs
) -> bool:
    """May a release come after the CTA it goes to has exited?

    tcgen05.commit arrives by itself, long after its thread moved on; a thread's own
    arrival can only be late at a peer. The producer's tail waits for every release.
    """
    if any(is_tail(s, pipeline) for s in sites):
        return False
    if pipeline.kind is PipelineKind.TMA_UMMA:
        return True
    if pipeline.kind is PipelineKind.TMA_WGMMA:
        return program.cluster_size > 1 and not _cluster_meets_last(sites, syncs)
    return program.cta_group > 1


def _cluster_meets_last(sites: tuple[Site, ...], syncs: Syncs) -> bool:
    last = max((s.top for s in sites if s.role is not None), default=-1)
    return any(scope is Scope.CLUSTER and last < arrive for arrive, _, scope in syncs)


def _late_release(pipeline: Pipeline, sites: tuple[Site, ...]) -> Iterator[Race]:
    barriers = Buffer(pipeline.name, Space.SMEM, "mbarrier")
    for site in sites:
        stmt = site.stmt
        if isinstance(stmt, ConsumerRelease) and stmt.pipeline == pipeline:
            access = Access(site, Write(barriers))
            yield Race(access, None, "the CTA may exit before this arrives")
            return
