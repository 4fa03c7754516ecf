"""Rules on pipelines, barriers, tensor memory, accumulators. Each yields messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from typing import TypeVar

from torch_cute_backend.dtypes import DTYPES
from torch_cute_backend.ir.dataflow import (
    ConsumerRelease,
    ConsumerWait,
    MmaDrain,
    ProducerAcquire,
    ProducerCommit,
    ProducerTail,
    SkipStages,
    TmaLoad,
)
from torch_cute_backend.ir.effects import (
    Drain,
    Issue,
    NamedSync,
    Queue,
    Read,
    TurnPass,
    TurnWait,
    Write,
)
from torch_cute_backend.ir.ops import Body, Stmt, walk
from torch_cute_backend.ir.participants import mismatches, stage_bytes
from torch_cute_backend.ir.pipelines import imbalance
from torch_cute_backend.ir.printer import print_statement
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import TileLoop
from torch_cute_backend.ir.sync import TmemAlloc, TmemFree
from torch_cute_backend.ir.threads import Step, threads, trace
from torch_cute_backend.ir.values import Buffer, Pipeline, PipelineKind, Role, Space
from torch_cute_backend.ir.verify_structure import Messages, runs

T = TypeVar("T", TmemAlloc, TmemFree)

_PRODUCER = (ProducerAcquire, ProducerCommit, ProducerTail, TmaLoad)
_CONSUMER = (ConsumerWait, ConsumerRelease, MmaDrain, SkipStages)
_OPENS = (ProducerAcquire, ConsumerWait)
_CLOSES = (ProducerCommit, ConsumerRelease)
_TMA_KINDS = (PipelineKind.TMA_WGMMA, PipelineKind.TMA_UMMA)
MIN_TMEM_COLUMNS, MAX_TMEM_COLUMNS = 32, 512


def pipeline_roles(program: Program) -> Messages:
    """Producer operations stand in the producer's role, consumer ones in the
    consumer's."""
    for stmt, role in runs(program.top()):
        if isinstance(stmt, _PRODUCER):
            expected = stmt.pipeline.producer
        elif isinstance(stmt, _CONSUMER):
            expected = stmt.pipeline.consumer
        else:
            continue
        if role is None or role.name != expected:
            found = "all threads" if role is None else f"role {role}"
            yield f"{print_statement(stmt)} in {found}, expected role {expected}"


def bracketing(program: Program) -> Messages:
    """Per role and pipeline: acquire, work, commit; wait, work, release; the same
    before and after every loop body."""
    for role in program.roles:
        for pipeline in program.pipelines:
            if role.name in (pipeline.producer, pipeline.consumer):
                mine = tuple(_mine(program.top(), role, None))
                yield from _Bracket(pipeline, role).check(mine)


def in_step(program: Program) -> Messages:
    """Both sides of each pipeline run the same loops."""
    for pipeline in program.pipelines if program.regions else ():
        message = imbalance(program, pipeline)
        if message is not None:
            yield message


def arrivals(program: Program) -> Messages:
    """Arrival and thread counts, recomputed from roles and cluster."""
    m, n = program.cluster_shape
    if m * n != program.cluster_size:
        yield f"cluster {m}x{n} found, expected {program.cluster_size} CTAs"
    for resource, message in mismatches(program):
        yield f"{resource}: {message}"


def tx_bytes(program: Program) -> Messages:
    """TMA brings what the barrier expects: each carried buffer once a stage, for both
    CTAs of a pair at the leader's."""
    sizes = {name: dtype.bytes for name, dtype in DTYPES.items()}
    for p in program.pipelines:
        tma = p.kind in _TMA_KINDS
        expected = stage_bytes(p, sizes) * program.cta_group if tma else 0
        if p.tx_bytes != expected:
            yield f"pipeline {p}: found {p.tx_bytes} bytes, expected {expected}"
        for buffer in p.carries:
            if buffer.stages != p.stages:
                found = f"{buffer.stages} stages of {buffer}"
                yield f"pipeline {p}: found {found}, expected {p.stages}"
        loads = Counter(
            s.target
            for s in program.walk()
            if isinstance(s, TmaLoad) and s.pipeline == p
        )
        wanted = Counter(p.carries if tma else ())
        if loads != wanted:
            found_names, names = _names(loads), _names(wanted)
            yield f"pipeline {p}: found loads of {found_names}, expected {names}"


def named_barriers(program: Program) -> Messages:
    """Ids 1 to 15, each once; run by the roles it names."""
    ids = (b.id + i for b in program.barriers for i in range(b.instances))
    for identity, count in Counter(ids).items():
        if count > 1:
            yield f"barrier id {identity} found {count} times, expected once"
        if not 1 <= identity <= 15:
            yield f"barrier id {identity} found, expected 1 to 15"
    for stmt, role in runs(program.top()):
        for effect in stmt.effects():
            if isinstance(effect, (NamedSync, TurnWait, TurnPass)):
                who = "all threads" if role is None else role.name
                if who not in effect.barrier.roles:
                    names = ", ".join(effect.barrier.roles)
                    yield f"barrier {effect.barrier} in {who}, expected in {names}"


def tmem_lifetime(program: Program) -> Messages:
    """Each tensor-memory buffer is allocated once in the prologue, and freed once,
    with the same columns, behind the loops."""
    buffers = [b for b in program.buffers if b.space is Space.TMEM]
    inside = [
        s
        for loop in program.walk()
        if isinstance(loop, TileLoop)
        for s in walk(loop.body)
    ]
    for buffer in buffers:
        allocs = _of(TmemAlloc, program.walk(), buffer)
        frees = _of(TmemFree, program.walk(), buffer)
        if len(allocs) != 1 or len(frees) != 1:
            yield (
                f"{buffer}: found {len(allocs)} allocations and {len(frees)} frees, "
                "expected one each"
            )
            continue
        columns, freed = allocs[0].columns, frees[0].columns
        power = columns & (columns - 1) == 0
        if not power or not MIN_TMEM_COLUMNS <= columns <= MAX_TMEM_COLUMNS:
            yield f"{buffer}: found {columns} columns, expected a power of 2, 32 to 512"
        if columns != freed:
            yield f"{buffer}: found {freed} columns freed, expected {columns}"
        if not _of(TmemAlloc, walk(program.prologue), buffer):
            yield f"{buffer}: allocated outside the prologue"
        if _of(TmemFree, (*inside, *walk(program.prologue)), buffer):
            yield f"{buffer}: freed before the loops have ended"


def drained_accumulators(program: Program) -> Messages:
    """A thread waits for its wgmma before it touches the accumulator registers."""
    for thread in threads(program) if program.regions else ():
        pending: dict[Buffer, Step] = {}
        for step in trace(thread, trips=2):
            yield from _undrained(step, pending)


def _undrained(step: Step, pending: dict[Buffer, Step]) -> Messages:
    effects = step.site.effects
    for effect in effects:
        if isinstance(effect, Drain) and effect.queue is Queue.WGMMA:
            # The drain counts if it runs whenever the MMA did.
            done = [b for b, mma in pending.items() if step.path <= mma.path]
            for buffer in done if effect.pending == 0 else ():
                del pending[buffer]
    issues = Issue(Queue.WGMMA) in effects
    for effect in effects:
        if not isinstance(effect, (Read, Write)):
            continue
        if effect.buffer in pending and not issues:
            del pending[effect.buffer]
            stmt = print_statement(step.site.stmt)
            yield f"{stmt} touches {effect.buffer} while wgmma may still write it"
        if issues and effect.buffer.space is Space.RMEM:
            pending[effect.buffer] = step


class _Bracket:
    """The state of one pipeline in one role."""

    def __init__(self, pipeline: Pipeline, role: Role) -> None:
        self.pipeline = pipeline
        self.role = role

    def check(self, body: Body) -> Messages:
        held = yield from self._body(body, False)
        if held:
            yield f"role {self.role} ends while it holds a stage of {self.pipeline}"

    def _body(self, body: Body, held: bool) -> Generator[str, None, bool]:
        """Yields messages, returns whether a stage is held afterwards."""
        for stmt in body:
            if getattr(stmt, "pipeline", None) == self.pipeline:
                yield from self._expect(stmt, held)
                held = (held or isinstance(stmt, _OPENS)) and not isinstance(
                    stmt, _CLOSES
                )
            for nested in stmt.bodies():
                after = yield from self._body(nested, held)
                if after != held:
                    name = print_statement(stmt)
                    yield f"{name} leaves {self.pipeline} another way than it found it"
        return held

    def _expect(self, stmt: Stmt, held: bool) -> Messages:
        free = (ProducerTail, MmaDrain, SkipStages)
        wants = not isinstance(stmt, (*_OPENS, *free))
        if held != wants:
            found, expected = _state(held), _state(wants)
            yield (
                f"{print_statement(stmt)}: found {found} of {self.pipeline} in role "
                f"{self.role}, expected {expected}"
            )


def _state(held: bool) -> str:
    return "a stage" if held else "no stage"


def _mine(body: Body, role: Role, outer: Role | None) -> Iterator[Stmt]:
    """What ``role`` runs; of shared loops only its own statements."""
    for stmt in body:
        who = stmt.role or outer
        if who == role:
            yield stmt
        elif who is None:
            for nested in stmt.bodies():
                inside = tuple(_mine(nested, role, who))
                if inside:
                    yield stmt.with_body(inside)


def _of(kind: type[T], statements: Iterable[Stmt], buffer: Buffer) -> list[T]:
    return [s for s in statements if isinstance(s, kind) and buffer in s.buffers]


def _names(buffers: Counter[Buffer]) -> str:
    found = [b.name for b, count in buffers.items() for _ in range(count)]
    return ", ".join(found) or "nothing"
