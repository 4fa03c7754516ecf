"""Why each rule is needed: a kernel that breaks without it, seen to break.

Each test starts from a real kernel, changes the one thing that a rule is about, and
runs it in the simulator three ways: as the rules have it (in its inline or kept form),
which must be clean and exact, and with that rule alone ignored, which must not be. The
rules themselves are asked in between. ``docs/loop-omission.md`` says what one sees.

Rules that others imply, so that no kernel breaks without them alone, are shown as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import _paths  # noqa: F401
import ir_examples as ex
import torch
from build_helper import mm, two_roots
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.arch import SM100
from torch_cute_backend.build import KernelBuild
from torch_cute_backend.codegen.module import print_module
from torch_cute_backend.ir.analysis import with_role
from torch_cute_backend.ir.dataflow import TmaStore, TmaStoreWait
from torch_cute_backend.ir.expr import BinOp, Const, Param, Ref
from torch_cute_backend.ir.ops import Body, Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    If,
    Let,
    RoleRegion,
    ScalarLoad,
    ScalarStore,
    SubtileLoop,
)
from torch_cute_backend.ir.sync import (
    CtaBarrier,
    NamedBarrierSync,
    PartitionEpilogue,
    PipelineStates,
)
from torch_cute_backend.ir.values import Buffer, NamedBarrier, SchedulerKind, Space, Var
from torch_cute_backend.passes import (
    Omission,
    PassContext,
    omit_shared_loop,
    partition_roles,
)
from torch_cute_backend.passes.drop_placeholders import DropPlaceholders
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.sim import gemm_case
from torch_cute_backend.sim.child import SimChild
from torch_cute_backend.sim.report import SimError
from torch_cute_backend.status import Status
from torch_cute_backend.templates.dense_gemm import TILE, build_dense_gemm

MODES = ("lazy", "eager", "random:1")
SCHEDULE = GemmSchedule(128, 64, 64, 3, acc_stages=2, epi_n=64)
SIZES = (256, 192, 192)
TILES = 6
COUNTED = frozenset({"double_write"})
"""What a counter in memory looks like."""
RECORD = Buffer("walk_end", Space.GMEM, "int32")
EPILOGUE_WARPS_ONLY = BinOp("<", Param("warp_idx"), Param("EPILOGUE_WARPS"))
LOAD_WARP_ONLY = BinOp("==", Param("warp_idx"), Param("LOAD_WARP"))


@contextmanager
def ignoring(*rules: str) -> Iterator[None]:
    """The passes without these rules."""

    def without(check: Callable[..., Status]) -> Callable[..., Status]:
        def relaxed(*args: object) -> Status:
            found = check(*args).reasons
            return Status(tuple(r for r in found if r.split(":")[0] not in rules))

        return relaxed

    checks = tuple(c for c in omit_shared_loop.CHECKS if c[0] not in rules)
    with ExitStack() as stack:
        for name in ("_order", "_dependences"):
            relaxed = without(getattr(partition_roles, name))
            stack.enter_context(mock.patch.object(partition_roles, name, relaxed))
        stack.enter_context(mock.patch.object(omit_shared_loop, "CHECKS", checks))
        yield


def partitioned(inline: Program) -> Program:
    """The kept form; fails the test if a rule that is not ignored refuses it."""
    context = PassContext(SM100.required_roles)
    result = partition_roles.PartitionRoles().run(inline, context)
    if isinstance(result, Status):
        raise AssertionError(str(result))
    return result.program


def decided(kept: Program) -> tuple[Program, Omission]:
    context = PassContext(SM100.required_roles)
    result = omit_shared_loop.OmitSharedLoop().run(kept, context)
    return result.program, result.omission


@dataclass(frozen=True)
class Kernel:
    """A problem, its schedule, and the edited inline program."""

    problem: GemmProblem
    schedule: GemmSchedule
    inline: Program

    @classmethod
    def of(
        cls,
        edit: Callable[[Program], Program] = lambda program: program,
        problem: GemmProblem | None = None,
        **schedule: object,
    ) -> Kernel:
        problem = problem or mm(*SIZES)
        chosen = replace(SCHEDULE, **schedule)
        return cls(problem, chosen, edit(build_dense_gemm(problem, chosen, SM100)))

    def build(self, program: Program) -> KernelBuild:
        context = PassContext(SM100.required_roles)
        printed = DropPlaceholders().run(program, context).program
        source = print_module(printed, self.problem, self.schedule, SM100, ["A test."])
        omission = Omission("kept", None)
        return KernelBuild(
            self.problem, self.schedule, SM100, source, omission, printed, printed
        )


def in_loop(program: Program, edit: Callable[[Body], Body]) -> Program:
    return replace(program, loop=program.loop.with_body(edit(program.loop.body)))


class TestRulesMatter(TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.child = SimChild()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.child.close()
        super().tearDownClass()

    def run_one(
        self,
        kernel: Kernel,
        program: Program,
        mode: str,
        record: torch.Tensor | None,
        num_ctas: int,
    ) -> set[str]:
        build = kernel.build(program)
        operands = gemm_case.make(build, *SIZES, num_ctas=num_ctas)
        if record is not None:
            operands.references["walk_end"] = record
            replaced = operands.outputs["walk_end"]
            operands.outputs["walk_end"] = torch.full_like(record, -1)
            operands.tensors = [
                operands.outputs["walk_end"] if t is replaced else t
                for t in operands.tensors
            ]
        try:
            report = self.child.simulate(
                build.source, operands.tensors, num_ctas=num_ctas, mode=mode
            )
        except SimError as error:
            return {"deadlock" if "deadlock" in str(error) else str(error)}
        found = {f.kind for f in report.findings}
        return found if operands.exact() else found | {"wrong result"}

    def assert_clean(
        self,
        kernel: Kernel,
        program: Program,
        record: torch.Tensor | None = None,
        num_ctas: int = 1,
        but: frozenset[str] = frozenset(),
    ) -> None:
        """Nothing is found ``but`` what the kernel does on purpose."""
        for mode in MODES:
            found = self.run_one(kernel, program, mode, record, num_ctas)
            self.assertEqual(found, set(but), mode)

    def assert_breaks(
        self,
        kernel: Kernel,
        program: Program,
        expected: str,
        record: torch.Tensor | None = None,
        num_ctas: int = 1,
    ) -> None:
        """``expected`` is found in some mode."""
        found: set[str] = set()
        for mode in MODES:
            found |= self.run_one(kernel, program, mode, record, num_ctas)
        self.assertIn(expected, found)

    def assert_refused(self, kernel: Kernel, words: str) -> None:
        context = PassContext(SM100.required_roles)
        result = partition_roles.PartitionRoles().run(kernel.inline, context)
        self.assertIsInstance(result, Status)
        self.assertRegex(str(result), words)

    def assert_kept(self, kept: Program, rule: str) -> None:
        after, omission = decided(kept)
        self.assertEqual((omission.decision, omission.rule), ("kept", rule))
        self.assertEqual(after, kept)

    def test_the_unchanged_kernel(self):
        """What every other test changes is clean in all forms, and omitted."""
        kernel = Kernel.of()
        kept = partitioned(kernel.inline)
        after, omission = decided(kept)
        self.assertEqual(omission.decision, "omitted")
        for program in (kernel.inline, kept, after):
            self.assert_clean(kernel, program)

    # --- partitioning

    def test_p1(self):
        """Staging whose reuse only the tile's CTA barrier protects: inline it is right,
        but role loops have no such barrier."""

        def edit(body: Body) -> Body:
            changed: list[Stmt] = []
            for s in body:
                if isinstance(s, SubtileLoop):
                    # wait, barrier | store to shared memory, fence, barrier, TMA store
                    inside = [x for x in s.body if not isinstance(x, TmaStoreWait)]
                    first = next(x for x in inside if isinstance(x, NamedBarrierSync))
                    inside.remove(first)
                    wait = TmaStoreWait(role=s.role, pending=0)
                    at = next(
                        i for i, x in enumerate(inside) if isinstance(x, TmaStore)
                    )
                    inside.insert(at + 1, wait)
                    s = s.with_body(tuple(inside))
                changed.append(s)
            return tuple(changed)

        kernel = Kernel.of(lambda program: in_loop(program, edit))
        self.assert_clean(kernel, kernel.inline)
        self.assert_refused(kernel, "P1: unordered accesses of sD")
        with ignoring("P1"):
            kept = partitioned(kernel.inline)
        self.assert_breaks(kernel, kept, "race")
        self.assert_breaks(kernel, decided_without(kept, "barrier_order"), "race")

    def test_p2_a_pipeline_shared_with_the_residual(self):
        """An epilogue that belongs to no role stays in the shared loop. It releases an
        accumulator a tile, and then meets a barrier that the MMA's warp reaches only
        when all its tiles are done."""
        kernel = Kernel.of(untagged_epilogue)
        self.assert_clean(kernel, kernel.inline)
        self.assert_refused(kernel, "P2: .* share pipeline acc")
        # (P3: that the MMA's accumulators are free is known by the same pipeline.)
        with ignoring("P2", "P3"):
            kept = partitioned(kernel.inline)
        self.assert_breaks(kernel, kept, "deadlock")

    def test_p2_a_value_that_is_carried_on(self):
        """A count of tiles that a role needs too: the clone counts in the role, and the
        residual goes on from where it ended."""
        turn = Var("turn")

        def edit(program: Program) -> Program:
            step = Let(var=turn, value=BinOp("+", Ref(turn), Const(1)))
            tile = BinOp("*", Ref(turn), Param("clusters"))
            here = Let(var=Var("tile_m"), value=BinOp("%", tile, Param("tiles_m")))
            there = Let(var=Var("tile_n"), value=BinOp("//", tile, Param("tiles_m")))
            start = Let(var=turn, value=Const(0))
            rest = program.loop.body[2:]
            store = ScalarStore(buffer=RECORD, index=Const(0), value=Ref(turn))
            return replace(
                program,
                prologue=(start, *program.prologue),
                loop=program.loop.with_body((here, there, *rest[:-1], step, rest[-1])),
                post=(*program.post[:-1], store),
            )

        kernel = Kernel.of(edit, record="walk_end")
        record = torch.tensor([TILES], dtype=torch.int32)
        self.assert_clean(kernel, kernel.inline, record)
        self.assert_refused(kernel, "P2: .* is carried on from the prologue")
        with ignoring("P2"):
            kept = partitioned(kernel.inline)
        self.assert_breaks(kernel, kept, "wrong result", record)

    def test_p3(self):
        """Tensor memory freed behind the loop by the epilogue, without a barrier of its
        own: inline, the last tile's CTA barrier says that every warp has read."""

        def edit(program: Program) -> Program:
            post = tuple(s for s in program.post if not isinstance(s, NamedBarrierSync))
            return replace(program, post=post)

        # With a store through shared memory, its barriers would serve.
        kernel = Kernel.of(edit, store="direct")
        self.assert_clean(kernel, kernel.inline)
        self.assert_refused(kernel, "P3: unordered accesses of tAcc: .* free")
        with ignoring("P3"):
            kept = partitioned(kernel.inline)
        self.assert_breaks(kernel, kept, "tmem")

    # --- the check

    def test_single_root(self):
        """The cautious rule: nothing breaks without it as long as the others hold."""
        kernel = Kernel.of(problem=mm(*SIZES, epilogue=two_roots()), epi_n=32)
        kept = partitioned(kernel.inline)
        self.assert_kept(kept, "single_root")
        self.assert_clean(kernel, kept)
        self.assert_clean(kernel, decided_without(kept, "single_root"))

    def test_role_local(self):
        """A required role that owns no loop: its work is in the shared loop. Three
        other rules see that as well, of these statements; this one needs only the role.
        """

        def edit(program: Program) -> Program:
            plain = untagged_epilogue(program)
            return in_loop(plain, without_cta_barrier)

        kernel = Kernel.of(edit, acc_stages=8)
        with ignoring("P1", "P2", "P3"):
            kept = partitioned(kernel.inline)
        _, omission = decided(kept)
        self.assertEqual(omission.rule, "role_local")
        self.assert_clean(kernel, kept)
        with ignoring("role_local"):
            _, omission = decided(kept)
        self.assertEqual(omission.rule, "residual_work")
        others = ("residual_work", "barrier_order", "participants")
        omitted = decided_without(kept, "role_local", *others)
        self.assert_breaks(kernel, omitted, "deadlock")

    def test_residual_work(self):
        """Shared code that says which CTA ran which tile."""

        def edit(program: Program) -> Program:
            store = ScalarStore(buffer=RECORD, index=Ref(TILE), value=Param("bidx"))
            owner = in_loop(program, lambda body: (*body[:-1], store, body[-1]))
            return replace(owner, post=owner.post[:-1])

        kernel = Kernel.of(edit, record="walk_end")
        record = torch.tensor([0, 1] * (TILES // 2), dtype=torch.int32)
        kept = partitioned(kernel.inline)
        self.assert_kept(kept, "residual_work")
        self.assert_clean(kernel, kept, record, num_ctas=2)
        omitted = decided_without(kept, "residual_work")
        self.assert_breaks(kernel, omitted, "missing_write", record, num_ctas=2)

    def test_post_loop_use(self):
        """A count of tiles that nothing in the loop uses, stored behind it."""
        count = Var("count")

        def edit(program: Program) -> Program:
            step = Let(var=count, value=BinOp("+", Ref(count), Const(1)))
            store = ScalarStore(buffer=RECORD, index=Param("bidx"), value=Ref(count))
            counted = in_loop(program, lambda body: (*body[:-1], step, body[-1]))
            return replace(
                counted,
                prologue=(Let(var=count, value=Const(0)), *counted.prologue),
                post=(*counted.post[:-1], store),
            )

        kernel = Kernel.of(edit, record="walk_end")
        record = torch.tensor([2, 2, 1, 1], dtype=torch.int32)
        kept = partitioned(kernel.inline)
        self.assert_kept(kept, "post_loop_use")
        self.assert_clean(kernel, kept, record, num_ctas=4)
        omitted = decided_without(kept, "post_loop_use")
        self.assert_breaks(kernel, omitted, "wrong result", record, num_ctas=4)

    def test_barrier_order(self):
        """Tensor memory freed by shared code behind the shared loop, whose barriers
        come after every role's last tile: kept it is right, omitted it is not. (P3 asks
        the same before it is known whether the loop will go.)"""

        def edit(program: Program) -> Program:
            free = program.post[-1]
            return replace(program, post=(*program.post[:-2], replace(free, role=None)))

        kernel = Kernel.of(edit, store="direct")
        self.assert_refused(kernel, "P3: unordered accesses of tAcc: .* free")
        with ignoring("P3"):
            kept = partitioned(kernel.inline)
        kept = published_address(kept)
        self.assert_kept(kept, "barrier_order")
        self.assert_clean(kernel, kept)
        self.assert_breaks(kernel, decided_without(kept, "barrier_order"), "tmem")

    def test_scheduler(self):
        """Tiles claimed from a counter in memory. Who walks them again gets others:
        that a scheduler says so is this rule, and what it does to memory is P2."""
        taken = Var("taken")

        def edit(program: Program) -> Program:
            tile = BinOp("+", Ref(taken), Const(1))
            here = Let(var=Var("tile_m"), value=BinOp("%", tile, Param("tiles_m")))
            there = Let(var=Var("tile_n"), value=BinOp("//", tile, Param("tiles_m")))
            claim = (
                ScalarLoad(var=taken, buffer=RECORD, index=Const(0)),
                CtaBarrier(why="all have read"),
                ScalarStore(buffer=RECORD, index=Const(0), value=tile),
            )
            rest = program.loop.body[2:]
            loop = program.loop.with_body((*claim, here, there, *rest))
            return replace(program, loop=loop, post=program.post[:-1])

        kernel = Kernel.of(edit, record="walk_end")
        # The counter starts at -1, as all outputs of these tests do.
        record = torch.tensor([TILES - 1], dtype=torch.int32)
        self.assert_clean(kernel, kernel.inline, record, but=COUNTED)
        self.assert_refused(kernel, "P2: .* cannot be cloned")
        own = kernel.inline.loop.scheduler
        claims = replace(own, kind=SchedulerKind.CLC_PERSISTENT)
        honest = replace(kernel, inline=ex.with_resource(kernel.inline, own, claims))
        self.assert_refused(honest, "tiles cannot be walked once a role")
        with ignoring("P2"):
            kept = partitioned(kernel.inline)
        self.assert_breaks(kernel, kept, "missing_write", record)

    def test_participants(self):
        """A barrier that counts the load warp, which arrives in the shared loop. (That
        its arrival is work is seen by residual_work as well, and P2 refuses a barrier
        that role and residual share.)"""
        barrier = NamedBarrier("with_load", 2, 160, ("epilogue", "load"))

        def edit(program: Program) -> Program:
            epilogue = program.role("epilogue")
            sync = NamedBarrierSync(barrier=barrier)
            arrive = If(condition=LOAD_WARP_ONLY, body=(sync,))
            own = with_role(sync, epilogue)
            body = without_cta_barrier(program.loop.body)
            loop = program.loop.with_body((*body[:-1], own, arrive, body[-1]))
            barriers = (*program.barriers, barrier)
            return replace(program, loop=loop, barriers=barriers)

        kernel = Kernel.of(edit, acc_stages=8)
        with ignoring("P2"):
            kept = partitioned(kernel.inline)
        _, omission = decided(kept)
        self.assertIn("participants", [r.rule for r in omission.remarks])
        self.assert_clean(kernel, kept)
        with ignoring("residual_work"):
            self.assert_kept(kept, "participants")
        omitted = decided_without(kept, "residual_work", "participants")
        self.assert_breaks(kernel, omitted, "deadlock")


def decided_without(kept: Program, *rules: str) -> Program:
    """The omitted form, which the pass gives once it ignores ``rules``."""
    with ignoring(*rules):
        after, omission = decided(kept)
    if omission.decision != "omitted":
        raise AssertionError(f"{omission.decision} by {omission.rule}")
    return after


def without_cta_barrier(body: Body) -> Body:
    return tuple(s for s in body if not isinstance(s, CtaBarrier))


def untagged_epilogue(program: Program) -> Program:
    """The epilogue's part of the loop as shared code of its warps, under a branch."""
    epilogue = program.role("epilogue")

    def edit(body: Body) -> Body:
        mine = tuple(s for s in body if s.role == epilogue)
        first = body.index(mine[0])
        rest = [s for s in body if s.role != epilogue]
        branch = If(
            condition=EPILOGUE_WARPS_ONLY,
            body=tuple(without_role(s) for s in mine),
        )
        rest.insert(first, branch)
        return tuple(rest)

    views = (PartitionEpilogue, PipelineStates)
    prologue = tuple(
        replace(s, role=None) if s.role == epilogue and isinstance(s, views) else s
        for s in program.prologue
    )
    post = tuple(
        replace(s, role=None) if s.role == epilogue else s
        for s in program.post
        if not isinstance(s, NamedBarrierSync)
    )
    return in_loop(replace(program, prologue=prologue, post=post), edit)


def without_role(stmt: Stmt) -> Stmt:
    plain = replace(stmt, role=None)
    for nested in stmt.bodies():
        plain = plain.with_body(tuple(without_role(s) for s in nested))
    return plain


def published_address(program: Program) -> Program:
    """Views of tensor memory for all threads, as the free behind the loop needs."""
    regions: list[RoleRegion] = []
    views: list[Stmt] = []
    for region in program.regions:
        mine = tuple(s for s in region.body if isinstance(s, PartitionEpilogue))
        views.extend(replace(s, role=None) for s in mine)
        regions.append(region.with_body(tuple(s for s in region.body if s not in mine)))
    prologue = (*program.prologue, *views)
    return replace(program, prologue=prologue, regions=tuple(regions))


if __name__ == "__main__":
    run_tests()
