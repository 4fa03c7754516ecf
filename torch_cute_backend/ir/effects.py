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
)


class Scope(str, Enum):
    """Who takes part in a barrier."""

    CTA = "cta"
    CLUSTER = "cluster"


@dataclass(frozen=True)
class Effect:
    """Base of all effects."""


@dataclass(frozen=True)
class Read(Effect):
    buffer: Buffer
    proxy: Proxy = Proxy.GENERIC


@dataclass(frozen=True)
class Write(Effect):
    buffer: Buffer
    proxy: Proxy = Proxy.GENERIC


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
class Drain(Effect):
    """Wait until bulk stores issued by this thread have read (or written) memory."""

    pending: int


@dataclass(frozen=True)
class Sync(Effect):
    """A barrier of all threads of a scope; nothing crosses it in either direction."""

    scope: Scope


@dataclass(frozen=True)
class NamedSync(Effect):
    """Arrive and wait at a named barrier."""

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
