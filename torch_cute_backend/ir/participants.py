"""Arrival counts, recomputed from what the roles really do.

In: a program. Out: for each pipeline and named barrier the counts that its statements
add up to, and the messages of those that differ from the emitted ones.

=============  ==========================  ==========================================
pipeline       full barrier                empty barrier
=============  ==========================  ==========================================
tma_wgmma      1 (elected thread, + tx)    warps x (cluster_m + cluster_n - 1)
tma_umma       1 (elected thread, + tx)    cluster_m / cta_group + cluster_n - 1
umma_epilogue  1 (tcgen05.commit)          warps x cta_group
=============  ==========================  ==========================================

A stage multicast along a cluster's row and column is released by every CTA of both,
itself counted once; tcgen05.commit is one arrival of the MMA's leader.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch_cute_backend.ir.dataflow import ConsumerRelease, ProducerCommit
from torch_cute_backend.ir.effects import Init, NamedSync, TurnPass, TurnWait
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.values import (
    NamedBarrier,
    Pipeline,
    PipelineKind,
    Role,
    Space,
)

Runs = tuple[tuple[Stmt, Role | None], ...]


def mismatches(program: Program) -> tuple[tuple[str, str], ...]:
    """(resource, message) of every count that the statements do not add up to."""
    runs = tuple(_runs(program))
    found = []
    for pipeline in program.pipelines:
        for side, emitted, counted in _pipeline_counts(program, pipeline, runs):
            if emitted != counted:
                message = (
                    f"{side} barrier expects {emitted} arrivals, roles make {counted}"
                )
                found.append((f"pipeline {pipeline}", message))
    for barrier in program.barriers:
        counted = barrier_threads(runs, barrier)
        # A hardware barrier that nobody runs needs no set-up, so it is no mismatch.
        if counted not in (barrier.threads, 0):
            message = f"expects {barrier.threads} threads, roles bring {counted}"
            found.append((f"barrier {barrier}", message))
    return tuple(found)


def barrier_threads(runs: Runs, barrier: NamedBarrier) -> int | None:
    """Threads that run ``barrier``; None if all threads of the CTA do."""
    found: dict[tuple[Role, bool], None] = {}
    meeting = (NamedSync(barrier), TurnWait(barrier))
    for stmt, role in runs:
        for effect in stmt.effects():
            if effect in meeting or effect == TurnPass(barrier):
                if role is None:
                    return None
                # Who passes a turn is another instance than who waits for it.
                found[role, effect in meeting] = None
    return sum(role.threads for role, _ in found)


def stage_bytes(pipeline: Pipeline, sizes: dict[str, int]) -> int:
    """Bytes of one stage of all carried shared-memory buffers."""
    total = 0
    for buffer in pipeline.carries:
        if buffer.space is Space.SMEM:
            elements = 1
            for extent in buffer.shape:
                elements *= extent
            total += elements * sizes[buffer.dtype]
    return total


def _pipeline_counts(
    program: Program, pipeline: Pipeline, runs: Runs
) -> Iterator[tuple[str, int, int | None]]:
    if not any(Init(pipeline) in stmt.effects() for stmt, _ in runs):
        yield "uninitialised", pipeline.producer_arrivals, 0
        return
    producers = _roles_of(ProducerCommit, pipeline, runs)
    consumers = _roles_of(ConsumerRelease, pipeline, runs)
    full = None if None in producers else len(producers)
    yield "full", pipeline.producer_arrivals, full
    empty: int | None = 0
    for role in consumers:
        arrivals = _releases(program, pipeline, role)
        empty = None if arrivals is None or empty is None else empty + arrivals
    yield "empty", pipeline.consumer_arrivals, empty


def _releases(program: Program, pipeline: Pipeline, role: Role | None) -> int | None:
    """Arrivals at one empty barrier when ``role`` releases in every CTA."""
    if role is None:
        return None
    m, n = program.cluster_shape
    if pipeline.kind is PipelineKind.TMA_WGMMA:
        return role.warps * (m + n - 1)
    if pipeline.kind is PipelineKind.TMA_UMMA:
        return m // program.cta_group + n - 1
    if pipeline.kind is PipelineKind.UMMA_EPILOGUE:
        return role.warps * program.cta_group
    return None


def _roles_of(
    kind: type[Stmt], pipeline: Pipeline, runs: Runs
) -> tuple[Role | None, ...]:
    found = {
        role: None
        for stmt, role in runs
        if isinstance(stmt, kind) and getattr(stmt, "pipeline", None) == pipeline
    }
    return tuple(found)


def _runs(program: Program) -> Iterator[tuple[Stmt, Role | None]]:
    """Every statement with the role that runs it."""

    def inside(
        statements: tuple[Stmt, ...], role: Role | None
    ) -> Iterator[tuple[Stmt, Role | None]]:
        for stmt in statements:
            who = stmt.role or role
            yield stmt, who
            for nested in stmt.bodies():
                yield from inside(nested, who)

    yield from inside(program.top(), None)
