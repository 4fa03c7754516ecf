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
"""

from __future__ import annotations

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.errors import CodegenError
from torch_cute_backend.ir.dataflow import (
    AccumulatorClear,
    ConsumerRelease,
    ConsumerWait,
    Mma,
    MmaDrain,
    ProducerAcquire,
    ProducerCommit,
    ProducerTail,
    TmaLoad,
    TmaStoreWait,
    TmemLoad,
)
from torch_cute_backend.ir.expr import BinOp, Const, Expr, Param, Ref
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    KLoop,
    Let,
    ScalarStore,
    SchedulerAdvance,
    SubtileLoop,
    TileLoop,
)
from torch_cute_backend.ir.sync import (
    AllocateShared,
    CtaBarrier,
    Fence,
    InitPipelines,
    InitSync,
    NamedBarrierSync,
    PartitionEpilogue,
    PartitionMma,
    PartitionTma,
    PipelineStates,
    PrefetchDescriptors,
    SetRegisters,
    TmemAlloc,
    TmemFree,
    ZeroPadding,
)
from torch_cute_backend.ir.values import L2Policy, Role, Scheduler, Var
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.schedulers import SCHEDULERS
from torch_cute_backend.templates.epilogue import (
    epilogue_statements,
    prefetched_inputs,
)
from torch_cute_backend.templates.resources import (
    DenseResources,
    resources_sm90,
    resources_sm100,
)

TILE = Var("tile_idx")
TILE_M = Var("tile_m")
TILE_N = Var("tile_n")
K_TILE = Var("k_tile")
SUBTILE = Var("subtile")


def build_dense_gemm(
    problem: GemmProblem, schedule: GemmSchedule, arch: ArchSpec
) -> Program:
    """The inline form of ``D = epilogue(A @ B)``; the schedule must be valid.

    An epilogue with two accumulators makes it ``A @ B`` and ``A @ B1`` side by side:
    one walk over the tiles, one load of A, two MMAs a k tile.
    """
    if arch.required_roles == ("load", "math"):
        res = resources_sm90(problem, schedule)
    elif arch.required_roles == ("load", "mma", "epilogue"):
        res = resources_sm100(problem, schedule)
    else:
        raise CodegenError(f"no dense template for the roles of {arch.name}")
    return Program(
        name=kernel_name(problem, schedule),
        arch=arch.name,
        roots=problem.epilogue.roots,
        roles=res.roles,
        buffers=res.buffers,
        pipelines=res.pipelines,
        barriers=res.barriers,
        prologue=_prologue(res, schedule),
        loop=_tile_loop(problem, schedule, res),
        post=_post(res),
        cluster_size=schedule.cluster_size,
        cluster_shape=(schedule.cluster_m, schedule.cluster_n),
        cta_group=schedule.cta_group,
    )


def kernel_name(problem: GemmProblem, schedule: GemmSchedule) -> str:
    """What profilers show: op, family and tile."""
    family = problem.family.replace("-", "_")
    dual = "_dual" if problem.epilogue.products > 1 else ""
    return f"cute_{problem.op}{dual}_{family}_{schedule.describe()}"


def _prologue(res: DenseResources, schedule: GemmSchedule) -> Body:
    """Shared set-up ends in the barrier that publishes it; then each role's own."""
    shared: list[Stmt] = [
        PrefetchDescriptors(buffers=res.tma_tensors),
        AllocateShared(buffers=res.shared),
        InitPipelines(pipelines=res.pipelines),
    ]
    if res.tmem is not None:
        shared.append(TmemAlloc(buffer=res.tmem, columns=res.tmem_columns))
    shared.append(InitSync(cluster=schedule.cluster_size > 1))
    load, mma, epilogue = res.load, res.mma, res.epilogue
    own: list[Stmt] = [
        PartitionTma(role=load, buffers=(res.a, *(p.b for p in res.products))),
        PipelineStates(role=load, pipelines=(res.ab,)),
        _partition_mma(res),
        PipelineStates(
            role=mma, pipelines=(res.ab,) if res.acc_pipe is None else res.pipelines
        ),
    ]
    if res.acc_pipe is not None:
        own.append(PipelineStates(role=epilogue, pipelines=(res.acc_pipe,)))
    own.append(
        PartitionEpilogue(
            role=epilogue,
            source=res.acc,
            targets=res.registers_out,
            staging=res.staging,
            more=tuple(p.registers_acc for p in res.more),
        )
    )
    return (*shared, *_registers(res), *own, *_padding(res))


def _registers(res: DenseResources) -> Body:
    """Who gives registers up comes first, so that who takes them finds them free."""
    budgets = {r: r.registers for r in res.roles if r.registers is not None}
    fewest = min(budgets.values(), default=0)
    return tuple(
        SetRegisters(role=role, count=count, increase=count > fewest)
        for role, count in budgets.items()
    )


def _partition_mma(res: DenseResources) -> Stmt:
    """Tensor memory holds the accumulators of all products in one buffer."""
    registers = res.tmem is None
    accumulators = (b for p in res.more for b in (p.acc, p.promote) if b is not None)
    return PartitionMma(
        role=res.mma,
        a=res.s_a,
        b=res.s_b,
        accumulator=res.acc,
        promote=res.promote,
        alternate=res.alternate,
        more_b=tuple(p.s_b for p in res.more),
        more_accumulators=tuple(accumulators) if registers else (),
    )


def _padding(res: DenseResources) -> Body:
    """Rows below a low tile: the MMA's warps zero them once, before its first MMA."""
    if res.padding is None:
        return ()
    role = res.mma
    return (
        ZeroPadding(role=role, buffer=res.padding),
        Fence(role=role),
        NamedBarrierSync(role=role, barrier=res.epi_barrier),
    )


def _tile_loop(
    problem: GemmProblem, schedule: GemmSchedule, res: DenseResources
) -> TileLoop:
    order = SCHEDULERS[schedule.scheduler]
    scheduler = Scheduler("tiles", order.kind)
    inputs = prefetched_inputs(problem, res, (Ref(TILE_M), Ref(TILE_N)))
    coordinates = _coordinates(schedule, order.position(TILE))
    body: list[Stmt] = [*coordinates, *_load(res, schedule)]
    # The same warps compute the mainloop and the epilogue, or others do: either way
    # the inputs are requested before the accumulator is ready.
    one_role = res.mma == res.epilogue
    body.extend((*inputs, *_mma(res)) if one_role else (*_mma(res), *inputs))
    body.extend(_epilogue(problem, schedule, res))
    # The plain form overlaps nothing between tiles: no warp starts a tile before
    # every warp has finished the one before it.
    body.append(CtaBarrier(why="tile hand-over"))
    body.append(SchedulerAdvance(scheduler=scheduler, work=TILE, step=order.step()))
    return TileLoop(
        scheduler=scheduler,
        work=TILE,
        first=order.first(),
        limit=order.limit(),
        body=tuple(body),
    )


def _coordinates(schedule: GemmSchedule, tile: Expr) -> Body:
    """Place along the raster -> this CTA's tile. ``tiles_m``, ``tiles_n`` count
    clusters."""
    if schedule.raster == "grouped":
        lets, row, column = _grouped_raster(schedule.group_m, tile)
    else:
        along_m = schedule.raster == "along_m"
        extent = Param("tiles_m" if along_m else "tiles_n")
        fast = BinOp("%", tile, extent)
        slow = BinOp("//", tile, extent)
        lets, row, column = (), *((fast, slow) if along_m else (slow, fast))
    m = _in_cluster(row, schedule.cluster_m, "cta_m")
    n = _in_cluster(column, schedule.cluster_n, "cta_n")
    return (*lets, Let(var=TILE_M, value=m), Let(var=TILE_N, value=n))


def _grouped_raster(group_m: int, tile: Expr) -> tuple[Body, Expr, Expr]:
    """Bands of ``group_m`` rows, each walked along M; the last band may be lower."""
    band, first, rows, within = (
        Var(name) for name in ("band", "band_row", "band_rows", "band_tile")
    )
    band_tiles = BinOp("*", Const(group_m), Param("tiles_n"))
    left = BinOp("-", Param("tiles_m"), Ref(first))
    lets = (
        Let(var=band, value=BinOp("//", tile, band_tiles)),
        Let(var=within, value=BinOp("%", tile, band_tiles)),
        Let(var=first, value=BinOp("*", Ref(band), Const(group_m))),
        Let(var=rows, value=BinOp("min", left, Const(group_m))),
    )
    row = BinOp("+", Ref(first), BinOp("%", Ref(within), Ref(rows)))
    return lets, row, BinOp("//", Ref(within), Ref(rows))


def _in_cluster(cluster_index: Expr, extent: int, rank: str) -> Expr:
    if extent == 1:
        return cluster_index
    scaled = BinOp(
        "*", cluster_index, Param("CLUSTER_M" if rank == "cta_m" else "CLUSTER_N")
    )
    return BinOp("+", scaled, Param(rank))


def _load(res: DenseResources, schedule: GemmSchedule) -> Body:
    role: Role = res.load
    stream = schedule.l2_policy == "stream_b"
    k = Ref(K_TILE)
    return (
        KLoop(
            role=role,
            index=K_TILE,
            count=Param("k_tiles"),
            body=(
                ProducerAcquire(role=role, pipeline=res.ab),
                TmaLoad(
                    role=role,
                    source=res.a,
                    target=res.s_a,
                    pipeline=res.ab,
                    coords=(Ref(TILE_M), k),
                    l2=L2Policy.EVICT_LAST if stream else L2Policy.NORMAL,
                ),
                *(
                    TmaLoad(
                        role=role,
                        source=product.b,
                        target=product.s_b,
                        pipeline=res.ab,
                        coords=(Ref(TILE_N), k),
                        l2=L2Policy.EVICT_FIRST if stream else L2Policy.NORMAL,
                    )
                    for product in res.products
                ),
                ProducerCommit(role=role, pipeline=res.ab),
            ),
        ),
    )


def _mma(res: DenseResources) -> Body:
    """The mainloop. wgmma reads a stage until the next k tile's wgmma is issued, so its
    release lags by one; tcgen05 releases by commit, in order."""
    role = res.mma
    lag = res.release_lag
    mainloop = KLoop(
        role=role,
        index=K_TILE,
        count=Param("k_tiles"),
        body=(
            ConsumerWait(role=role, pipeline=res.ab),
            *(
                Mma(
                    role=role,
                    accumulator=product.acc,
                    a=res.s_a,
                    b=product.s_b,
                    pipeline=res.ab,
                    index=K_TILE,
                    promote=product.promote,
                    padding=res.padding,
                    product=product.part,
                    alternate=res.alternate,
                    more=product != res.products[-1],
                )
                for product in res.products
            ),
            ConsumerRelease(
                role=role,
                pipeline=res.ab,
                lag=lag,
                index=K_TILE if lag else None,
            ),
        ),
    )
    if res.acc_pipe is None:
        drain = MmaDrain(role=role, pipeline=res.ab, lag=lag)
        if res.alternate is not None:
            drain = MmaDrain(
                role=role,
                pipeline=res.ab,
                lag=lag,
                last=(res.acc, res.alternate),
                promote=res.promote,
                count=Param("k_tiles"),
            )
        clear = tuple(
            AccumulatorClear(role=role, accumulator=product.promote)
            for product in res.products
            if product.promote is not None
        )
        return (*clear, mainloop, drain)
    return (
        ProducerAcquire(role=role, pipeline=res.acc_pipe),
        mainloop,
        ProducerCommit(role=role, pipeline=res.acc_pipe),
    )


def _epilogue(
    problem: GemmProblem, schedule: GemmSchedule, res: DenseResources
) -> Body:
    role = res.epilogue
    tile = (Ref(TILE_M), Ref(TILE_N))
    inside: list[Stmt] = []
    before: list[Stmt] = []
    after: list[Stmt] = []
    if res.acc_pipe is not None:
        before.append(ConsumerWait(role=role, pipeline=res.acc_pipe))
        inside.extend(
            TmemLoad(
                role=role,
                source=product.acc,
                target=product.registers_acc,
                pipeline=res.acc_pipe,
                subtile=SUBTILE,
                product=product.part,
            )
            for product in res.products
        )
        after.append(ConsumerRelease(role=role, pipeline=res.acc_pipe))
    inside.extend(epilogue_statements(problem, schedule, res, tile, SUBTILE))
    subtiles = SubtileLoop(
        role=role,
        index=SUBTILE,
        count=schedule.tile_n // schedule.epi_n,
        body=tuple(inside),
    )
    return (*before, subtiles, *after)


def _post(res: DenseResources) -> Body:
    """Tails: each role waits for what others, or the hardware, still owe it."""
    statements: list[Stmt] = [ProducerTail(role=res.load, pipeline=res.ab)]
    if res.acc_pipe is not None:
        statements.append(ProducerTail(role=res.mma, pipeline=res.acc_pipe))
    if res.staging is not None:
        statements.append(TmaStoreWait(role=res.epilogue, pending=0))
    if res.tmem is not None:
        # The epilogue's warps have waited for every accumulator that the MMA wrote, and
        # only they read them, so their own barrier suffices.
        statements.append(NamedBarrierSync(role=res.epilogue, barrier=res.epi_barrier))
        statements.append(
            TmemFree(role=res.epilogue, buffer=res.tmem, columns=res.tmem_columns)
        )
    if res.walk_end is not None:
        # Reads the work tile that the shared loop leaves behind.
        statements.append(
            ScalarStore(buffer=res.walk_end, index=Param("bidx"), value=Ref(TILE))
        )
    return tuple(statements)
