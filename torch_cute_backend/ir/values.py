"""Resources of a tile program: roles, buffers, pipelines, barriers, schedulers.

All are frozen values that statements hold in their fields; two equal values are the
same resource. Names are identifiers, unique within a program.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

WARP_THREADS = 32


class Space(str, Enum):
    """Where a buffer lives."""

    GMEM = "gmem"
    SMEM = "smem"
    TMEM = "tmem"
    RMEM = "rmem"


class Proxy(str, Enum):
    """The path to memory: ordinary loads and stores, or TMA and tensor cores."""

    GENERIC = "generic"
    ASYNC = "async"


class L2Policy(str, Enum):
    """How long the L2 cache should keep lines that a bulk load brings in."""

    NORMAL = "normal"
    EVICT_FIRST = "evict_first"
    EVICT_LAST = "evict_last"


class PipelineKind(str, Enum):
    """Who fills a stage and who drains it."""

    TMA_WGMMA = "tma_wgmma"
    TMA_UMMA = "tma_umma"
    UMMA_EPILOGUE = "umma_epilogue"


class SchedulerKind(str, Enum):
    """How work tiles are handed out."""

    STATIC_PERSISTENT = "static_persistent"
    SINGLE_TILE = "single_tile"
    GROUPED_STATIC = "grouped_static"
    CLC_PERSISTENT = "clc_persistent"


@dataclass(frozen=True)
class Var:
    """An integer that a statement defines, for example a tile coordinate."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Role:
    """Warps ``first_warp .. first_warp + warps - 1`` of the CTA, with one job.

    ``registers`` is the count given to ``setmaxnreg``, None to leave it alone.
    ``leader``: only the leader CTA of a pair that shares its MMAs has the role.
    ``idle_warps``: warps behind the role's that do nothing but take part in its
    ``setmaxnreg``, which a whole warpgroup executes.

    ``instances``: as many groups of ``warps`` warps, one behind the other, have the
    role. The tiles of its loop are dealt to them in turn; within one tile, everything
    said of the role is said of one instance.
    """

    name: str
    first_warp: int
    warps: int
    registers: int | None = None
    leader: bool = False
    idle_warps: int = 0
    instances: int = 1

    @property
    def all_warps(self) -> int:
        return self.warps * self.instances

    @property
    def threads(self) -> int:
        """Of one instance."""
        return self.warps * WARP_THREADS

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Buffer:
    """A tensor in one memory space, with ``stages`` copies for pipelining.
    ``per_instance``: each instance of a role has stages of its own."""

    name: str
    space: Space
    dtype: str
    shape: tuple[int, ...] = ()
    stages: int = 1
    per_instance: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Pipeline:
    """A ring of full/empty mbarriers that hands ``carries`` from producer to consumer.

    Attributes:
        producer, consumer: role names.
        tx_bytes: bytes TMA brings per stage; 0 if no TMA fills it.
        producer_arrivals, consumer_arrivals: arrivals that complete a full or an empty
            barrier's phase. The verifier recomputes both from roles and cluster.
    """

    name: str
    kind: PipelineKind
    producer: str
    consumer: str
    carries: tuple[Buffer, ...]
    stages: int
    tx_bytes: int
    producer_arrivals: int
    consumer_arrivals: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class NamedBarrier:
    """Hardware barrier ``id`` (1-15; 0 is the CTA barrier) among ``roles``' threads.
    ``instances``: so many of them, with consecutive ids, one for each of a role's."""

    name: str
    id: int
    threads: int
    roles: tuple[str, ...]
    instances: int = 1

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Scheduler:
    """Hands out work tiles to one loop.

    Attributes:
        private: its state belongs to one loop; restarting it repeats the same tiles.
        finite: it ends after a number of steps fixed at launch.
    """

    name: str
    kind: SchedulerKind
    private: bool = True
    finite: bool = True

    @property
    def replayable(self) -> bool:
        """May a second loop walk the same tiles? Claims and mailboxes may not."""
        return (
            self.private
            and self.finite
            and self.kind is not SchedulerKind.CLC_PERSISTENT
        )

    def __str__(self) -> str:
        return self.name
