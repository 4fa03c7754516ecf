"""Pipelines and data movement: what the roles do inside their loops.

``ASYNC`` effects go through TMA or the tensor cores; completion is what the pipeline's
barriers and ``Drain`` say, not program order.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_cute_backend.epilogue.graph import EpilogueGraph
from torch_cute_backend.ir.effects import (
    Arrive,
    Drain,
    Effect,
    Issue,
    Queue,
    Read,
    Wait,
    Write,
)
from torch_cute_backend.ir.expr import Expr
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.values import (
    Buffer,
    L2Policy,
    Pipeline,
    PipelineKind,
    Proxy,
    Space,
    Var,
)


@dataclass(frozen=True, kw_only=True)
class ProducerAcquire(Stmt):
    """Wait until the stage is empty; a TMA producer also announces its bytes."""

    pipeline: Pipeline

    def effects(self) -> tuple[Effect, ...]:
        wait = Wait(self.pipeline, full=False)
        if self.pipeline.tx_bytes:
            return (wait, Arrive(self.pipeline, full=True))
        return (wait,)


@dataclass(frozen=True, kw_only=True)
class ProducerCommit(Stmt):
    """Hand the stage over and move to the next one."""

    pipeline: Pipeline

    def effects(self) -> tuple[Effect, ...]:
        return (Arrive(self.pipeline, full=True),)


@dataclass(frozen=True, kw_only=True)
class ProducerTail(Stmt):
    """Wait until every stage was released, so that no arrival meets an exited CTA."""

    pipeline: Pipeline

    def effects(self) -> tuple[Effect, ...]:
        return (Wait(self.pipeline, full=False),)


@dataclass(frozen=True, kw_only=True)
class ConsumerWait(Stmt):
    """Wait until the stage is full."""

    pipeline: Pipeline

    def effects(self) -> tuple[Effect, ...]:
        return (Wait(self.pipeline, full=True),)


@dataclass(frozen=True, kw_only=True)
class ConsumerRelease(Stmt):
    """Give the stage back and move on. ``lag``: iterations it trails the wait, since
    an asynchronous MMA still reads the newest ``lag`` stages; ``index`` is then the
    loop's index."""

    pipeline: Pipeline
    lag: int = 0
    index: Var | None = None

    def effects(self) -> tuple[Effect, ...]:
        release = Arrive(self.pipeline, full=False)
        if self.pipeline.kind is PipelineKind.TMA_WGMMA:
            return (Drain(self.lag, Queue.WGMMA), release)
        return (release,)


@dataclass(frozen=True, kw_only=True)
class SelectTile(Stmt):
    """Views of the boxes of ``buffer`` for TMA, the first of them at element
    ``origin``: (row, k or column), and the group where the tensor is stacked."""

    buffer: Buffer
    origin: tuple[Expr, ...]

    def effects(self) -> tuple[Effect, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class TmaLoad(Stmt):
    """Bulk copy of box ``coords`` of ``source`` to the current stage of ``target``: the
    tile's index and the k tile's, or the latter alone in the tile that
    :class:`SelectTile` chose. ``l2``: what the L2 cache should do with the lines."""

    source: Buffer
    target: Buffer
    pipeline: Pipeline
    coords: tuple[Expr, ...]
    l2: L2Policy = L2Policy.NORMAL

    def effects(self) -> tuple[Effect, ...]:
        return (
            Read(self.source, Proxy.ASYNC),
            Write(self.target, Proxy.ASYNC),
            Arrive(self.pipeline, full=True),
        )


@dataclass(frozen=True, kw_only=True)
class ZeroTail(Stmt):
    """Zero what lies behind the first ``left`` elements of K, all of it if that is not
    positive, in the current stage of ``a`` and ``b``: the end of a group's K. Zero the
    first ``skip`` elements too, fewer than 16 bytes hold, if that is positive: what
    lies before the group's K. The MMA reads it next, so a :class:`~ir.sync.Fence` and a
    meeting of the role's warps must follow. Both operands, since zero times NaN is no
    zero."""

    a: Buffer
    b: Buffer
    pipeline: Pipeline
    left: Expr
    skip: Expr | None = None

    def effects(self) -> tuple[Effect, ...]:
        return (Write(self.a, disjoint=True), Write(self.b, disjoint=True))


@dataclass(frozen=True, kw_only=True)
class ScaleCopy(Stmt):
    """Copy the current stage's block scales, of A and of B in ``sources``, to tensor
    memory, where the MMAs of this k tile read them. The tensor core runs the copies
    and the MMAs that one thread issues in order (PTX ISA, tcgen05.cp)."""

    sources: tuple[Buffer, ...]
    target: Buffer
    pipeline: Pipeline

    def effects(self) -> tuple[Effect, ...]:
        reads = tuple(Read(b, Proxy.ASYNC) for b in self.sources)
        return (*reads, Write(self.target, Proxy.ASYNC))


@dataclass(frozen=True, kw_only=True)
class AccumulatorClear(Stmt):
    """Zero a register accumulator."""

    accumulator: Buffer

    def effects(self) -> tuple[Effect, ...]:
        return (Write(self.accumulator),)


@dataclass(frozen=True, kw_only=True)
class Mma(Stmt):
    """``accumulator += a @ b`` for one k tile.

    ``promote``: keep each k tile's sum apart and add it to fp32 registers (exact FP8
    accumulation on wgmma). ``index`` is the k loop's index: without ``promote``, the
    accumulator starts from zero at index 0. ``padding``: rows of ``a`` that TMA does
    not fill. ``alternate``: a second accumulator; k tiles take turns, and each one's
    sum is added while the next one's wgmma runs (the last one's by :class:`MmaDrain`).
    ``product``: which part of a tensor-memory accumulator it is that holds one for
    each product. ``more``: another product reads the same stage after it. ``scales``:
    tensor memory with the k tile's block scales.
    """

    accumulator: Buffer
    a: Buffer
    b: Buffer
    pipeline: Pipeline
    index: Var
    promote: Buffer | None = None
    padding: Buffer | None = None
    alternate: Buffer | None = None
    product: int = 0
    more: bool = False
    scales: Buffer | None = None

    def effects(self) -> tuple[Effect, ...]:
        extra: tuple[Effect, ...] = ()
        if self.scales is not None:
            extra = (Read(self.scales, Proxy.ASYNC),)
        if self.padding is not None:
            extra = (*extra, Read(self.padding, Proxy.ASYNC))
        if self.accumulator.space is Space.RMEM:
            extra = (*extra, Issue(Queue.WGMMA))
        if self.promote is not None:
            extra = (*extra, Read(self.promote), Write(self.promote))
        if self.promote is not None and self.alternate is None:
            # The sum is added at once, so the statement waits for it itself.
            extra = (*extra, Drain(0, Queue.WGMMA))
        if self.alternate is not None:
            other = self.alternate
            extra = (*extra, Read(other, Proxy.ASYNC), Write(other, Proxy.ASYNC))
        return (
            Read(self.a, Proxy.ASYNC),
            Read(self.b, Proxy.ASYNC),
            Read(self.accumulator, Proxy.ASYNC),
            Write(self.accumulator, Proxy.ASYNC),
            *extra,
        )


@dataclass(frozen=True, kw_only=True)
class MmaDrain(Stmt):
    """Wait for all wgmma of this tile and release the ``lag`` stages still held.
    ``last``: alternating accumulators, one of which holds the sum of the last of
    ``count`` k tiles; it is added to ``promote``."""

    pipeline: Pipeline
    lag: int
    last: tuple[Buffer, ...] = ()
    promote: Buffer | None = None
    count: Expr | None = None

    def effects(self) -> tuple[Effect, ...]:
        held: tuple[Effect, ...] = (Drain(0, Queue.WGMMA),)
        if self.promote is not None:
            reads = tuple(Read(b) for b in (*self.last, self.promote))
            held = (*held, *reads, Write(self.promote))
        return (*held, Arrive(self.pipeline, full=False)) if self.lag else held


@dataclass(frozen=True, kw_only=True)
class SkipStages(Stmt):
    """Move this instance's stage counters past the tile, ``count`` stages long, of each
    of the ``others`` instances."""

    pipeline: Pipeline
    count: Expr
    others: int

    def effects(self) -> tuple[Effect, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class TmemLoad(Stmt):
    """Copy subtile ``subtile`` of the accumulator stage to registers and wait; after
    that wait the read is complete, hence the generic proxy. ``product`` as for
    :class:`Mma`."""

    source: Buffer
    target: Buffer
    pipeline: Pipeline
    subtile: Var
    product: int = 0

    def effects(self) -> tuple[Effect, ...]:
        return (Read(self.source), Write(self.target))


@dataclass(frozen=True, kw_only=True)
class EpilogueLoad(Stmt):
    """Read epilogue inputs at this thread's (clamped) coordinates into registers, for
    subtile ``subtile``, or for the whole tile if that is None. The tile has index
    ``tile``, or its first element is ``origin``: row, column and, of stacked inputs,
    the group."""

    graph: EpilogueGraph
    inputs: tuple[Buffer, ...]
    targets: tuple[Buffer, ...]
    tile: tuple[Expr, ...] = ()
    origin: tuple[Expr, ...] = ()
    subtile: Var | None = None

    def effects(self) -> tuple[Effect, ...]:
        return (
            *(Read(b) for b in self.inputs),
            *(Write(b) for b in self.targets),
        )

    def operands(self) -> str:
        pairs = zip(self.inputs, self.targets, strict=True)
        loads = ", ".join(f"{i} -> {t}" for i, t in pairs)
        at = "whole tile" if self.subtile is None else f"subtile={self.subtile}"
        where = ", ".join(str(e) for e in self.tile or self.origin)
        what = "tile" if self.tile else "origin"
        return f"{loads}, {what}=({where}), {at}"


@dataclass(frozen=True, kw_only=True)
class EpilogueApply(Stmt):
    """Run the epilogue graph on one subtile, from ``source`` registers (``more``: those
    of further products) and the loaded ``inputs`` to one register buffer an output,
    cast to its dtype."""

    graph: EpilogueGraph
    source: Buffer
    inputs: tuple[Buffer, ...]
    targets: tuple[Buffer, ...]
    subtile: Var
    more: tuple[Buffer, ...] = ()

    @property
    def sources(self) -> tuple[Buffer, ...]:
        """The accumulator of each product."""
        return (self.source, *self.more)

    def effects(self) -> tuple[Effect, ...]:
        reads = tuple(Read(b) for b in (*self.sources, *self.inputs))
        return (*reads, *(Write(b) for b in self.targets))

    def operands(self) -> str:
        names = ", ".join(b.name for b in self.inputs)
        outs = ", ".join(b.name for b in self.targets)
        steps = "->".join(n.op for n in self.graph.nodes if n.op != "input")
        inputs = f"inputs=({names})"
        sources = ", ".join(b.name for b in self.sources)
        return f"{sources} -> {outs}, {inputs}, {steps}, subtile={self.subtile}"


@dataclass(frozen=True, kw_only=True)
class SmemStore(Stmt):
    """Copy registers to staging stage ``subtile`` modulo the stages; a thread always
    writes the same elements of a stage."""

    source: Buffer
    target: Buffer
    subtile: Var

    def effects(self) -> tuple[Effect, ...]:
        write = Write(self.target, stage=self.subtile, disjoint=True)
        return (Read(self.source), write)


@dataclass(frozen=True, kw_only=True)
class TmaStore(Stmt):
    """One warp's bulk store of a staging stage to the output, committed as a group.

    An empty ``tile`` is the one that :class:`SelectTile` chose. Where ``spare`` is
    negative nothing is stored, and the group committed is empty: later waits count
    groups.
    """

    source: Buffer
    target: Buffer
    tile: tuple[Expr, ...]
    subtile: Var
    spare: Expr | None = None

    def effects(self) -> tuple[Effect, ...]:
        return (
            Issue(Queue.STORE),
            Read(self.source, Proxy.ASYNC, stage=self.subtile),
            Write(self.target, Proxy.ASYNC, disjoint=True),
        )


@dataclass(frozen=True, kw_only=True)
class PartialStore(Stmt):
    """What :class:`TmaStore` must leave: where ``spare`` is negative, the role's
    threads copy a staging stage to the output, each element from ``begin`` (0 if
    empty) to before ``end`` only. ``origin`` as for :class:`EpilogueLoad`."""

    source: Buffer
    target: Buffer
    origin: tuple[Expr, ...]
    end: tuple[Expr, ...]
    spare: Expr
    subtile: Var
    begin: tuple[Expr, ...] = ()

    def effects(self) -> tuple[Effect, ...]:
        return (
            Read(self.source, stage=self.subtile),
            Write(self.target, disjoint=True),
        )


@dataclass(frozen=True, kw_only=True)
class TmaStoreWait(Stmt):
    """Wait until at most ``pending`` of the storing warp's bulk stores still read
    shared memory."""

    pending: int

    def effects(self) -> tuple[Effect, ...]:
        return (Drain(self.pending),)


@dataclass(frozen=True, kw_only=True)
class GmemStore(Stmt):
    """Store registers to the output, each element inside (m, n), or from ``begin`` to
    before ``end``, only. ``tile`` and ``origin`` as for :class:`EpilogueLoad`."""

    source: Buffer
    target: Buffer
    tile: tuple[Expr, ...]
    subtile: Var
    origin: tuple[Expr, ...] = ()
    end: tuple[Expr, ...] = ()
    begin: tuple[Expr, ...] = ()

    def effects(self) -> tuple[Effect, ...]:
        return (Read(self.source), Write(self.target, disjoint=True))
