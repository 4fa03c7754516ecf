"""Complete a tile into a schedule: stages and subtiles that fit problem and arch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.problem import Accum, GemmProblem
from torch_cute_backend.schedule import GemmSchedule

MAX_AB_STAGES = 16
MIN_AB_STAGES = 2
TIGHT_STAGED_ROW_BYTES = 64
"""Row of a subtile where accumulators leave few registers (sm_90a, FP8 rowwise,
128x256: 64 columns of bf16 spilled, 32 do not; pingpong 128x112: 56 columns did)."""
TIGHT_ACCUMULATORS = 112
WARPGROUP_THREADS = 128


def complete(
    problem: GemmProblem,
    arch: ArchSpec,
    tile_m: int,
    tile_n: int,
    *,
    k_bytes: int = 128,
    cluster_m: int = 1,
    cluster_n: int = 1,
    cta_group: int = 1,
    math_warpgroups: int = 1,
    raster: str = "along_m",
    roles: Mapping[str, str] = MappingProxyType({}),
) -> GemmSchedule:
    """A schedule with this tile, as deep an A/B pipeline as shared memory holds and the
    widest epilogue subtile. It may still be invalid: ask ``validate``.

    Args:
        k_bytes: bytes of K in one stage, a multiple of 128.
        roles: ``math``, ``registers`` and ``promotion`` where not the usual ones.
    """
    one_row = problem.group_sizes[0] <= tile_m * cluster_m
    l2_policy = "stream_b" if one_row else "normal"
    draft = GemmSchedule(
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=k_bytes // problem.a_dtype.bytes,
        ab_stages=MIN_AB_STAGES,
        acc_stages=_acc_stages(arch, tile_n),
        cluster_m=cluster_m,
        cluster_n=cluster_n,
        cta_group=cta_group,
        math_warpgroups=math_warpgroups,
        scheduler=scheduler_for(problem),
        raster=raster,
        l2_policy=l2_policy,
    )
    draft = replace(draft, **dict[str, Any](roles))
    draft = replace(draft, ab_stages=_fewest(draft))
    return _deepen(problem, arch, _with_subtiles(problem, arch, draft), MAX_AB_STAGES)


def _fewest(s: GemmSchedule) -> int:
    """A/B stages that a schedule needs; overlapped promotion keeps one more in use."""
    return MIN_AB_STAGES + (s.promotion == "overlap")


def scheduler_for(problem: GemmProblem) -> str:
    """The scheduler that hands out a problem's tiles unless something else is asked."""
    return "grouped_static" if problem.is_grouped else "static_persistent"


def refit(problem: GemmProblem, arch: ArchSpec, s: GemmSchedule) -> GemmSchedule:
    """``s`` itself if it fits; else with store, subtile and stages adapted to
    ``problem``'s outputs: a table row made for bf16 output serves fp32 and unaligned
    outputs too. The result may still be invalid: ask ``validate``."""
    if arch.check_schedule(problem, s):
        return s
    draft = _with_subtiles(problem, arch, replace(s, ab_stages=_fewest(s)))
    return _deepen(problem, arch, draft, s.ab_stages)


def _with_subtiles(
    problem: GemmProblem, arch: ArchSpec, s: GemmSchedule
) -> GemmSchedule:
    """The store and the subtile width that fit: TMA before direct, wide before narrow.
    ``s`` with the narrowest subtile if none does."""
    stores = ("tma", "direct") if problem.out_aligned else ("direct",)
    for store in stores:
        for epi_n in _widths(problem, arch, s):
            even = store == "tma" and s.tile_n // epi_n % 2 == 0
            draft = replace(s, store=store, epi_n=epi_n, epi_stages=2 if even else 1)
            if arch.check_schedule(problem, draft):
                return draft
    return replace(s, store="direct", epi_n=min(8, s.tile_n), epi_stages=1)


def _widths(problem: GemmProblem, arch: ArchSpec, s: GemmSchedule) -> list[int]:
    """Subtile widths worth trying, the widest first."""
    accumulators = s.tile_m * s.tile_n // (WARPGROUP_THREADS * s.tile_warpgroups)
    in_registers = "math" in arch.required_roles and s.registers == "even"
    widest = s.tile_n
    if in_registers and accumulators >= TIGHT_ACCUMULATORS:
        widest = min(widest, TIGHT_STAGED_ROW_BYTES // problem.out_dtype.bytes)
    return [n for n in range(widest // 8 * 8, 0, -8) if s.tile_n % n == 0]


def _deepen(
    problem: GemmProblem, arch: ArchSpec, s: GemmSchedule, wanted: int
) -> GemmSchedule:
    """As many A/B stages as fit, at most ``wanted`` and at least 2."""
    two = arch.smem_used(problem, replace(s, ab_stages=2))
    stage = arch.smem_used(problem, replace(s, ab_stages=3)) - two
    deepest = 2 + (arch.smem_bytes - two) // stage
    return replace(s, ab_stages=max(2, min(wanted, deepest)))


def _acc_stages(arch: ArchSpec, tile_n: int) -> int:
    """Two TMEM accumulators overlap epilogue and mainloop; registers hold one."""
    return 2 if "epilogue" in arch.required_roles and 2 * tile_n <= 512 else 1


def exact_fp8(problem: GemmProblem) -> bool:
    """Does the kernel keep two accumulator sets?"""
    return problem.accum is Accum.EXACT and problem.a_dtype.is_fp8
