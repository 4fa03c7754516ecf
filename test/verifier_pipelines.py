"""Programs that break the rules of ``ir.verify_pipelines``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import ir_examples as ex
from verifier_edits import (
    Broken,
    before_step,
    change,
    change_loop,
    in_region,
    inline90,
    kept90,
    pair,
    pingpong,
    twice,
)

from torch_cute_backend.ir.dataflow import (
    ConsumerRelease,
    ConsumerWait,
    Mma,
    MmaDrain,
    ProducerAcquire,
    ProducerCommit,
    ProducerTail,
    TmaLoad,
)
from torch_cute_backend.ir.expr import BinOp, Const, Param, Ref
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import If, KLoop, RoleRegion, TileLoop
from torch_cute_backend.ir.sync import (
    InitPipelines,
    NamedBarrierSync,
    TmemAlloc,
    TmemFree,
)


def release_in_a_branch(program: Program) -> Program:
    def edit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, ConsumerRelease):
            return If(condition=BinOp(">", Ref(ex.K), Const(0)), body=(stmt,))
        return stmt

    return ex.edited(program, edit)


def extra_k_tile(program: Program) -> Program:
    """The math role runs one k tile more than the load role."""

    def edit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, KLoop) and any(isinstance(s, Mma) for s in stmt.body):
            return replace(stmt, count=BinOp("+", Param("k_tiles"), Const(1)))
        return stmt

    return ex.edited(program, edit)


def in_a_branch(program: Program, role: str) -> Program:
    """A role's K loop under a condition."""

    def edit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, KLoop) and str(stmt.role) == role:
            return If(role=stmt.role, condition=Param("flag"), body=(stmt,))
        return stmt

    return ex.edited(program, edit)


def hoisted(program: Program) -> Program:
    """Both roles' K loops run once, before their tile loops."""

    def edit(stmt: Stmt) -> Stmt:
        if not isinstance(stmt, RoleRegion):
            return stmt
        loop = next(s for s in stmt.body if isinstance(s, TileLoop))
        moved = tuple(s for s in loop.body if isinstance(s, KLoop))
        rest = tuple(s for s in loop.body if not isinstance(s, KLoop))
        others = tuple(s for s in stmt.body if s is not loop)
        return stmt.with_body((*moved, loop.with_body(rest), *others))

    return ex.edited(program, edit)


def drain_in_a_branch(program: Program) -> Program:
    def edit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, MmaDrain):
            return If(role=stmt.role, condition=Param("flag"), body=(stmt,))
        return stmt

    return ex.edited(program, edit)


def drain_in_front(program: Program) -> Program:
    drain = next(s for s in program.walk() if isinstance(s, MmaDrain))

    def edit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, TileLoop) and stmt.role == ex.MATH:
            return stmt.with_body((drain, *stmt.body))
        return stmt

    return ex.edited(ex.without(program, MmaDrain), edit)


def two_mainloops(program: Program) -> Program:
    """Each role runs its K loop twice; the second releases at once."""

    def at_once(stmt: Stmt) -> Stmt:
        release = isinstance(stmt, ConsumerRelease)
        return replace(stmt, lag=0) if release else stmt

    def edit(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        if isinstance(stmt, KLoop):
            return (stmt, stmt.with_body(ex.edit_body(stmt.body, at_once)))
        return stmt

    return ex.edited(program, edit)


def resource(
    program: Callable[[], Program], old: object, **changes: object
) -> Callable[[], Program]:
    return lambda: ex.with_resource(program(), old, replace(old, **changes))


PIPELINES = (
    Broken(
        "pipeline_roles",
        "wait_in_producer",
        lambda: in_region(kept90(), "load", ConsumerWait(pipeline=ex.AB90)),
        "ConsumerWait(pipeline=ab) in role load, expected role math",
    ),
    Broken(
        "pipeline_roles",
        "tail_by_all_threads",
        lambda: change(inline90(), ProducerTail, role=None),
        "ProducerTail(pipeline=ab) in all threads, expected role load",
    ),
    Broken(
        "bracketing",
        "load_without_acquire",
        lambda: ex.without(inline90(), ProducerAcquire),
        "found no stage of ab in role load, expected a stage",
    ),
    Broken(
        "bracketing",
        "wait_twice",
        lambda: twice(inline90(), ConsumerWait),
        "found a stage of ab in role math, expected no stage",
    ),
    Broken(
        "bracketing",
        "never_committed",
        lambda: ex.without(inline90(), ProducerCommit),
        "leaves ab another way than it found it",
    ),
    Broken(
        "bracketing",
        "released_sometimes",
        lambda: release_in_a_branch(inline90()),
        "leaves ab another way than it found it",
    ),
    Broken(
        "in_step",
        "extra_k_tile",
        lambda: extra_k_tile(kept90()),
        "ConsumerWait is not in step with ProducerAcquire",
    ),
    Broken(
        "in_step",
        "other_tiles",
        lambda: change_loop(kept90(), "math", first=Const(0)),
        "the tile loops of load and math differ",
    ),
    Broken(
        "in_step",
        "other_loop_kind",
        lambda: in_a_branch(kept90(), "math"),
        "ConsumerWait is not in step with ProducerAcquire",
    ),
    Broken(
        "in_step",
        "outside_the_tile_loop",
        lambda: hoisted(kept90()),
        "pipeline ab is not acquired in its producer's tile loop alone",
    ),
    Broken(
        "in_step",
        "several_lags",
        lambda: two_mainloops(kept90()),
        "releases lag by [0, 1]",
    ),
    Broken(
        "in_step",
        "lag_without_drain",
        lambda: change(kept90(), MmaDrain, lag=0),
        "releases lag by 1 but MmaDrain releases []",
    ),
    Broken(
        "in_step",
        "drain_in_a_branch",
        lambda: drain_in_a_branch(kept90()),
        "MmaDrain does not stand behind its k loop",
    ),
    Broken(
        "in_step",
        "drain_in_front",
        lambda: drain_in_front(kept90()),
        "MmaDrain does not stand behind its k loop",
    ),
    Broken(
        "in_step",
        "lag_of_all_stages",
        lambda: change(
            change(kept90(), ConsumerRelease, lag=ex.STAGES), MmaDrain, lag=ex.STAGES
        ),
        "lag 3 needs more than 3 stages",
    ),
    Broken(
        "arrivals",
        "consumer",
        resource(inline90, ex.AB90, consumer_arrivals=1),
        "pipeline ab: empty barrier expects 1 arrivals, roles make 4",
    ),
    Broken(
        "arrivals",
        "producer",
        resource(inline90, ex.AB90, producer_arrivals=32),
        "pipeline ab: full barrier expects 32 arrivals, roles make 1",
    ),
    Broken(
        "arrivals",
        "accumulator",
        resource(ex.dense_sm100, ex.ACC, consumer_arrivals=128),
        "pipeline acc: empty barrier expects 128 arrivals, roles make 4",
    ),
    Broken(
        "arrivals",
        "multicast",
        lambda: replace(inline90(), cluster_size=2, cluster_shape=(2, 1)),
        "pipeline ab: empty barrier expects 4 arrivals, roles make 8",
    ),
    Broken(
        "arrivals",
        "umma_multicast",
        lambda: replace(ex.dense_sm100(), cluster_size=4, cluster_shape=(2, 2)),
        "pipeline ab: empty barrier expects 1 arrivals, roles make 3",
    ),
    Broken(
        "arrivals",
        "cluster_shape",
        lambda: replace(inline90(), cluster_size=2),
        "cluster 1x1 found, expected 2 CTAs",
    ),
    Broken(
        "arrivals",
        "not_initialised",
        lambda: ex.without(inline90(), InitPipelines),
        "uninitialised barrier expects 1 arrivals, roles make 0",
    ),
    Broken(
        "arrivals",
        "pair",
        lambda: pair(ex.ACC),
        "pipeline acc: empty barrier expects 4 arrivals, roles make 8",
    ),
    Broken(
        "arrivals",
        "barrier_run_by_all_threads",
        lambda: replace(
            inline90(), post=(*inline90().post, NamedBarrierSync(barrier=ex.BAR90))
        ),
        "barrier store: expects 128 threads, roles bring None",
    ),
    Broken(
        "arrivals",
        "barrier_threads",
        resource(inline90, ex.BAR90, threads=160),
        "barrier store: expects 160 threads, roles bring 128",
    ),
    Broken(
        "tx_bytes",
        "wrong",
        resource(inline90, ex.AB90, tx_bytes=8192),
        "pipeline ab: found 8192 bytes, expected 16384",
    ),
    Broken(
        "tx_bytes",
        "stages",
        resource(inline90, ex.AB90, stages=4),
        "found 3 stages of sA, expected 4",
    ),
    Broken(
        "tx_bytes",
        "load_missing",
        lambda: ex.without(inline90(), TmaLoad, target=ex.S_B),
        "found loads of sA, expected sA, sB",
    ),
    Broken(
        "named_barriers",
        "id_zero",
        resource(inline90, ex.BAR90, id=0),
        "barrier id 0 found, expected 1 to 15",
    ),
    Broken(
        "named_barriers",
        "id_twice",
        lambda: replace(
            inline90(), barriers=(ex.BAR90, replace(ex.BAR90, name="other"))
        ),
        "barrier id 1 found 2 times",
    ),
    Broken(
        "named_barriers",
        "foreign_role",
        lambda: in_region(kept90(), "load", NamedBarrierSync(barrier=ex.BAR90)),
        "barrier store in load, expected in math",
    ),
    Broken(
        "tmem_lifetime",
        "never_freed",
        lambda: ex.without(ex.dense_sm100(), TmemFree),
        "found 1 allocations and 0 frees",
    ),
    Broken(
        "tmem_lifetime",
        "other_columns",
        lambda: change(ex.dense_sm100(), TmemFree, columns=64),
        "found 64 columns freed, expected 128",
    ),
    Broken(
        "tmem_lifetime",
        "no_power_of_two",
        lambda: change(
            change(ex.dense_sm100(), TmemFree, columns=96), TmemAlloc, columns=96
        ),
        "found 96 columns, expected a power of 2",
    ),
    Broken(
        "tmem_lifetime",
        "allocated_late",
        lambda: replace(
            ex.without(ex.dense_sm100(), TmemAlloc),
            post=(TmemAlloc(buffer=ex.T_ACC, columns=128), *ex.dense_sm100().post),
        ),
        "allocated outside the prologue",
    ),
    Broken(
        "tmem_lifetime",
        "freed_in_the_loop",
        lambda: before_step(
            ex.without(ex.dense_sm100(), TmemFree),
            TmemFree(role=ex.EPILOGUE, buffer=ex.T_ACC, columns=128),
        ),
        "freed before the loops have ended",
    ),
    Broken(
        "drained_accumulators",
        "no_drain",
        lambda: ex.without(kept90(), MmaDrain),
        "EpilogueApply(r_acc -> r_D, inputs=(), acc, subtile=sub) touches r_acc",
    ),
    Broken(
        "arrivals",
        "turn_of_one_warpgroup",
        lambda: ex.with_resource(
            pingpong(),
            pingpong().barriers[1],
            replace(pingpong().barriers[1], threads=128),
        ),
        "barrier turn_barrier: expects 128 threads, roles bring 256",
    ),
)
