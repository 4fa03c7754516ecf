"""Blackwell, sm_100a: tcgen05 with accumulators in tensor memory.

Sources: CUDA C++ Programming Guide, compute capability 10.0 (227 KiB of shared memory
a CTA); PTX ISA, tcgen05 (512 TMEM columns of 128 lanes, allocated in powers of two from
32; M 64 or 128 for one CTA; N a multiple of 8 for M 64 and of 16 for M 128, up to 256;
tcgen05.ld repeats 1 to 128 times, in powers of two; accumulators of M 64 lie in lanes
0-15 or 16-31 of each 32, so two of them share a column range).
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
TMEM_WARP = 1
"""The epilogue warp that allocates and frees tensor memory; warp 0 meanwhile
initialises the barriers."""
WARP_THREADS = 32


EPI_COLUMNS = (8, 16, 32, 64, 128)
"""Subtile widths that one tcgen05.ld reads."""
TMA_BOX_BYTES = 16
"""Smallest row of a TMA box."""
SWIZZLE_ROWS = 8
"""Rows of one swizzle atom; a multicast slice of an operand holds whole atoms."""

MAX_EPILOGUE_VALUES = 96
"""Values of a subtile a thread may hold: measured, two FULL inputs with 32 elements a
thread take 251 registers, and one output more spills."""


def epilogue_values(problem: GemmProblem, schedule: GemmSchedule) -> int:
    """Values a thread holds at once: accumulators, FULL inputs, outputs that are stored
    element by element."""
    elements = schedule.tile_m * schedule.epi_n // (EPILOGUE_WARPS * WARP_THREADS)
    graph = problem.epilogue
    full = sum(i.kind.value == "full" for i in graph.inputs)
    return elements * (len(graph.outputs) + full)


def tmem_columns(schedule: GemmSchedule) -> int:
    """Columns to allocate: all accumulator stages, rounded up to a power of two."""
    ranges = schedule.acc_stages
    if schedule.tile_m == 64:
        ranges = (ranges + 1) // 2
    columns = 32
    while columns < schedule.tile_n * ranges:
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
            (
                s.tile_m != 64 or s.acc_stages == 1 or s.acc_stages % 2 == 0,
                f"acc_stages={s.acc_stages}: tile_m=64 packs stages in pairs",
            ),
            (
                s.epi_n in EPI_COLUMNS,
                f"epi_n={s.epi_n} is not one of {', '.join(map(str, EPI_COLUMNS))}",
            ),
            (
                epilogue_values(problem, s) <= MAX_EPILOGUE_VALUES,
                f"{epilogue_values(problem, s)} epilogue values a thread exceed "
                f"{MAX_EPILOGUE_VALUES}; a smaller epi_n than {s.epi_n} may fit",
            ),
            (
                s.store == "direct"
                or s.epi_n * problem.out_dtype.bytes >= TMA_BOX_BYTES,
                f"epi_n={s.epi_n} is less than {TMA_BOX_BYTES} bytes a row",
            ),
            (
                s.tile_m % (SWIZZLE_ROWS * max(s.cluster_n, 1)) == 0
                and s.tile_n % (SWIZZLE_ROWS * max(s.cluster_m, 1)) == 0,
                f"a multicast slice of tile {s.tile_m}x{s.tile_n} over cluster "
                f"{s.cluster_m}x{s.cluster_n} is not a multiple of {SWIZZLE_ROWS} rows",
            ),
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
