"""Complete a tile into a schedule: stages and subtiles that fit problem and arch."""

from __future__ import annotations

from dataclasses import replace

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.problem import Accum, GemmProblem
from torch_cute_backend.schedule import GemmSchedule

MAX_AB_STAGES = 16
MAX_STAGED_ROW_BYTES = 128


def complete(
    problem: GemmProblem,
    arch: ArchSpec,
    tile_m: int,
    tile_n: int,
    *,
    k_bytes: int = 128,
    cluster_m: int = 1,
    cluster_n: int = 1,
    math_warpgroups: int = 1,
    raster: str = "along_m",
) -> GemmSchedule:
    """A schedule with this tile, as deep an A/B pipeline as shared memory holds and the
    widest epilogue subtile. It may still be invalid: ask ``validate``.

    Args:
        k_bytes: bytes of K in one stage, a multiple of 128.
    """
    draft = GemmSchedule(
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=k_bytes // problem.a_dtype.bytes,
        ab_stages=2,
        acc_stages=_acc_stages(arch, tile_n),
        epi_n=_epi_n(problem, tile_n),
        cluster_m=cluster_m,
        cluster_n=cluster_n,
        math_warpgroups=math_warpgroups,
        raster=raster,
    )
    return refit(problem, arch, draft)


def refit(problem: GemmProblem, arch: ArchSpec, s: GemmSchedule) -> GemmSchedule:
    """``s`` with store, subtile and stages adapted to ``problem``'s outputs: a table
    row made for bf16 output serves fp32 and unaligned outputs too."""
    store = "tma" if problem.out_aligned and _stageable(problem, s.tile_n) else "direct"
    epi_n = s.epi_n
    if not _fits(problem, s.tile_n, epi_n) or store != s.store:
        epi_n = _epi_n(problem, s.tile_n)
    subtiles = s.tile_n // epi_n
    epi_stages = 2 if store == "tma" and subtiles % 2 == 0 else 1
    draft = replace(s, store=store, epi_n=epi_n, epi_stages=epi_stages, ab_stages=2)
    two = arch.smem_used(problem, draft)
    stage = (arch.smem_used(problem, replace(draft, ab_stages=3))) - two
    room = 2 + (arch.smem_bytes - two) // stage
    deepest = min(room, MAX_AB_STAGES)
    wanted = s.ab_stages if s.ab_stages > 2 else deepest
    return replace(draft, ab_stages=max(2, min(wanted, deepest)))


def _fits(problem: GemmProblem, tile_n: int, epi_n: int) -> bool:
    row = epi_n * problem.out_dtype.bytes
    return tile_n % epi_n == 0 and row % 16 == 0 and row <= MAX_STAGED_ROW_BYTES


def _stageable(problem: GemmProblem, tile_n: int) -> bool:
    return any(_fits(problem, tile_n, n) for n in range(8, tile_n + 1, 8))


def _epi_n(problem: GemmProblem, tile_n: int) -> int:
    """The widest subtile that can be staged; of 8 columns where none can."""
    widths = [n for n in range(8, tile_n + 1, 8) if _fits(problem, tile_n, n)]
    return max(widths, default=8)


def _acc_stages(arch: ArchSpec, tile_n: int) -> int:
    """Two TMEM accumulators overlap epilogue and mainloop; registers hold one."""
    return 2 if "epilogue" in arch.required_roles and 2 * tile_n <= 512 else 1


def exact_fp8(problem: GemmProblem) -> bool:
    """Does the kernel keep two accumulator sets?"""
    return problem.accum is Accum.EXACT and problem.a_dtype.is_fp8
