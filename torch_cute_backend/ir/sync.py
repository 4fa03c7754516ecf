"""Barriers, fences and lifetimes, and the coarse set-up statements of a kernel."""

from __future__ import annotations

from dataclasses import dataclass

from torch_cute_backend.ir.effects import (
    Alloc,
    Debug,
    Effect,
    Free,
    Init,
    Launch,
    NamedSync,
    ProxyFence,
    Read,
    Registers,
    Scope,
    Sync,
    SyncArrive,
    SyncWait,
    TurnPass,
    TurnWait,
    Write,
)
from torch_cute_backend.ir.expr import Expr
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.values import Buffer, NamedBarrier, Pipeline, Var


@dataclass(frozen=True, kw_only=True)
class CtaBarrier(Stmt):
    """Barrier 0: all threads of the CTA. ``why`` is printed beside it."""

    why: str = ""

    def effects(self) -> tuple[Effect, ...]:
        return (Sync(Scope.CTA),)


@dataclass(frozen=True, kw_only=True)
class NamedBarrierSync(Stmt):
    """All threads of the barrier's roles arrive and wait."""

    barrier: NamedBarrier

    def effects(self) -> tuple[Effect, ...]:
        return (NamedSync(self.barrier),)


@dataclass(frozen=True, kw_only=True)
class TakeTurn(Stmt):
    """Wait until the instance with the tile before ``work`` has passed the turn on. The
    CTA's ``first`` tile has none before it."""

    barrier: NamedBarrier
    work: Var
    first: Expr

    def effects(self) -> tuple[Effect, ...]:
        return (TurnWait(self.barrier),)


@dataclass(frozen=True, kw_only=True)
class PassTurn(Stmt):
    """Let the instance with the tile after ``work`` go on, if there is one."""

    barrier: NamedBarrier
    work: Var
    step: Expr
    limit: Expr

    def effects(self) -> tuple[Effect, ...]:
        return (TurnPass(self.barrier),)


@dataclass(frozen=True, kw_only=True)
class ClusterArrive(Stmt):
    """Arrive at the cluster barrier."""

    def effects(self) -> tuple[Effect, ...]:
        return (SyncArrive(Scope.CLUSTER),)


@dataclass(frozen=True, kw_only=True)
class ClusterWait(Stmt):
    """Wait for the cluster barrier."""

    def effects(self) -> tuple[Effect, ...]:
        return (SyncWait(Scope.CLUSTER),)


@dataclass(frozen=True, kw_only=True)
class Fence(Stmt):
    """Make this thread's generic shared-memory writes visible to the async proxy."""

    def effects(self) -> tuple[Effect, ...]:
        return (ProxyFence(),)


@dataclass(frozen=True, kw_only=True)
class TmemAlloc(Stmt):
    """Allocate ``columns`` of tensor memory for ``buffer``, and behind it ``more``, and
    publish the address."""

    buffer: Buffer
    columns: int
    more: tuple[Buffer, ...] = ()

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (self.buffer, *self.more)

    def effects(self) -> tuple[Effect, ...]:
        return tuple(Alloc(b) for b in self.buffers)


@dataclass(frozen=True, kw_only=True)
class TmemFree(Stmt):
    """Free the tensor memory of ``buffer`` and ``more``."""

    buffer: Buffer
    columns: int
    more: tuple[Buffer, ...] = ()

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (self.buffer, *self.more)

    def effects(self) -> tuple[Effect, ...]:
        return tuple(Free(b) for b in self.buffers)


@dataclass(frozen=True, kw_only=True)
class SetRegisters(Stmt):
    """``setmaxnreg``: give a warpgroup ``count`` registers a thread."""

    count: int
    increase: bool

    def effects(self) -> tuple[Effect, ...]:
        return (Registers(),)


@dataclass(frozen=True, kw_only=True)
class PdlWait(Stmt):
    """Wait for the grids this launch depends on (griddepcontrol.wait)."""

    def effects(self) -> tuple[Effect, ...]:
        return (Launch(),)


@dataclass(frozen=True, kw_only=True)
class PdlLaunch(Stmt):
    """Let dependent grids start (griddepcontrol.launch_dependents)."""

    def effects(self) -> tuple[Effect, ...]:
        return (Launch(),)


@dataclass(frozen=True, kw_only=True)
class DebugPrint(Stmt):
    """Print ``text`` from one thread."""

    text: str

    def effects(self) -> tuple[Effect, ...]:
        return (Debug(),)


@dataclass(frozen=True, kw_only=True)
class PrefetchDescriptors(Stmt):
    """Warm the descriptor cache for the TMA tensors ``buffers``. Nothing is pending
    afterwards as far as the tensors' data are concerned, hence the generic reads."""

    buffers: tuple[Buffer, ...]

    def effects(self) -> tuple[Effect, ...]:
        return tuple(Read(b) for b in self.buffers)


@dataclass(frozen=True, kw_only=True)
class AllocateShared(Stmt):
    """Lay out barriers and staged buffers in shared memory."""

    buffers: tuple[Buffer, ...]

    def effects(self) -> tuple[Effect, ...]:
        return tuple(Alloc(b) for b in self.buffers)


@dataclass(frozen=True, kw_only=True)
class InitPipelines(Stmt):
    """Initialise the mbarriers of ``pipelines`` and start publishing them."""

    pipelines: tuple[Pipeline, ...]

    def effects(self) -> tuple[Effect, ...]:
        return tuple(Init(p) for p in self.pipelines)


@dataclass(frozen=True, kw_only=True)
class InitSync(Stmt):
    """CTA barrier, or cluster barrier if ``cluster``: initialised barriers are visible
    to every thread that will use them."""

    cluster: bool

    def effects(self) -> tuple[Effect, ...]:
        return (Sync(Scope.CLUSTER if self.cluster else Scope.CTA),)


@dataclass(frozen=True, kw_only=True)
class PartitionTma(Stmt):
    """Views of ``buffers`` for TMA: tiles of the tensor, stages of shared memory."""

    buffers: tuple[Buffer, ...]

    def effects(self) -> tuple[Effect, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class PartitionMma(Stmt):
    """MMA fragments of staged A and B and the accumulator; ``more_b`` and
    ``more_accumulators`` are those of further products. ``scales``: where block scales
    go from ``staged_scales``, those of A and of B."""

    a: Buffer
    b: Buffer
    accumulator: Buffer
    promote: Buffer | None = None
    alternate: Buffer | None = None
    more_b: tuple[Buffer, ...] = ()
    more_accumulators: tuple[Buffer, ...] = ()
    scales: Buffer | None = None
    staged_scales: tuple[Buffer, ...] = ()

    def effects(self) -> tuple[Effect, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class PartitionEpilogue(Stmt):
    """This thread's share of a subtile: coordinates, registers, staging views.
    ``more``: registers for the accumulators of further products."""

    source: Buffer
    targets: tuple[Buffer, ...]
    staging: Buffer | None = None
    more: tuple[Buffer, ...] = ()

    def effects(self) -> tuple[Effect, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class ZeroPadding(Stmt):
    """Zero the rows of every stage of A that TMA never fills but an MMA reads."""

    buffer: Buffer

    def effects(self) -> tuple[Effect, ...]:
        return (Write(self.buffer, disjoint=True),)


@dataclass(frozen=True, kw_only=True)
class PipelineStates(Stmt):
    """Start this role's stage counters of ``pipelines`` at the first stage, or those of
    a role of several instances at the first stage of each one's first tile, which is
    ``tile_stages`` behind that of the instance before it."""

    pipelines: tuple[Pipeline, ...]
    tile_stages: Expr | None = None

    def effects(self) -> tuple[Effect, ...]:
        return ()
