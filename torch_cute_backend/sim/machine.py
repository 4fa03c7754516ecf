"""The simulated hardware state: lane groups, warps, CTAs, clusters.

Owns identity and storage (register files, shared memory, tensor memory, barriers,
clocks) and lane divergence. What instructions do to this state lives in the ``ops_*``
modules, whose classes ``Warp`` (in ``warp``) combines. A divergent warp consists of
several ``Group`` objects, each with its own register file; the group with the lowest
block index runs, and groups merge when they meet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .barriers import ClusterBarrier, MBarrier, NamedBarrier
from .clocks import AgentClock, Clocks, NoShadow, Shadow
from .codegen import EXITED, FORKED, Program
from .lanes import ALL_BUT, COMPLEMENT, LANE, ONE_HOT, UINT, norm64
from .launch_record import Launch

if TYPE_CHECKING:
    from .sched import Engine
    from .warp import Warp

ALL_LANES = np.ones(32, np.bool_)
SHARED_WINDOW = 1 << 24
TMEM_COLUMNS = 512


class LaneMask:
    """A lane mask with its derived facts."""

    __slots__ = ("bits", "first", "lanes", "n")

    def __init__(self, lanes: Any) -> None:
        index = np.flatnonzero(lanes)
        self.lanes = lanes
        self.n = len(index)
        self.first = int(index[0]) if self.n else 0
        self.bits = sum(1 << int(i) for i in index)


FULL = LaneMask(ALL_LANES)
_KNOWN = {id(lanes): LaneMask(lanes) for lanes in ONE_HOT + ALL_BUT}


class Group:
    """Lanes of a warp that execute together. ``R`` is the register file."""

    __slots__ = ("R", "bits", "first", "mask", "n", "pc", "w", "written")

    def __init__(
        self, warp: Warp, registers: list[Any], mask: LaneMask, pc: int
    ) -> None:
        self.w = warp
        self.R = registers
        self.pc = pc
        self.written = 0
        self.set_mask(mask)

    def set_mask(self, mask: LaneMask) -> None:
        """Lanes of the group."""
        self.mask = mask.lanes
        self.n = mask.n
        self.first = mask.first
        self.bits = mask.bits

    def branch(self, pred: np.ndarray, yes: int, no: int) -> int:
        """Conditional branch on a per-lane predicate."""
        taken = _KNOWN.get(id(pred)) if self.n == 32 else None
        if taken is not None:
            rest = _KNOWN[id(COMPLEMENT[id(pred)])]
        else:
            lanes = pred & self.mask if self.n < 32 else pred
            count = int(np.count_nonzero(lanes))
            if count == self.n:
                return yes
            if count == 0:
                return no
            taken, rest = LaneMask(lanes), LaneMask(self.mask & ~lanes)
        warp = self.w
        other = Group(warp, list(self.R), taken, yes)
        other.written = self.written
        warp.groups.append(other)
        self.set_mask(rest)
        self.pc = no
        return FORKED

    def exit(self) -> int:
        """All lanes of the group end."""
        return EXITED


class WarpState:
    """Identity and state of one warp; base of the operation classes."""

    def __init__(self, cta: Cta, index: int, program: Program) -> None:
        cluster = cta.cluster
        self.cta = cta
        self.cluster = cluster
        self.engine = cluster.engine
        self.program = program
        self.index = index
        self.name = f"CTA {cta.label} warp {index}"
        self.rank_base = cta.rank * SHARED_WINDOW
        self.agent = cluster.clocks.add(self.name, generic=True)
        self.clock = AgentClock(cluster.clocks, self.agent)
        self.fenced: np.ndarray | None = None
        self.fresh_mbarriers: list[MBarrier] = []
        self.checks = cluster.engine.checks
        defaults = [False if bits == 1 else 0 for bits in program.flow.bits]
        alive = LANE + 32 * index < cta.threads
        mask = FULL if alive.all() else LaneMask(alive)
        self.group = Group(self, defaults, mask, 0)  # type: ignore[arg-type]
        self.groups: list[Group] = [self.group]
        self.counts = [0] * len(program.functions)
        self.done = False
        self.waiting: Any = None
        self.wait_line = 0
        self.poll: tuple[int, int, int] | None = None
        self.token: Any = None
        self.special = cta.special_registers(index)

    def report(self, kind: str, message: str, line: int, advice: bool = False) -> None:
        """Record a finding of this warp."""
        self.engine.report(kind, message, line, self, advice)

    def select(self) -> None:
        """Merge groups that stand at the same block, then pick the lowest."""
        groups = self.groups
        if len(groups) == 2:
            first, second = groups
            if first.pc < second.pc:
                self.group = first
                return
            if first.pc > second.pc:
                self.group = second
                return
        groups.sort(key=lambda g: g.pc)
        merged = [groups[0]]
        for group in groups[1:]:
            if group.pc == merged[-1].pc:
                self._merge(merged[-1], group)
            else:
                merged.append(group)
        self.groups = merged
        self.group = merged[0]
        if len(merged) == 1:
            self.group.written = 0

    def _merge(self, into: Group, other: Group) -> None:
        program = self.program
        candidates = (into.written | other.written) & program.live_in[into.pc]
        left, right = into.R, other.R
        while candidates:
            low = candidates & -candidates
            number = low.bit_length() - 1
            candidates ^= low
            a, b = left[number], right[number]
            if a is b or (a.__class__ is int and b.__class__ is int and a == b):
                continue
            bits = program.flow.bits[number]
            kind = np.bool_ if bits == 1 else UINT[bits]
            left[number] = np.where(
                other.mask, np.asarray(norm64(b), kind), np.asarray(norm64(a), kind)
            )
        into.written |= other.written
        whole = into.n + other.n == 32
        into.set_mask(FULL if whole else LaneMask(into.mask | other.mask))


class Cta:
    """One thread block: shared memory, barriers, tensor memory and its warps."""

    def __init__(
        self, cluster: Cluster, rank: int, position: tuple[int, int, int]
    ) -> None:
        launch, program, engine = cluster.launch, cluster.program, cluster.engine
        self.cluster = cluster
        self.rank = rank
        self.position = position
        self.label = ",".join(map(str, position))
        self.threads = launch.block[0] * launch.block[1] * launch.block[2]
        self.shared_bytes = program.static_shared + launch.smem_bytes
        granules = -(-self.shared_bytes // 16)
        storage = np.zeros(granules * 16 + 1024, np.uint8)
        skip = -storage.ctypes.data % 1024
        self.smem = storage[skip : skip + granules * 16]
        self.views: dict[int, np.ndarray] = {
            1: self.smem,
            2: self.smem.view(np.uint16),
            4: self.smem.view(np.uint32),
            8: self.smem.view(np.uint64),
            16: self.smem.view(np.complex128),
        }
        clocks = cluster.clocks
        self.shadow = (
            NoShadow()
            if not engine.checks
            else Shadow(
                f"CTA {self.label} shared memory",
                granules,
                clocks,
                engine.report,
                lambda g: f"byte {g * 16:#x}",
            )
        )
        self.mbarriers: dict[int, MBarrier] = {}
        self.named: dict[int, NamedBarrier] = {}
        self.tmem = np.zeros((0, 0), np.uint32)
        self.tmem_shadow: Shadow = NoShadow()
        self.tmem_owner = np.zeros(TMEM_COLUMNS, np.int32)
        self.tmem_allocated: dict[int, int] = {}
        self.tmem_permit = True
        self.tmem_waiters: list[Any] = []
        self.core_agent = -1
        self.remote: dict[int, tuple[int, int]] = {}
        self.exit_rows = clocks.rows()[0]
        self.warps: list[Warp] = []
        self.live_warps = 0
        self.warpgroups: dict[int, Any] = {}

    def start(self, warp_class: type[Warp]) -> None:
        """Create the warps."""
        count = -(-self.threads // 32)
        self.warps = [warp_class(self, i, self.cluster.program) for i in range(count)]
        self.live_warps = count

    def make_tmem(self) -> None:
        """Allocate tensor memory on first use (128 lanes x 512 columns of 32 bits)."""
        if self.tmem.size:
            return
        self.tmem = np.zeros((128, TMEM_COLUMNS), np.uint32)
        clocks = self.cluster.clocks
        self.core_agent = clocks.add(f"CTA {self.label} tensor core")
        if self.cluster.engine.checks:
            self.tmem_shadow = Shadow(
                f"CTA {self.label} tensor memory",
                8 * TMEM_COLUMNS,
                clocks,
                self.cluster.engine.report,
                lambda g: f"lanes {g // TMEM_COLUMNS * 16}.. column {g % TMEM_COLUMNS}",
            )

    def special_registers(self, warp: int) -> dict[str, Any]:
        """Values of %tid and friends for one warp."""
        launch = self.cluster.launch
        thread = LANE + np.uint32(32 * warp)
        bx, by, _ = launch.block
        values: dict[str, Any] = {
            "%tid.x": thread % np.uint32(bx),
            "%tid.y": thread // np.uint32(bx) % np.uint32(by),
            "%tid.z": thread // np.uint32(bx * by),
            "%laneid": LANE,
            "%warpid": warp,
            "%nwarpid": -(-self.threads // 32),
            "%cluster_ctarank": self.rank,
            "%smid": self.cluster.number,
            "%nsmid": self.cluster.engine.sms,
            "%dynamic_smem_size": launch.smem_bytes,
            "%total_smem_size": self.shared_bytes,
            "%gridid": 0,
        }
        if by == 1:
            values["%tid.y"] = 0
        if launch.block[2] == 1:
            values["%tid.z"] = 0
        one = np.uint32(1)
        below = (one << LANE) - one
        values |= {
            "%lanemask_eq": one << LANE,
            "%lanemask_lt": below,
            "%lanemask_le": below | one << LANE,
            "%lanemask_gt": ~(below | one << LANE),
            "%lanemask_ge": ~below,
        }
        values["%cluster_nctarank"] = len(self.cluster.shape_ranks)
        for axis, name in enumerate("xyz"):
            c = launch.cluster[axis]
            values |= {
                f"%ntid.{name}": launch.block[axis],
                f"%ctaid.{name}": self.position[axis],
                f"%nctaid.{name}": launch.grid[axis],
                f"%clusterid.{name}": self.position[axis] // c,
                f"%nclusterid.{name}": launch.grid[axis] // c,
                f"%cluster_ctaid.{name}": self.position[axis] % c,
                f"%cluster_nctaid.{name}": c,
            }
        return values

    def warp_exited(self, rows: np.ndarray) -> None:
        """Book-keeping at the end of a warp."""
        self.live_warps -= 1
        np.maximum(self.exit_rows, rows[0], out=self.exit_rows)


class Cluster:
    """CTAs that share clocks and distributed shared memory."""

    def __init__(
        self,
        engine: Engine,
        program: Program,
        launch: Launch,
        number: int,
        positions: list[tuple[int, int, int]],
    ) -> None:
        self.engine = engine
        self.program = program
        self.launch = launch
        self.number = number
        self.shape_ranks = positions
        warps = -(-launch.block[0] * launch.block[1] * launch.block[2] // 32)
        self.clocks = Clocks(len(positions) * (3 * warps + warps // 4 + 66))
        self.ctas = [
            Cta(self, rank, position) for rank, position in enumerate(positions)
        ]
        self.barrier = ClusterBarrier(
            warps * len(positions), self.clocks.rows(), engine.wake
        )

    def start(self, warp_class: type[Warp]) -> list[Warp]:
        """Create all warps."""
        for cta in self.ctas:
            cta.start(warp_class)
        return [warp for cta in self.ctas for warp in cta.warps]
