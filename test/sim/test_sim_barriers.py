"""Hand-written PTX: shared memory and barriers, each check wrong and right."""

from __future__ import annotations

import _paths  # noqa: F401
import micro
import numpy as np
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

SHARED = """
ld.param.b64 %rd1, [p0];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd3, %rd1, %rd2;
shl.b32 %r2, %r1, 2;
mov.b32 %r3, smem;
add.s32 %r4, %r3, %r2;
xor.b32 %r5, %r2, 128;
add.s32 %r6, %r3, %r5;
st.shared.b32 [%r4], %r1;
{barrier}
ld.shared.b32 %r7, [%r6];
st.global.b32 [%rd3], %r7;
"""


class SharedMemoryTest(TestCase):
    @parametrize("mode", ["lazy", "eager", "random:1"])
    def test_exchange_with_barrier(self, mode: str):
        data = micro.aligned((64,), np.uint32)
        report = micro.run(
            SHARED.format(barrier="bar.sync 0;"),
            [data],
            outputs=[0],
            threads=64,
            mode=mode,
        )
        self.assertTrue(report.clean, report.summary())
        np.testing.assert_array_equal(data, np.arange(64) ^ 32)

    def test_exchange_without_barrier_is_a_race(self):
        report = micro.run(
            SHARED.format(barrier=""),
            [micro.aligned((64,), np.uint32)],
            outputs=[0],
            threads=64,
        )
        self.assertTrue({"race", "uninitialised"} & set(micro.kinds(report)))

    def test_uninitialised_read(self):
        body = "mov.b32 %r1, smem;\nld.shared.b32 %r2, [%r1+64];"
        self.assertEqual(micro.kinds(micro.run(body, [])), ["uninitialised"])

    def test_outside_the_allocation(self):
        body = "mov.b32 %r1, smem;\nst.shared.b32 [%r1+4096], %r2;"
        self.assertEqual(micro.kinds(micro.run(body, [])), ["out_of_bounds"])

    def test_checks_off_still_runs(self):
        body = "mov.b32 %r1, smem;\nld.shared.b32 %r2, [%r1+64];"
        self.assertEqual(micro.run(body, [], checks=False).findings, ())


class BarrierTest(TestCase):
    def test_named_barrier_deadlock_report(self):
        body = """
        mov.u32 %r1, %tid.x;
        setp.ge.u32 %p1, %r1, 32;
        @%p1 bra OUT;
        bar.sync 3, 64;
        OUT:
        """
        report = micro.run(body, [], threads=64)
        self.assertTrue(report.deadlocked)
        line = micro.text(body, []).splitlines().index("\tbar.sync 3, 64;") + 1
        text = report.findings[0].message
        self.assertIn(
            f"warp 0 waits at PTX line {line} for barrier 3: 32 of 64 threads arrived",
            text,
        )

    MBARRIER = """
    mov.b32 %r1, smem;
    mov.u32 %r2, %tid.x;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra INIT;
    mbarrier.init.shared.b64 [%r1], {count};
    INIT:
    bar.sync 0;
    setp.ge.u32 %p2, %r2, 32;
    @%p2 bra WAIT;
    st.shared.b32 [%r1+64], 7;
    elect.sync %r3|%p3, -1;
    @!%p3 bra OUT;
    mbarrier.arrive.shared.b64 _, [%r1], 1;
    bra OUT;
    WAIT:
    mbarrier.try_wait.parity.shared.b64 %p4, [%r1], {parity};
    @!%p4 bra WAIT;
    ld.shared.b32 %r5, [%r1+64];
    OUT:
    """

    def run_mbarrier(self, mode="lazy", count=1, parity=0):
        return micro.run(
            self.MBARRIER.format(count=count, parity=parity), [], threads=64, mode=mode
        )

    @parametrize("mode", ["lazy", "eager", "random:1", "random:7"])
    def test_mbarrier_orders(self, mode: str):
        self.assertEqual(self.run_mbarrier(mode).findings, ())

    def test_wrong_phase_is_a_race(self):
        found = [
            micro.kinds(self.run_mbarrier(m, parity=1))
            for m in ("random:1", "random:2", "lazy")
        ]
        self.assertTrue(any("race" in k or "uninitialised" in k for k in found), found)

    def test_missing_arrival_is_a_deadlock(self):
        report = self.run_mbarrier(count=2)
        self.assertTrue(report.deadlocked)
        self.assertIn("1 of 2 arrivals pending", report.findings[0].message)

    def test_unfenced_cluster_exit(self):
        body = """
        mov.b32 %r1, smem;
        mov.u32 %r2, %tid.x;
        setp.ne.u32 %p1, %r2, 0;
        @%p1 bra INIT;
        mbarrier.init.shared.b64 [%r1], 1;
        INIT:
        fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.relaxed;
        barrier.cluster.wait;
        mov.u32 %r3, %cluster_ctarank;
        xor.b32 %r4, %r3, 1;
        mapa.shared::cluster.u32 %r5, %r1, %r4;
        elect.sync %r6|%p2, -1;
        @!%p2 bra DONE;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5], 1;
        DONE:
        TAIL
        """
        safe = body.replace("TAIL", "barrier.cluster.arrive;\nbarrier.cluster.wait;")
        for mode in ("lazy", "random:3"):
            self.assertEqual(
                micro.run(safe, [], cluster=2, grid=2, mode=mode).findings, ()
            )
            report = micro.run(
                body.replace("TAIL", ""), [], cluster=2, grid=2, mode=mode
            )
            self.assertEqual(micro.kinds(report), ["race"])


instantiate_parametrized_tests(SharedMemoryTest)
instantiate_parametrized_tests(BarrierTest)

if __name__ == "__main__":
    run_tests()
