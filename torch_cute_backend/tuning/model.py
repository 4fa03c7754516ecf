"""An analytic cost model: which tiles to try for a shape nobody has tuned.

A persistent kernel's time is its start, the largest of what overlaps in its mainloop
(tensor cores, loads of a CTA, L2, DRAM), and the epilogues that nothing hides.
:func:`estimate` gives these terms one by one. The rates are in ``rates``; the model
ranks, it does not predict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.problem import GemmProblem, Grouping
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning.fit import complete, exact_fp8
from torch_cute_backend.tuning.rates import RATES, Rates, rates_for

__all__ = [
    "RATES",
    "Estimate",
    "Work",
    "estimate",
    "other_roles",
    "rank",
    "scored",
    "seconds",
    "tiles",
    "variants",
]

_MMA_M = 64
"""Rows of the smallest MMA; lower tiles are padded in shared memory."""
MIN_STAGES = 3
_PINGPONG_OVERLAP = 1.25
"""Factor of the softness where two warpgroups are at different points of the mainloop:
late loads of one leave the tensor cores to the other. Chosen on 25 H200 shapes."""
_L2_SHARE = 0.4
"""Of L2, what an operand may take and stay while the other streams by."""
_SM90_TILES = (
    *((m, n, 1) for m in (8, 16, 32) for n in (16, 24, 32, 40, 48, 64, 96)),
    *((64, n, 1) for n in (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)),
    *((128, n, 2) for n in (32, 64, 96, 128, 160, 192, 256)),
    (256, 128, 2),
)
_PINGPONG = {"math": "pingpong"}
_MOVED = {"registers": "moved"}
_SM90_FAST_ROLES = (
    *((128, 128, _PINGPONG), (64, 256, _PINGPONG)),
    (128, 256, _MOVED),
)
_SM90_EXACT_ROLES = (
    (128, 128, {**_MOVED, "promotion": "overlap"}),
    *((128, n, _MOVED) for n in (160, 192)),
)
_SM100_TILES = (
    *((64, n, 1) for n in (16, 32, 64, 128, 256)),
    *((128, n, 1) for n in (16, 32, 64, 96, 128, 192, 256)),
)
_SM100_PAIRS = tuple((128, n) for n in (64, 96, 128, 192, 256))
"""Tiles of one CTA of a pair: its MMA has 256 rows."""
_PAIR_CLUSTERS = ((2, 1), (2, 2), (4, 1))


def tiles(problem: GemmProblem, arch: ArchSpec) -> list[GemmSchedule]:
    """Every valid schedule of the short list, in a fixed order: what the model holds
    equal, measured slower later in it."""
    return [
        *other_roles(problem, arch),
        *_plain_tiles(problem, arch),
        *_pairs(problem, arch),
    ]


def _pairs(problem: GemmProblem, arch: ArchSpec) -> list[GemmSchedule]:
    """Tiles whose B two CTAs of one MMA share, each half in its own shared memory."""
    if arch.mma != "tcgen05":
        return []
    found = []
    for tile_m, tile_n in _SM100_PAIRS:
        for cluster_m, cluster_n in _PAIR_CLUSTERS:
            if not _sensible(problem, (tile_m, tile_n), (cluster_m, cluster_n), 128):
                continue
            s = complete(
                problem,
                arch,
                tile_m,
                tile_n,
                cluster_m=cluster_m,
                cluster_n=cluster_n,
                cta_group=2,
            )
            if s.ab_stages >= MIN_STAGES and s.validate(problem, arch):
                found.append(s)
    return found


def _plain_tiles(problem: GemmProblem, arch: ArchSpec) -> list[GemmSchedule]:
    listed = _SM90_TILES if arch.mma == "wgmma" else _SM100_TILES
    found: list[GemmSchedule] = []
    for tile_m, tile_n, groups in listed:
        for cluster in ((1, 1), (2, 1), (1, 2), (1, 4)):
            for k_bytes in (128, 256):
                if not _sensible(problem, (tile_m, tile_n), cluster, k_bytes):
                    continue
                s = complete(
                    problem,
                    arch,
                    tile_m,
                    tile_n,
                    k_bytes=k_bytes,
                    cluster_m=cluster[0],
                    cluster_n=cluster[1],
                    math_warpgroups=groups,
                    raster="along_m",
                )
                if s.ab_stages >= MIN_STAGES and s.validate(problem, arch):
                    found.append(s)
    return found


def _sensible(
    problem: GemmProblem, tile: tuple[int, int], cluster: tuple[int, int], k_bytes: int
) -> bool:
    """Leave out clusters without neighbours to share with, k stages that measured
    slower (narrow ones of small tiles, wide ones of large), and low tiles for anything
    but one row of tiles."""
    (tile_m, tile_n), (cluster_m, cluster_n) = tile, cluster
    m, n, _ = problem.group_sizes
    rows, columns = -(-m // tile_m), -(-n // tile_n)
    if cluster_m > rows or cluster_n > columns:
        return False
    if tile_m < _MMA_M and (rows > 1 or (m <= tile_m // 2 and tile_m > 8)):
        return False
    small = tile_m <= _MMA_M and tile_n <= 96
    return (k_bytes > 128) == small


def other_roles(problem: GemmProblem, arch: ArchSpec) -> list[GemmSchedule]:
    """Schedules whose warps share the work in another way than the plain ones."""
    if arch.mma != "wgmma" or problem.is_grouped:
        return []
    listed = _SM90_EXACT_ROLES if exact_fp8(problem) else _SM90_FAST_ROLES
    found = []
    for tile_m, tile_n, roles in listed:
        # With a tile a CTA there is nothing to overlap, and one row of tiles waits for
        # its loads, not for its MMAs.
        rows, columns = -(-problem.m // tile_m), -(-problem.n // tile_n)
        if rows == 1 or rows * columns <= arch.default_sms:
            continue
        for cluster in ((1, 1), (2, 1), (1, 2)):
            if not _sensible(problem, (tile_m, tile_n), cluster, 128):
                continue
            s = complete(
                problem,
                arch,
                tile_m,
                tile_n,
                cluster_m=cluster[0],
                cluster_n=cluster[1],
                math_warpgroups=2,
                roles=roles,
            )
            if s.ab_stages >= MIN_STAGES and s.validate(problem, arch):
                found.append(s)
    return found


def variants(
    problem: GemmProblem, s: GemmSchedule, arch: ArchSpec
) -> list[GemmSchedule]:
    """``s`` with other orders of tiles and hints to L2: what is worth trying once its
    tile has proved good."""
    m, n, _ = problem.group_sizes
    rows = -(-m // (s.tile_m * s.cluster_m))
    columns = -(-n // (s.tile_n * s.cluster_n))
    changes: list[dict[str, Any]] = []
    if rows == 1 and columns > 1:
        other = "normal" if s.l2_policy == "stream_b" else "stream_b"
        changes.append({"l2_policy": other})
    if rows > 1 and columns > 1:
        changes.append({"raster": "along_n"})
        changes += [{"raster": "grouped", "group_m": g} for g in (4, 8) if g < rows]
    made = [replace(s, **{"group_m": 1, **change}) for change in changes]
    return [v for v in made if v != s and v.validate(problem, arch)]


@dataclass(frozen=True)
class Work:
    """How a schedule cuts a problem up; counts only, no rates.

    Attributes:
        waves: tiles of the busiest CTA.
        tiles: CTA tiles, those of clusters' overhang included.
        k_tiles: k tiles of a CTA tile.
        stage_bytes: A and B bytes of one k tile, as they land in a CTA's shared
            memory (half of B, where a pair shares it); ``pulled_bytes`` of them come
            through L2, the rest by multicast.
        in_flight: bytes that a CTA may have requested at once.
        mma_flops: of one k tile at the MMA's least width and height.
        input_bytes: of A and B from DRAM; what does not stay in L2 comes again for
            every band of tiles, which depends on the raster.
        output_bytes: of D, written once.
        tile_out_bytes: output of a CTA tile.
    """

    waves: int
    tiles: int
    k_tiles: int
    stage_bytes: float
    pulled_bytes: float
    in_flight: float
    mma_flops: float
    input_bytes: float
    output_bytes: float
    tile_out_bytes: float

    @classmethod
    def of(
        cls, p: GemmProblem, s: GemmSchedule, arch: ArchSpec, narrow_n: float
    ) -> Work:
        m, n, k = p.group_sizes
        rows = _bands(m, s.tile_m * s.cluster_m, p.grouping is Grouping.M)
        columns = _bands(n, s.tile_n * s.cluster_n, p.grouping is Grouping.N)
        clusters = math.ceil(p.groups * rows * columns)
        slots = arch.cluster_slots(s.cluster_size)
        a = s.tile_m * s.tile_k * p.a_dtype.bytes
        b = s.tile_n * s.tile_k * p.b_dtype.bytes
        staged = a + b // s.cta_group
        k_tiles = math.ceil(k / s.tile_k)
        # A CTA's columns share A with the cluster's other columns, and so for B.
        return cls(
            waves=math.ceil(clusters / slots),
            tiles=clusters * s.cluster_size,
            k_tiles=k_tiles,
            stage_bytes=staged,
            pulled_bytes=a / s.cluster_n + b / s.cluster_m,
            in_flight=min(s.ab_stages, k_tiles) * staged,
            mma_flops=2.0 * max(s.tile_m, _MMA_M) * max(s.tile_n, narrow_n) * s.tile_k,
            input_bytes=p.groups * _input_bytes(p, s, arch, slots),
            output_bytes=float(p.groups * m * n * p.out_dtype.bytes),
            tile_out_bytes=float(s.tile_m * s.tile_n * p.out_dtype.bytes),
        )


def _bands(size: int, tile: int, ragged: bool) -> float:
    """Tiles of one group along a size. Groups of a ragged size differ: each wastes half
    a tile on average."""
    return max(1.0, size / tile + 0.5) if ragged else math.ceil(size / tile)


def _input_bytes(p: GemmProblem, s: GemmSchedule, arch: ArchSpec, slots: int) -> float:
    """DRAM bytes of A and B of one group, see :class:`Work`.

    The raster keeps one operand's tiles in use while it runs through the other's, which
    comes again for every band, unless it stays in L2 anyway.
    """
    m, n, k = p.group_sizes
    a = float(m * k * p.a_dtype.bytes)
    b = float(n * k * p.b_dtype.bytes)
    rows = math.ceil(m / (s.tile_m * s.cluster_m))
    columns = math.ceil(n / (s.tile_n * s.cluster_n))
    if s.raster == "along_n":
        down = max(1, slots // columns)
        return a + b * _times(b, math.ceil(rows / down), arch)
    band = min(rows, s.group_m) if s.raster == "grouped" else rows
    across = max(1, slots // band)
    a_times = _times(a * band / rows, math.ceil(columns / across), arch)
    return a * a_times + b * _times(b, math.ceil(rows / band), arch)


def _times(used: float, bands: int, arch: ArchSpec) -> int:
    """How often an operand comes from DRAM if ``used`` bytes of it recur."""
    return 1 if used <= arch.l2_bytes * _L2_SHARE else bands


@dataclass(frozen=True)
class Estimate:
    """Seconds of each part of a kernel; ``compute`` to ``dram`` overlap."""

    start: float
    compute: float
    ingest: float
    l2: float
    dram: float
    epilogue: float
    softness: float

    @property
    def mainloop(self) -> float:
        terms = (self.compute, self.ingest, self.l2, self.dram)
        largest = max(terms)
        joined = sum((t / largest) ** self.softness for t in terms)
        return float(largest * joined ** (1.0 / self.softness))

    @property
    def total(self) -> float:
        return self.start + self.mainloop + self.epilogue

    @property
    def bound(self) -> str:
        """What the mainloop waits for most."""
        names = ("compute", "ingest", "l2", "dram")
        return max(names, key=lambda name: float(getattr(self, name)))


def estimate(
    problem: GemmProblem,
    s: GemmSchedule,
    arch: ArchSpec,
    rates: Rates | None = None,
) -> Estimate:
    """Run time with cold L2, part by part; ``rates`` are the arch's by default."""
    r = rates_for(arch) if rates is None else rates
    work = Work.of(problem, s, arch, r.narrow_n)
    flops = (r.fp8_flops if problem.a_dtype.is_fp8 else r.half_flops) / arch.default_sms
    mma = work.mma_flops / flops
    if exact_fp8(problem) and arch.required_roles == ("load", "math"):
        # Sums added behind the next MMA cost nothing that was measured.
        mma *= 1.0 if s.promotion == "overlap" else r.exact_factor
    rate = min(r.sm_bytes, work.in_flight / r.latency_s)
    steps = work.waves * work.k_tiles
    barriers = r.k_tile_s + r.cluster_s * math.log2(s.cluster_size)
    if s.pingpong:
        # One warpgroup's MMAs run while the other is at its barriers.
        barriers = 0.0
    return Estimate(
        start=r.start_s,
        compute=steps * (mma + barriers),
        ingest=steps * (work.stage_bytes / rate + barriers),
        l2=work.tiles * work.k_tiles * work.pulled_bytes / r.l2_bytes,
        dram=(work.input_bytes + work.output_bytes) / r.dram_bytes,
        epilogue=_exposed(s, work, r, mma + barriers),
        softness=r.softness * (_PINGPONG_OVERLAP if s.pingpong else 1.0),
    )


def _exposed(s: GemmSchedule, work: Work, r: Rates, k_tile_s: float) -> float:
    """Seconds of epilogues that nothing hides: of every tile, where accumulators have
    one stage; else the last, and with pingpong what outlasts the other warpgroup's
    mainloop."""
    if s.pingpong:
        # Half the warps store a tile.
        once = r.tile_s + 2 * work.tile_out_bytes * r.store_s
        longer = max(0.0, once - work.k_tiles * k_tile_s)
        return once + (work.waves - 1) * longer
    once = r.tile_s + work.tile_out_bytes * r.store_s
    return once * (work.waves if s.acc_stages == 1 else 1)


def seconds(problem: GemmProblem, s: GemmSchedule, arch: ArchSpec) -> float:
    """Estimated run time with cold L2."""
    return estimate(problem, s, arch).total


def scored(problem: GemmProblem, arch: ArchSpec) -> list[tuple[float, GemmSchedule]]:
    """Every schedule of :func:`tiles` with its estimate in seconds, best first."""
    timed = [(seconds(problem, s, arch), s) for s in tiles(problem, arch)]
    return sorted(timed, key=lambda pair: pair[0])


def rank(problem: GemmProblem, arch: ArchSpec, limit: int = 4) -> list[GemmSchedule]:
    """The ``limit`` schedules with the smallest estimate, best first."""
    return [s for _, s in scored(problem, arch)[:limit]]
