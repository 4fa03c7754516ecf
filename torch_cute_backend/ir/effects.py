"""What a statement does to the machine, as data.

A statement class declares its effects or does not import: an empty set means "none at
all", never "unknown". Passes decide from these values alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch_cute_backend.ir.values import (
    Buffer,
    NamedBarrier,
    Pipeline,
    Proxy,
    Scheduler,
    Var,
)


class Queue(str, Enum):
    """Hardware queues whose work completes in order and is awaited by count."""

    STORE = "bulk_store"
    WGMMA = "wgmma"


class Scope(str, Enum):
    """Who takes part in a barrier."""

    CTA = "cta"
    CLUSTER = "cluster"


@dataclass(frozen=True)
class Effect:
    """Base of all effects."""


@dataclass(frozen=True)
class Read(Effect):
    """Read ``buffer``. ``stage``: the stage read is this variable modulo the buffer's
    stages; None if any stage may be."""

    buffer: Buffer
    proxy: Proxy = Proxy.GENERIC
    stage: Var | None = None


@dataclass(frozen=True)
class Write(Effect):
    """Write ``buffer``; ``stage`` as for :class:`Read`.

    ``disjoint``: no two threads of the role, in whatever iterations, write the same
    element with this statement or another disjoint one.
    """

    buffer: Buffer
    proxy: Proxy = Proxy.GENERIC
    stage: Var | None = None
    disjoint: bool = False


@dataclass(frozen=True)
class Alloc(Effect):
    buffer: Buffer


@dataclass(frozen=True)
class Free(Effect):
    buffer: Buffer


@dataclass(frozen=True)
class Init(Effect):
    """Initialise the barriers of a pipeline."""

    pipeline: Pipeline


@dataclass(frozen=True)
class Arrive(Effect):
    """Arrival at the full (``full=True``) or empty barrier of a pipeline stage."""

    pipeline: Pipeline
    full: bool


@dataclass(frozen=True)
class Wait(Effect):
    """Wait for the full or the empty barrier of a pipeline stage."""

    pipeline: Pipeline
    full: bool


@dataclass(frozen=True)
class Issue(Effect):
    """The statement's ASYNC accesses enter ``queue`` as one group and are complete
    only when a :class:`Drain` of that queue says so."""

    queue: Queue


@dataclass(frozen=True)
class Drain(Effect):
    """Wait until at most ``pending`` groups that this thread issued to ``queue`` are
    incomplete. For bulk stores that means: still read shared memory."""

    pending: int
    queue: Queue = Queue.STORE


@dataclass(frozen=True)
class Sync(Effect):
    """A barrier of all threads of a scope; nothing crosses it in either direction."""

    scope: Scope


@dataclass(frozen=True)
class SyncArrive(Effect):
    """First half of a barrier of all threads of a scope."""

    scope: Scope


@dataclass(frozen=True)
class SyncWait(Effect):
    """Second half: what came before every thread's :class:`SyncArrive` is done."""

    scope: Scope


@dataclass(frozen=True)
class NamedSync(Effect):
    """Arrive and wait at a named barrier."""

    barrier: NamedBarrier


@dataclass(frozen=True)
class TurnWait(Effect):
    """Wait at one's own of the barriers that an instance has."""

    barrier: NamedBarrier


@dataclass(frozen=True)
class TurnPass(Effect):
    """Arrive at the next instance's, without waiting."""

    barrier: NamedBarrier


@dataclass(frozen=True)
class ProxyFence(Effect):
    """Makes generic accesses to shared memory visible to the async proxy."""


@dataclass(frozen=True)
class Step(Effect):
    """Advance a scheduler's private state."""

    scheduler: Scheduler


@dataclass(frozen=True)
class Claim(Effect):
    """Take work from a scheduler shared beyond this loop; not replayable."""

    scheduler: Scheduler


@dataclass(frozen=True)
class Launch(Effect):
    """Release or await a dependent grid (programmatic dependent launch)."""


@dataclass(frozen=True)
class Registers(Effect):
    """Change a warpgroup's register budget."""


@dataclass(frozen=True)
class Debug(Effect):
    """Print or trap: observable by a person."""
