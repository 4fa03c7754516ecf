"""Loop omission: work in the residual, and uses of its values after it."""

# ruff: noqa: E501  (expected texts are program lines)

from __future__ import annotations

from dataclasses import replace

import ir_examples as ex
from omit_helper import ARCHS, X, Y, Z, decide, load, remarks
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.ir.dataflow import GmemStore
from torch_cute_backend.ir.expr import BinOp, Const, Expr, Param, Ref, Select
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    ClcClaim,
    If,
    KLoop,
    Let,
    Placeholder,
    ScalarLoad,
    SchedulerAdvance,
    TileLoop,
)
from torch_cute_backend.ir.sync import CtaBarrier
from torch_cute_backend.ir.values import Var


def coordinates_of(*lets: tuple[Var, Expr]) -> Body:
    return tuple(Let(var=var, value=value) for var, value in lets)


COORDINATES = {
    "work_tile": coordinates_of((X, BinOp("+", Ref(ex.TILE), Const(1)))),
    "chain": coordinates_of((X, Ref(ex.TILE_M)), (Y, BinOp("min", Ref(X), Param("m")))),
    "swizzle": coordinates_of(
        (X, BinOp("<", Ref(ex.TILE), Param("band"))),
        (Y, Select(Ref(X), Ref(ex.TILE_M), Ref(ex.TILE_N))),
    ),
    "reassigned": coordinates_of((X, Const(0)), (X, BinOp("+", Ref(X), Const(1)))),
    "search": (
        *coordinates_of((X, Const(0))),
        KLoop(
            index=Y,
            count=Param("bands"),
            body=(
                If(
                    condition=BinOp(">=", Ref(ex.TILE), Ref(Y)),
                    body=coordinates_of((X, Ref(Y))),
                ),
            ),
        ),
    ),
    "placeholder": (Placeholder(of="math", count=3),),
    "barrier": (CtaBarrier(why="tile hand-over"),),
}


WORK = {
    "scalar_load": (load(X),),
    "value_of_a_load": (load(X), *coordinates_of((Y, Ref(X)))),
    "branch_on_a_load": (
        load(X),
        If(condition=BinOp("<", Ref(ex.TILE), Ref(X)), body=(CtaBarrier(),)),
    ),
    "value_chosen_by_a_load": (
        load(X),
        If(
            condition=BinOp("<", Ref(ex.TILE), Ref(X)),
            body=coordinates_of((Y, Const(1))),
        ),
    ),
    "loop_over_a_load": (load(X), KLoop(index=Y, count=Ref(X))),
    "undefined": coordinates_of((X, Ref(Var("somewhere")))),
    "second_step": (
        SchedulerAdvance(scheduler=ex.TILES, work=ex.TILE, step=Param("gridz")),
    ),
    "claim": (ClcClaim(scheduler=ex.TILES, work=X),),
    "nested_tile_loop": (
        TileLoop(
            scheduler=replace(ex.TILES, name="inner"),
            work=Y,
            first=Const(0),
            limit=Const(1),
        ),
    ),
}


class TestResidualWork(TestCase):
    @parametrize("arch", ARCHS)
    @parametrize("case", [subtest(c, name=c) for c in COORDINATES])
    def test_dead_set_up_goes(self, arch, case):
        found = decide(ex.kept(arch), *COORDINATES[case])
        self.assertEqual(found, ("omitted", None))

    @parametrize("arch", ARCHS)
    @parametrize("case", [subtest(c, name=c) for c in WORK])
    def test_work_stays(self, arch, case):
        found = decide(ex.kept(arch), *WORK[case])
        self.assertEqual(found, ("kept", "residual_work"))

    def test_a_value_that_depends_on_a_load_is_work_by_itself(self):
        """Not only the load before it: dropping the load would not free the loop."""
        program = ex.with_residual(ex.kept("sm_90a"), load(X), *WORK["value_of_a_load"])
        self.assertIn(
            "MISSED residual_work: y = x: depends on a value that is not a coordinate",
            remarks(program, "residual_work"),
        )

    def test_a_value_of_a_role_statement_is_no_coordinate(self):
        program = ex.with_residual(
            ex.kept("sm_90a"),
            Let(role=ex.MATH, var=X, value=Const(0)),
            Let(var=Y, value=Ref(X)),
        )
        self.assertIn(
            "MISSED residual_work: y = x: depends on a value that is not a coordinate",
            remarks(program, "residual_work"),
        )

    def test_a_value_whose_assignment_depends_on_a_load_is_work_by_itself(self):
        program = ex.with_residual(
            ex.kept("sm_90a"), *WORK["value_chosen_by_a_load"], Let(var=Z, value=Ref(Y))
        )
        for text in ("y = 1", "z = y"):
            self.assertIn(
                f"MISSED residual_work: {text}: depends on a value that is not a coordinate",
                remarks(program, "residual_work"),
            )

    def test_a_value_loaded_in_the_prologue_is_no_coordinate(self):
        kept = ex.kept("sm_90a")
        start = Let(var=X, value=Param("n"))
        chosen = If(condition=Ref(Z), body=(Let(var=X, value=Const(1)),))
        even = If(condition=Param("flag"), body=(Let(var=X, value=Const(1)),))
        for define, decision in (
            ((load(X),), ("kept", "residual_work")),
            ((start, load(Z), chosen), ("kept", "residual_work")),
            ((start, even), ("omitted", None)),
            ((start,), ("omitted", None)),
        ):
            program = replace(kept, prologue=(*define, *kept.prologue))
            found = decide(program, Let(var=Y, value=Ref(X)))
            self.assertEqual(found, decision)

    def test_one_bad_definition_spoils_the_variable(self):
        found = decide(
            ex.kept("sm_90a"),
            Let(var=X, value=Const(0)),
            load(X),
            Let(var=Y, value=Ref(X)),
        )
        self.assertEqual(found, ("kept", "residual_work"))

    @parametrize("field", ["scheduler", "work"])
    def test_a_last_step_of_another_loop(self, field):
        kept = ex.kept("sm_90a")
        other = {"scheduler": replace(ex.TILES, name="other"), "work": X}[field]
        step = replace(kept.loop.body[-1], **{field: other})
        loop = kept.loop.with_body((*kept.loop.body[:-1], step))
        self.assertEqual(decide(replace(kept, loop=loop)), ("kept", "residual_work"))

    def test_what_the_contract_forbids_is_refused(self):
        """Stores of all threads can neither be dropped nor run by a shared loop."""
        store = GmemStore(
            source=ex.R_D,
            target=ex.D,
            tile=(Ref(ex.TILE_M), Ref(ex.TILE_N)),
            subtile=ex.TILE,
        )
        program = ex.with_residual(ex.kept("sm_90a"), store)
        after, omission = ex.omit(program)
        self.assertEqual(
            (omission.decision, omission.rule), ("refused", "residual_work")
        )
        self.assertEqual(after, program)
        self.assertIn("(e)", remarks(program, "kept_contract")[0])


def after_loop(*post: Stmt) -> Program:
    """A kept program whose post-loop part is ``post``; ``x`` is set up in front."""
    kept = ex.kept("sm_90a")
    start = Let(var=X, value=Const(0))
    return replace(kept, prologue=(start, *kept.prologue), post=post)


def read(value: Var) -> Stmt:
    return ScalarLoad(var=Z, buffer=ex.OFFSETS, index=Ref(value))


LAST = Let(var=X, value=Ref(ex.TILE_M))


POST_USES = {
    "plain": (after_loop(read(X)), (LAST,), "z = offsets[x]", "x"),
    "loop_carried_work_tile": (
        after_loop(read(ex.TILE)),
        (),
        "z = offsets[tile]",
        "tile",
    ),
    "loop_carried_sum": (
        after_loop(read(X)),
        (Let(var=X, value=BinOp("+", Ref(X), Const(1))),),
        "z = offsets[x]",
        "x",
    ),
    "tuple_field": (
        after_loop(
            GmemStore(
                source=ex.R_D, target=ex.D, tile=(Const(0), Ref(X)), subtile=Var("s")
            )
        ),
        (LAST,),
        "GmemStore(source=r_D, target=D, tile=(0, x), subtile=s)",
        "x",
    ),
    "alias_in_the_post": (
        after_loop(Let(var=Y, value=Ref(X)), read(Y)),
        (LAST,),
        "y = x",
        "x",
    ),
    "alias_in_the_loop": (
        after_loop(read(Y)),
        (LAST, Let(var=Y, value=Ref(X))),
        "z = offsets[y]",
        "y",
    ),
    "inside_a_branch": (
        after_loop(If(condition=Const(1), body=(read(X),))),
        (LAST,),
        "z = offsets[x]",
        "x",
    ),
    "as_a_condition": (
        after_loop(If(condition=BinOp("<", Ref(X), Const(3)), body=(CtaBarrier(),))),
        (LAST,),
        "if x < 3",
        "x",
    ),
    "assigned_in_a_nested_loop": (
        after_loop(read(X)),
        (KLoop(index=Y, count=Const(2), body=(LAST,)),),
        "z = offsets[x]",
        "x",
    ),
}


class TestPostLoopUse(TestCase):
    @parametrize("case", [subtest(c, name=c) for c in POST_USES])
    def test_a_use_keeps_the_loop(self, case):
        program, residual, statement, var = POST_USES[case]
        self.assertEqual(decide(program, *residual), ("kept", "post_loop_use"))
        expected = f"MISSED post_loop_use: {statement}: uses {var}, which the shared loop defines"
        found = remarks(ex.with_residual(program, *residual), "post_loop_use")
        self.assertEqual(found, [expected])

    def test_a_value_from_before_the_loop_does_not(self):
        self.assertEqual(decide(after_loop(read(X))), ("omitted", None))


instantiate_parametrized_tests(TestResidualWork)
instantiate_parametrized_tests(TestPostLoopUse)

if __name__ == "__main__":
    run_tests()
