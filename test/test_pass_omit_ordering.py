"""Loop omission: order without the loop's barriers, arrival counts, and schedulers that
cannot be replayed.
"""

from __future__ import annotations

from dataclasses import replace

import ir_examples as ex
from omit_helper import X, decide, load, remarks
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.ir.dataflow import ConsumerRelease
from torch_cute_backend.ir.expr import Param, Ref
from torch_cute_backend.ir.ops import Stmt
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import ClcClaim, If, Let
from torch_cute_backend.ir.sync import CtaBarrier, TmemFree
from torch_cute_backend.ir.values import Scheduler, SchedulerKind, Var

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


instantiate_parametrized_tests(TestNotReplayable)

if __name__ == "__main__":
    run_tests()
