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
WARP_THREADS = 32
MMA_M = 64
MAX_ACCUMULATORS_PER_THREAD = {1: 192, 2: 128}
"""fp32 accumulators a thread may hold, by math warpgroups: its registers less addresses
and epilogue. A thread of five warps has 255; of nine, 168, since one of the SM's four
register files of 16384 then serves three warps."""
MOVED_REGISTERS = {"load": 24, "math": 240}
"""``setmaxnreg`` counts where the load warpgroup hands its registers to two math
warpgroups: 128 * 24 + 256 * 240 of 65536."""
MOVED_ACCUMULATORS = 192
MOVED_PRESSURE = 215
"""The same limits for threads of 240 registers."""
MAX_EPILOGUE_PRESSURE = {1: 230, 2: 150}
"""What :func:`epilogue_pressure` may reach, by math warpgroups (ptxas of CUDA 13.0,
rowwise with GELU, residuals and second outputs: 224 and 148 did not spill, 384 and 160
did)."""


def epilogue_pressure(problem: GemmProblem, schedule: GemmSchedule, live: int) -> int:
    """Registers that a thread's values take in the epilogue, roughly: ``live``
    accumulators; of a subtile, what is loaded and stored by element, with addresses,
    the other output, and what a costly op needs."""
    s, graph = schedule, problem.epilogue
    rows = max(s.tile_m, MMA_M)
    elements = rows * s.epi_n // (WARPGROUP_THREADS * s.tile_warpgroups)
    loads = sum(i.kind.value == "full" for i in graph.inputs)
    direct = len(graph.outputs) - (s.store == "tma")
    stored = sum(o.dtype.bytes for o in graph.outputs) * elements // 4
    return live + stored + elements * (2 * loads + direct + 2 * graph.costly)


def accumulator_sets(problem: GemmProblem, schedule: GemmSchedule) -> int:
    """Copies of a tile's sums in registers: exact FP8 adds those of a k tile, or of two
    that take turns, to the tile's."""
    if problem.accum.value != "exact" or not problem.a_dtype.is_fp8:
        return 1
    return 3 if schedule.promotion == "overlap" else 2


@dataclass(frozen=True)
class Sm90Spec(ArchSpec):
    """See :class:`ArchSpec`."""

    def threads(self, schedule: GemmSchedule) -> int:
        """The math warpgroups and one TMA load warp, or its whole warpgroup."""
        load = WARPGROUP_THREADS if schedule.registers == "moved" else WARP_THREADS
        return WARPGROUP_THREADS * schedule.math_warpgroups + load

    def staged_rows(self, schedule: GemmSchedule) -> int:
        """A wgmma reads 64 rows; a lower tile is padded with zeros."""
        return max(schedule.tile_m, MMA_M)

    def check_problem(self, problem: GemmProblem) -> Status:
        return Status.check(
            (
                not problem.block_scaled,
                "wgmma applies no block scales: MXFP8 needs tcgen05 (sm_100a)",
            )
        )

    def check_schedule(self, problem: GemmProblem, schedule: GemmSchedule) -> Status:
        s = schedule
        if s.math_warpgroups not in (1, 2):
            return Status.no(f"math_warpgroups={s.math_warpgroups} is not 1 or 2")
        accumulators = (
            self.staged_rows(s) * s.tile_n // (WARPGROUP_THREADS * s.tile_warpgroups)
        )
        sets = accumulator_sets(problem, s) * problem.epilogue.products
        moved = s.registers == "moved"
        most = MAX_ACCUMULATORS_PER_THREAD[s.math_warpgroups]
        most = MOVED_ACCUMULATORS if moved else most
        room = MAX_EPILOGUE_PRESSURE[s.math_warpgroups]
        room = MOVED_PRESSURE if moved else room
        pressure = epilogue_pressure(problem, s, accumulators * sets)
        return check_common(self, problem, s) & Status.check(
            (
                pressure <= room,
                f"an epilogue of about {pressure} registers a thread exceeds {room}; "
                f"a smaller epi_n than {s.epi_n} may fit",
            ),
            (
                not s.pingpong
                or (
                    s.math_warpgroups == 2
                    and s.scheduler in ("static_persistent", "grouped_static")
                    and s.shared_loop != "inline"
                    and s.record == "none"
                ),
                "pingpong needs two math warpgroups, each with a static persistent or "
                "grouped static loop of its own",
            ),
            (
                not moved or s.math_warpgroups == 2,
                "registers='moved' needs two math warpgroups; one has 255 anyway",
            ),
            (
                s.promotion == "wait" or (sets > 1 and s.ab_stages > 2),
                "promotion='overlap' needs exact FP8 accumulation and 3 A/B stages",
            ),
            (
                s.promotion != "overlap" or problem.epilogue.products == 1,
                "promotion='overlap' is for kernels of one product",
            ),
            (
                s.tile_m % (MMA_M * s.tile_warpgroups) == 0 or _padded(problem, s),
                f"tile_m={s.tile_m} is not a multiple of 64 rows for each of "
                f"{s.tile_warpgroups} math warpgroup(s), nor 8, 16 or 32 K-major rows "
                "of one warpgroup",
            ),
            (
                s.tile_n % 8 == 0 and 8 <= s.tile_n <= 256,
                f"tile_n={s.tile_n} is not a multiple of 8 from 8 to 256",
            ),
            (
                s.epi_n % 8 == 0,
                f"epi_n={s.epi_n} is not a multiple of 8, as a wgmma's columns are",
            ),
            (
                accumulators * sets <= most,
                f"{accumulators} fp32 accumulators a thread x {sets} set(s) exceed "
                f"{most}",
            ),
            (s.acc_stages == 1, "wgmma accumulators have one stage"),
            (s.cta_group == 1, "wgmma has no CTA pairs"),
        )


def _padded(problem: GemmProblem, s: GemmSchedule) -> bool:
    """Fewer rows than one wgmma: the tile is as low as M, so that TMA fetches no rows
    beyond it (on an H200 out-of-bounds rows cost more than real ones)."""
    k_major = problem.a_major.value == "k"
    return s.tile_m in (8, 16, 32) and s.math_warpgroups == 1 and k_major


SM90 = Sm90Spec(
    name="sm_90a",
    capability=(9, 0),
    mma="wgmma",
    required_roles=("load", "math"),
    smem_bytes=232448,
    default_sms=132,
    l2_bytes=60 * 2**20,
)
