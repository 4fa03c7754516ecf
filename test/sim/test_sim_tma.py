"""Hand-written PTX: TMA loads, bulk stores and where boxes start."""

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

from torch_cute_backend.sim.operands import swizzle_granules
from torch_cute_backend.sim.ops_tensormap import replace_field
from torch_cute_backend.sim.report import UnsupportedPtx
from torch_cute_backend.sim.tensormap import decode, encode

TMA = """
mov.b32 %r1, smem;
mov.u32 %r2, %tid.x;
setp.ne.u32 %p1, %r2, 0;
@%p1 bra INIT;
mbarrier.init.shared.b64 [%r1], 1;
{init_fence}
INIT:
bar.sync 0;
mov.b64 %rd1, p1;
cvta.param.u64 %rd2, %rd1;
@%p1 bra LOADED;
mbarrier.arrive.expect_tx.shared.b64 _, [%r1], {bytes};
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
  [%r1+1024], [%rd2, {{{x}, {y}}}], [%r1];
LOADED:
WAIT:
mbarrier.try_wait.parity.shared.b64 %p3, [%r1], 0;
@!%p3 bra WAIT;
ld.param.b64 %rd3, [p0];
shl.b32 %r4, %r2, 4;
cvt.u64.u32 %rd4, %r4;
add.s64 %rd5, %rd3, %rd4;
add.s32 %r5, %r1, %r4;
ld.shared.v4.b32 {{%r6, %r7, %r8, %r9}}, [%r5+1024];
st.global.v4.b32 [%rd5], {{%r6, %r7, %r8, %r9}};
"""


class TmaTest(TestCase):
    def load(
        self,
        x=0,
        y=0,
        swizzle=0,
        box=(32, 16),
        init_fence="fence.mbarrier_init.release.cluster;",
        expect=None,
        mode="lazy",
    ):
        """Load one box of a (20, 48)-byte tensor.

        Returns (report, source, raw bytes).
        """
        source = micro.aligned((20, 48), np.uint8)
        source[...] = np.arange(960).reshape(20, 48) % 251 + 1
        total = box[0] * box[1]
        out = micro.aligned((total,), np.uint8)
        descriptor = encode(source.ctypes.data, "u8", (48, 20), (48,), box, swizzle)
        from torch_cute_backend.sim.launch_record import Launch, region_of_array
        from torch_cute_backend.sim.simulator import run_launch

        body = TMA.format(
            x=x, y=y, bytes=total if expect is None else expect, init_fence=init_fence
        )
        launch = Launch(
            "k",
            (1, 1, 1),
            (total // 16, 1, 1),
            (1, 1, 1),
            8192,
            (int(out.ctypes.data).to_bytes(8, "little"), descriptor),
        )
        regions = [region_of_array("out", out, True), region_of_array("source", source)]
        return (
            run_launch(micro.text(body, [8, 128]), launch, regions, mode=mode),
            source,
            out,
        )

    def test_descriptor_round_trip(self):
        raw = encode(
            0x7F0012345670, "bf16", (5120, 64, 3), (10240, 1 << 34), (64, 32, 1), 128
        )
        found = decode(raw)
        self.assertEqual(found.dims, (5120, 64, 3))
        self.assertEqual(found.strides, (10240, 1 << 34))
        self.assertEqual(
            (found.address, found.box, found.swizzle_bytes),
            (0x7F0012345670, (64, 32, 1), 128),
        )

    def test_replaced_fields(self):
        words = np.frombuffer(
            bytearray(encode(0, "bf16", (8, 8, 1), (16, 128), (8, 8, 1))), np.uint64
        ).copy()
        replace_field(words, "global_address", 0, 0x7F0000001230)
        for axis, size in enumerate((5120, 300, 7)):
            replace_field(words, "global_dim", axis, size)
        replace_field(words, "global_stride", 0, 10240)
        replace_field(words, "global_stride", 1, 1 << 37)
        found = decode(words.tobytes())
        wanted = encode(
            0x7F0000001230, "bf16", (5120, 300, 7), (10240, 1 << 37), (8, 8, 1)
        )
        self.assertEqual(found, decode(wanted))
        with self.assertRaises(UnsupportedPtx):
            replace_field(words, "swizzle_mode", 0, 1)

    @parametrize("x,y", [(0, 0), (16, 4), (32, 12), (-16, -3), (48, 0), (4096, 4096)])
    def test_box_with_zero_fill(self, x: int, y: int):
        report, source, out = self.load(x, y)
        self.assertTrue(report.clean, report.summary())
        wide = np.zeros((20 + 40, 48 + 80), np.uint8)
        wide[20:40, 40:88] = source
        wanted = np.zeros((16, 32), np.uint8)
        if abs(x) < 100:
            wanted = wide[20 + y : 36 + y, 40 + x : 72 + x]
        np.testing.assert_array_equal(out.reshape(16, 32), wanted)

    @parametrize("x", [1, 8, 15, 17, -8])
    def test_box_starts_at_16_bytes(self, x: int):
        """Of the contiguous dimension; any other start ends a kernel on hardware."""
        report, _, _ = self.load(x)
        self.assertEqual(micro.kinds(report), ["misuse"])
        self.assertIn(f"load at innermost coordinate {x}", report.findings[0].message)
        self.assertGreater(report.findings[0].ptx_line or 0, 0)

    @parametrize("swizzle", [32, 64, 128])
    def test_swizzle(self, swizzle: int):
        source = micro.aligned((16, 128), np.uint8)
        report, source, out = self.load(swizzle=swizzle, box=(swizzle, 16), x=0, y=0)
        self.assertTrue(report.clean, report.summary())
        rows = np.zeros((16, swizzle), np.uint8)
        width = min(swizzle, 48)
        rows[:, :width] = source[:16, :width]
        # Base 0x800: the XOR uses address bits 7..9, so chunk c of row r moves to c ^
        # f(r).
        granules = (
            swizzle_granules(np.arange(128, 128 + rows.size // 16), swizzle) - 128
        )
        wanted = np.zeros((rows.size // 16, 16), np.uint8)
        wanted[granules] = rows.reshape(-1, 16)
        np.testing.assert_array_equal(out.reshape(-1, 16), wanted)
        if (
            swizzle == 128
        ):  # independent of the helper: row 1 has its chunks 0 and 1 swapped
            np.testing.assert_array_equal(out[128 + 16 : 128 + 32], rows[1, :16])

    def test_tx_bytes(self):
        for expect in (256, 1024):
            report, _, _ = self.load(expect=expect)
            self.assertTrue(report.findings, expect)
        self.assertIn("deadlock", micro.kinds(self.load(expect=1024)[0]))

    def test_exit_with_a_load_in_flight(self):
        source = micro.aligned((20, 48), np.uint8)
        descriptor = encode(source.ctypes.data, "u8", (48, 20), (48,), (32, 16))
        body = TMA.format(
            x=0, y=0, bytes=512, init_fence="fence.mbarrier_init.release.cluster;"
        )
        body = body[: body.index("WAIT:")].replace("[p0]", "[p1]").replace("p1;", "p0;")
        for mode in ("lazy", "eager"):
            report = micro.run(body, [], extra=[descriptor], smem_bytes=8192, mode=mode)
            self.assertIn("race", micro.kinds(report), mode)

    def test_mbarrier_init_needs_a_fence(self):
        self.assertEqual(micro.kinds(self.load(init_fence="")[0]), ["proxy"])

    def test_unmodelled_descriptor(self):
        raw = bytearray(encode(0, "u8", (48, 20), (48,), (32, 16)))
        raw[9] |= 0x08  # interleave 16B
        with self.assertRaisesRegex(UnsupportedPtx, "interleave"):
            decode(bytes(raw))


STORE = """
mov.b32 %r1, smem;
mov.u32 %r2, %tid.x;
shl.b32 %r3, %r2, 4;
add.s32 %r4, %r1, %r3;
st.shared.v4.b32 [%r4], {{%r2, %r2, %r2, %r2}};
{fence}
bar.sync 0;
setp.ne.u32 %p1, %r2, 0;
@%p1 bra DONE;
ld.param.b64 %rd1, [p0];
cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 512;
cp.async.bulk.commit_group;
{wait}
DONE:
{after}
"""


class BulkStoreTest(TestCase):
    def store(
        self,
        fence="fence.proxy.async.shared::cta;",
        wait="cp.async.bulk.wait_group.read 0;",
        after="",
        mode="lazy",
    ):
        out = micro.aligned((128,), np.uint32, 77)
        body = STORE.format(fence=fence, wait=wait, after=after)
        return micro.run(body, [out], outputs=[0], mode=mode), out

    def test_clean(self):
        for mode in ("lazy", "eager", "random:5"):
            report, out = self.store(mode=mode)
            self.assertTrue(report.clean, report.summary())
            np.testing.assert_array_equal(out, np.arange(32).repeat(4))

    def test_missing_proxy_fence(self):
        for mode in ("lazy", "eager"):
            self.assertEqual(micro.kinds(self.store(fence="", mode=mode)[0]), ["proxy"])

    def test_exit_before_the_store_was_read(self):
        for mode in ("lazy", "eager"):
            self.assertEqual(
                micro.kinds(self.store(wait="", mode=mode)[0]), ["unread_store"]
            )

    def test_reuse_before_the_store_was_read(self):
        again = "st.shared.v4.b32 [%r4], {%r2, %r2, %r2, %r2};"
        for mode in ("lazy", "eager"):
            report, _ = self.store(wait="", after=again, mode=mode)
            self.assertIn("race", micro.kinds(report))


BOX_OPS = {
    "store": "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group {at}, [%r1];",
    "reduction": "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile"
    ".bulk_group {at}, [%r1];",
    "prefetch": "cp.async.bulk.prefetch.tensor.2d.L2.global.tile {at};",
}


class BoxStartTest(TestCase):
    @parametrize("x", [0, 4, 6, 9])
    @parametrize("name", list(BOX_OPS))
    def test_box_starts_at_16_bytes(self, name: str, x: int):
        """Coordinates count elements, here of 4 bytes."""
        out = micro.aligned((20, 12), np.uint32)
        descriptor = encode(out.ctypes.data, "u32", (12, 20), (48,), (8, 16))
        body = STORE.format(
            fence="fence.proxy.async.shared::cta;",
            wait="cp.async.bulk.wait_group.read 0;",
            after="",
        )
        plain = "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], 512;"
        at = BOX_OPS[name].format(at=f"[%rd2, {{{x}, 0}}]")
        body = body.replace(
            plain, f"mov.b64 %rd3, p1;\ncvta.param.u64 %rd2, %rd3;\n{at}"
        )
        report = micro.run(body, [out], extra=[descriptor])
        self.assertEqual(micro.kinds(report), ["misuse"] if x % 4 else [])
        for finding in report.findings:
            self.assertIn(f"{name} at innermost coordinate {x}", finding.message)


instantiate_parametrized_tests(TmaTest)
instantiate_parametrized_tests(BoxStartTest)

if __name__ == "__main__":
    run_tests()
