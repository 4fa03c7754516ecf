"""An analytic cost model: which tiles to try for a shape nobody has tuned.

For every tile of a short list it adds up what a persistent kernel's time is made of:
a fixed launch and fill, the mainloop's waves bound by tensor cores or by memory, and
the epilogue. Constants are rough per-arch rates; the model ranks, it does not predict.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning.fit import complete, exact_fp8


@dataclass(frozen=True)
class Rates:
    """Rates of one GPU. ``kind`` says whether they were measured or are published.

    Attributes:
        fp8_flops, bf16_flops: dense tensor-core rate, FLOP/s, whole GPU.
        dram_bytes: achieved stream rate, bytes/s; ``sm_bytes`` what one SM can pull.
        fill_s: launch, descriptor fetch and first k tiles; ``tile_s``: hand-over of a
            tile (accumulator drain, epilogue start).
        store_s: seconds a byte of output costs one SM.
    """

    kind: str
    fp8_flops: float
    bf16_flops: float
    dram_bytes: float
    sm_bytes: float
    l2_bytes: float
    fill_s: float
    tile_s: float
    store_s: float


RATES: dict[str, Rates] = {
    "sm_90a": Rates(
        "measured on an H200 where facts allow, else assumed",
        1.45e15,
        0.79e15,
        4.0e12,
        95e9,
        14e12,
        2.2e-6,
        0.7e-6,
        2.0e-11,
    ),
    "sm_100a": Rates(
        "published figures of a B200; never measured here",
        4.0e15,
        2.0e15,
        6.5e12,
        60e9,
        12e12,
        2.2e-6,
        0.4e-6,
        1.5e-11,
    ),
}

_SM90_TILES = (
    *((m, n, 1) for m in (8, 16, 32) for n in (16, 24, 32, 40, 48, 64, 96)),
    *((64, n, 1) for n in (8, 16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)),
    *((128, n, 2) for n in (32, 64, 96, 128, 160, 192, 256)),
    (256, 128, 2),
)
_SM100_TILES = (
    *((64, n, 1) for n in (16, 32, 64, 128, 256)),
    *((128, n, 1) for n in (16, 32, 64, 96, 128, 192, 256)),
)


def tiles(problem: GemmProblem, arch: ArchSpec) -> list[GemmSchedule]:
    """Every valid schedule of the short list, in a fixed order."""
    listed = _SM90_TILES if arch.name == "sm_90a" else _SM100_TILES
    found: list[GemmSchedule] = []
    for tile_m, tile_n, groups in listed:
        for cm, cn in ((1, 1), (2, 1), (1, 2), (1, 4)):
            for k_bytes in (128, 256):
                s = complete(
                    problem,
                    arch,
                    tile_m,
                    tile_n,
                    k_bytes=k_bytes,
                    cluster_m=cm,
                    cluster_n=cn,
                    math_warpgroups=groups,
                    raster="along_m",
                )
                if _sensible(problem, s) and s.validate(problem, arch):
                    found.append(s)
    return found


def _sensible(problem: GemmProblem, s: GemmSchedule) -> bool:
    """Leave out clusters without neighbours to share with, shallow pipelines, k stages
    that measured slower (narrow ones of small tiles, wide ones of large), and low tiles
    for anything but one row of tiles."""
    rows, columns = -(-problem.m // s.tile_m), -(-problem.n // s.tile_n)
    if s.cluster_m > rows or s.cluster_n > columns:
        return False
    if s.tile_m < 64 and (rows > 1 or problem.m <= s.tile_m // 2 and s.tile_m > 8):
        return False
    wide = s.tile_k * problem.a_dtype.bytes > 128
    small = s.tile_m <= 64 and s.tile_n <= 96
    return s.ab_stages >= 3 and wide == small


def seconds(problem: GemmProblem, s: GemmSchedule, arch: ArchSpec) -> float:
    """Estimated run time with cold L2."""
    r = RATES[arch.name]
    p = problem
    rows, columns = -(-p.m // s.tile_m), -(-p.n // s.tile_n)
    sms = arch.default_sms // s.cluster_size * s.cluster_size
    ctas = min(rows * columns, sms)
    waves = -(-rows * columns // sms)
    k_tiles = -(-p.k // s.tile_k)
    width = p.a_dtype.bytes
    load = (s.tile_m / s.cluster_n + s.tile_n / s.cluster_m) * s.tile_k * width
    rate = r.fp8_flops if p.a_dtype.is_fp8 else r.bf16_flops
    # A wgmma or UMMA narrower than 64 columns runs at the pace of reading A.
    flops = 2.0 * s.tile_m * max(s.tile_n, 64) * s.tile_k
    mma = flops / (rate / arch.default_sms) * (1.6 if exact_fp8(p) else 1.0)
    k_tile = max(mma, load / r.sm_bytes)
    mainloop = waves * k_tiles * k_tile
    dram = (p.m * p.k + p.n * p.k) * width / r.dram_bytes
    l2 = rows * columns * k_tiles * load / r.l2_bytes
    spread = dram * min(2.0, sms / ctas * 0.5 + 0.5)
    out = s.tile_m * s.tile_n * p.out_dtype.bytes * r.store_s
    return r.fill_s + max(mainloop, spread, l2) + waves * (r.tile_s + out)


def scored(problem: GemmProblem, arch: ArchSpec) -> list[tuple[float, GemmSchedule]]:
    """Every schedule of :func:`tiles` with its estimate in seconds, best first."""
    timed = [(seconds(problem, s, arch), s) for s in tiles(problem, arch)]
    return sorted(timed, key=lambda pair: pair[0])


def rank(problem: GemmProblem, arch: ArchSpec, limit: int = 4) -> list[GemmSchedule]:
    """The ``limit`` schedules with the smallest estimate, best first."""
    return [s for _, s in scored(problem, arch)[:limit]]
