"""The verifier: every rule passes the examples and is broken at least once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import ir_examples as ex
from build_helper import build, fp8
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.arch import SM90
from torch_cute_backend.errors import VerifyError
from torch_cute_backend.ir.dataflow import (
    ConsumerRelease,
    ConsumerWait,
    GmemStore,
    Mma,
    MmaDrain,
    ProducerAcquire,
    ProducerCommit,
    ProducerTail,
    SkipStages,
    TmaLoad,
    TmaStoreWait,
)
from torch_cute_backend.ir.expr import BinOp, Const, Param, Ref
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    If,
    KLoop,
    Let,
    RoleRegion,
    ScalarLoad,
    SchedulerAdvance,
    TileLoop,
)
from torch_cute_backend.ir.sync import (
    ClusterWait,
    CtaBarrier,
    InitPipelines,
    InitSync,
    NamedBarrierSync,
    PassTurn,
    PdlLaunch,
    PdlWait,
    PipelineStates,
    SetRegisters,
    TakeTurn,
    TmemAlloc,
    TmemFree,
)
from torch_cute_backend.ir.values import (
    NamedBarrier,
    Pipeline,
    Scheduler,
    SchedulerKind,
    Space,
    Var,
)
from torch_cute_backend.ir.verifier import RULES, verify, violations
from torch_cute_backend.schedule import GemmSchedule

X = Var("x")


def inline90() -> Program:
    return ex.dense_sm90()


def kept90() -> Program:
    return ex.kept("sm_90a")


def kept100() -> Program:
    return ex.kept("sm_100a")


def omitted90() -> Program:
    return replace(kept90(), loop=None)


def pingpong() -> Program:
    """The omitted program of a kernel with two instances of the math role."""
    schedule = GemmSchedule(
        *(128, 128, 128, 4), math_warpgroups=2, math="pingpong", epi_stages=2
    )
    return build(fp8(4096, 4096, 4096), schedule, SM90).after


def turn() -> tuple[Stmt, ...]:
    """A turn taken where there is nobody to take turns with."""
    barrier = NamedBarrier("turns", 5, 256, ("math",))
    return (TakeTurn(barrier=barrier, work=ex.TILE, first=Const(0)),)


def reordered(program: Program, moved: type[Stmt], front: type[Stmt]) -> Program:
    """The statement of class ``moved`` in front of that of class ``front``."""

    def order(body: Body) -> Body:
        found = [s for s in body if isinstance(s, moved)]
        rest: list[Stmt] = []
        for s in body:
            if found and isinstance(s, front):
                rest.extend(found)
            if s not in found:
                rest.append(s)
        return tuple(rest)

    regions = tuple(
        r.with_body(
            tuple(
                s.with_body(order(s.body)) if isinstance(s, TileLoop) else s
                for s in r.body
            )
        )
        for r in program.regions
    )
    return replace(program, regions=regions)


def change_staging(program: Program) -> Program:
    staging = next(b for b in program.buffers if b.name == "sD")
    return ex.with_resource(program, staging, replace(staging, per_instance=False))


def before_step(program: Program, *statements: Stmt) -> Program:
    return ex.with_residual(program, *statements)


def change(program: Program, kind: type[Stmt], **fields: object) -> Program:
    """Set fields of every statement of ``kind``."""

    def edit(stmt: Stmt) -> Stmt:
        return replace(stmt, **fields) if isinstance(stmt, kind) else stmt

    return ex.edited(program, edit)


def change_loop(program: Program, role: str, **fields: object) -> Program:
    """Set fields of one role's tile loop."""

    def edit(stmt: Stmt) -> Stmt:
        mine = isinstance(stmt, TileLoop) and str(stmt.role) == role
        return replace(stmt, **fields) if mine else stmt

    return ex.edited(program, edit)


def advance_first(program: Program) -> Program:
    loop = program.loop
    return replace(program, loop=loop.with_body((loop.body[-1], *loop.body[:-1])))


def in_prologue(program: Program, *statements: Stmt) -> Program:
    return replace(program, prologue=(*program.prologue, *statements))


def in_region(program: Program, role: str, *statements: Stmt) -> Program:
    """Append to a role's region."""

    def edit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, RoleRegion) and str(stmt.role) == role:
            return stmt.with_body((*stmt.body, *statements))
        return stmt

    return ex.edited(program, edit)


def release_in_a_branch(program: Program) -> Program:
    def edit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, ConsumerRelease):
            return If(condition=BinOp(">", Ref(ex.K), Const(0)), body=(stmt,))
        return stmt

    return ex.edited(program, edit)


def twice(program: Program, kind: type[Stmt]) -> Program:
    def edit(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        return (stmt, stmt) if isinstance(stmt, kind) else stmt

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


def pair(acc: Pipeline) -> Program:
    """A CTA pair, with ``acc`` for the accumulator's pipeline."""
    program = ex.with_resource(ex.dense_sm100(), ex.ACC, acc)
    return replace(program, cluster_size=2, cluster_shape=(2, 1), cta_group=2)


@dataclass(frozen=True)
class Broken:
    rule: str
    why: str
    program: Callable[[], Program]
    message: str


def resource(
    program: Callable[[], Program], old: object, **changes: object
) -> Callable[[], Program]:
    return lambda: ex.with_resource(program(), old, replace(old, **changes))


CASES = (
    Broken(
        "names",
        "twice",
        lambda: replace(inline90(), buffers=(*inline90().buffers, ex.A)),
        "buffer name A found 2 times",
    ),
    Broken(
        "names",
        "undeclared",
        lambda: replace(inline90(), barriers=()),
        "barrier store is used but not declared",
    ),
    Broken(
        "scoping",
        "undefined",
        lambda: before_step(inline90(), Let(var=X, value=Ref(Var("y")))),
        "x = y uses y, which is not defined there",
    ),
    Broken(
        "scoping",
        "let_in_loop_used_after",
        lambda: replace(
            inline90(),
            post=(*inline90().post, Let(var=X, value=Ref(ex.TILE_M))),
        ),
        "uses tile_m, which is not defined there",
    ),
    Broken(
        "scoping",
        "let_in_branch_used_after",
        lambda: before_step(
            inline90(),
            If(condition=Const(1), body=(Let(var=X, value=Const(0)),)),
            Let(var=Var("y"), value=Ref(X)),
        ),
        "y = x uses x, which is not defined there",
    ),
    Broken(
        "scoping",
        "k_index_after_its_loop",
        lambda: before_step(inline90(), Let(var=X, value=Ref(ex.K))),
        "uses k, which is not defined there",
    ),
    Broken(
        "scoping",
        "role_block_over",
        lambda: before_step(
            inline90(),
            Let(role=ex.MATH, var=X, value=Const(0)),
            CtaBarrier(),
            Let(role=ex.MATH, var=Var("y"), value=Ref(X)),
        ),
        "uses x, which is not defined there",
    ),
    Broken(
        "role_nesting",
        "other_role_inside",
        lambda: change(inline90(), Mma, role=ex.LOAD90),
        "stands inside a statement of role math",
    ),
    Broken(
        "role_nesting",
        "unknown_role",
        lambda: replace(kept90(), roles=kept90().roles[:1]),
        "region of math, expected a declared role",
    ),
    Broken(
        "loop_step",
        "not_last",
        lambda: advance_first(inline90()),
        "stands behind the step; expected the step last",
    ),
    Broken(
        "loop_step",
        "none",
        lambda: ex.without(inline90(), SchedulerAdvance),
        "found 0 steps, expected 1",
    ),
    Broken(
        "loop_step",
        "of_another_loop",
        lambda: change(kept90(), SchedulerAdvance, scheduler=ex.TILES),
        "found a step of tiles of tile, expected load_tiles of tile",
    ),
    Broken(
        "loop_step",
        "nested",
        lambda: before_step(
            inline90(), If(condition=Const(1), body=(inline90().loop.body[-1],))
        ),
        "is not directly in a tile loop",
    ),
    Broken(
        "loop_variables",
        "work_tile_changed",
        lambda: before_step(inline90(), Let(var=ex.TILE, value=Const(0))),
        "tile = 0 assigns tile, the variable of tile loop tiles",
    ),
    Broken(
        "loop_variables",
        "index_used_again",
        lambda: before_step(
            inline90(),
            KLoop(index=X, count=Const(2), body=(KLoop(index=X, count=Const(2)),)),
        ),
        "for x in range(2) assigns x, the variable of for x in range(2)",
    ),
    Broken(
        "region_shape",
        "two_regions",
        lambda: replace(kept90(), regions=(*kept90().regions, kept90().regions[0])),
        "role load has 2 regions, expected 1",
    ),
    Broken(
        "region_shape",
        "two_loops",
        lambda: twice(kept90(), TileLoop),
        "role load has 2 tile loops, expected at most 1",
    ),
    Broken(
        "prologue_sync",
        "none",
        lambda: ex.without(inline90(), InitSync),
        "the prologue has no barrier of all threads",
    ),
    Broken(
        "prologue_sync",
        "set_up_behind_it",
        lambda: replace(inline90(), prologue=inline90().prologue[::-1]),
        "stands behind the prologue's last barrier",
    ),
    Broken(
        "cta_barriers",
        "in_region",
        lambda: in_region(kept90(), "math", CtaBarrier()),
        "CtaBarrier() in role math, expected all threads",
    ),
    Broken(
        "cta_barriers",
        "cluster_barrier_tagged",
        lambda: before_step(inline90(), ClusterWait(role=ex.LOAD90)),
        "ClusterWait() in role load, expected all threads",
    ),
    Broken(
        "dependent_launch",
        "no_wait",
        lambda: in_prologue(inline90(), PdlLaunch()),
        "found 0 PdlWait, expected one of all threads in the prologue",
    ),
    Broken(
        "dependent_launch",
        "wait_of_one_role",
        lambda: in_prologue(inline90(), PdlWait(role=ex.LOAD90)),
        "found 1 PdlWait, expected one of all threads in the prologue",
    ),
    Broken(
        "dependent_launch",
        "wait_in_region",
        lambda: in_region(omitted90(), "load", PdlWait()),
        "found 1 PdlWait, expected one of all threads in the prologue",
    ),
    Broken(
        "dependent_launch",
        "twice",
        lambda: in_prologue(inline90(), PdlWait(), PdlWait()),
        "found 2 PdlWait",
    ),
    Broken(
        "dependent_launch",
        "successor_first",
        lambda: in_prologue(inline90(), PdlLaunch(), PdlWait()),
        "PdlLaunch() stands before PdlWait",
    ),
    Broken(
        "dependent_launch",
        "reads_first",
        lambda: in_prologue(
            inline90(),
            ScalarLoad(var=Var("end"), buffer=ex.OFFSETS, index=Const(0)),
            PdlWait(),
        ),
        "touches global memory before PdlWait",
    ),
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
        "same_tiles",
        "other_first",
        lambda: change_loop(kept90(), "math", first=Const(0)),
        "walks other tiles than",
    ),
    Broken(
        "own_schedulers",
        "shared",
        lambda: ex.with_resource(
            kept90(), replace(ex.TILES, name="load_tiles"), ex.TILES
        ),
        "scheduler tiles drives two loops",
    ),
    Broken(
        "kept_contract",
        "a_role_loop",
        lambda: replace(kept90(), loop=replace(kept90().loop, role=ex.MATH)),
        "(a) the shared loop belongs to role math",
    ),
    Broken(
        "kept_contract",
        "a_role_statement",
        lambda: before_step(kept90(), Let(role=ex.MATH, var=X, value=Const(0))),
        "(a) [math] x = 0 belongs to a role, expected all warps",
    ),
    Broken(
        "kept_contract",
        "c_not_replayable",
        lambda: ex.with_resource(
            kept90(), ex.TILES, Scheduler("tiles", SchedulerKind.CLC_PERSISTENT)
        ),
        "(c) the shared loop cannot walk the tiles of tiles again",
    ),
    Broken(
        "kept_contract",
        "c_cluster",
        lambda: before_step(kept90(), ClusterWait()),
        "(c) ClusterWait() spans the cluster",
    ),
    Broken(
        "kept_contract",
        "d_tail_behind",
        lambda: replace(kept90(), post=(TmaStoreWait(role=ex.MATH, pending=0),)),
        "(d) [math] TmaStoreWait(pending=0) stands behind the shared loop",
    ),
    Broken(
        "kept_contract",
        "d_launch_inside",
        lambda: before_step(in_prologue(kept90(), PdlWait()), PdlLaunch()),
        "(d) PdlLaunch() stands inside the shared loop",
    ),
    Broken(
        "kept_contract",
        "e_store",
        lambda: before_step(
            kept90(),
            GmemStore(
                source=ex.R_D,
                target=ex.D,
                tile=(Ref(ex.TILE_M), Ref(ex.TILE_N)),
                subtile=ex.TILE,
            ),
        ),
        "stores from every thread of the shared loop",
    ),
    Broken(
        "kept_contract",
        "f_registers",
        lambda: replace(
            kept90(),
            prologue=(*kept90().prologue, SetRegisters(count=40, increase=False)),
        ),
        "(f) SetRegisters(count=40, increase=False)",
    ),
    Broken(
        "register_counts",
        "range",
        lambda: replace(
            inline90(),
            prologue=(
                SetRegisters(role=ex.MATH, count=250, increase=True),
                *inline90().prologue,
            ),
        ),
        "found 250 registers, expected 24 to 240",
    ),
    Broken(
        "register_counts",
        "g_tail",
        lambda: in_region(omitted90(), "math", SetRegisters(count=240, increase=True)),
        "(g) SetRegisters(count=240, increase=True) is not at the head",
    ),
    Broken(
        "register_counts",
        "g_part_of_a_warpgroup",
        lambda: replace(
            inline90(),
            prologue=(
                SetRegisters(role=ex.LOAD90, count=40, increase=False),
                *inline90().prologue,
            ),
        ),
        "increase=False) in role load, expected whole warpgroups",
    ),
    Broken(
        "register_counts",
        "g_part_of_a_warpgroup_with_idle_warps",
        lambda: replace(
            inline90(),
            prologue=(
                SetRegisters(
                    role=replace(ex.LOAD90, idle_warps=2), count=40, increase=False
                ),
                *inline90().prologue,
            ),
        ),
        "increase=False) in role load, expected whole warpgroups",
    ),
    Broken(
        "instances",
        "turns_of_one",
        lambda: in_region(omitted90(), "math", turn()[0]),
        "TakeTurn(barrier=turns, work=tile, first=0) in a role of one instance",
    ),
    Broken(
        "instances",
        "no_turn_taken",
        lambda: ex.without(pingpong(), TakeTurn),
        "found 0 turns taken and 1 passed",
    ),
    Broken(
        "instances",
        "turn_passed_before_the_waits",
        lambda: reordered(pingpong(), PassTurn, TakeTurn),
        "waits for a stage out of turn",
    ),
    Broken(
        "instances",
        "turns_of_other_tiles",
        lambda: change(pingpong(), PassTurn, limit=Const(7)),
        "its turns count other tiles",
    ),
    Broken(
        "instances",
        "no_skip",
        lambda: ex.without(pingpong(), SkipStages),
        "found 0 skips of ab, expected 1",
    ),
    Broken(
        "instances",
        "skip_of_two",
        lambda: change(pingpong(), SkipStages, others=2),
        "skips other stages than k_tiles",
    ),
    Broken(
        "instances",
        "skip_before_the_release",
        lambda: reordered(pingpong(), SkipStages, PassTurn),
        "stands before the tile's last release",
    ),
    Broken(
        "instances",
        "same_start",
        lambda: change(pingpong(), PipelineStates, tile_stages=None),
        "start None stages apart",
    ),
    Broken(
        "instances",
        "shared_staging",
        lambda: change_staging(pingpong()),
        "writes sD, which instances share",
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
    Broken(
        "ordering",
        "no_acquire_barrier",
        lambda: ex.without(omitted90(), NamedBarrierSync),
        "unordered accesses of sD",
    ),
)


class TestVerifier(TestCase):
    @parametrize("arch", list(ex.EXAMPLES))
    def test_examples_hold_in_every_form(self, arch):
        inline = ex.EXAMPLES[arch]()
        kept = ex.partition(inline)
        omitted, _ = ex.omit(kept)
        for program in (inline, kept, omitted):
            self.assertEqual(violations(program), ())

    @parametrize("case", [subtest(c, name=f"{c.rule}_{c.why}") for c in CASES])
    def test_broken(self, case):
        found = [v for v in violations(case.program()) if v.startswith(case.rule + ":")]
        self.assertTrue(
            any(case.message in v for v in found),
            f"{case.message!r} not in {found or violations(case.program())}",
        )

    def test_arrivals_of_a_pair(self):
        program = pair(replace(ex.ACC, consumer_arrivals=8))
        found = [v for v in violations(program) if v.startswith("arrivals")]
        self.assertEqual(found, [])

    def test_every_rule_is_broken_above(self):
        self.assertEqual({c.rule for c in CASES}, {r.name for r in RULES})

    def test_verify_raises_with_every_message(self):
        program = ex.without(inline90(), ProducerAcquire)
        with self.assertRaises(VerifyError) as caught:
            verify(program)
        text = str(caught.exception)
        self.assertEqual(text, "dense: " + "; ".join(violations(program)))
        self.assertGreater(len(violations(program)), 1)

    def test_final_rules_bind_only_what_is_printed(self):
        waiting = in_prologue(kept90(), PdlWait())
        program = before_step(waiting, PdlLaunch())
        self.assertEqual(violations(program, final=False), ())
        self.assertNotEqual(violations(program), ())

    def test_message_text(self):
        program = ex.with_resource(
            inline90(), ex.AB90, replace(ex.AB90, consumer_arrivals=1)
        )
        self.assertExpectedInline(
            "\n".join(violations(program)),
            """arrivals: pipeline ab: empty barrier expects 1 arrivals, roles make 4""",
        )

    def test_rmem_needs_no_declaration(self):
        program = replace(
            inline90(),
            buffers=tuple(b for b in inline90().buffers if b.space is not Space.RMEM),
        )
        self.assertEqual(violations(program), ())


instantiate_parametrized_tests(TestVerifier)

if __name__ == "__main__":
    run_tests()
