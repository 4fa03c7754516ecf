"""Blackwell, sm_100a: tcgen05 with accumulators in tensor memory.

Sources: CUDA C++ Programming Guide, compute capability 10.0 (227 KiB of shared memory
a CTA); PTX ISA, tcgen05 (512 TMEM columns of 128 lanes, allocated in powers of two from
32; M 64 or 128 for one CTA; N a multiple of 8 for M 64 and of 16 for M 128, up to 256).
Never run on hardware by this project: cubin and simulator stand behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_cute_backend.arch.spec import ArchSpec, check_common
from torch_cute_backend.status import Status

if TYPE_CHECKING:
    from torch_cute_backend.problem import GemmProblem
    from torch_cute_backend.schedule import GemmSchedule

TMEM_COLUMNS = 512
EPILOGUE_WARPS = 4
WARP_THREADS = 32


def tmem_columns(schedule: GemmSchedule) -> int:
    """Columns to allocate: all accumulator stages, rounded up to a power of two."""
    needed = schedule.tile_n * schedule.acc_stages
    columns = 32
    while columns < needed:
        columns *= 2
    return columns


@dataclass(frozen=True)
class Sm100Spec(ArchSpec):
    """See :class:`ArchSpec`."""

    def threads(self, schedule: GemmSchedule) -> int:
        """Four epilogue warps, one MMA warp, one TMA load warp."""
        return WARP_THREADS * (EPILOGUE_WARPS + 2)

    def check_schedule(self, problem: GemmProblem, schedule: GemmSchedule) -> Status:
        s = schedule
        step = 16 if s.tile_m == 128 else 8
        columns = tmem_columns(s)
        return check_common(self, problem, s) & Status.check(
            (s.tile_m in (64, 128), f"tile_m={s.tile_m} is not 64 or 128"),
            (
                s.tile_n % step == 0 and step <= s.tile_n <= 256,
                f"tile_n={s.tile_n} is not a multiple of {step} from {step} to 256",
            ),
            (
                columns <= TMEM_COLUMNS,
                f"{columns} TMEM columns exceed {TMEM_COLUMNS}",
            ),
            (s.acc_stages >= 1, f"acc_stages={s.acc_stages} is not positive"),
            (s.cta_group == 1, f"cta_group={s.cta_group} is not supported yet"),
            (s.math_warpgroups == 1, "tcgen05 has one MMA warp, not warpgroups"),
        )


SM100 = Sm100Spec(
    name="sm_100a",
    capability=(10, 0),
    required_roles=("load", "mma", "epilogue"),
    smem_bytes=232448,
    default_sms=148,
    l2_bytes=126 * 2**20,
)
