"""partition_roles: the rewrite as text, what it clones, and when it is not legal."""

# ruff: noqa: E501  (expected texts are program lines)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import ir_examples as ex
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

from torch_cute_backend.ir.dataflow import (
    GmemStore,
    ProducerTail,
    TmaLoad,
    TmaStore,
    TmaStoreWait,
)
from torch_cute_backend.ir.expr import BinOp, Const, Param, Ref
from torch_cute_backend.ir.ops import Body, Stmt, walk
from torch_cute_backend.ir.printer import print_program
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    ClcClaim,
    If,
    KLoop,
    Let,
    Placeholder,
    ScalarLoad,
    SubtileLoop,
    TileLoop,
)
from torch_cute_backend.ir.sync import (
    CtaBarrier,
    Fence,
    NamedBarrierSync,
    PipelineStates,
    TmemAlloc,
    TmemFree,
)
from torch_cute_backend.ir.values import Scheduler, SchedulerKind, Var
from torch_cute_backend.ir.verifier import violations
from torch_cute_backend.passes import PassContext
from torch_cute_backend.passes.partition_roles import PartitionRoles

X, Y = Var("x"), Var("y")


def status(program: Program) -> str:
    """The reasons why ``program`` cannot be partitioned; empty if it can."""
    result = PartitionRoles().run(program, PassContext(ex.ROLES[program.arch]))
    return "" if hasattr(result, "program") else str(result)


def first(program: Program, *statements: Stmt) -> Program:
    """Put statements at the start of the shared loop."""
    loop = program.loop
    return replace(program, loop=loop.with_body((*statements, *loop.body)))


def use_in(program: Program, role: str, value: Var) -> Program:
    """Make a role's K loop run ``value`` times."""

    def edit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, KLoop) and str(stmt.role) == role:
            return replace(stmt, count=Ref(value))
        return stmt

    return ex.edited(program, edit)


def use_everywhere(program: Program, value: Var) -> Program:
    def edit(stmt: Stmt) -> Stmt:
        return replace(stmt, count=Ref(value)) if isinstance(stmt, KLoop) else stmt

    return ex.edited(program, edit)


def region(program: Program, role: str) -> Body:
    return next(r.body for r in program.regions if str(r.role) == role)


def own_loop(program: Program, role: str) -> TileLoop:
    return next(s for s in region(program, role) if isinstance(s, TileLoop))


def lets(body: Body) -> list[str]:
    return [str(s.var) for s in walk(body) if isinstance(s, (Let, ScalarLoad))]


class TestRewrite(TestCase):
    maxDiff = None

    def test_sm90(self):
        text = print_program(ex.kept("sm_90a"))
        self.assertExpectedInline(
            text[text.index("prologue:") :],
            """\
prologue:
  AllocateShared(buffers=(sA, sB, sD))
  InitPipelines(pipelines=(ab))
  InitSync(cluster=False)
regions:
  role load:
    tile loop load_tiles (static_persistent): tile = bidz; while tile < tiles_m * tiles_n:
      tile_m = tile % tiles_m
      tile_n = tile // tiles_m
      for k in range(k_tiles):
        ProducerAcquire(pipeline=ab)
        TmaLoad(source=A, target=sA, pipeline=ab, coords=(tile_m, k))
        TmaLoad(source=B, target=sB, pipeline=ab, coords=(tile_n, k))
        ProducerCommit(pipeline=ab)
      advance load_tiles: tile += gridz
    ProducerTail(pipeline=ab)
  role math:
    tile loop math_tiles (static_persistent): tile = bidz; while tile < tiles_m * tiles_n:
      tile_m = tile % tiles_m
      tile_n = tile // tiles_m
      AccumulatorClear(accumulator=r_acc)
      for k in range(k_tiles):
        ConsumerWait(pipeline=ab)
        Mma(accumulator=r_acc, a=sA, b=sB, pipeline=ab, index=k)
        ConsumerRelease(pipeline=ab, lag=1, index=k)
      MmaDrain(pipeline=ab, lag=1)
      unrolled for sub in range(2):
        EpilogueApply(r_acc -> r_D, inputs=(), acc, subtile=sub)
        TmaStoreWait(pending=1)
        NamedBarrierSync(barrier=store)
        SmemStore(source=r_D, target=sD, subtile=sub)
        Fence()
        NamedBarrierSync(barrier=store)
        TmaStore(source=sD, target=D, tile=(tile_m, tile_n), subtile=sub)
      advance math_tiles: tile += gridz
    TmaStoreWait(pending=0)
loop:
  tile loop tiles (static_persistent): tile = bidz; while tile < tiles_m * tiles_n:
    tile_m = tile % tiles_m
    tile_n = tile // tiles_m
    placeholder (5 of load)
    placeholder (14 of math)
    CtaBarrier()  # tile hand-over
    advance tiles: tile += gridz
""",
        )

    def test_sm100(self):
        text = print_program(ex.kept("sm_100a"))
        self.assertExpectedInline(
            text[text.index("regions:") :],
            """\
regions:
  role load:
    tile loop load_tiles (static_persistent): tile = bidz; while tile < tiles_m * tiles_n:
      tile_m = tile % tiles_m
      tile_n = tile // tiles_m
      for k in range(k_tiles):
        ProducerAcquire(pipeline=ab)
        TmaLoad(source=A, target=sA, pipeline=ab, coords=(tile_m, k))
        TmaLoad(source=B, target=sB, pipeline=ab, coords=(tile_n, k))
        ProducerCommit(pipeline=ab)
      advance load_tiles: tile += gridz
    ProducerTail(pipeline=ab)
  role mma:
    tile loop mma_tiles (static_persistent): tile = bidz; while tile < tiles_m * tiles_n:
      ProducerAcquire(pipeline=acc)
      for k in range(k_tiles):
        ConsumerWait(pipeline=ab)
        Mma(accumulator=tAcc, a=sA, b=sB, pipeline=ab, index=k)
        ConsumerRelease(pipeline=ab)
      ProducerCommit(pipeline=acc)
      advance mma_tiles: tile += gridz
    ProducerTail(pipeline=acc)
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
loop:
  tile loop tiles (static_persistent): tile = bidz; while tile < tiles_m * tiles_n:
    tile_m = tile % tiles_m
    tile_n = tile // tiles_m
    placeholder (5 of load)
    placeholder (6 of mma)
    placeholder (11 of epilogue)
    CtaBarrier()  # tile hand-over
    advance tiles: tile += gridz
""",
        )

    def test_a_role_clones_only_what_it_needs(self):
        program = first(
            ex.dense_sm90(),
            Let(var=X, value=Param("k_tiles")),
            Let(var=Y, value=BinOp("+", Ref(X), Const(0))),
            Let(var=Var("unused"), value=Const(7)),
        )
        kept = ex.partition(use_everywhere(program, Y))
        self.assertEqual(lets(region(kept, "load")), ["x", "y", "tile_m", "tile_n"])
        self.assertEqual(lets(region(kept, "math")), ["x", "y", "tile_m", "tile_n"])
        self.assertEqual(lets((kept.loop,)), ["x", "y", "unused", "tile_m", "tile_n"])
        self.assertEqual(violations(kept), ())

    def test_mma_role_needs_no_coordinates(self):
        self.assertEqual(lets(region(ex.kept("sm_100a"), "mma")), [])

    def test_a_read_only_scalar_load_is_cloned_and_stays(self):
        load = ScalarLoad(var=X, buffer=ex.OFFSETS, index=Ref(ex.TILE))
        kept = ex.partition(use_everywhere(first(ex.dense_sm90(), load), X))
        for role in ("load", "math"):
            self.assertIn("x", lets(region(kept, role)))
        self.assertIn("x", lets((kept.loop,)))

    def test_every_definition_of_a_reassigned_value_is_cloned(self):
        """A search loop: its start, its steps, its loop and its branch."""
        step = Let(var=X, value=BinOp("+", Ref(X), Const(1)))
        found = If(condition=BinOp("<", Ref(Y), Param("groups")), body=(step,))
        program = first(
            ex.dense_sm90(),
            Let(var=X, value=Const(0)),
            KLoop(index=Y, count=Param("groups"), body=(found,)),
        )
        kept = ex.partition(use_everywhere(program, X))
        for body in (region(kept, "load"), region(kept, "math"), (kept.loop,)):
            self.assertEqual(lets(body)[:2], ["x", "x"])
            self.assertIn(Y, [s.index for s in walk(body) if isinstance(s, KLoop)])
        self.assertEqual(violations(kept), ())

    def test_a_role_statement_inside_a_shared_branch(self):
        """The branch goes with each role; the residual keeps it with placeholders."""
        inline = ex.dense_sm90()
        *coordinates, load, clear, main, drain, store, barrier, step = inline.loop.body
        let = Let(var=X, value=Param("k_tiles"))
        branch = If(
            condition=BinOp("<", Ref(ex.TILE), Param("last")),
            body=(let, replace(load, count=Ref(X)), clear, replace(main, count=Ref(X))),
        )
        branch = branch.with_body((*branch.body, drain, store))
        body = (*coordinates, branch, barrier, step)
        kept = ex.partition(replace(inline, loop=inline.loop.with_body(body)))
        for role, count in (("load", 1), ("math", 4)):
            (inside,) = [s for s in own_loop(kept, role).body if isinstance(s, If)]
            self.assertIsInstance(inside.body[0], Let)
            self.assertEqual(len(inside.body), 1 + count)
        (left,) = [s for s in kept.loop.body if isinstance(s, If)]
        self.assertEqual([type(s) for s in left.body], [Let, Placeholder, Placeholder])
        self.assertEqual(violations(kept), ())

    def test_set_up_behind_the_barrier_moves_and_what_it_publishes_stays(self):
        inline = ex.dense_sm100()
        states = PipelineStates(role=ex.MMA, pipelines=(ex.ACC,))

        def tag(stmt: Stmt) -> Stmt:
            return replace(stmt, role=ex.MMA) if isinstance(stmt, TmemAlloc) else stmt

        program = ex.edited(inline, tag)
        program = replace(program, prologue=(*program.prologue, states))
        kept = ex.partition(program)
        self.assertEqual(region(kept, "mma")[0], states)
        self.assertNotIn(states, kept.prologue)
        self.assertIn(TmemAlloc, [type(s) for s in kept.prologue])

    def test_tails_move_behind_their_role_loop(self):
        kept = ex.kept("sm_100a")
        self.assertEqual(kept.post, ())
        kinds = [type(s) for s in region(kept, "epilogue")]
        self.assertEqual(kinds, [TileLoop, TmaStoreWait, NamedBarrierSync, TmemFree])
        self.assertEqual(
            [type(s) for s in region(kept, "load")], [TileLoop, ProducerTail]
        )

    def test_untagged_post_stays(self):
        let = Let(var=X, value=Const(0))
        inline = ex.dense_sm90()
        kept = ex.partition(replace(inline, post=(*inline.post, let)))
        self.assertEqual(kept.post, (let,))

    def test_every_loop_has_its_own_scheduler(self):
        kept = ex.kept("sm_100a")
        names = [s.scheduler.name for s in kept.walk() if isinstance(s, TileLoop)]
        self.assertEqual(names, ["load_tiles", "mma_tiles", "epilogue_tiles", "tiles"])

    def test_everything_in_a_region_belongs_to_its_role(self):
        for program in (ex.kept("sm_90a"), ex.kept("sm_100a")):
            for part in program.regions:
                roles = {s.role for s in walk(part.body)}
                self.assertEqual(roles, {part.role})

    def test_roles_may_use_one_name_for_values_of_their_own(self):
        mine = Let(role=ex.LOAD90, var=X, value=Const(0))
        yours = Let(role=ex.MATH, var=X, value=Const(1))
        self.assertEqual(status(first(ex.dense_sm90(), mine, yours)), "")


def no_loop() -> Program:
    return replace(ex.dense_sm90(), loop=None)


def carried() -> Program:
    """A count of tiles that starts in the prologue."""
    program = first(ex.dense_sm90(), Let(var=X, value=BinOp("+", Ref(X), Const(1))))
    start = Let(var=X, value=Const(0))
    program = replace(program, prologue=(start, *program.prologue))
    return use_everywhere(program, X)


def edit_store(edit: Callable[[Body], Body]) -> Program:
    def visit(stmt: Stmt) -> Stmt:
        return (
            stmt.with_body(edit(stmt.body)) if isinstance(stmt, SubtileLoop) else stmt
        )

    return ex.edited(ex.dense_sm90(), visit)


def cta_barrier_for_named(body: Body) -> Body:
    """Staging reuse rests on the shared loop's barrier: one subtile, no barrier of the
    math role before the store."""
    first_sync = next(s for s in body if isinstance(s, NamedBarrierSync))
    return tuple(s for s in body if s is not first_sync)


def other_roles_buffer() -> Program:
    """The load role reads what the math role writes to staging, with only the CTA
    barrier between them."""
    copy = TmaStore(
        role=ex.LOAD90,
        source=ex.S_D,
        target=ex.D,
        tile=(Ref(ex.TILE_M), Ref(ex.TILE_N)),
        subtile=ex.SUB,
    )
    barrier = CtaBarrier(why="staging complete")
    inline = ex.edited(
        ex.dense_sm90(),
        lambda s: None if isinstance(s, (TmaStore, Fence)) else s,
    )
    loop = SubtileLoop(role=ex.LOAD90, index=ex.SUB, count=2, body=(copy,))
    drain = TmaStoreWait(role=ex.LOAD90, pending=0)
    return ex.with_residual(inline, barrier, loop, drain)


def free_after_loop(*post: Stmt) -> Program:
    inline = ex.without(ex.dense_sm100(), TmemFree)
    return replace(inline, post=(*inline.post, *post))


FREE = TmemFree(buffer=ex.T_ACC, columns=128)
CLAIMED = Scheduler("tiles", SchedulerKind.CLC_PERSISTENT, private=False)


def residual_store() -> Stmt:
    return GmemStore(
        source=ex.R_D,
        target=ex.OFFSETS,
        tile=(Ref(ex.TILE_M), Ref(ex.TILE_N)),
        subtile=ex.TILE,
    )


@dataclass(frozen=True)
class Illegal:
    name: str
    program: Callable[[], Program]
    reason: str
    statements: tuple[str, ...]


ILLEGAL = (
    Illegal(
        "p1_roles_ordered_by_cta_barrier",
        other_roles_buffer,
        "P1: unordered accesses of sD",
        ("[math] SmemStore", "[load] TmaStore"),
    ),
    Illegal(
        "p1_staging_reuse_ordered_by_cta_barrier",
        lambda: edit_store(cta_barrier_for_named),
        "P1: unordered accesses of sD",
        ("[math] SmemStore", "[math] TmaStore"),
    ),
    Illegal(
        "p2_residual_defines_what_cannot_be_cloned",
        lambda: use_everywhere(
            first(ex.dense_sm90(), ClcClaim(scheduler=CLAIMED, work=X)), X
        ),
        "P2: role load needs x, but x = claim tiles cannot be cloned",
        ("x = claim tiles", "[load] for k in range(x)"),
    ),
    Illegal(
        "p2_cloned_load_of_a_written_buffer",
        lambda: use_everywhere(
            first(ex.dense_sm90(), ScalarLoad(var=X, buffer=ex.D, index=Const(0))), X
        ),
        "cannot be cloned",
        ("x = D[0]", "[load] for k in range(x)"),
    ),
    Illegal(
        "p2_value_of_another_role",
        lambda: use_in(
            first(ex.dense_sm90(), Let(role=ex.MATH, var=X, value=Const(3))), "load", X
        ),
        "P2: role load needs x, but [math] x = 3 is a value of role math",
        ("[math] x = 3", "[load] for k in range(x)"),
    ),
    Illegal(
        "p2_residual_uses_a_role_value",
        lambda: first(
            ex.dense_sm90(),
            Let(role=ex.MATH, var=X, value=Const(3)),
            Let(var=Y, value=Ref(X)),
        ),
        "P2: y = x of the shared loop uses x, a role's value",
        ("y = x",),
    ),
    Illegal(
        "p2_residual_uses_what_a_role_assigned_again",
        lambda: first(
            ex.dense_sm90(),
            Let(var=X, value=Const(0)),
            Let(role=ex.MATH, var=X, value=Const(3)),
            Let(var=Y, value=Ref(X)),
        ),
        "P2: y = x of the shared loop uses x, a role's value",
        ("y = x",),
    ),
    Illegal(
        "p2_value_carried_from_tile_to_tile",
        lambda: carried(),
        "P2: role load needs x, but x = x + 1 is carried on from the prologue",
        ("x = x + 1",),
    ),
    Illegal(
        "p2_residual_writes_what_a_role_reads",
        lambda: first(
            ex.dense_sm90(),
            ScalarLoad(role=ex.MATH, var=X, buffer=ex.OFFSETS, index=Const(0)),
            residual_store(),
        ),
        "share buffer offsets",
        ("GmemStore", "[math] x = offsets[0]"),
    ),
    Illegal(
        "p2_residual_register_traffic",
        lambda: first(ex.dense_sm90(), replace(residual_store(), source=ex.R_ACC)),
        "share buffer r_acc",
        ("GmemStore", "[math] AccumulatorClear"),
    ),
    Illegal(
        "p2_residual_waits_on_a_role_barrier",
        lambda: first(ex.dense_sm90(), NamedBarrierSync(barrier=ex.BAR90)),
        "share barrier store",
        ("NamedBarrierSync",),
    ),
    Illegal(
        "p2_residual_arrives_at_a_role_pipeline",
        lambda: first(ex.dense_sm90(), ProducerTail(pipeline=ex.AB90)),
        "share pipeline ab",
        ("ProducerTail",),
    ),
    Illegal(
        "p3_free_behind_the_loop_barrier",
        lambda: free_after_loop(FREE),
        "P3: unordered accesses of tAcc",
        ("TmemFree", "[epilogue] TmemLoad"),
    ),
    Illegal(
        "p3_free_by_the_mma_role_too_early",
        lambda: ex.without(
            free_after_loop(replace(FREE, role=ex.MMA)), ProducerTail, pipeline=ex.ACC
        ),
        "P3: unordered accesses of tAcc",
        ("[mma] TmemFree", "[epilogue] TmemLoad"),
    ),
    Illegal(
        "p3_store_not_waited_for",
        lambda: replace(
            ex.dense_sm90(), post=(ProducerTail(role=ex.LOAD90, pipeline=ex.AB90),)
        ),
        "P3: the CTA may exit before it has read",
        ("[math] TmaStore",),
    ),
    Illegal(
        "not_replayable",
        lambda: ex.with_resource(ex.dense_sm90(), ex.TILES, CLAIMED),
        "tiles cannot be walked once a role",
        (),
    ),
    Illegal("no_loop", no_loop, "the program has no tile loop", ()),
    Illegal(
        "partitioned_already",
        lambda: ex.kept("sm_90a"),
        "already partitioned",
        (),
    ),
)


class TestLegality(TestCase):
    @parametrize("arch", list(ex.EXAMPLES))
    def test_dense_is_legal(self, arch):
        self.assertEqual(status(ex.EXAMPLES[arch]()), "")

    @parametrize("case", [subtest(c, name=c.name) for c in ILLEGAL])
    def test_illegal(self, case):
        reasons = status(case.program())
        self.assertIn(case.reason, reasons)
        for statement in case.statements:
            self.assertIn(statement, reasons)

    def test_free_behind_a_barrier_of_its_own_is_legal(self):
        self.assertEqual(status(free_after_loop(CtaBarrier(), FREE)), "")

    def test_reason_text(self):
        self.assertExpectedInline(
            status(free_after_loop(FREE)).replace("; ", "\n"),
            """\
P3: unordered accesses of tAcc: read in [mma] Mma(accumulator=tAcc, a=sA, b=sB, pipeline=ab, index=k) and free in TmemFree(buffer=tAcc, columns=128)
P3: unordered accesses of tAcc: read in [epilogue] TmemLoad(source=tAcc, target=r_acc, pipeline=acc, subtile=sub) and free in TmemFree(buffer=tAcc, columns=128)""",
        )

    def test_a_loop_index_may_have_a_name_that_roles_use(self):
        loop = KLoop(index=ex.K, count=Const(2), body=(Let(var=X, value=Ref(ex.K)),))
        self.assertEqual(status(first(ex.dense_sm90(), loop)), "")

    def test_loads_do_not_change_their_source(self):
        """Two roles may read one buffer, and so may the shared loop."""
        load = ScalarLoad(var=X, buffer=ex.A, index=Const(0))
        program = first(ex.dense_sm90(), load)
        self.assertIn(TmaLoad, [type(s) for s in program.walk()])
        self.assertEqual(status(program), "")


instantiate_parametrized_tests(TestLegality)

if __name__ == "__main__":
    run_tests()
