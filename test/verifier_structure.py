"""Programs that break the rules of ``ir.verify_structure``."""

from __future__ import annotations

from dataclasses import replace

import ir_examples as ex
from verifier_edits import (
    Broken,
    X,
    before_step,
    change,
    in_prologue,
    in_region,
    inline90,
    kept90,
    omitted90,
    twice,
)

from torch_cute_backend.ir.dataflow import Mma
from torch_cute_backend.ir.expr import Const, Ref
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    If,
    KLoop,
    Let,
    ScalarLoad,
    SchedulerAdvance,
    TileLoop,
)
from torch_cute_backend.ir.sync import (
    ClusterWait,
    CtaBarrier,
    InitSync,
    PdlLaunch,
    PdlWait,
)
from torch_cute_backend.ir.values import Var


def advance_first(program: Program) -> Program:
    loop = program.loop
    return replace(program, loop=loop.with_body((loop.body[-1], *loop.body[:-1])))


STRUCTURE = (
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
)
