"""Hand-written PTX: CTAs that wait for one another, launch control, errors.

Each check is shown to fire on a wrong kernel and to stay silent on the right one.
"""

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

from torch_cute_backend.sim.report import SimError, UnsupportedPtx

HANDOVER = """
ld.param.b64 %rd1, [p0];
mov.u32 %r1, %tid.x;
mov.u32 %r2, %ctaid.x;
setp.ne.u32 %p1, %r2, 0;
@%p1 bra TAKE;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd3, %rd1, %rd2;
st.global.b32 [%rd3], %r1;
{publish}
setp.ne.u32 %p2, %r1, 0;
@%p2 bra OUT;
{signal}
bra OUT;
TAKE:
{wait}
{see}
sub.s32 %r3, 31, %r1;
mul.wide.u32 %rd2, %r3, 4;
add.s64 %rd3, %rd1, %rd2;
ld.global.b32 %r4, [%rd3];
ld.param.b64 %rd4, [p2];
mul.wide.u32 %rd5, %r1, 4;
add.s64 %rd6, %rd4, %rd5;
st.global.b32 [%rd6], %r4;
OUT:
"""


WAIT_FLAG = """
ld.param.b64 %rd7, [p1];
LOOP:
ld.acquire.gpu.global.b32 %r5, [%rd7];
setp.eq.s32 %p3, %r5, 0;
@%p3 bra LOOP;
"""


SET_FLAG = "ld.param.b64 %rd7, [p1];\nred.release.gpu.global.add.u32 [%rd7], 1;"


class GridTest(TestCase):
    """CTAs that hand data over through global memory."""

    def hand_over(self, mode="lazy", **parts):
        text = {"publish": "fence.acq_rel.gpu;", "signal": SET_FLAG}
        text |= {"wait": WAIT_FLAG, "see": "fence.acq_rel.gpu;"} | parts
        arrays = [micro.aligned((32,), np.uint32, 9), micro.aligned((1,), np.uint32)]
        arrays.append(micro.aligned((32,), np.uint32, 9))
        report = micro.run(
            HANDOVER.format(**text), arrays, outputs=[2], grid=2, mode=mode
        )
        return report, arrays[2]

    def test_flag_with_release_and_acquire(self):
        for mode in ("lazy", "random:1", "random:2"):
            report, out = self.hand_over(mode)
            self.assertEqual(report.findings, (), mode)
            np.testing.assert_array_equal(out, 31 - np.arange(32))

    def test_without_release(self):
        relaxed = SET_FLAG.replace(".release", ".relaxed")
        report, _ = self.hand_over(publish="", signal=relaxed)
        self.assertEqual(micro.kinds(report), ["race"])

    def test_without_any_synchronisation(self):
        report, _ = self.hand_over(publish="", signal="", wait="", see="")
        self.assertIn("race", micro.kinds(report))

    def test_flag_never_set(self):
        report, _ = self.hand_over(signal="")
        self.assertTrue(report.deadlocked)

    def test_atomic_add_counts_all_lanes(self):
        total = micro.aligned((2,), np.uint32)
        body = """
        ld.param.b64 %rd1, [p0];
        mov.u32 %r1, %tid.x;
        atom.global.add.u32 %r2, [%rd1], %r1;
        red.global.max.u32 [%rd1+4], %r2;
        """
        report = micro.run(body, [total], outputs=[0], grid=3, threads=64)
        self.assertEqual(report.findings, ())
        self.assertEqual(int(total[0]), 3 * 64 * 63 // 2)
        self.assertLess(int(total[1]), int(total[0]))

    def test_float_reduction(self):
        total = micro.aligned((1,), np.float32)
        body = "ld.param.b64 %rd1, [p0];\nred.global.add.f32 [%rd1], 0f3F000000;"
        self.assertEqual(micro.run(body, [total], outputs=[0], grid=2).findings, ())
        self.assertEqual(float(total[0]), 32.0)


CANCEL = """
mov.b32 %r1, smem;
mov.u32 %r2, %tid.x;
mov.u32 %r3, %ctaid.x;
mov.b32 %r9, 0;
setp.ne.u32 %p1, %r2, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r1], 1;
fence.mbarrier_init.release.cluster;
READY:
bar.sync 0;
WORK:
@%p1 bra WAIT;
ld.param.b64 %rd1, [p0];
mul.wide.u32 %rd2, %r3, 4;
add.s64 %rd3, %rd1, %rd2;
st.global.b32 [%rd3], %r3;
mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16;
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128
  [%r1+16], [%r1];
WAIT:
mbarrier.try_wait.parity.shared.b64 %p2, [%r1], %r9;
@!%p2 bra WAIT;
xor.b32 %r9, %r9, 1;
ld.shared.v2.b64 {%rd4, %rd5}, [%r1+16];
.reg .b128 %q;
mov.b128 %q, {%rd4, %rd5};
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p3, %q;
@!%p3 bra DONE;
clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r3, %q;
bar.sync 0;
bra WORK;
DONE:
"""


class LaunchControlTest(TestCase):
    @parametrize("sms", [1, 3, 100])
    def test_every_cta_runs_once(self, sms: int):
        for mode in ("lazy", "random:1"):
            out = micro.aligned((7,), np.uint32, 99)
            report = micro.run(CANCEL, [out], outputs=[0], grid=7, sms=sms, mode=mode)
            self.assertTrue(report.clean, report.summary())
            np.testing.assert_array_equal(out, np.arange(7))

    def test_response_before_it_arrived(self):
        early = CANCEL.replace("@!%p2 bra WAIT;", "")
        out = micro.aligned((7,), np.uint32, 99)
        report = micro.run(early, [out], outputs=[0], grid=7, sms=2)
        self.assertTrue({"race", "uninitialised"} & set(micro.kinds(report)))


class ErrorsTest(TestCase):
    def test_wrong_mode(self):
        with self.assertRaisesRegex(SimError, "unknown mode 'sloppy'"):
            micro.run("", [], mode="sloppy")

    def test_unknown_target(self):
        with self.assertRaisesRegex(SimError, "not 'sm_80'"):
            micro.run("", [], target="sm_80")

    def test_unmodelled_value_names_the_line(self):
        body = "mov.u32 %r1, %tid.x;\nbfe.u32 %r2, 7, %r1, 4;"
        line = micro.text(body, []).splitlines().index("\tmov.u32 %r1, %tid.x;") + 1
        with self.assertRaisesRegex(UnsupportedPtx, f"PTX line {line}: per-lane bfe"):
            micro.run(body, [])

    def test_divergent_sync(self):
        body = """
        mov.u32 %r1, %tid.x;
        setp.lt.u32 %p1, %r1, 16;
        @%p1 bra OUT;
        shfl.sync.idx.b32 %r2, %r1, 0, 31, -1;
        OUT:
        """
        self.assertEqual(micro.kinds(micro.run(body, [])), ["misuse"])

    def test_counts(self):
        body = "mov.u32 %r1, %tid.x;\nbar.sync 0;\nbar.sync 0;\nelect.sync %r2|%p1, -1;"
        counts = micro.run(body, [], threads=64).counts
        self.assertEqual(counts["warp 1"]["bar.sync"], 2)
        self.assertEqual(counts["warp 0"]["elect"], 1)
        self.assertEqual(counts["warp 0"]["instructions"], 5)


instantiate_parametrized_tests(LaunchControlTest)

if __name__ == "__main__":
    run_tests()
