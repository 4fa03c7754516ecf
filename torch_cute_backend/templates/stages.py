"""The parts of a GEMM's tile program that dense and grouped kernels share.

Set-up, the load role's part of a tile, the mainloop, the epilogue, the tails: the same
statements whatever the tile, whose place a :class:`~templates.tile.WorkTile` says.
"""

from __future__ import annotations

from torch_cute_backend.ir.dataflow import (
    AccumulatorClear,
    ConsumerRelease,
    ConsumerWait,
    Mma,
    MmaDrain,
    ProducerAcquire,
    ProducerCommit,
    ProducerTail,
    ScaleCopy,
    SkipStages,
    TmaLoad,
    TmaStoreWait,
    TmemLoad,
)
from torch_cute_backend.ir.expr import Param, Ref
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.structure import KLoop, ScalarStore, SubtileLoop
from torch_cute_backend.ir.sync import (
    AllocateShared,
    Fence,
    InitPipelines,
    InitSync,
    NamedBarrierSync,
    PartitionEpilogue,
    PartitionMma,
    PartitionTma,
    PassTurn,
    PdlLaunch,
    PdlWait,
    PipelineStates,
    PrefetchDescriptors,
    SetRegisters,
    TakeTurn,
    TmemAlloc,
    TmemFree,
    ZeroPadding,
)
from torch_cute_backend.ir.values import Buffer, L2Policy, Role
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.schedulers import SCHEDULERS, TileScheduler
from torch_cute_backend.templates.epilogue import (
    epilogue_statements,
    prefetched_inputs,
)
from torch_cute_backend.templates.resources import DenseResources
from torch_cute_backend.templates.tile import K_TILE, SUBTILE, TILE, WorkTile


def prologue(res: DenseResources, schedule: GemmSchedule) -> Body:
    """Shared set-up ends in the barrier that publishes it; then each role's own."""
    shared: list[Stmt] = [
        PrefetchDescriptors(buffers=res.tma_tensors),
        AllocateShared(buffers=res.shared),
        InitPipelines(pipelines=res.pipelines),
    ]
    if res.tmem is not None:
        shared.append(
            TmemAlloc(
                buffer=res.tmem, columns=res.tmem_columns, more=_scales_in_tmem(res)
            )
        )
    shared.append(InitSync(cluster=schedule.cluster_size > 1))
    if schedule.launch == "dependent":
        # The next kernel may start at once: it waits for all of this one.
        shared += [PdlWait(), PdlLaunch()]
    load, mma, epilogue = res.load, res.mma, res.epilogue
    own: list[Stmt] = [
        PartitionTma(role=load, buffers=res.loaded),
        PipelineStates(role=load, pipelines=(res.ab,)),
        _partition_mma(res),
        PipelineStates(
            role=mma,
            pipelines=(res.ab,) if res.acc_pipe is None else res.pipelines,
            tile_stages=Param("k_tiles") if mma.instances > 1 else None,
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
        scales=None if res.scales is None else res.scales.tmem,
        staged_scales=() if res.scales is None else res.scales.staged,
    )


def _scales_in_tmem(res: DenseResources) -> tuple[Buffer, ...]:
    return () if res.scales is None else (res.scales.tmem,)


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


def tile_statements(
    problem: GemmProblem, schedule: GemmSchedule, res: DenseResources, tile: WorkTile
) -> Body:
    """What the roles do for one tile."""
    inputs = prefetched_inputs(problem, res, tile)
    # The same warps compute the mainloop and the epilogue, or others do: either way
    # the inputs are requested before the accumulator is ready.
    one_role = res.mma == res.epilogue
    order = SCHEDULERS[schedule.scheduler]
    mma = _in_turn(_mma(res, tile), res, tile, turn(problem, res, order))
    return (
        *_load(res, schedule, tile),
        *((*inputs, *mma) if one_role else (*mma, *inputs)),
        *_epilogue(problem, schedule, res, tile),
    )


def _load(res: DenseResources, schedule: GemmSchedule, tile: WorkTile) -> Body:
    role: Role = res.load
    stream = schedule.l2_policy == "stream_b"
    return (
        *tile.before_load,
        KLoop(
            role=role,
            index=K_TILE,
            count=tile.k_tiles,
            body=(
                ProducerAcquire(role=role, pipeline=res.ab),
                TmaLoad(
                    role=role,
                    source=res.a,
                    target=res.s_a,
                    pipeline=res.ab,
                    coords=tile.a,
                    l2=L2Policy.EVICT_LAST if stream else L2Policy.NORMAL,
                ),
                *(
                    TmaLoad(
                        role=role,
                        source=product.b,
                        target=product.s_b,
                        pipeline=res.ab,
                        coords=tile.b,
                        l2=L2Policy.EVICT_FIRST if stream else L2Policy.NORMAL,
                    )
                    for product in res.products
                ),
                *_load_scales(res, tile),
                ProducerCommit(role=role, pipeline=res.ab),
            ),
        ),
    )


def _load_scales(res: DenseResources, tile: WorkTile) -> Body:
    """The block scales of the stage's A and B."""
    if res.scales is None:
        return ()
    places = (tile.scale_a or tile.a, tile.scale_b or tile.b)
    triples = zip(res.scales.tensors, res.scales.staged, places, strict=True)
    return tuple(
        TmaLoad(
            role=res.load, source=source, target=target, pipeline=res.ab, coords=coords
        )
        for source, target, coords in triples
    )


def _copy_scales(res: DenseResources) -> Body:
    if res.scales is None:
        return ()
    return (
        ScaleCopy(
            role=res.mma,
            sources=res.scales.staged,
            target=res.scales.tmem,
            pipeline=res.ab,
        ),
    )


def _mma(res: DenseResources, tile: WorkTile) -> Body:
    """The mainloop. wgmma reads a stage until the next k tile's wgmma is issued, so its
    release lags by one; tcgen05 releases by commit, in order."""
    role = res.mma
    lag = res.release_lag
    mainloop = KLoop(
        role=role,
        index=K_TILE,
        count=tile.k_tiles,
        body=(
            ConsumerWait(role=role, pipeline=res.ab),
            *tile.before_mma,
            *_copy_scales(res),
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
                    scales=None if res.scales is None else res.scales.tmem,
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
                count=tile.k_tiles,
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


def turn(problem: GemmProblem, res: DenseResources, order: TileScheduler) -> Body:
    """What takes a tile's turn and what passes it on; nothing where the MMA's role has
    one instance."""
    role, barrier = res.mma, res.turn_barrier
    if barrier is None:
        return ()
    limit = order.limit(problem.grouping)
    return (
        TakeTurn(role=role, barrier=barrier, work=TILE, first=order.first()),
        PassTurn(role=role, barrier=barrier, work=TILE, step=order.step(), limit=limit),
    )


def _in_turn(mma: Body, res: DenseResources, tile: WorkTile, turn: Body) -> Body:
    """Instances of the MMA's role wait for their stages one after the other. The next
    one's wgmmas follow as soon as this one's are issued."""
    if not turn:
        return mma
    take, give = turn
    *mainloop, drain = mma
    skip = SkipStages(
        role=res.mma, pipeline=res.ab, count=tile.k_tiles, others=res.mma.instances - 1
    )
    return (take, *mainloop, give, drain, skip)


def _epilogue(
    problem: GemmProblem, schedule: GemmSchedule, res: DenseResources, tile: WorkTile
) -> Body:
    role = res.epilogue
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
    inside.extend(epilogue_statements(problem, schedule, res, tile))
    subtiles = SubtileLoop(
        role=role,
        index=SUBTILE,
        count=schedule.tile_n // schedule.epi_n,
        body=tuple(inside),
    )
    return (*before, *tile.before_store, subtiles, *after)


def post(res: DenseResources) -> Body:
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
            TmemFree(
                role=res.epilogue,
                buffer=res.tmem,
                columns=res.tmem_columns,
                more=_scales_in_tmem(res),
            )
        )
    if res.walk_end is not None:
        # Reads the work tile that the shared loop leaves behind.
        statements.append(
            ScalarStore(buffer=res.walk_end, index=Param("bidx"), value=Ref(TILE))
        )
    return tuple(statements)
