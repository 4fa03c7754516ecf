"""Hopper, sm_90a: wgmma with accumulators in registers.

Sources: CUDA C++ Programming Guide, compute capability 9.0 (227 KiB of shared memory a
CTA, 64 K registers an SM, 255 a thread); PTX ISA, wgmma.mma_async (M 64, N a multiple
of 8 up to 256); H200 datasheet (132 SMs; L2 measured at 60 MB).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_cute_backend.arch.spec import ArchSpec, check_common
from torch_cute_backend.status import Status

if TYPE_CHECKING:
    from torch_cute_backend.problem import GemmProblem
    from torch_cute_backend.schedule import GemmSchedule

WARPGROUP_THREADS = 128
MMA_M = 64
MAX_ACCUMULATORS_PER_THREAD = 192
"""fp32 accumulators a thread may hold: 255 registers less addresses and epilogue."""


@dataclass(frozen=True)
class Sm90Spec(ArchSpec):
    """See :class:`ArchSpec`."""

    def threads(self, schedule: GemmSchedule) -> int:
        """One producer warpgroup (one of its warps loads) and the math warpgroups."""
        return WARPGROUP_THREADS * (1 + schedule.math_warpgroups)

    def check_schedule(self, problem: GemmProblem, schedule: GemmSchedule) -> Status:
        s = schedule
        accumulators = s.tile_m * s.tile_n // (WARPGROUP_THREADS * s.math_warpgroups)
        sets = 2 if problem.accum.value == "exact" and problem.a_dtype.is_fp8 else 1
        return check_common(self, problem, s) & Status.check(
            (
                s.math_warpgroups in (1, 2),
                f"math_warpgroups={s.math_warpgroups} is not 1 or 2",
            ),
            (
                s.tile_m % (MMA_M * max(s.math_warpgroups, 1)) == 0 and s.tile_m > 0,
                f"tile_m={s.tile_m} is not a multiple of 64 rows for each of "
                f"{s.math_warpgroups} math warpgroup(s)",
            ),
            (
                s.tile_n % 8 == 0 and 8 <= s.tile_n <= 256,
                f"tile_n={s.tile_n} is not a multiple of 8 from 8 to 256",
            ),
            (
                accumulators * sets <= MAX_ACCUMULATORS_PER_THREAD,
                f"{accumulators} fp32 accumulators a thread x {sets} set(s) exceed "
                f"{MAX_ACCUMULATORS_PER_THREAD}",
            ),
            (s.acc_stages == 1, "wgmma accumulators have one stage"),
            (s.cta_group == 1, "wgmma has no CTA pairs"),
        )


SM90 = Sm90Spec(
    name="sm_90a",
    capability=(9, 0),
    required_roles=("load", "math"),
    smem_bytes=232448,
    default_sms=132,
    l2_bytes=60 * 2**20,
)
