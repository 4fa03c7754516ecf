"""``GROUPED``: grouped kernels that golden, determinism, cubin and simulator tests draw
from, each with group ends to run it with.

All groupings, both operand majors, FP8 with rowwise scales, both schedulers, all
forms, clusters, low tiles, both stores. The ends hold empty groups, groups of a tile
and of one element more, and leave out the end of the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from build_helper import COL, FULL, ROW, SCALAR, grouped
from kernel_cases import CASES, Case

from torch_cute_backend.arch import SM90, SM100, ArchSpec
from torch_cute_backend.dtypes import BFLOAT16, E4M3, E5M2, FLOAT16, FLOAT32
from torch_cute_backend.epilogue.graph import EpilogueBuilder, EpilogueGraph
from torch_cute_backend.problem import Accum, GemmProblem, Grouping, Major
from torch_cute_backend.schedule import GemmSchedule

M, N, K, BATCH = Grouping.M, Grouping.N, Grouping.K, Grouping.BATCH
MN = Major.MN
ENDS = (0, 64, 64, 129, 135, 290)
RAGGED = {
    M: {"m": 300, "n": 136, "k": 200},
    N: {"m": 130, "n": 304, "k": 200},
    K: {"m": 130, "n": 136, "k": 304},
    BATCH: {"m": 130, "n": 136, "k": 200},
}
"""Small sizes with tails; the ragged ones reach behind ``ENDS``."""


@dataclass(frozen=True)
class GroupedCase(Case):
    """``ends``: of the groups, for a run with the problem's own sizes."""

    ends: tuple[int, ...] = ENDS


def schedule(tile_m: int, tile_n: int, tile_k: int, stages: int, **rest: object):
    fields = {"epi_n": 32, "epi_stages": 2, "scheduler": "grouped_static", **rest}
    return GemmSchedule(tile_m, tile_n, tile_k, stages, **fields)


def small(grouping: Grouping, **fields: object) -> GemmProblem:
    """A problem of the sizes in ``RAGGED``; FP8 with a K of whole 16 elements."""
    sizes = dict(RAGGED[grouping])
    if fields.get("dtype") in (E4M3, E5M2):
        sizes["k"] = sizes["k"] // 16 * 16
    if grouping is BATCH:
        sizes["groups"] = 3
    return grouped(grouping, **{**sizes, **fields})


S64 = schedule(64, 64, 64, 4)
F64 = schedule(64, 64, 128, 4)
INLINE, KEPT = {"shared_loop": "inline"}, {"shared_loop": "keep"}
RANK3 = replace(S64, scheduler="rank3_rhs")
BIG = schedule(128, 256, 64, 4, math_warpgroups=2)
PING = replace(S64, math="pingpong", math_warpgroups=2)
MANY = tuple(3 * i for i in range(50))
BAD = (100, 50, -3, 2000, 10)


def fused() -> EpilogueGraph:
    """Inputs of all kinds and two outputs, exact on small integers."""
    b = EpilogueBuilder()
    x = b.op("mul", b.acc(), b.input("scale_a", ROW, FLOAT32))
    x = b.op("mul", x, b.input("scale_b", COL, FLOAT32))
    x = b.op("mul", x, b.input("scale", SCALAR, FLOAT32))
    x = b.op("add", x, b.input("bias", COL, BFLOAT16))
    b.output(b.op("add", x, b.input("residual", FULL, BFLOAT16)), BFLOAT16)
    b.output(x, BFLOAT16, "d1")
    return b.graph()


NARROW = {"epi_n": 16}
FUSED = {
    f"grouped_{kind.value}_fused": small(kind, epilogue=fused())
    for kind in (M, N, K, BATCH)
}

SM90_GOLDEN = {
    "grouped_m": (small(M), S64),
    "grouped_m_rank3": (small(M), RANK3),
    "grouped_m_inline": (small(M), replace(S64, **INLINE)),
    "grouped_n_fp8": (small(N, dtype=E4M3), F64),
    "grouped_k": (small(K), S64),
    "grouped_batch": (small(BATCH), S64),
    "grouped_m_pingpong": (small(M), PING),
}
SM90_MORE = {
    "grouped_m_kept": (small(M), replace(S64, **KEPT)),
    "grouped_m_rank3_inline": (small(M), replace(RANK3, **INLINE)),
    "grouped_m_rank3_drop": (small(M), replace(RANK3, dead_loads="drop")),
    "grouped_m_fp8": (small(M, dtype=E4M3), F64),
    "grouped_m_fp8_exact": (
        small(M, dtype=E4M3, accum=Accum.EXACT),
        replace(F64, promotion="overlap"),
    ),
    "grouped_m_fp16": (small(M, dtype=FLOAT16, out=FLOAT16), S64),
    "grouped_m_fp32_out": (small(M, out=FLOAT32), S64),
    "grouped_m_mn": (small(M, m=304, a_major=MN, b_major=MN), S64),
    "grouped_m_kn": (small(M, b_major=MN), replace(S64, raster="along_n")),
    "grouped_m_direct": (
        small(M, n=133, out_aligned=False),
        replace(S64, store="direct", epi_stages=1),
    ),
    "grouped_m_low": (small(M, m=60), schedule(16, 64, 64, 4)),
    "grouped_m_bands": (
        small(M),
        replace(S64, raster="grouped", group_m=2),
    ),
    "grouped_m_cluster": (
        small(M),
        replace(S64, cluster_m=2, cluster_n=2, raster="along_n"),
    ),
    "grouped_m_big": (small(M), BIG),
    "grouped_m_big_fp8": (small(M, dtype=E4M3), replace(BIG, tile_k=128)),
    "grouped_m_stream": (small(M), replace(S64, l2_policy="stream_b")),
    "grouped_n": (small(N), S64),
    "grouped_n_inline": (small(N), replace(S64, **INLINE)),
    "grouped_n_kept": (small(N), replace(S64, **KEPT)),
    "grouped_n_mn": (small(N, m=136, a_major=MN, b_major=MN), S64),
    "grouped_n_direct": (
        small(N, n=296, out_aligned=False),
        replace(S64, store="direct", epi_stages=1),
    ),
    "grouped_n_cluster": (small(N), replace(S64, cluster_n=2)),
    "grouped_k_inline": (small(K), replace(S64, **INLINE)),
    "grouped_k_kept": (small(K), replace(S64, **KEPT)),
    "grouped_k_mn": (small(K, m=136, a_major=MN, b_major=MN), S64),
    "grouped_k_fp8": (small(K, dtype=E4M3), F64),
    "grouped_k_fp8_exact": (small(K, dtype=E4M3, accum=Accum.EXACT), F64),
    "grouped_k_mixed": (small(K, dtype=E4M3, b_dtype=E5M2), F64),
    "grouped_k_low": (small(K, m=16), schedule(16, 64, 64, 4)),
    "grouped_k_cluster": (small(K), replace(S64, cluster_m=2, cluster_n=2)),
    "grouped_k_big": (small(K, m=136, a_major=MN, b_major=MN), BIG),
    "grouped_k_direct": (
        small(K, out_aligned=False),
        replace(S64, store="direct", epi_stages=1),
    ),
    "grouped_batch_fp8": (small(BATCH, dtype=E4M3), F64),
    "grouped_batch_inline": (small(BATCH), replace(S64, **INLINE)),
    "grouped_batch_kept": (small(BATCH), replace(S64, **KEPT)),
    "grouped_m_pingpong_kept": (small(M), replace(PING, **KEPT)),
    "grouped_m_pingpong_fp8": (
        small(M, dtype=E4M3),
        replace(PING, tile_m=128, tile_n=128, tile_k=128, cluster_n=2),
    ),
    "grouped_m_pingpong_direct": (
        small(M, m=304, a_major=MN, n=133, out_aligned=False),
        replace(PING, store="direct", epi_stages=1),
    ),
    "grouped_n_pingpong": (
        small(N, dtype=E4M3, accum=Accum.EXACT),
        replace(PING, tile_k=128, registers="moved"),
    ),
    "grouped_batch_pingpong": (small(BATCH), PING),
    **{name: (p, replace(S64, **NARROW)) for name, p in FUSED.items()},
    "grouped_m_fused_rank3": (
        FUSED["grouped_m_fused"],
        replace(RANK3, **NARROW),
    ),
    "grouped_m_fused_direct": (
        FUSED["grouped_m_fused"],
        replace(S64, store="direct", epi_stages=1, **NARROW),
    ),
}
OTHER_ENDS = {
    "grouped_m_mxfp8_kept": BAD,
    "grouped_m_mxfp8_rank3": tuple(range(0, 300, 7)),
    "grouped_m_low": (0, 16, 16, 33, 40, 60),
    "grouped_m_fp16": BAD,
    "grouped_k_fp8": BAD,
    "grouped_n_mn": (*MANY, 304),
}


T128 = schedule(128, 64, 64, 4, acc_stages=2)
F128 = replace(T128, tile_k=128)
T64 = replace(T128, tile_m=64)
TRANK3 = replace(T128, scheduler="rank3_rhs")
PAIR = replace(T128, cluster_m=2, cta_group=2)
MX = small(M, k=352, dtype=E4M3, scaling="mxfp8", epilogue=EpilogueGraph.linear())
MX128 = replace(F128, tile_n=128)
CLUSTER = {"cluster_m": 2, "cluster_n": 2}
DIRECT = {"store": "direct", "epi_stages": 1}

SM100_GOLDEN = {
    "grouped_m": (small(M), T128),
    "grouped_m_rank3": (small(M), TRANK3),
    "grouped_n_fp8": (small(N, dtype=E4M3), F128),
    "grouped_k": (small(K), T128),
    "grouped_batch": (small(BATCH), T128),
    "grouped_m_pair": (small(M), PAIR),
    "grouped_m_mxfp8": (MX, MX128),
}
SM100_MORE = {
    "grouped_m_mxfp8_kept": (MX, replace(MX128, **KEPT)),
    "grouped_m_mxfp8_inline": (MX, replace(MX128, raster="along_n", **INLINE)),
    "grouped_m_mxfp8_rank3": (MX, replace(MX128, scheduler="rank3_rhs")),
    "grouped_m_inline": (small(M), replace(T128, **INLINE)),
    "grouped_m_kept": (small(M), replace(T128, **KEPT)),
    "grouped_m_rank3_inline": (small(M), replace(TRANK3, **INLINE)),
    "grouped_m_rank3_drop": (small(M), replace(TRANK3, dead_loads="drop")),
    "grouped_m_fp8": (small(M, dtype=E4M3), F128),
    "grouped_m_fp16": (small(M, dtype=FLOAT16, out=FLOAT16), T128),
    "grouped_m_fp32_out": (small(M, out=FLOAT32), T128),
    "grouped_m_mn": (small(M, m=304, a_major=MN, b_major=MN), T128),
    "grouped_m_64": (small(M), T64),
    "grouped_m_64_fp8": (small(M, dtype=E4M3), replace(T64, tile_k=128)),
    "grouped_m_direct": (small(M, n=133, out_aligned=False), replace(T128, **DIRECT)),
    "grouped_m_bands": (small(M), replace(T128, raster="grouped", group_m=2)),
    "grouped_m_cluster": (small(M), replace(T128, raster="along_n", **CLUSTER)),
    "grouped_m_n256": (small(M), replace(T128, tile_n=256)),
    "grouped_m_pair_fp8": (
        small(M, dtype=E4M3),
        replace(PAIR, tile_n=128, tile_k=128, cluster_n=2),
    ),
    "grouped_n": (small(N), T128),
    "grouped_n_inline": (small(N), replace(T128, **INLINE)),
    "grouped_n_mn": (small(N, m=136, a_major=MN, b_major=MN), T128),
    "grouped_n_direct": (small(N, n=296, out_aligned=False), replace(T128, **DIRECT)),
    "grouped_n_pair": (small(N), replace(PAIR, cluster_n=2)),
    "grouped_k_inline": (small(K), replace(T128, **INLINE)),
    "grouped_k_kept": (small(K), replace(T128, **KEPT)),
    "grouped_k_mn": (small(K, m=136, a_major=MN, b_major=MN), T128),
    "grouped_k_64": (small(K), T64),
    "grouped_k_fp8": (small(K, dtype=E4M3), F128),
    "grouped_k_mixed": (small(K, dtype=E4M3, b_dtype=E5M2), F128),
    "grouped_k_cluster": (small(K), replace(T128, **CLUSTER)),
    "grouped_k_direct": (small(K, out_aligned=False), replace(T128, **DIRECT)),
    "grouped_batch_fp8": (small(BATCH, dtype=E4M3), F128),
    "grouped_batch_pair": (small(BATCH), PAIR),
    **{name: (p, replace(T128, **NARROW)) for name, p in FUSED.items()},
    "grouped_m_fused_rank3": (
        FUSED["grouped_m_fused"],
        replace(TRANK3, **NARROW),
    ),
    "grouped_m_fused_direct": (
        FUSED["grouped_m_fused"],
        replace(T128, **{**DIRECT, **NARROW}),
    ),
    "grouped_n_fused_64": (FUSED["grouped_n_fused"], replace(T64, **NARROW)),
}


def _ends(name: str) -> tuple[int, ...]:
    return () if "batch" in name else OTHER_ENDS.get(name, ENDS)


def _cases(arch: ArchSpec, rows: dict, golden: bool) -> tuple[GroupedCase, ...]:
    return tuple(
        GroupedCase(arch, name, p, s, golden, _ends(name))
        for name, (p, s) in rows.items()
    )


GROUPED: tuple[GroupedCase, ...] = (
    *_cases(SM90, SM90_GOLDEN, True),
    *_cases(SM90, SM90_MORE, False),
    *_cases(SM100, SM100_GOLDEN, True),
    *_cases(SM100, SM100_MORE, False),
)
ALL_CASES: tuple[Case, ...] = (*CASES, *GROUPED)
