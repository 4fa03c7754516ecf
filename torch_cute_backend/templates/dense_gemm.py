"""Dense GEMM as a tile program: the whole algorithm in one sitting.

``build_dense_gemm`` returns the *inline* form: one CTA-wide persistent loop over work
tiles whose statements are tagged with the role that will run them. Which roles there
are, and what an accumulator is, differs by arch:

=========  =====================  ===========================================
arch       roles                  accumulator
=========  =====================  ===========================================
sm_90a     load, math             registers of the math warpgroups (wgmma)
sm_100a    load, mma, epilogue    tensor memory, ``acc_stages`` deep (tcgen05)
=========  =====================  ===========================================

What the roles do for one tile is in :mod:`templates.stages`, which grouped kernels
share.
"""

from __future__ import annotations

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.errors import CodegenError
from torch_cute_backend.ir.expr import Ref
from torch_cute_backend.ir.ops import Body
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import SchedulerAdvance, TileLoop
from torch_cute_backend.ir.sync import CtaBarrier
from torch_cute_backend.ir.values import Scheduler
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.schedulers import SCHEDULERS, TileScheduler
from torch_cute_backend.schedulers.raster import TILE_M, TILE_N, tile_coordinates
from torch_cute_backend.templates.resources import (
    DenseResources,
    resources_sm90,
    resources_sm100,
)
from torch_cute_backend.templates.stages import post, prologue, tile_statements
from torch_cute_backend.templates.tile import K_TILE, TILE, WorkTile


def build_dense_gemm(
    problem: GemmProblem, schedule: GemmSchedule, arch: ArchSpec
) -> Program:
    """The inline form of ``D = epilogue(A @ B)``; the schedule must be valid.

    An epilogue with two accumulators makes it ``A @ B`` and ``A @ B1`` side by side:
    one walk over the tiles, one load of A, two MMAs a k tile.
    """
    res = resources(problem, schedule, arch)
    order = SCHEDULERS[schedule.scheduler]
    place = tile_coordinates(schedule, order.position(TILE))
    work = tile_statements(problem, schedule, res, _TILE)
    loop = tile_loop(problem, order, Scheduler("tiles", order.kind), (*place, *work))
    return program(problem, schedule, arch, res, loop)


_TILE = WorkTile(
    a=(Ref(TILE_M), Ref(K_TILE)),
    b=(Ref(TILE_N), Ref(K_TILE)),
    index=(Ref(TILE_M), Ref(TILE_N)),
)


def resources(
    problem: GemmProblem, schedule: GemmSchedule, arch: ArchSpec
) -> DenseResources:
    """Roles, buffers and pipelines by the roles that the arch requires."""
    if arch.required_roles == ("load", "math"):
        return resources_sm90(problem, schedule)
    if arch.required_roles == ("load", "mma", "epilogue"):
        return resources_sm100(problem, schedule)
    raise CodegenError(f"no template for the roles of {arch.name}")


def tile_loop(
    problem: GemmProblem, order: TileScheduler, scheduler: Scheduler, body: Body
) -> TileLoop:
    """The persistent loop of the inline form around what is done for one tile."""
    return TileLoop(
        scheduler=scheduler,
        work=TILE,
        first=order.first(),
        limit=order.limit(problem.grouping),
        body=(
            *body,
            # The plain form overlaps nothing between tiles: no warp starts a tile
            # before every warp has finished the one before it.
            CtaBarrier(why="tile hand-over"),
            SchedulerAdvance(scheduler=scheduler, work=TILE, step=order.step()),
        ),
    )


def program(
    problem: GemmProblem,
    schedule: GemmSchedule,
    arch: ArchSpec,
    res: DenseResources,
    loop: TileLoop,
) -> Program:
    """The inline program around its loop."""
    return Program(
        name=kernel_name(problem, schedule),
        arch=arch.name,
        roots=problem.epilogue.roots,
        roles=res.roles,
        buffers=res.buffers,
        pipelines=res.pipelines,
        barriers=res.barriers,
        prologue=prologue(res, schedule),
        loop=loop,
        post=post(res),
        cluster_size=schedule.cluster_size,
        cluster_shape=(schedule.cluster_m, schedule.cluster_n),
        cta_group=schedule.cta_group,
    )


def kernel_name(problem: GemmProblem, schedule: GemmSchedule) -> str:
    """What profilers show: op, family and tile."""
    family = problem.family.replace("-", "_")
    dual = "_dual" if problem.epilogue.products > 1 else ""
    return f"cute_{problem.op}{dual}_{family}_{schedule.describe()}"
