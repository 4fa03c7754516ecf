"""The engine on hand-written PTX: values, divergence, memory checks, barriers, TMA.

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

from torch_cute_backend.sim.operands import swizzle_granules
from torch_cute_backend.sim.ops_tensormap import replace_field
from torch_cute_backend.sim.report import SimError, UnsupportedPtx
from torch_cute_backend.sim.tensormap import decode, encode

LOAD_ADDRESS = """
ld.param.b64 %rd1, [p0];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd3, %rd1, %rd2;
"""


class ValuesTest(TestCase):
    def evaluate(self, body: str, values: np.ndarray) -> np.ndarray:
        """Run ``body`` with %r10 = values[tid]; returns %r11 per thread."""
        data = micro.aligned(values.shape, values.dtype.type)
        data[...] = values
        report = micro.run(
            f"{LOAD_ADDRESS}\nld.global.b32 %r10, [%rd3];\n{body}\n"
            "st.global.b32 [%rd3], %r11;",
            [data],
            outputs=[0],
        )
        self.assertEqual(report.findings, ())
        return data

    def test_integer_arithmetic(self):
        x = np.array(
            [0, 1, 2, 31, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 12345] * 4, np.uint32
        )
        s = x.view(np.int32)
        wide = s.astype(np.int64)
        cases = {
            "add.s32 %r11, %r10, -3;": x - np.uint32(3),
            "mul.lo.s32 %r11, %r10, 7;": x * np.uint32(7),
            "mad.lo.s32 %r11, %r10, 3, %r1;": x * np.uint32(3)
            + np.arange(32, dtype=np.uint32),
            "mul.hi.u32 %r11, %r10, -5;": (
                x.astype(np.uint64) * 0xFFFFFFFB >> np.uint64(32)
            ),
            "mul.hi.s32 %r11, %r10, -5;": wide * -5 >> 32,
            "shr.s32 %r11, %r10, 3;": s >> 3,
            "shr.u32 %r11, %r10, 33;": x * np.uint32(0),
            "shl.b32 %r11, %r10, 5;": x << np.uint32(5),
            "min.s32 %r11, %r10, 5;": np.minimum(s, 5),
            "min.relu.s32 %r11, %r10, 5;": np.maximum(np.minimum(s, 5), 0),
            "max.u32 %r11, %r10, 5;": np.maximum(x, 5),
            "div.s32 %r11, %r10, -4;": (np.sign(wide) * (np.abs(wide) // 4) * -1),
            "rem.s32 %r11, %r10, 5;": np.fmod(wide, 5),
            "setp.lt.s32 %p1, %r10, 2; selp.b32 %r11, 1, 0, %p1;": (s < 2).astype(
                np.uint32
            ),
            "setp.lt.u32 %p1, %r10, 2; selp.b32 %r11, 1, 0, %p1;": (x < 2).astype(
                np.uint32
            ),
            "prmt.b32 %r11, %r10, 0, 0x0123;": x.byteswap(),
            "popc.b32 %r11, %r10;": np.array([bin(v).count("1") for v in x.tolist()]),
            "bfe.u32 %r11, %r10, 4, 8;": x >> np.uint32(4) & np.uint32(255),
            "lop3.b32 %r11, %r10, %r1, 6, 0x96;": x
            ^ np.arange(32, dtype=np.uint32)
            ^ np.uint32(6),
            "cvt.s64.s32 %rd5, %r10; shr.s64 %rd6, %rd5, 32; "
            "cvt.u32.u64 %r11, %rd6;": wide >> 32,
        }
        for body, expected in cases.items():
            got = self.evaluate(body, x)
            np.testing.assert_array_equal(
                got, expected.astype(np.int64).astype(np.uint32), body
            )

    def test_float_arithmetic(self):
        rng = np.random.default_rng(0)
        f = rng.standard_normal(32).astype(np.float32)
        f[:4] = [0.0, -0.0, np.inf, 1e-30]
        x = f.view(np.uint32)
        with np.errstate(all="ignore"):
            cases = {
                "add.f32 %r11, %r10, 0f3F800000;": f + np.float32(1),
                "mul.rn.f32 %r11, %r10, %r10;": f * f,
                "fma.rn.f32 %r11, %r10, %r10, %r10;": (
                    f.astype(np.float64) * f + f
                ).astype(np.float32),
                "neg.f32 %r11, %r10;": -f,
                "max.f32 %r11, %r10, 0f00000000;": np.fmax(f, np.float32(0)),
                "ex2.approx.ftz.f32 %r11, %r10;": np.exp2(f),
                "cvt.rni.f32.f32 %r11, %r10;": np.rint(f),
                "cvt.rn.bf16x2.f32 %r12, %r10, %r10; shl.b32 %r11, %r12, 16;": None,
            }
            import torch

            bf16 = torch.from_numpy(f.copy()).bfloat16().float().numpy()
        for body, expected in cases.items():
            got = self.evaluate(body, x).view(np.float32)
            wanted = bf16 if expected is None else expected
            np.testing.assert_array_equal(
                got.view(np.uint32), wanted.view(np.uint32), body
            )

    def test_saturation_to_one(self):
        f = np.linspace(-2, 2, 32).astype(np.float32)
        f[:4] = [np.nan, np.inf, -np.inf, -0.0]
        got = self.evaluate("cvt.sat.f32.f32 %r11, %r10;", f.view(np.uint32))
        wanted = np.clip(np.nan_to_num(f, nan=0.0), 0, 1) + np.float32(0)
        np.testing.assert_array_equal(got, wanted.view(np.uint32))

    def test_fma_rounded_down(self):
        f = np.linspace(-3, 7, 32).astype(np.float32)
        got = self.evaluate(
            "fma.rm.f32 %r11, %r10, %r10, %r10;", f.view(np.uint32)
        ).view(np.float32)
        exact = f.astype(np.float64) ** 2 + f
        self.assertTrue((got <= exact).all())
        self.assertTrue((np.nextafter(got, np.float32(np.inf)) > exact).all())
        nearest = exact.astype(np.float32)
        self.assertTrue((got != nearest).any())

    def test_mixed_precision_arithmetic(self):
        """f32 arithmetic on a bf16 or f16 operand, which sm_100 has."""
        import torch

        f = torch.linspace(-3, 7, 32)
        for name, kind in (("bf16", torch.bfloat16), ("f16", torch.float16)):
            narrow = f.to(kind).float()
            wide = narrow.double()
            cases = {
                f"add.rn.f32.{name} %r11, %rs1, %r10;": narrow + f,
                f"sub.f32.{name} %r11, %rs1, %r10;": narrow - f,
                f"fma.rn.f32.{name} %r11, %rs1, %rs1, %r10;": (wide * wide + f).float(),
            }
            for body, wanted in cases.items():
                body = f"cvt.rn.{name}.f32 %rs1, %r10; {body}"
                got = self.evaluate(body, f.numpy().view(np.uint32))
                wanted = wanted.numpy().view(np.uint32)
                np.testing.assert_array_equal(got, wanted, body)

    def test_fp8_conversion_matches_torch(self):
        import torch

        f = np.linspace(-500, 500, 32).astype(np.float32)
        f[:6] = [0.0, 1e-3, 2.0**-10, 464.0, 447.9, -1.0625]
        for name, kind in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
            got = self.evaluate(
                f"cvt.rn.satfinite.{name}x2.f32 %rs1, %r10, %r10; "
                "cvt.u32.u16 %r11, %rs1;",
                f.view(np.uint32),
            )
            limit = 448.0 if name == "e4m3" else 57344.0
            clipped = torch.from_numpy(f.clip(-limit, limit))
            wanted = clipped.to(kind).view(torch.uint8).numpy().astype(np.uint32)
            np.testing.assert_array_equal(got, wanted | wanted << 8, name)

    def test_divergence_and_reconvergence(self):
        body = """
        mov.b32 %r11, 100;
        setp.lt.u32 %p1, %r1, 10;
        @!%p1 bra ELSE;
        setp.lt.u32 %p2, %r1, 3;
        @%p2 bra JOIN;
        add.s32 %r11, %r1, 1000;
        bra JOIN;
        ELSE:
        mul.lo.s32 %r11, %r1, 2;
        JOIN:
        add.s32 %r11, %r11, 1;
        """
        got = self.evaluate(body, np.zeros(32, np.uint32))
        t = np.arange(32)
        wanted = np.where(t < 3, 100, np.where(t < 10, t + 1000, 2 * t)) + 1
        np.testing.assert_array_equal(got, wanted)

    def test_divergent_loop(self):
        body = (
            "mov.b32 %r11, 0;\nL:\nadd.s32 %r11, %r11, 2;\n"
            "setp.lt.u32 %p1, %r11, %r1;\n@%p1 bra L;"
        )
        got = self.evaluate(body, np.zeros(32, np.uint32))
        np.testing.assert_array_equal(got, np.maximum(2, (np.arange(32) + 1) // 2 * 2))

    def test_shuffles(self):
        x = np.arange(32, dtype=np.uint32) * 3
        cases = {
            "shfl.sync.bfly.b32 %r11, %r10, 1, 31, -1;": x[np.arange(32) ^ 1],
            "shfl.sync.idx.b32 %r11, %r10, 5, 31, -1;": np.full(32, 15),
            "shfl.sync.up.b32 %r11, %r10, 2, 0, -1;": x[
                np.maximum(np.arange(32) - 2, [0, 1] + [0] * 30)
            ],
            "shfl.sync.down.b32 %r11, %r10, 16, 31, -1;": np.concatenate(
                [x[16:], x[16:]]
            ),
        }
        for body, expected in cases.items():
            np.testing.assert_array_equal(self.evaluate(body, x), expected, body)


class GlobalMemoryTest(TestCase):
    def store(self, offset: int, rows: np.ndarray, **options):
        body = f"{LOAD_ADDRESS}\nst.global.b32 [%rd3+{offset}], %r1;"
        return micro.run(body, [rows], outputs=[0], **options)

    def test_clean(self):
        data = micro.aligned((32,), np.uint32, 99)
        report = self.store(0, data)
        self.assertTrue(report.clean)
        self.assertEqual(report.tiles_written_once, True)
        np.testing.assert_array_equal(data, np.arange(32))

    def test_out_of_bounds_and_missing(self):
        report = self.store(4, micro.aligned((32,), np.uint32))
        self.assertEqual(micro.kinds(report), ["missing_write", "out_of_bounds"])
        self.assertIn("0 bytes behind tensor t0", report.findings[0].message)

    def test_double_write(self):
        report = self.store(0, micro.aligned((32,), np.uint32), grid=2)
        self.assertEqual(micro.kinds(report), ["double_write", "race"])
        self.assertFalse(report.tiles_written_once)

    def test_padding_is_guarded(self):
        whole = micro.aligned((4, 16), np.uint32)
        report = self.store(0, whole[:, :12])
        self.assertIn("out_of_bounds", micro.kinds(report))
        self.assertIn("padding", " ".join(f.message for f in report.findings))

    def test_misaligned(self):
        self.assertIn(
            "misuse", micro.kinds(self.store(2, micro.aligned((64,), np.uint32)))
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


instantiate_parametrized_tests(SharedMemoryTest)
instantiate_parametrized_tests(BarrierTest)
instantiate_parametrized_tests(TmaTest)
instantiate_parametrized_tests(BoxStartTest)
instantiate_parametrized_tests(LaunchControlTest)

if __name__ == "__main__":
    run_tests()
