"""What named barriers order, on a program of two bare roles."""

from __future__ import annotations

import ir_examples as ex
from ordering_statements import LostWrite, PlainRead, PlainWrite
from torch.testing._internal.common_utils import TestCase, run_tests

from torch_cute_backend.ir.dataflow import SmemStore
from torch_cute_backend.ir.expr import Const, Param
from torch_cute_backend.ir.ops import Body
from torch_cute_backend.ir.ordering import races
from torch_cute_backend.ir.program import Program
from torch_cute_backend.ir.structure import (
    If,
    KLoop,
    RoleRegion,
    SchedulerAdvance,
    SubtileLoop,
    TileLoop,
)
from torch_cute_backend.ir.sync import AllocateShared, InitSync, NamedBarrierSync
from torch_cute_backend.ir.values import (
    Buffer,
    NamedBarrier,
    Role,
    Scheduler,
    SchedulerKind,
    Space,
)

P, Q = Role("p", 0, 1), Role("q", 1, 4)


S = Buffer("s", Space.SMEM, "float32", (32,))


MEET = NamedBarrier("meet", 1, 160, ("p", "q"))


MEET_P = NamedBarrier("meet_p", 2, 32, ("p",))


SYNC = NamedBarrierSync(barrier=MEET)


SET, GET = PlainWrite(buffer=S), PlainRead(buffer=S)


def two_roles(
    p: Body, q: Body, heads: tuple[Body, Body] = ((), ()), tail: Body = ()
) -> Program:
    """Two roles with one tile loop each, and nothing but ``p`` and ``q`` in them."""

    def region(role: Role, head: Body, body: Body, tail: Body) -> RoleRegion:
        scheduler = Scheduler(f"{role}_tiles", SchedulerKind.STATIC_PERSISTENT)
        step = SchedulerAdvance(scheduler=scheduler, work=ex.TILE, step=Param("gridz"))
        loop = TileLoop(
            scheduler=scheduler,
            work=ex.TILE,
            first=Param("bidz"),
            limit=Param("tiles"),
            body=(*body, step),
        )
        return RoleRegion(role=role, body=(*head, loop, *tail))

    return Program(
        name="two_roles",
        arch="sm_90a",
        roots=("d",),
        roles=(P, Q),
        buffers=(S,),
        pipelines=(),
        barriers=(MEET, MEET_P),
        prologue=(AllocateShared(buffers=(S,)), InitSync(cluster=False)),
        regions=(region(P, heads[0], p, ()), region(Q, heads[1], q, tail)),
    )


class TestNamedBarriers(TestCase):
    """p (one warp) writes, q (four warps) reads."""

    def ordered(self, program: Program) -> bool:
        return races(program) == ()

    def test_before_and_after(self):
        self.assertTrue(self.ordered(two_roles((SET, SYNC, SYNC), (SYNC, GET, SYNC))))

    def test_no_barrier(self):
        self.assertFalse(self.ordered(two_roles((SET,), (GET,))))

    def test_one_barrier_leaves_reuse_open(self):
        """The write of the next tile may overtake the read of this one."""
        self.assertFalse(self.ordered(two_roles((SET, SYNC), (SYNC, GET))))

    def test_same_phase(self):
        self.assertFalse(self.ordered(two_roles((SYNC, SET, SYNC), (SYNC, GET, SYNC))))

    def test_barrier_of_one_role_only(self):
        alone = NamedBarrierSync(barrier=MEET_P)
        self.assertFalse(self.ordered(two_roles((SET, alone, alone), (GET,))))

    def test_out_of_step(self):
        self.assertFalse(
            self.ordered(two_roles((SET, SYNC, SYNC), (SYNC, GET, SYNC, SYNC)))
        )

    def test_head_start(self):
        """One role runs the barrier once before its loop, the other does not."""
        program = two_roles((SET, SYNC, SYNC), (SYNC, GET, SYNC), heads=((), (SYNC,)))
        self.assertFalse(self.ordered(program))

    def test_conditional(self):
        maybe = If(condition=Const(1), body=(SYNC,))
        self.assertFalse(
            self.ordered(two_roles((SET, maybe, SYNC), (maybe, GET, SYNC)))
        )

    def test_inside_a_k_loop(self):
        loop = KLoop(index=ex.K, count=Param("k_tiles"), body=(SYNC,))
        self.assertFalse(self.ordered(two_roles((SET, loop, loop), (loop, GET, loop))))

    def test_loop_barrier_does_not_order_head_and_tail(self):
        """With no tile at all the loop's barriers do not run."""
        program = two_roles((SYNC,), (SYNC,), heads=((SET,), ()), tail=(GET,))
        self.assertFalse(self.ordered(program))

    def test_barrier_before_the_loop_orders_head_and_tail(self):
        program = two_roles((), (), heads=((SET, SYNC), (SYNC,)), tail=(GET,))
        self.assertTrue(self.ordered(program))

    def test_a_barrier_of_other_roles_does_not_count(self):
        private = NamedBarrierSync(barrier=MEET_P)
        store = SmemStore(source=ex.R_D, target=S, subtile=ex.SUB)
        loop = SubtileLoop(index=ex.SUB, count=2, body=(store, private, GET, private))
        self.assertFalse(self.ordered(two_roles((private, private), (loop,))))

    def test_a_barrier_of_two_roles_that_one_skips_does_not_count(self):
        store = SmemStore(source=ex.R_D, target=S, subtile=ex.SUB)
        loop = SubtileLoop(index=ex.SUB, count=2, body=(store, SYNC, GET, SYNC))
        self.assertFalse(self.ordered(two_roles((), (loop,))))
        self.assertTrue(self.ordered(two_roles((SYNC, SYNC, SYNC, SYNC), (loop,))))

    def test_what_nothing_waits_for_is_never_complete(self):
        self.assertFalse(self.ordered(two_roles((LostWrite(buffer=S), GET), ())))

    def test_every_warp_writes(self):
        """Four warps write the same elements, with nothing between them."""
        self.assertFalse(self.ordered(two_roles((), (SET,))))
        self.assertFalse(self.ordered(two_roles((), (), heads=((), (SET,)))))

    def test_one_warp_writes_in_its_own_order(self):
        self.assertTrue(self.ordered(two_roles((SET, GET), ())))

    def test_warps_of_one_role_need_a_barrier(self):
        private = NamedBarrier("meet_q", 3, 128, ("q",))
        sync = NamedBarrierSync(barrier=private)
        store = SmemStore(source=ex.R_D, target=S, subtile=ex.SUB)
        inside = (store, sync, GET, sync)
        loop = SubtileLoop(index=ex.SUB, count=2, body=inside)
        self.assertTrue(self.ordered(two_roles((), (loop,))))
        loop = SubtileLoop(index=ex.SUB, count=2, body=(store, sync, GET))
        self.assertFalse(self.ordered(two_roles((), (loop,))))


if __name__ == "__main__":
    run_tests()
