"""``ArchSpec``: the hardware facts that schedules, passes and emitters ask for.

Numbers come from the CUDA C++ Programming Guide (technical specifications per compute
capability) and the PTX ISA; each arch's file says which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_cute_backend.status import Status

if TYPE_CHECKING:
    from torch_cute_backend.problem import GemmProblem
    from torch_cute_backend.schedule import GemmSchedule

SWIZZLE_ROWS = 8
"""Rows of one swizzle atom; a multicast slice of an operand holds whole atoms."""
SMEM_ALIGN_BYTES = 1024
"""Alignment of a swizzled TMA buffer (128-byte swizzle repeats every 1024 bytes)."""


@dataclass(frozen=True)
class ArchSpec(ABC):
    """Facts of one compute capability.

    Attributes:
        name: the target, for example ``"sm_90a"``.
        capability: compute capability (major, minor) of GPUs that load its cubins.
        mma: tensor-core instruction, ``"wgmma"`` or ``"tcgen05"``: names the emitters.
        required_roles: roles that must own a role-local persistent body before the
            shared loop may be omitted.
        smem_bytes: shared memory one CTA may use.
        default_sms: SM count assumed where no GPU can be asked.
        l2_bytes: L2 cache size of the assumed GPU.
    """

    name: str
    capability: tuple[int, int]
    mma: str
    required_roles: tuple[str, ...]
    smem_bytes: int
    default_sms: int
    l2_bytes: int

    def check_problem(self, problem: GemmProblem) -> Status:
        """Can any kernel on this arch compute ``problem``?"""
        return Status.ok()

    @abstractmethod
    def check_schedule(self, problem: GemmProblem, schedule: GemmSchedule) -> Status:
        """Does ``schedule`` fit this arch? Reasons name limit and value."""

    @abstractmethod
    def threads(self, schedule: GemmSchedule) -> int:
        """Threads of one CTA."""

    def cluster_slots(self, size: int) -> int:
        """Clusters of ``size`` CTAs that the assumed GPU runs at once, one CTA an SM.
        A cluster lies within one GPC, so large ones leave SMs idle."""
        sms = self.default_sms
        # H200, timed: 25 clusters of 4 ran at once, 32 took two rounds, 56 no more
        # rounds than 48: it holds 28 to 31. The driver says it exactly at run time.
        usable = sms if size <= 2 else sms * 7 // 8
        return max(1, usable // size)

    def staged_rows(self, schedule: GemmSchedule) -> int:
        """Rows of A and of the output that shared memory holds: what one MMA reads,
        where a tile is lower than that."""
        return schedule.tile_m

    def smem_used(self, problem: GemmProblem, schedule: GemmSchedule) -> int:
        """Bytes of shared memory: barriers, staged A and B, staged output subtiles."""
        rows = self.staged_rows(schedule)
        columns = schedule.tile_n * problem.epilogue.products
        stage = (
            rows * problem.a_dtype.bytes + columns * problem.b_dtype.bytes
        ) * schedule.tile_k
        staged_out = 0
        if schedule.store == "tma":
            subtile = rows * schedule.epi_n * problem.out_dtype.bytes
            owners = 2 if schedule.pingpong else 1
            staged_out = subtile * schedule.epi_stages * owners
        return SMEM_ALIGN_BYTES + schedule.ab_stages * stage + staged_out


def _may_omit(problem: GemmProblem, schedule: GemmSchedule) -> bool:
    """Could the shared loop of such a kernel go?"""
    single = len(problem.epilogue.roots) == 1
    return single and schedule.shared_loop == "auto" and schedule.record == "none"


def check_common(
    arch: ArchSpec, problem: GemmProblem, schedule: GemmSchedule
) -> Status:
    """What holds on every arch: ranges, shared memory, clusters, stores."""
    s = schedule
    counts = {k: v for k, v in s.to_json().items() if isinstance(v, int)}
    wrong = [f"{name}={value}" for name, value in counts.items() if value < 1]
    if wrong:
        return Status.no(f"{', '.join(wrong)}: not positive")
    used = arch.smem_used(problem, s)
    row_bytes = s.tile_k * problem.a_dtype.bytes
    return Status.check(
        (
            s.ab_stages >= 2,
            f"ab_stages={s.ab_stages}: a pipeline needs at least 2 stages",
        ),
        (
            used <= arch.smem_bytes,
            f"{used} bytes of shared memory exceed {arch.name}'s {arch.smem_bytes}",
        ),
        (
            row_bytes % 128 == 0,
            f"tile_k={s.tile_k} is {row_bytes} bytes; it must be a multiple of 128",
        ),
        (
            s.cluster_size in (1, 2, 4, 8),
            f"cluster {s.cluster_m}x{s.cluster_n} is not of 1, 2, 4 or 8 CTAs",
        ),
        (
            s.group_m == 1 or s.raster == "grouped",
            f"group_m={s.group_m} needs raster 'grouped', not {s.raster!r}",
        ),
        (
            s.registers == "even" or _may_omit(problem, s),
            "registers='moved' needs roles without a shared loop",
        ),
        (
            s.record == "none" or s.cluster_size == 1,
            f"record {s.record!r} is for clusters of one CTA",
        ),
        (
            s.tile_n % s.epi_n == 0,
            f"epi_n={s.epi_n} does not divide tile_n={s.tile_n}",
        ),
        (
            s.tile_m % (SWIZZLE_ROWS * s.cluster_n) == 0
            and s.tile_n % (SWIZZLE_ROWS * s.cluster_m) == 0,
            f"a multicast slice of tile {s.tile_m}x{s.tile_n} over cluster "
            f"{s.cluster_m}x{s.cluster_n} is not a multiple of {SWIZZLE_ROWS} rows",
        ),
    ) & _check_staged_store(problem, s)


def _check_staged_store(problem: GemmProblem, schedule: GemmSchedule) -> Status:
    """Can TMA store the output by way of shared memory, if the schedule says so?"""
    s = schedule
    if s.store == "direct":
        return Status.ok()
    return Status.check(
        (
            problem.out_aligned,
            "TMA store needs 16-byte aligned output rows",
        ),
        (
            s.epi_n * problem.out_dtype.bytes <= 128,
            f"epi_n={s.epi_n} is {s.epi_n * problem.out_dtype.bytes} bytes; a staged "
            "row has at most 128",
        ),
        (
            s.epi_n * problem.out_dtype.bytes % 16 == 0,
            f"epi_n={s.epi_n} is not a multiple of 16 bytes, as TMA boxes are",
        ),
        (
            # The waits count store groups, not stages: a tile that did not end on the
            # last stage would overtake its own pending stores in the next tile.
            (s.tile_n // s.epi_n) % s.epi_stages == 0,
            f"epi_stages={s.epi_stages} does not divide the "
            f"{s.tile_n // s.epi_n} subtiles of a tile",
        ),
    )
