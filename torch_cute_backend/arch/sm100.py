"""Blackwell, sm_100a: tcgen05 with accumulators in tensor memory.

Sources: CUDA C++ Programming Guide, compute capability 10.0 (227 KiB of shared memory
a CTA); PTX ISA, tcgen05 (512 TMEM columns of 128 lanes, allocated in powers of two from
32; M 64 or 128 for one CTA; N a multiple of 8 for M 64 and of 16 for M 128, up to 256;
tcgen05.ld repeats 1 to 128 times, in powers of two; accumulators of M 64 lie in lanes
0-15 or 16-31 of each 32, so two of them share a column range).
Never run on hardware by this project: cubin and simulator stand behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch_cute_backend.arch.spec import ArchSpec, check_common
from torch_cute_backend.problem import GemmProblem, scale_count
from torch_cute_backend.status import Status

if TYPE_CHECKING:
    from torch_cute_backend.schedule import GemmSchedule

TMEM_COLUMNS = 512
EPILOGUE_WARPS = 4
TMEM_WARP = 1
"""The epilogue warp that allocates and frees tensor memory; warp 0 meanwhile
initialises the barriers."""
WARP_THREADS = 32
MX_TILE = 128
"""Rows, and elements of K, whose MXFP8 scales tcgen05.cp copies as one block."""
SCALE_TILE_COLUMNS = 4
SCALE_BYTES_ALIGN = 1024
"""Shared memory for an operand's scales is padded to this."""

EPI_COLUMNS = (8, 16, 32, 64, 128)
"""Subtile widths that one tcgen05.ld reads."""
MAX_EPILOGUE_VALUES = 96
"""Values of a subtile a thread may hold: measured, two FULL inputs with 32 elements a
thread take 251 registers, and one output more spills."""


def epilogue_values(problem: GemmProblem, schedule: GemmSchedule) -> int:
    """Values a thread holds at once: FULL inputs, outputs, and the accumulators of
    products after the first."""
    elements = schedule.tile_m * schedule.epi_n // (EPILOGUE_WARPS * WARP_THREADS)
    graph = problem.epilogue
    full = sum(i.kind.value == "full" for i in graph.inputs)
    return elements * (len(graph.outputs) + full + graph.products - 1)


def accumulator_columns(schedule: GemmSchedule, products: int = 1) -> int:
    """Columns of all accumulator stages; what else there is comes behind them."""
    ranges = schedule.acc_stages * products
    if schedule.tile_m == 64:
        ranges = (ranges + 1) // 2
    return schedule.tile_n * ranges


def scale_columns(problem: GemmProblem, schedule: GemmSchedule) -> tuple[int, int]:
    """Columns of a k tile's MXFP8 scales of A and of B: four hold a 128 x 128 block."""
    if not problem.block_scaled:
        return 0, 0
    s, each = schedule, schedule.tile_k // MX_TILE * SCALE_TILE_COLUMNS
    return s.tile_m // MX_TILE * each, s.tile_n // MX_TILE * each


def tmem_columns(problem: GemmProblem, schedule: GemmSchedule) -> int:
    """Columns to allocate: accumulators and scales, rounded up to a power of two."""
    used = accumulator_columns(schedule, problem.epilogue.products)
    used += sum(scale_columns(problem, schedule))
    columns = 32
    while columns < used:
        columns *= 2
    return columns


@dataclass(frozen=True)
class Sm100Spec(ArchSpec):
    """See :class:`ArchSpec`."""

    def threads(self, schedule: GemmSchedule) -> int:
        """Four epilogue warps, one MMA warp, one TMA load warp."""
        return WARP_THREADS * (EPILOGUE_WARPS + 2)

    def smem_used(self, problem: GemmProblem, schedule: GemmSchedule) -> int:
        """Each CTA of a pair stages half of the B tile."""
        half = replace(schedule, tile_n=schedule.tile_n // schedule.cta_group)
        return super().smem_used(problem, half) + scale_bytes(problem, schedule)

    def check_schedule(self, problem: GemmProblem, schedule: GemmSchedule) -> Status:
        s = schedule
        common = check_common(self, problem, s)
        return (
            common
            & _check_mma(problem, s)
            & _check_scales(problem, s)
            & _check_epilogue(problem, s)
            & Status.check(
                (
                    s.cta_group == 1 or problem.grouping.value != "k",
                    "groups along K: an MMA's warp zeroes the tails of K of its own "
                    "CTA only, so there are no pairs",
                )
            )
        )


def scale_bytes(problem: GemmProblem, schedule: GemmSchedule) -> int:
    """Shared memory of all stages' MXFP8 scales, each operand's padded."""
    if not problem.block_scaled:
        return 0
    total = 0
    for rows in (schedule.tile_m, schedule.tile_n):
        staged = scale_count(rows, schedule.tile_k) * schedule.ab_stages
        total += -(-staged // SCALE_BYTES_ALIGN) * SCALE_BYTES_ALIGN
    return total


def _check_scales(problem: GemmProblem, s: GemmSchedule) -> Status:
    """Tiles of whole blocks of MXFP8 scales, in CTAs that share nothing."""
    if not problem.block_scaled:
        return Status.ok()
    return Status.check(
        (
            s.tile_m == MX_TILE and s.tile_n % MX_TILE == 0,
            f"MXFP8 takes tiles of {MX_TILE} rows and a multiple of {MX_TILE} columns, "
            f"not {s.tile_m}x{s.tile_n}",
        ),
        (
            s.cluster_size == 1,
            "MXFP8 scales are not multicast: clusters of one CTA only",
        ),
        (problem.epilogue.products == 1, "MXFP8 kernels have one product"),
    )


def _check_mma(problem: GemmProblem, s: GemmSchedule) -> Status:
    """Shapes of the MMA and of its accumulators."""
    step = 16 if s.tile_m == 128 else 8
    columns = tmem_columns(problem, s)
    return Status.check(
        (s.tile_m in (64, 128), f"tile_m={s.tile_m} is not 64 or 128"),
        (
            s.tile_n % step == 0 and step <= s.tile_n <= 256,
            f"tile_n={s.tile_n} is not a multiple of {step} from {step} to 256",
        ),
        (
            columns <= TMEM_COLUMNS,
            f"{columns} TMEM columns exceed {TMEM_COLUMNS}",
        ),
        (
            s.tile_m != 64 or s.acc_stages == 1 or s.acc_stages % 2 == 0,
            f"acc_stages={s.acc_stages}: tile_m=64 packs stages in pairs",
        ),
        (s.cta_group in (1, 2), f"cta_group={s.cta_group} is not 1 or 2"),
        (
            s.cta_group == 1 or s.cluster_m % 2 == 0,
            f"a CTA pair needs an even cluster_m, not {s.cluster_m}",
        ),
        (
            s.cta_group == 1 or (s.tile_m == 128 and s.tile_n % 32 == 0),
            "a CTA pair takes tile_m=128 and tile_n in steps of 32, not "
            f"{s.tile_m}x{s.tile_n}",
        ),
        (s.math == "cooperative", "pingpong is for wgmma"),
        (s.registers == "even", "registers are moved for wgmma only"),
        (s.promotion == "wait", "tcgen05 sums in fp32 anyway: nothing to promote"),
        (s.math_warpgroups == 1, "tcgen05 has one MMA warp, not warpgroups"),
    )


def _check_epilogue(problem: GemmProblem, s: GemmSchedule) -> Status:
    """What one TMEM load, one TMA box and a thread's registers can hold."""
    values = epilogue_values(problem, s)
    return Status.check(
        (
            s.epi_n in EPI_COLUMNS,
            f"epi_n={s.epi_n} is not one of {', '.join(map(str, EPI_COLUMNS))}",
        ),
        (
            values <= MAX_EPILOGUE_VALUES,
            f"{values} epilogue values a thread exceed {MAX_EPILOGUE_VALUES}; "
            f"a smaller epi_n than {s.epi_n} may fit",
        ),
    )


SM100 = Sm100Spec(
    name="sm_100a",
    capability=(10, 0),
    mma="tcgen05",
    required_roles=("load", "mma", "epilogue"),
    smem_bytes=232448,
    default_sms=148,
    l2_bytes=126 * 2**20,
)
