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
from omit_helper import ARCHS, X, Y, decide, load, remarks
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.ir import STATEMENTS
from torch_cute_backend.ir.effects import Effect
from torch_cute_backend.ir.expr import BinOp, Const, Expr
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.printer import print_program
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    If,
    KLoop,
    Let,
    RoleRegion,
    SchedulerAdvance,
    SubtileLoop,
    TileLoop,
)
from torch_cute_backend.ir.values import Role, Scheduler, SchedulerKind
from torch_cute_backend.passes.remarks import RULES

LISTED = {"Let", "Placeholder", "CtaBarrier"}


CONTAINERS = {"If", "KLoop", "SubtileLoop"}


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
instantiate_parametrized_tests(TestRoleLocal)

if __name__ == "__main__":
    run_tests()
