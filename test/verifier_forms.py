"""Programs that break the rules of ``ir.verify_forms`` and ``ir.verify_instances``."""

from __future__ import annotations

from dataclasses import replace

import ir_examples as ex
from verifier_edits import (
    Broken,
    X,
    before_step,
    change,
    change_loop,
    in_prologue,
    in_region,
    inline90,
    kept90,
    omitted90,
    pingpong,
)

from torch_cute_backend.ir.dataflow import GmemStore, SkipStages, TmaStoreWait
from torch_cute_backend.ir.expr import Const, Ref
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import Let, TileLoop
from torch_cute_backend.ir.sync import (
    ClusterWait,
    NamedBarrierSync,
    PassTurn,
    PdlLaunch,
    PdlWait,
    PipelineStates,
    SetRegisters,
    TakeTurn,
)
from torch_cute_backend.ir.values import NamedBarrier, Scheduler, SchedulerKind


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


FORMS = (
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
        "ordering",
        "no_acquire_barrier",
        lambda: ex.without(omitted90(), NamedBarrierSync),
        "unordered accesses of sD",
    ),
)
