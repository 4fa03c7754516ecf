"""``CASES``: the kernels that golden, determinism and cubin tests draw from.

Every family, output width, store, operand major, cluster class and loop form of both
archs occurs. Cases with ``golden`` are also kept as text under ``test/golden``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from build_helper import (
    COL,
    ROW,
    bias_residual,
    build,
    fp8,
    gelu_residual,
    mm,
    swiglu,
    two_roots,
)

from torch_cute_backend.arch import SM90, SM100, ArchSpec
from torch_cute_backend.build import KernelBuild
from torch_cute_backend.dtypes import BFLOAT16, E4M3, E5M2, FLOAT16, FLOAT32
from torch_cute_backend.problem import Accum, GemmProblem, Major
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import lookup

HEADLINE = "scale_mm_cute_m64_k5120_n5120"
MN = Major.MN


@dataclass(frozen=True)
class Case:
    """A named kernel. ``golden``: its text is kept under ``test/golden``."""

    arch: ArchSpec
    name: str
    problem: GemmProblem
    schedule: GemmSchedule
    golden: bool = False

    def __str__(self) -> str:
        return f"{self.arch.name}_{self.name}"

    def build(self) -> KernelBuild:
        return build(self.problem, self.schedule, self.arch)


def _s(tile_m: int, tile_n: int, tile_k: int, stages: int, **rest) -> GemmSchedule:
    """A schedule whose epilogue subtile is the whole tile unless said otherwise."""
    return GemmSchedule(
        tile_m, tile_n, tile_k, stages, **{"epi_n": min(tile_n, 64), **rest}
    )


def _headline(arch: ArchSpec) -> Case:
    """What the pretuned table serves for the shape the project is measured by."""
    problem = fp8(64, 5120, 5120)
    choice = lookup.choose(problem, arch)
    return Case(arch, HEADLINE, problem, choice.schedule, golden=True)


EXACT = Accum.EXACT
TENSORWISE = fp8(scaling="tensorwise", bias=BFLOAT16)
TWO = {"math_warpgroups": 2}
S64 = _s(64, 64, 128, 6)
S128 = _s(128, 128, 128, 6, epi_stages=2, **TWO)
WIDE = _s(128, 256, 128, 4, epi_n=32, epi_stages=2, **TWO)
B64 = _s(64, 64, 64, 6)
B128 = _s(128, 128, 64, 4, epi_stages=2, **TWO)

SM90_GOLDEN = {
    "tensorwise_bias": (TENSORWISE, S64),
    "rowwise_exact": (fp8(accum=EXACT), _s(128, 128, 128, 6, epi_stages=2, **TWO)),
    "exact_overlap": (
        fp8(4096, 4096, 4096, accum=EXACT),
        replace(S128, registers="moved", promotion="overlap"),
    ),
    "pingpong": (
        fp8(4096, 4096, 4096),
        replace(S128, epi_n=32, cluster_m=2, math="pingpong"),
    ),
    "rowwise_fp32_out": (fp8(out=FLOAT32), _s(64, 64, 128, 6, epi_n=32, epi_stages=2)),
    "rowwise_e4m3_out": (fp8(out=E4M3), S64),
    "bf16_kk": (mm(), B128),
    "bf16_kn": (mm(b_major=MN), B128),
    "bf16_mk": (mm(a_major=MN), B64),
    "bf16_mn": (mm(a_major=MN, b_major=MN), _s(64, 48, 64, 4)),
    "fp16_addmm": (mm(dtype=FLOAT16, bias=FLOAT16), B64),
    "direct_store": (
        fp8(out_aligned=False, bias=BFLOAT16),
        _s(64, 64, 128, 6, store="direct"),
    ),
    "cluster_2x1": (fp8(4096, 4096, 4096), replace(WIDE, cluster_m=2)),
    "cluster_1x2": (fp8(), _s(64, 40, 128, 8, cluster_n=2, raster="along_n")),
    "kept": (fp8(), replace(S64, shared_loop="keep")),
    "inline": (fp8(), replace(S64, shared_loop="inline")),
    "single_tile": (fp8(), replace(S64, scheduler="single_tile")),
    "fused_gelu_residual": (fp8(epilogue=gelu_residual()), S64),
    "two_roots": (mm(epilogue=two_roots()), replace(B64, ab_stages=4, epi_n=32)),
    "walk_end": (mm(), replace(B64, record="walk_end")),
}
SM90_MORE = {
    "two_roots_inline": (
        mm(epilogue=two_roots()),
        replace(B64, ab_stages=4, epi_n=32, shared_loop="inline"),
    ),
    "two_roots_exact": (
        fp8(accum=EXACT, epilogue=two_roots(ROW, COL)),
        replace(S64, ab_stages=5, tile_n=32, epi_n=32),
    ),
    "two_roots_cluster": (
        fp8(4096, epilogue=two_roots(ROW, COL, bias=BFLOAT16)),
        replace(S128, tile_n=64, epi_n=32, ab_stages=4, cluster_m=2, cluster_n=2),
    ),
    "swiglu": (mm(epilogue=swiglu()), replace(B64, ab_stages=4, epi_n=32)),
    "walk_end_inline": (mm(), replace(B64, record="walk_end", shared_loop="inline")),
    "dependent": (fp8(), replace(S64, launch="dependent")),
    "dependent_cluster_inline": (
        mm(),
        replace(B128, cluster_m=2, launch="dependent", shared_loop="inline"),
    ),
    "n8": (fp8(16, 4096, 4096), _s(64, 8, 128, 8)),
    "n16_k256": (fp8(16, 4096, 4096), _s(64, 16, 256, 8)),
    "n24": (fp8(), _s(64, 24, 128, 8)),
    "n160": (fp8(), _s(64, 160, 128, 5, epi_n=32)),
    "n200": (fp8(), _s(64, 200, 128, 6, epi_n=40, cluster_n=2)),
    "n200_bn": (mm(b_major=MN), _s(64, 200, 64, 4, epi_n=40)),
    "n176_cluster": (
        mm(4096),
        _s(128, 176, 64, 3, epi_n=16, cluster_m=2, **TWO),
    ),
    "n144_exact": (
        fp8(4096, accum=EXACT),
        _s(128, 144, 128, 3, epi_n=48, registers="moved", **TWO),
    ),
    "m256": (mm(4096, 4096, 4096), _s(256, 128, 64, 3, epi_n=32, epi_stages=2, **TWO)),
    "accumulators_192": (fp8(4096), _s(64, 256, 128, 4, epi_n=32, epi_stages=2)),
    "exact_inline": (fp8(accum=EXACT), replace(S64, shared_loop="inline")),
    "exact_192": (fp8(4096, accum=EXACT), _s(64, 192, 128, 4, epi_n=32)),
    "exact_moved_192": (
        fp8(4096, accum=EXACT),
        _s(128, 192, 128, 5, epi_n=32, registers="moved", **TWO),
    ),
    "exact_overlap_cluster": (
        fp8(4096, accum=EXACT),
        _s(64, 128, 128, 3, epi_n=32, cluster_m=2, promotion="overlap"),
    ),
    "pingpong_kept_64x256": (
        fp8(4096),
        _s(64, 256, 128, 4, epi_n=32, math="pingpong", shared_loop="keep", **TWO),
    ),
    "pingpong_bf16_direct": (
        mm(4096, out_aligned=False),
        _s(
            *(128, 128, 64, 4),
            epi_n=32,
            math="pingpong",
            registers="moved",
            store="direct",
            **TWO,
        ),
    ),
    "pingpong_exact": (
        fp8(4096, accum=EXACT),
        _s(64, 128, 128, 6, epi_n=32, math="pingpong", **TWO),
    ),
    "pingpong_exact_overlap": (
        fp8(4096, accum=EXACT),
        _s(
            *(64, 128, 128, 4),
            math="pingpong",
            registers="moved",
            promotion="overlap",
            **TWO,
        ),
    ),
    "moved": (fp8(4096), replace(WIDE, registers="moved")),
    "m16": (fp8(16, 4096, 4096), _s(16, 32, 128, 8)),
    "m8_inline": (mm(8), _s(8, 64, 64, 6, shared_loop="inline")),
    "m32_kept_direct": (
        fp8(32, out_aligned=False),
        _s(32, 48, 128, 8, store="direct", shared_loop="keep"),
    ),
    "cluster_2x2": (fp8(4096), replace(S128, cluster_m=2, cluster_n=2)),
    "cluster_4x1": (fp8(4096), replace(S128, cluster_m=4)),
    "cluster_1x8": (fp8(), replace(S64, cluster_n=8)),
    "cluster_kept": (fp8(4096), replace(WIDE, cluster_m=2, shared_loop="keep")),
    "cluster_inline": (fp8(4096), replace(WIDE, cluster_m=2, shared_loop="inline")),
    "cluster_bf16_n": (mm(b_major=MN), replace(B128, cluster_m=2)),
    "cluster_bf16_m": (mm(a_major=MN), replace(B128, cluster_n=2)),
    "cluster_tensorwise": (TENSORWISE, replace(S128, cluster_m=2)),
    "cluster_fp16": (mm(dtype=FLOAT16), replace(B128, cluster_n=2)),
    "e5m2": (fp8(b_dtype=E5M2), S64),
    "tensorwise_fp16": (fp8(out=FLOAT16, scaling="tensorwise"), S64),
    "direct_fp32_exact": (
        fp8(out=FLOAT32, accum=EXACT, out_aligned=False),
        _s(64, 64, 128, 6, store="direct"),
    ),
    "direct_e4m3": (fp8(out=E4M3), _s(64, 40, 128, 8, epi_n=40, store="direct")),
    "fused_direct": (
        mm(epilogue=gelu_residual(), out_aligned=False),
        _s(64, 64, 64, 6, epi_n=32, store="direct"),
    ),
    "fused_kept": (
        mm(epilogue=gelu_residual()),
        replace(B128, epi_n=16, shared_loop="keep"),
    ),
}

T64 = _s(64, 64, 128, 8, acc_stages=2)
T128 = _s(128, 128, 128, 5, acc_stages=2, epi_stages=2)
C128 = _s(128, 128, 64, 5, acc_stages=2, epi_stages=2)
PAIR = replace(T128, cluster_m=2, cta_group=2)
DUAL = {"epi_n": 32, "epi_stages": 2}

SM100_GOLDEN = {
    "tensorwise_bias": (TENSORWISE, T64),
    "bf16_mn": (mm(a_major=MN, b_major=MN), C128),
    "direct_store": (
        fp8(out_aligned=False, bias=BFLOAT16),
        _s(128, 64, 128, 6, acc_stages=2, epi_n=32, store="direct"),
    ),
    "cluster_2x1": (fp8(4096, 4096, 4096), replace(T128, cluster_m=2)),
    "pair": (fp8(4096, 4096, 4096), PAIR),
    "fused_gelu_residual": (fp8(epilogue=gelu_residual()), replace(T64, epi_n=32)),
    "kept": (fp8(), replace(T64, shared_loop="keep")),
    "inline": (fp8(), replace(T64, shared_loop="inline")),
    "two_roots": (mm(epilogue=two_roots()), replace(C128, ab_stages=4, **DUAL)),
    "walk_end": (mm(), replace(C128, record="walk_end")),
    "mxfp8": (fp8(scaling="mxfp8"), T128),
}
SM100_MORE = {
    "mxfp8_n256": (
        fp8(4096, scaling="mxfp8", bias=BFLOAT16),
        _s(128, 256, 128, 3, acc_stages=1, epi_stages=2),
    ),
    "mxfp8_kept_k256": (
        fp8(scaling="mxfp8", b_dtype=E5M2),
        replace(T128, tile_k=256, ab_stages=2, shared_loop="keep"),
    ),
    "mxfp8_inline_direct": (
        fp8(scaling="mxfp8", out=FLOAT32, out_aligned=False),
        replace(T128, epi_n=32, epi_stages=1, store="direct", shared_loop="inline"),
    ),
    "mxfp8_fused": (
        fp8(scaling="mxfp8", epilogue=bias_residual()),
        replace(T128, epi_n=32, epi_stages=2),
    ),
    "two_roots_inline": (
        mm(epilogue=two_roots()),
        replace(C128, ab_stages=4, shared_loop="inline", **DUAL),
    ),
    "two_roots_m64": (
        fp8(epilogue=two_roots(ROW, COL)),
        replace(T64, ab_stages=6, acc_stages=1, **DUAL),
    ),
    "two_roots_cluster": (
        fp8(4096, epilogue=two_roots(ROW, COL, bias=BFLOAT16)),
        replace(T128, ab_stages=3, cluster_m=2, cluster_n=2, **DUAL),
    ),
    "two_roots_pair": (
        fp8(4096, epilogue=two_roots(ROW, COL)),
        replace(PAIR, ab_stages=4, **DUAL),
    ),
    "swiglu": (mm(epilogue=swiglu()), replace(C128, ab_stages=4, epi_n=32)),
    "walk_end_inline": (mm(), replace(C128, record="walk_end", shared_loop="inline")),
    "pair_n256": (fp8(4096), replace(PAIR, tile_n=256)),
    "pair_2x2": (fp8(4096), replace(PAIR, cluster_n=2)),
    "pair_4x1": (fp8(4096), replace(PAIR, cluster_m=4, raster="along_n")),
    "pair_kept": (fp8(4096), replace(PAIR, shared_loop="keep")),
    "pair_inline": (fp8(4096), replace(PAIR, shared_loop="inline")),
    "pair_bf16_mn": (mm(a_major=MN, b_major=MN), replace(PAIR, tile_k=64)),
    "pair_direct": (
        fp8(4096, out_aligned=False),
        replace(PAIR, epi_n=32, epi_stages=1, store="direct"),
    ),
    "fp32_out": (fp8(out=FLOAT32), replace(T64, epi_n=32, epi_stages=2)),
    "e4m3_out": (fp8(out=E4M3), T64),
    "exact": (fp8(accum=EXACT), T128),
    "n16": (fp8(16), _s(128, 16, 128, 8, acc_stages=2)),
    "n256": (fp8(4096), _s(128, 256, 128, 4, acc_stages=2, epi_stages=2)),
    "m64_n8": (fp8(16), _s(64, 8, 256, 6, acc_stages=2)),
    "dependent": (fp8(), replace(T64, launch="dependent")),
    "one_acc_stage": (fp8(), replace(T64, acc_stages=1)),
    "four_acc_stages": (fp8(), replace(T64, acc_stages=4)),
    "bf16_kk": (mm(), C128),
    "bf16_kn": (mm(b_major=MN), C128),
    "bf16_mk": (mm(a_major=MN), C128),
    "fp16_addmm": (mm(dtype=FLOAT16, bias=FLOAT16), C128),
    "cluster_1x2": (fp8(), replace(T64, cluster_n=2)),
    "cluster_2x2": (fp8(4096), replace(T128, cluster_m=2, cluster_n=2)),
    "cluster_kept": (fp8(4096), replace(T128, cluster_m=2, shared_loop="keep")),
    "single_tile": (fp8(), replace(T64, scheduler="single_tile")),
    "fused": (fp8(epilogue=gelu_residual()), replace(T64, epi_n=32, epi_stages=2)),
    "fused_128": (
        mm(epilogue=gelu_residual()),
        replace(C128, epi_n=16, epi_stages=2),
    ),
}


def _cases(arch: ArchSpec, rows: dict, golden: bool) -> tuple[Case, ...]:
    return tuple(Case(arch, name, p, s, golden) for name, (p, s) in rows.items())


CASES: tuple[Case, ...] = (
    _headline(SM90),
    *_cases(SM90, SM90_GOLDEN, True),
    *_cases(SM90, SM90_MORE, False),
    _headline(SM100),
    *_cases(SM100, SM100_GOLDEN, True),
    *_cases(SM100, SM100_MORE, False),
)
