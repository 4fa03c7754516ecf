"""Hand-written PTX: values, divergence, global memory."""

from __future__ import annotations

import _paths  # noqa: F401
import micro
import numpy as np
from torch.testing._internal.common_utils import TestCase, run_tests

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


if __name__ == "__main__":
    run_tests()
