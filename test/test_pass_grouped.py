"""Grouped kernels: what a grouped-static scheduler replaces goes, and nothing else.

Two ways to find a tile's group. *Grouped static*: the scheduler supplies it, and a search
in the shared loop is left over. *Rank-3 RHS*: the search is all there is; roles clone it.
"""

# ruff: noqa: E501  (expected texts are program lines)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import ir_examples as ex
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.ir.dataflow import TmaLoad
from torch_cute_backend.ir.expr import BinOp, Const, Param, Ref
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.printer import print_program, print_statement
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    If,
    KLoop,
    Let,
    Placeholder,
    RoleRegion,
    ScalarLoad,
    ScheduledCoordinates,
    TileLoop,
)
from torch_cute_backend.ir.values import Scheduler, SchedulerKind, Var
from torch_cute_backend.ir.verifier import violations

GROUPED = Scheduler("tiles", SchedulerKind.GROUPED_STATIC)
OLD_M, OLD_GROUP, END = Var("old_m"), Var("old_group"), Var("end")
INDEX = Var("i")
GROUP = Var("group")


def search(m: Var | None, group: Var | None) -> Body:
    """Find the group of the tile by comparing it with the groups' ends; the arguments
    are the replacements of what it finds."""
    found = Let(
        var=OLD_GROUP, value=BinOp("+", Ref(INDEX), Const(1)), replaced_by=group
    )
    loop = KLoop(
        index=INDEX,
        count=Param("groups"),
        body=(
            ScalarLoad(var=END, buffer=ex.OFFSETS, index=Ref(INDEX), replaced_by=group),
            If(condition=BinOp(">=", Ref(ex.TILE), Ref(END)), body=(found,)),
        ),
    )
    shifted = BinOp("-", Ref(ex.TILE), Ref(OLD_GROUP))
    return (
        Let(var=OLD_GROUP, value=Const(0), replaced_by=group),
        loop,
        Let(var=OLD_M, value=shifted, replaced_by=m),
    )


def grouped(arch: str) -> Program:
    """Grouped static, inline: the scheduler supplies ``tile_m``, ``tile_n``, ``group``;
    the search is left over and nobody reads it."""
    inline = ex.with_resource(ex.EXAMPLES[arch](), ex.TILES, GROUPED)
    supplied = ScheduledCoordinates(
        scheduler=GROUPED,
        work=ex.TILE,
        buffer=ex.OFFSETS,
        targets=(ex.TILE_M, ex.TILE_N, GROUP),
    )
    body = tuple(s for s in inline.loop.body if not isinstance(s, Let))
    loop = inline.loop.with_body((supplied, *search(ex.TILE_M, GROUP), *body))
    return use_group(replace(inline, loop=loop), GROUP)


def rank3(arch: str) -> Program:
    """Rank-3 RHS, inline: the roles read what the shared search found."""
    inline = ex.EXAMPLES[arch]()
    loop = inline.loop.with_body((*search(None, None), *inline.loop.body))
    return use_group(replace(inline, loop=loop), OLD_GROUP)


def use_group(program: Program, group: Var) -> Program:
    """Load B of the tile's group."""

    def edit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, TmaLoad) and stmt.source == ex.B:
            return replace(stmt, coords=(*stmt.coords, Ref(group)))
        return stmt

    return ex.edited(program, edit)


def decide(program: Program) -> tuple[str, str | None]:
    omission = ex.omit(program)[1]
    return omission.decision, omission.rule


def in_loop(program: Program, edit: ex.Edit) -> Program:
    """Edit the shared loop only."""
    return replace(program, loop=ex.edit_body((program.loop,), edit)[0])


def in_region(program: Program, role: str, edit: Callable[[Body], Body]) -> Program:
    def visit(stmt: Stmt) -> Stmt:
        mine = isinstance(stmt, TileLoop) and str(stmt.role) == role
        return stmt.with_body(edit(stmt.body)) if mine else stmt

    return ex.edited(program, visit)


def unreplaced(nth: int) -> ex.Edit:
    """Take the nth replacement away."""
    seen = [0]

    def edit(stmt: Stmt) -> Stmt:
        if getattr(stmt, "replaced_by", None) is None:
            return stmt
        seen[0] += 1
        return replace(stmt, replaced_by=None) if seen[0] == nth + 1 else stmt

    return edit


def kept() -> Program:
    return ex.partition(grouped("sm_90a"))


def supplied_last(body: Body) -> Body:
    """The role's coordinates come after their first use."""
    return (*body[1:-1], body[0], body[-1])


def use_old(body: Body) -> Body:
    return (Let(role=ex.LOAD90, var=Var("z"), value=Ref(OLD_M)), *body)


def define_again(body: Body) -> Body:
    again = Let(role=ex.LOAD90, var=ex.TILE_M, value=Const(0))
    return (body[0], again, *body[1:])


def foreign_scheduler(body: Body) -> Body:
    other = replace(GROUPED, name="math_tiles")
    return tuple(
        replace(s, scheduler=other) if isinstance(s, ScheduledCoordinates) else s
        for s in body
    )


def post_use(var: Var) -> Program:
    start = Let(var=var, value=Const(0))
    use = ScalarLoad(var=Var("z"), buffer=ex.OFFSETS, index=Ref(var))
    program = kept()
    return replace(program, prologue=(start, *program.prologue), post=(use,))


def two_replacements() -> Program:
    def edit(stmt: Stmt) -> Stmt:
        first = isinstance(stmt, Let) and stmt.value == Const(0)
        return replace(stmt, replaced_by=ex.TILE_N) if first else stmt

    return in_loop(kept(), edit)


def loads_of_the_output() -> Program:
    def edit(stmt: Stmt) -> Stmt:
        return replace(stmt, buffer=ex.D) if isinstance(stmt, ScalarLoad) else stmt

    return in_loop(kept(), edit)


def coordinates_of_the_output() -> Program:
    def edit(stmt: Stmt) -> Stmt:
        supplied = isinstance(stmt, ScheduledCoordinates)
        return replace(stmt, buffer=ex.D) if supplied else stmt

    return in_loop(kept(), edit)


def ordinary_scheduler() -> Program:
    static = Scheduler("tiles", SchedulerKind.STATIC_PERSISTENT)
    return ex.with_resource(kept(), GROUPED, static)


def unsupported_value() -> Program:
    """A replaced value computed from one that is not."""
    odd = Var("odd")
    load = ScalarLoad(var=odd, buffer=ex.OFFSETS, index=Const(0))
    value = Let(var=Var("w"), value=Ref(odd), replaced_by=GROUP)
    return ex.with_residual(kept(), load, value)


def only_supplied(**changes: object) -> Program:
    """Nothing in the shared loop but its copy of what the scheduler supplies."""
    program = ex.without(kept(), KLoop, role=None)
    body = tuple(s for s in program.loop.body if not isinstance(s, Let))
    program = replace(program, loop=program.loop.with_body(body))
    return in_loop(
        program,
        lambda s: replace(s, **changes) if isinstance(s, ScheduledCoordinates) else s,
    )


def on_supplied(group: Var = GROUP, **changes: object) -> Program:
    """Coordinates and a branch computed from what the scheduler supplies."""
    there = BinOp("<", Ref(group), Param("groups"))
    row = Let(var=Var("row"), value=BinOp("+", Ref(group), Ref(ex.TILE)))
    branch = If(condition=there, body=(row, Placeholder(of="load", count=1)))
    return ex.with_residual(only_supplied(**changes), branch)


def used_in_a_tail() -> Program:
    use = Let(role=ex.LOAD90, var=Var("z"), value=Ref(GROUP))

    def visit(stmt: Stmt) -> Stmt:
        mine = isinstance(stmt, RoleRegion) and stmt.role == ex.LOAD90
        return stmt.with_body((*stmt.body, use)) if mine else stmt

    return ex.edited(kept(), visit)


def branch_on_a_load() -> Program:
    """A replaced value that is assigned where an unreplaced one says so."""
    odd = Var("odd")
    load = ScalarLoad(var=odd, buffer=ex.OFFSETS, index=Const(0))
    value = Let(var=Var("w"), value=Const(0), replaced_by=GROUP)
    return ex.with_residual(kept(), load, If(condition=Ref(odd), body=(value,)))


KEPT = {
    "old_value_used_by_a_role": lambda: in_region(kept(), "load", use_old),
    "supplied_after_first_use": lambda: in_region(kept(), "load", supplied_last),
    "supplied_by_another_scheduler": lambda: in_region(
        kept(), "load", foreign_scheduler
    ),
    "defined_twice_in_a_role": lambda: in_region(kept(), "load", define_again),
    "two_replacements": two_replacements,
    "loads_of_the_output": loads_of_the_output,
    "coordinates_of_the_output": coordinates_of_the_output,
    "ordinary_scheduler": ordinary_scheduler,
    "unsupported_value": unsupported_value,
    "branch_on_a_load": branch_on_a_load,
    "used_in_a_tail": used_in_a_tail,
    "supplied_to_another_loop": lambda: only_supplied(
        scheduler=replace(GROUPED, name="other")
    ),
    "supplied_for_another_tile": lambda: only_supplied(work=INDEX),
    "coordinates_of_another_loop": lambda: on_supplied(
        scheduler=replace(GROUPED, name="other")
    ),
    "coordinates_of_another_tile": lambda: on_supplied(work=INDEX),
    "coordinates_of_a_written_buffer": lambda: on_supplied(buffer=ex.D),
    "coordinates_of_an_unknown_value": lambda: on_supplied(Var("unknown")),
    "supplied_by_an_ordinary_scheduler": lambda: ex.with_resource(
        only_supplied(), GROUPED, Scheduler("tiles", SchedulerKind.STATIC_PERSISTENT)
    ),
    "plain_load": lambda: ex.with_residual(
        kept(), ScalarLoad(var=Var("w"), buffer=ex.OFFSETS, index=Const(0))
    ),
}


class TestGroupedStatic(TestCase):
    maxDiff = None

    @parametrize("arch", list(ex.EXAMPLES))
    def test_omitted(self, arch):
        program = ex.partition(grouped(arch))
        self.assertEqual(violations(program), ())
        self.assertEqual(decide(program), ("omitted", None))
        self.assertEqual(violations(ex.omit(program)[0]), ())

    def test_text(self):
        text = print_program(kept())
        self.assertExpectedInline(
            text[text.index("loop:\n  tile") :],
            """\
loop:
  tile loop tiles (grouped_static): tile = bidz; while tile < tiles_m * tiles_n:
    tile_m, tile_n, group = tiles at tile of offsets
    old_group = 0  # replaced by group
    for i in range(groups):
      end = offsets[i]  # replaced by group
      if tile >= end:
        old_group = i + 1  # replaced by group
    old_m = tile - old_group  # replaced by tile_m
    placeholder (5 of load)
    placeholder (14 of math)
    CtaBarrier()  # tile hand-over
    advance tiles: tile += gridz
""",
        )

    def test_remarks(self):
        omission = ex.omit(kept())[1]
        self.assertExpectedInline(
            "\n".join(map(str, omission.remarks)),
            """\
APPLIED residual_work: tile_m, tile_n, group = tiles at tile of offsets: replaced by the grouped scheduler
APPLIED residual_work: old_group = 0  # replaced by group: replaced by the grouped scheduler
APPLIED residual_work: for i in range(groups): control flow
APPLIED residual_work: end = offsets[i]  # replaced by group: replaced by the grouped scheduler
APPLIED residual_work: if tile >= end: control flow
APPLIED residual_work: old_group = i + 1  # replaced by group: replaced by the grouped scheduler
APPLIED residual_work: old_m = tile - old_group  # replaced by tile_m: replaced by the grouped scheduler
APPLIED residual_work: placeholder (5 of load): placeholder
APPLIED residual_work: placeholder (14 of math): placeholder
APPLIED residual_work: CtaBarrier()  # tile hand-over: obsolete CTA barrier
APPLIED residual_work: advance tiles: tile += gridz: the loop's own step
APPLIED omit_shared_loop: tile loop tiles (grouped_static): tile = bidz; while tile < tiles_m * tiles_n: shared loop omitted""",
        )

    def test_each_role_asks_its_own_scheduler(self):
        for region in kept().regions:
            loop = next(s for s in region.body if isinstance(s, TileLoop))
            first = loop.body[0]
            self.assertIsInstance(first, ScheduledCoordinates)
            self.assertEqual(first.scheduler, loop.scheduler)
            self.assertNotIn(ScalarLoad, [type(s) for s in loop.body])

    @parametrize("nth", range(4))
    def test_one_definition_without_a_replacement(self, nth):
        program = in_loop(kept(), unreplaced(nth))
        self.assertEqual(decide(program), ("kept", "residual_work"))

    def test_there_are_four_definitions(self):
        marks = [s for s in kept().walk() if getattr(s, "replaced_by", None)]
        self.assertEqual(len(marks), 4)

    @parametrize("case", [subtest(c, name=c) for c in KEPT])
    def test_kept(self, case):
        self.assertEqual(decide(KEPT[case]()), ("kept", "residual_work"))

    @parametrize("case", ["unsupported_value", "branch_on_a_load"])
    def test_what_depends_on_an_unreplaced_value_is_work_by_itself(self, case):
        remarks = [str(r) for r in ex.omit(KEPT[case]())[1].remarks]
        (found,) = [r for r in remarks if " w = " in r]
        self.assertIn("depends on a value that is not a coordinate", found)

    def test_a_copy_that_belongs_to_a_role_can_neither_go_nor_stay(self):
        program = only_supplied(role=ex.MATH)
        self.assertEqual(decide(program), ("refused", "residual_work"))

    def test_only_the_copy_of_what_is_supplied_goes(self):
        self.assertEqual(decide(only_supplied()), ("omitted", None))

    def test_what_is_computed_from_supplied_values_goes(self):
        omission = ex.omit(on_supplied())[1]
        self.assertEqual((omission.decision, omission.rule), ("omitted", None))
        remarks = [str(r) for r in omission.remarks]
        self.assertTrue(any("if group < groups: control flow" in r for r in remarks))

    @parametrize("var", [OLD_M, OLD_GROUP, GROUP], name_fn=str)
    def test_use_behind_the_loop(self, var):
        self.assertEqual(decide(post_use(var)), ("kept", "post_loop_use"))


class TestRank3(TestCase):
    @parametrize("arch", list(ex.EXAMPLES))
    def test_kept(self, arch):
        program = ex.partition(rank3(arch))
        self.assertEqual(violations(program), ())
        self.assertEqual(decide(program), ("kept", "residual_work"))
        self.assertEqual(violations(ex.omit(program)[0]), ())

    def test_load_and_comparison_are_named(self):
        omission = ex.omit(ex.partition(rank3("sm_100a")))[1]
        blocking = [str(r) for r in omission.remarks if "the loop stays" not in str(r)]
        self.assertExpectedInline(
            "\n".join(blocking),
            """\
MISSED residual_work: old_group = 0: depends on a value that is not a coordinate
MISSED residual_work: end = offsets[i]: work: read offsets
MISSED residual_work: if tile >= end: depends on a value that is not a coordinate
MISSED residual_work: old_group = i + 1: depends on a value that is not a coordinate
MISSED residual_work: old_m = tile - old_group: depends on a value that is not a coordinate""",
        )

    def test_roles_clone_the_search_and_the_original_stays(self):
        program = ex.partition(rank3("sm_90a"))
        load = next(r for r in program.regions if str(r.role) == "load")
        math = next(r for r in program.regions if str(r.role) == "math")

        def loads(stmt: RoleRegion | TileLoop) -> list[str]:
            found = replace(program, regions=(), loop=None, prologue=(stmt,), post=())
            return [
                print_statement(s) for s in found.walk() if isinstance(s, ScalarLoad)
            ]

        self.assertEqual(loads(load), ["[load] end = offsets[i]"])
        self.assertEqual(loads(math), [])
        self.assertEqual(loads(program.loop), ["end = offsets[i]"])


instantiate_parametrized_tests(TestGroupedStatic)
instantiate_parametrized_tests(TestRank3)

if __name__ == "__main__":
    run_tests()
