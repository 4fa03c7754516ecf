"""Turns of two warpgroups in a grouped kernel: each work index takes one and passes it
on, with a tile or without; what the verifier says if not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import ir_examples as ex
from build_helper import build
from grouped_kernel_cases import PING, M, small
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.arch import SM90
from torch_cute_backend.ir.dataflow import SkipStages
from torch_cute_backend.ir.expr import BinOp, Const, Param, Ref
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    If,
    KLoop,
    Let,
    ScheduledCoordinates,
    TileLoop,
)
from torch_cute_backend.ir.sync import PassTurn, TakeTurn
from torch_cute_backend.ir.values import SchedulerKind, Var
from torch_cute_backend.ir.verifier import violations
from torch_cute_backend.schedulers.group import GROUP

Edit = Callable[[Stmt], Stmt | tuple[Stmt, ...] | None]
SKIP_ONE = Let(var=Var("k_count"), value=Const(3))


def pingpong() -> Program:
    return build(small(M), PING, SM90).after


def missing(stmt: Stmt) -> bool:
    """Is it the branch of work indices without a tile?"""
    return isinstance(stmt, If) and isinstance(stmt.body[0], TakeTurn)


def where_missing(change: Callable[[If], Stmt | None]) -> Edit:
    return lambda s: change(s) if missing(s) else s


def other_length(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
    """Tiles as long as a variable of the loop says."""
    count = Ref(SKIP_ONE.var)
    if isinstance(stmt, ScheduledCoordinates):
        return (stmt, SKIP_ONE)
    if isinstance(stmt, (KLoop, SkipStages)):
        return replace(stmt, count=count)
    return stmt


BROKEN: dict[str, tuple[Edit, str]] = {
    "no_turn_without_a_tile": (
        where_missing(lambda s: None),
        "found 0 turns taken and 0 passed",
    ),
    "turn_not_passed_on": (
        where_missing(lambda s: s.with_body(s.body[:1])),
        "found 1 turns taken and 0 passed",
    ),
    "passed_before_it_is_taken": (
        where_missing(lambda s: s.with_body(s.body[::-1])),
        "a turn is passed before it is taken",
    ),
    "both_branches_at_once": (
        where_missing(
            lambda s: replace(s, condition=BinOp("<=", Ref(GROUP), Param("groups")))
        ),
        "found 0 turns taken and 0 passed",
    ),
    "another_group": (
        lambda s: (
            (s, Let(var=GROUP, value=Const(0)))
            if isinstance(s, ScheduledCoordinates)
            else s
        ),
        "found 0 turns taken and 0 passed",
    ),
    "passed_to_another_tile": (
        where_missing(
            lambda s: s.with_body((s.body[0], replace(s.body[1], step=Const(2))))
        ),
        "its turns count other tiles",
    ),
    "stages_skipped_without_a_tile": (
        where_missing(
            lambda s: s.with_body(
                (
                    *s.body,
                    SkipStages(
                        role=s.role,
                        pipeline=pingpong().pipelines[0],
                        count=Param("k_tiles"),
                        others=1,
                    ),
                )
            )
        ),
        "where a work index has no tile",
    ),
    "tiles_of_different_lengths": (other_length, "tiles of different lengths, k_count"),
}


class TestTurns(TestCase):
    def test_in_order(self):
        program = pingpong()
        self.assertEqual(tuple(violations(program)), ())
        self.assertEqual(sum(type(s) is TakeTurn for s in program.walk()), 2)
        self.assertEqual(sum(type(s) is PassTurn for s in program.walk()), 2)

    @parametrize("name", [subtest(name, name=name) for name in BROKEN])
    def test_broken(self, name):
        edit, expected = BROKEN[name]
        found = [str(v) for v in violations(ex.edited(pingpong(), edit))]
        said = [v for v in found if v.startswith("instances: ") and expected in v]
        self.assertTrue(said, found)

    def test_a_search_does_not_say_where_tiles_end(self):
        """Only a grouped scheduler knows that no tile follows one that is missing."""
        program = pingpong()
        own = next(
            s.scheduler
            for region in program.regions
            for s in region.body
            if isinstance(s, TileLoop) and region.role.name == "math"
        )
        static = replace(own, kind=SchedulerKind.STATIC_PERSISTENT)
        found = [str(v) for v in violations(ex.with_resource(program, own, static))]
        self.assertTrue(any("found 0 turns taken" in v for v in found), found)


instantiate_parametrized_tests(TestTurns)

if __name__ == "__main__":
    run_tests()
