"""omit_shared_loop: the decision, the seven rules one by one, and failing closed."""

# ruff: noqa: E501  (expected texts are program lines)

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import ir_examples as ex
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.ir import STATEMENTS
from torch_cute_backend.ir.dataflow import ConsumerRelease, GmemStore
from torch_cute_backend.ir.effects import Effect
from torch_cute_backend.ir.expr import BinOp, Const, Expr, Param, Ref, Select
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.printer import print_program
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    ClcClaim,
    If,
    KLoop,
    Let,
    Placeholder,
    RoleRegion,
    ScalarLoad,
    SchedulerAdvance,
    SubtileLoop,
    TileLoop,
)
from torch_cute_backend.ir.sync import CtaBarrier, TmemFree
from torch_cute_backend.ir.values import Role, Scheduler, SchedulerKind, Var
from torch_cute_backend.passes.remarks import RULES

X, Y, Z = Var("x"), Var("y"), Var("z")
LISTED = {"Let", "Placeholder", "CtaBarrier"}
CONTAINERS = {"If", "KLoop", "SubtileLoop"}
ARCHS = list(ex.EXAMPLES)


@dataclass(frozen=True, kw_only=True)
class Unheard(Stmt):
    """Test statement that no pass knows, without any declared effect."""

    def effects(self) -> tuple[Effect, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class DerivedLet(Let):
    """Test statement derived from a listed one; it might do more."""

    def effects(self) -> tuple[Effect, ...]:
        return ()


@dataclass(frozen=True)
class Oracle(Expr):
    """Test expression that the passes do not know."""


def decide(program: Program, *residual: Stmt) -> tuple[str, str | None]:
    """Decision and rule with ``residual`` in the shared loop."""
    after, omission = ex.omit(ex.with_residual(program, *residual))
    if (after.loop is None) != (omission.decision == "omitted"):
        raise AssertionError(f"{omission.decision}, but loop is {after.loop}")
    return omission.decision, omission.rule


def remarks(program: Program, rule: str) -> list[str]:
    return [str(r) for r in ex.omit(program)[1].remarks if r.rule == rule]


def load(var: Var) -> ScalarLoad:
    return ScalarLoad(var=var, buffer=ex.OFFSETS, index=Const(0))


def edit_region(program: Program, role: str, edit: Callable[[Body], Body]) -> Program:
    regions = tuple(
        r.with_body(edit(r.body)) if str(r.role) == role else r for r in program.regions
    )
    return replace(program, regions=regions)


def edit_loop(program: Program, role: str, **changes: object) -> Program:
    def edit(body: Body) -> Body:
        return tuple(
            replace(s, **changes) if isinstance(s, TileLoop) else s for s in body
        )

    return edit_region(program, role, edit)


class TestDense(TestCase):
    maxDiff = None

    def test_sm90_is_omitted(self):
        before = ex.kept("sm_90a")
        after, omission = ex.omit(before)
        self.assertEqual((omission.decision, omission.rule), ("omitted", None))
        self.assertEqual(after, replace(before, loop=None))
        self.assertExpectedInline(
            "\n".join(map(str, omission.remarks)),
            """\
APPLIED residual_work: tile_m = tile % tiles_m: dead coordinate set-up
APPLIED residual_work: tile_n = tile // tiles_m: dead coordinate set-up
APPLIED residual_work: placeholder (5 of load): placeholder
APPLIED residual_work: placeholder (14 of math): placeholder
APPLIED residual_work: CtaBarrier()  # tile hand-over: obsolete CTA barrier
APPLIED residual_work: advance tiles: tile += gridz: the loop's own step
APPLIED omit_shared_loop: tile loop tiles (static_persistent): tile = bidz; while tile < tiles_m * tiles_n: shared loop omitted""",
        )

    def test_sm100_is_omitted(self):
        before = ex.kept("sm_100a")
        after, omission = ex.omit(before)
        self.assertEqual((omission.decision, omission.rule), ("omitted", None))
        self.assertEqual(after, replace(before, loop=None))
        self.assertExpectedInline(
            "\n".join(map(str, omission.remarks)),
            """\
APPLIED residual_work: tile_m = tile % tiles_m: dead coordinate set-up
APPLIED residual_work: tile_n = tile // tiles_m: dead coordinate set-up
APPLIED residual_work: placeholder (5 of load): placeholder
APPLIED residual_work: placeholder (6 of mma): placeholder
APPLIED residual_work: placeholder (11 of epilogue): placeholder
APPLIED residual_work: CtaBarrier()  # tile hand-over: obsolete CTA barrier
APPLIED residual_work: advance tiles: tile += gridz: the loop's own step
APPLIED omit_shared_loop: tile loop tiles (static_persistent): tile = bidz; while tile < tiles_m * tiles_n: shared loop omitted""",
        )

    def test_text_after(self):
        after, _ = ex.omit(ex.kept("sm_100a"))
        text = print_program(after)
        self.assertExpectedInline(
            text[text.index("  role epilogue:\n") :],
            """\
  role epilogue:
    tile loop epilogue_tiles (static_persistent): tile = bidz; while tile < tiles_m * tiles_n:
      tile_m = tile % tiles_m
      tile_n = tile // tiles_m
      ConsumerWait(pipeline=acc)
      unrolled for sub in range(2):
        TmemLoad(source=tAcc, target=r_acc, pipeline=acc, subtile=sub)
        EpilogueApply(r_acc -> r_D, inputs=(), acc, subtile=sub)
        TmaStoreWait(pending=1)
        NamedBarrierSync(barrier=store)
        SmemStore(source=r_D, target=sD, subtile=sub)
        Fence()
        NamedBarrierSync(barrier=store)
        TmaStore(source=sD, target=D, tile=(tile_m, tile_n), subtile=sub)
      ConsumerRelease(pipeline=acc)
      advance epilogue_tiles: tile += gridz
    TmaStoreWait(pending=0)
    NamedBarrierSync(barrier=store)
    TmemFree(buffer=tAcc, columns=128)
""",
        )

    def test_one_remark_a_residual_statement(self):
        before = ex.kept("sm_90a")
        _, omission = ex.omit(before)
        self.assertEqual(len(omission.remarks), len(before.loop.body) + 1)
        self.assertTrue(all(r.applied for r in omission.remarks))

    @parametrize("arch", ARCHS)
    def test_keep_is_honoured(self, arch):
        before = ex.kept(arch)
        after, omission = ex.omit(before, shared_loop="keep")
        self.assertEqual((omission.decision, omission.rule), ("kept", None))
        self.assertEqual(after, before)
        self.assertFalse(any(r.applied for r in omission.remarks))
        self.assertIn("the schedule asks for it", str(omission.remarks[-1]))


class TestFailClosed(TestCase):
    """Whatever is in the shared loop and not listed keeps the loop."""

    def check(self, stmt: Stmt, listed: bool) -> None:
        found = decide(ex.kept("sm_90a"), stmt)
        if listed:
            self.assertEqual(found, ("omitted", None))
        else:
            self.assertIn(found[0], ("kept", "refused"))
            self.assertEqual(found[1], "residual_work")

    def test_every_registered_class(self):
        for name, kind in list(STATEMENTS.items()):
            with self.subTest(name):
                self.check(ex.sample(kind), name in LISTED | CONTAINERS)

    def test_every_registered_class_in_every_container(self):
        for name, kind in list(STATEMENTS.items()):
            inside = (ex.sample(kind),)
            for container in (
                If(condition=Const(1), body=inside),
                KLoop(index=Y, count=Const(2), body=inside),
                SubtileLoop(index=Y, count=2, body=inside),
            ):
                with self.subTest(name, inside=type(container).__name__):
                    self.check(container, name in LISTED | CONTAINERS)

    def test_every_registered_class_tagged_with_a_role(self):
        for name, kind in list(STATEMENTS.items()):
            with self.subTest(name):
                self.check(replace(ex.sample(kind), role=ex.MATH), False)

    def test_unknown_class_without_effects(self):
        self.check(Unheard(), False)
        self.check(If(condition=Const(1), body=(Unheard(),)), False)

    def test_class_derived_from_a_listed_one(self):
        self.check(DerivedLet(var=X, value=Const(0)), False)

    def test_unknown_expression(self):
        self.check(Let(var=X, value=Oracle()), False)
        self.check(Let(var=X, value=BinOp("+", Const(1), Oracle())), False)
        self.check(If(condition=Oracle()), False)
        self.check(KLoop(index=Y, count=Oracle()), False)

    def test_the_blocking_statement_is_named_with_its_effects(self):
        program = ex.with_residual(ex.kept("sm_90a"), load(X))
        self.assertExpectedInline(
            "\n".join(remarks(program, "residual_work")),
            """\
MISSED residual_work: tile_m = tile % tiles_m: dead coordinate set-up; the loop stays: rule residual_work
MISSED residual_work: tile_n = tile // tiles_m: dead coordinate set-up; the loop stays: rule residual_work
MISSED residual_work: placeholder (5 of load): placeholder; the loop stays: rule residual_work
MISSED residual_work: placeholder (14 of math): placeholder; the loop stays: rule residual_work
MISSED residual_work: x = offsets[0]: work: read offsets
MISSED residual_work: CtaBarrier()  # tile hand-over: obsolete CTA barrier; the loop stays: rule residual_work
MISSED residual_work: advance tiles: tile += gridz: the loop's own step; the loop stays: rule residual_work""",
        )

    def test_same_under_python_O(self):
        code = (
            "import ir_examples as ex\n"
            "from torch_cute_backend.ir import STATEMENTS\n"
            "for name, kind in list(STATEMENTS.items()):\n"
            "    p = ex.with_residual(ex.kept('sm_90a'), ex.sample(kind))\n"
            "    after, omission = ex.omit(p)\n"
            "    print(name, omission.decision, omission.rule, after.loop is None)\n"
        )
        here = Path(__file__).parent
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)]),
        }
        texts = [
            subprocess.run(
                [sys.executable, *flags, "-c", code],
                env=env,
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            ).stdout
            for flags in ((), ("-O",))
        ]
        self.assertIn("ScalarLoad kept residual_work False", texts[0])
        self.assertEqual(texts[0], texts[1])


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


class TestSingleRoot(TestCase):
    def test_two_roots_keep_the_loop(self):
        program = replace(ex.kept("sm_90a"), roots=("K", "V"))
        self.assertEqual(decide(program), ("kept", "single_root"))
        self.assertIn(
            "2 root programs share the loop: K, V", remarks(program, "single_root")[0]
        )

    def test_no_root_keeps_the_loop(self):
        program = replace(ex.kept("sm_90a"), roots=())
        self.assertEqual(decide(program), ("kept", "single_root"))


MISSING = [
    subtest((arch, role), name=f"{arch}_{role}")
    for arch, roles in ex.ROLES.items()
    for role in roles
]


class TestRoleLocal(TestCase):
    def check(self, program: Program, role: str, message: str) -> None:
        self.assertEqual(decide(program), ("kept", "role_local"))
        self.assertIn(
            f"MISSED role_local: role {role}: {message}", remarks(program, "role_local")
        )

    @parametrize("case", MISSING)
    def test_each_required_role_missing(self, case):
        arch, role = case
        kept = ex.kept(arch)
        regions = tuple(r for r in kept.regions if str(r.role) != role)
        program = replace(kept, regions=regions)
        self.check(program, role, "required role has 0 regions, expected 1")

    @parametrize("case", MISSING)
    def test_each_required_role_without_a_loop(self, case):
        arch, role = case
        program = edit_region(
            ex.kept(arch),
            role,
            lambda body: tuple(s for s in body if not isinstance(s, TileLoop)),
        )
        self.check(program, role, "required role has no persistent loop of its own")

    @parametrize("case", MISSING)
    def test_each_required_role_with_an_idle_loop(self, case):
        arch, role = case
        kept = ex.kept(arch)
        step = kept.loop.body[-1]
        program = edit_loop(kept, role, body=(step,))
        self.check(program, role, "the role-local loop does nothing")

    def test_scheduler_shared_with_the_loop(self):
        program = edit_loop(ex.kept("sm_90a"), "load", scheduler=ex.TILES)
        self.check(program, "load", "scheduler tiles is not the role's own")

    def test_scheduler_shared_with_another_role(self):
        other = replace(ex.TILES, name="math_tiles")
        program = edit_loop(ex.kept("sm_90a"), "load", scheduler=other)
        self.check(program, "load", "scheduler math_tiles is not the role's own")

    def test_scheduler_that_is_not_persistent(self):
        once = Scheduler("load_tiles", SchedulerKind.SINGLE_TILE)
        program = edit_loop(ex.kept("sm_90a"), "load", scheduler=once)
        self.check(program, "load", "scheduler load_tiles is not persistent")

    def test_two_regions_of_one_role(self):
        kept = ex.kept("sm_90a")
        program = replace(kept, regions=(*kept.regions, kept.regions[0]))
        self.check(program, "load", "required role has 2 regions, expected 1")

    def test_a_role_that_the_arch_does_not_require_does_not_count(self):
        extra = RoleRegion(role=Role("idle", 5, 1), body=())
        kept = ex.kept("sm_90a")
        self.assertEqual(
            decide(replace(kept, regions=(*kept.regions, extra))), ("omitted", None)
        )


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


FREE = TmemFree(buffer=ex.T_ACC, columns=128)


class TestBarrierOrder(TestCase):
    def freed(self, *post: Stmt) -> Program:
        kept = ex.without(ex.kept("sm_100a"), TmemFree)
        return replace(kept, post=post)

    def test_a_post_loop_free_ordered_by_the_loop_barrier(self):
        program = self.freed(FREE)
        self.assertEqual(decide(program), ("kept", "barrier_order"))
        found = remarks(program, "barrier_order")
        self.assertIn(
            "MISSED barrier_order: TmemFree(buffer=tAcc, columns=128): without the "
            "shared loop's barriers: unordered accesses of tAcc: read in [epilogue] "
            "TmemLoad(source=tAcc, target=r_acc, pipeline=acc, subtile=sub) and "
            "free in TmemFree(buffer=tAcc, columns=128)",
            found,
        )

    def test_a_barrier_of_its_own_behind_the_loop(self):
        self.assertEqual(decide(self.freed(CtaBarrier(), FREE)), ("omitted", None))

    def test_a_barrier_in_a_branch_does_not_count(self):
        maybe = If(condition=Param("flag"), body=(CtaBarrier(),))
        self.assertEqual(decide(self.freed(maybe, FREE)), ("kept", "barrier_order"))


class TestScheduler(TestCase):
    def bounded_by(self, define: Stmt) -> Program:
        kept = ex.kept("sm_90a")
        loop = replace(kept.loop, limit=Ref(X))
        return replace(kept, prologue=(define, *kept.prologue), loop=loop)

    def test_limit_that_follows_from_the_launch(self):
        program = self.bounded_by(Let(var=X, value=Param("tiles")))
        self.assertEqual(decide(program), ("omitted", None))

    def test_limit_that_is_loaded(self):
        program = self.bounded_by(load(X))
        self.assertEqual(decide(program), ("kept", "scheduler"))

    def test_first_tile_that_is_unknown(self):
        kept = ex.kept("sm_90a")
        program = replace(kept, loop=replace(kept.loop, first=Ref(Var("somewhere"))))
        self.assertEqual(decide(program), ("kept", "scheduler"))

    def test_step_that_is_loaded(self):
        kept = ex.kept("sm_90a")
        step = replace(kept.loop.body[-1], step=Ref(X))
        loop = kept.loop.with_body((*kept.loop.body[:-1], step))
        program = replace(kept, prologue=(load(X), *kept.prologue), loop=loop)
        self.assertEqual(decide(program)[0], "kept")
        self.assertIn("follow from launch parameters", remarks(program, "scheduler")[0])


CLC = Scheduler("tiles", SchedulerKind.CLC_PERSISTENT)
NOT_REPLAYABLE = {
    "clc": CLC,
    "shared": replace(ex.TILES, private=False),
    "endless": replace(ex.TILES, finite=False),
}


class TestNotReplayable(TestCase):
    """Claimed work cannot be handed out a second time."""

    def program(self, scheduler: Scheduler, step: bool) -> Program:
        kept = ex.kept("sm_90a")
        body = kept.loop.body if step else kept.loop.body[:-1]
        program = replace(kept, loop=kept.loop.with_body(body))
        return ex.with_resource(program, ex.TILES, scheduler)

    @parametrize("case", list(NOT_REPLAYABLE))
    def test_empty_residual_is_omitted(self, case):
        program = self.program(NOT_REPLAYABLE[case], step=False)
        self.assertEqual(decide(program), ("omitted", None))

    @parametrize("case", list(NOT_REPLAYABLE))
    def test_a_shared_copy_of_the_step_is_refused(self, case):
        program = self.program(NOT_REPLAYABLE[case], step=True)
        self.assertEqual(decide(program), ("refused", "scheduler"))
        self.assertIn(
            "MISSED residual_work: advance tiles: tile += gridz: work: step",
            remarks(program, "residual_work"),
        )

    @parametrize("case", list(NOT_REPLAYABLE))
    def test_work_is_refused(self, case):
        program = self.program(NOT_REPLAYABLE[case], step=False)
        self.assertEqual(decide(program, load(X)), ("refused", "scheduler"))
        text = remarks(ex.with_residual(program, load(X)), "scheduler")[-1]
        self.assertIn("may not go (rule residual_work) and cannot stay", text)

    def test_a_claim_in_the_shared_loop_is_refused(self):
        program = self.program(CLC, step=False)
        claim = ClcClaim(scheduler=CLC, work=X)
        self.assertEqual(decide(program, claim), ("refused", "scheduler"))

    def test_another_rule_is_refused_too(self):
        program = replace(self.program(CLC, step=False), roots=("K", "V"))
        self.assertEqual(decide(program), ("refused", "scheduler"))

    def test_keeping_it_on_request_is_refused(self):
        program = self.program(CLC, step=False)
        _, omission = ex.omit(program, shared_loop="keep")
        self.assertEqual((omission.decision, omission.rule), ("refused", "scheduler"))


class TestParticipants(TestCase):
    def check(self, program: Program, message: str) -> None:
        self.assertEqual(decide(program), ("kept", "participants"))
        self.assertEqual(remarks(program, "participants"), [message])

    def test_named_barrier_counts_threads_of_the_shared_loop(self):
        program = ex.with_resource(
            ex.kept("sm_90a"), ex.BAR90, replace(ex.BAR90, threads=160)
        )
        self.check(
            program,
            "MISSED participants: barrier store: expects 160 threads, roles bring 128",
        )

    def test_pipeline_counts_an_arrival_of_the_shared_loop(self):
        program = ex.with_resource(
            ex.kept("sm_100a"), ex.ACC, replace(ex.ACC, consumer_arrivals=5)
        )
        self.check(
            program,
            "MISSED participants: pipeline acc: empty barrier expects 5 arrivals, "
            "roles make 4",
        )

    def test_an_arrival_in_the_shared_loop_is_not_counted(self):
        """It is work; and without it the count falls short."""
        program = ex.with_resource(
            ex.kept("sm_100a"), ex.ACC, replace(ex.ACC, consumer_arrivals=10)
        )
        release = ConsumerRelease(pipeline=replace(ex.ACC, consumer_arrivals=10))
        program = ex.with_residual(program, release)
        self.assertEqual(decide(program)[1], "residual_work")
        self.assertIn(
            "expects 10 arrivals, roles make 4", remarks(program, "participants")[0]
        )


class TestNotApplicable(TestCase):
    def single(self, *residual: Stmt) -> Program:
        inline = ex.with_resource(
            ex.dense_sm90(), ex.TILES, Scheduler("tiles", SchedulerKind.SINGLE_TILE)
        )
        inline = ex.without(inline, SchedulerAdvance)
        return ex.with_residual(ex.partition(inline), *residual)

    def test_no_loop(self):
        program = replace(ex.kept("sm_90a"), loop=None)
        after, omission = ex.omit(program)
        self.assertEqual((omission.decision, omission.rule), ("not_applicable", None))
        self.assertEqual(after, program)

    def test_single_tile_without_work(self):
        after, omission = ex.omit(self.single())
        self.assertEqual((omission.decision, omission.rule), ("not_applicable", None))
        self.assertIsNone(after.loop)

    def test_single_tile_with_work(self):
        after, omission = ex.omit(self.single(load(X)))
        self.assertEqual(omission.decision, "not_applicable")
        self.assertEqual(omission.rule, "residual_work")
        self.assertIsNotNone(after.loop)


class TestOrderOfRules(TestCase):
    def test_first_failure_is_reported_and_all_are_remarked(self):
        kept = ex.kept("sm_90a")
        program = replace(kept, roots=("K", "V"), regions=kept.regions[1:])
        program = ex.with_residual(program, load(X))
        _, omission = ex.omit(program)
        self.assertEqual(omission.rule, "single_root")
        found = {r.rule for r in omission.remarks}
        self.assertLess({"single_root", "role_local", "residual_work"}, found)
        self.assertTrue(found <= set(RULES))


instantiate_parametrized_tests(TestDense)
instantiate_parametrized_tests(TestResidualWork)
instantiate_parametrized_tests(TestRoleLocal)
instantiate_parametrized_tests(TestPostLoopUse)
instantiate_parametrized_tests(TestNotReplayable)

if __name__ == "__main__":
    run_tests()
