"""sm_100a instructions, one at a time: tcgen05.mma of every kind with scale factors,
packed f32 arithmetic, narrow-float conversions, approximate functions.
"""

from __future__ import annotations

import _paths  # noqa: F401
import blackwell_ptx
import hopper_ptx
import micro
import numpy as np
import torch
from blackwell_ptx import Kind
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)

HALVES = np.array([*blackwell_ptx.E2M1, *-blackwell_ptx.E2M1], np.float32)


class MmaTest(TestCase):
    @parametrize("kind", [subtest(k, name=str(k)) for k in blackwell_ptx.KERNELS])
    def test_kind(self, kind: Kind):
        for mode in ("lazy", "random:1"):
            found, wanted, findings = blackwell_ptx.simulate(kind, mode)
            self.assertEqual(findings, [], mode)
            np.testing.assert_array_equal(found.astype(float), wanted, mode)
            self.assertGreater(len(np.unique(wanted)), 100)


class ValuesTest(TestCase):
    def evaluate(self, body: str, values: np.ndarray) -> np.ndarray:
        """%r10, %r11 = two words a thread; returns %r20."""
        data, out = micro.aligned((32, 2), np.uint32), micro.aligned((32,), np.uint32)
        data[...] = values.reshape(32, 2)
        load = """mul.wide.u32 %rd10, %r200, 8;
        add.s64 %rd10, %rd60, %rd10;
        ld.global.v2.b32 {%r10, %r11}, [%rd10];"""
        store = hopper_ptx._store(["%r20"])
        report = micro.run(
            "\n".join([hopper_ptx.THREAD, load, body, store]), [data, out], outputs=[1]
        )
        self.assertEqual(report.findings, ())
        return out

    def pairs(self) -> np.ndarray:
        rng = np.random.default_rng(3)
        return (rng.standard_normal((32, 2)) * 3).astype(np.float32)

    def test_packed_f32(self):
        """Both halves of f32x2: each is as the scalar instruction."""
        f = self.pairs()
        x, y = f[:, 0], f[:, 1]
        wide = x.astype(np.float64)
        cases = {
            "add.rn.f32x2 %rd2, %rd1, %rd1;": (x + x, y + y),
            "mul.rn.f32x2 %rd2, %rd1, %rd1;": (x * x, y * y),
            "fma.rn.f32x2 %rd2, %rd1, %rd1, %rd1;": (
                (wide * x + x).astype(np.float32),
                (y.astype(np.float64) * y + y).astype(np.float32),
            ),
        }
        for text, wanted in cases.items():
            for half in (0, 1):
                body = f"mov.b64 %rd1, {{%r10, %r11}};\n{text}\n"
                body += f"mov.b64 {{%r2{half}, %r2{1 - half}}}, %rd2;"
                got = self.evaluate(body, f.view(np.uint32)).view(np.float32)
                np.testing.assert_array_equal(got, wanted[half], text)

    def nearest(self, value: float, table: np.ndarray) -> int:
        """Code of the nearest value, ties to the even code, the sign apart."""
        sizes = np.abs(table[: len(table) // 2])
        order = np.abs(sizes - min(abs(value), sizes.max()))
        best = np.flatnonzero(order == order.min())
        code = int(next((c for c in best if c % 2 == 0), best[0]))
        return code + len(table) // 2 * bool(np.signbit(value))

    @parametrize("name", ["e2m1", "e2m3", "e3m2"])
    def test_to_narrow(self, name: str):
        f = self.pairs()
        f[:8] = [
            [0.25, -0.0],
            [0.75, 5],
            [7, -100],
            [2.5, 3.5],
            [-0.25, 1.25],
            [np.inf, -np.inf],
            [1e-30, -1e-30],
            [0.0625, 0.1875],
        ]
        table = blackwell_ptx.table(name)
        width = 4 if name == "e2m1" else 8
        if name == "e2m1":
            body = """.reg .b8 %b1; cvt.rn.satfinite.e2m1x2.f32 %b1, %r10, %r11;
            mov.b32 %r20, {%b1, 0, 0, 0};"""
        else:
            body = f"cvt.rn.satfinite.{name}x2.f32 %rs1, %r10, %r11;"
            body += "cvt.u32.u16 %r20, %rs1;"
        got = self.evaluate(body, f.view(np.uint32))
        wanted = [
            self.nearest(a, table) << width | self.nearest(b, table) for a, b in f
        ]
        self.assertEqual(got.tolist(), wanted)

    def test_nan_has_no_code_in_fp4(self):
        f = np.full((32, 2), np.nan, np.float32)
        body = """.reg .b8 %b1; cvt.rn.satfinite.e2m1x2.f32 %b1, %r10, %r11;
        mov.b32 %r20, {%b1, 0, 0, 0};"""
        self.assertEqual(set(self.evaluate(body, f.view(np.uint32)).tolist()), {0x77})

    def test_from_narrow(self):
        codes = np.arange(32, dtype=np.uint32) * 8 + 3
        words = np.stack([codes, codes], 1)
        body = """.reg .b8 %b<4>; mov.b32 {%b0, %b1, %b2, %b3}, %r10;
        cvt.rn.f16x2.e2m1x2 %r20, %b0;"""
        got = self.evaluate(body, words).view(np.float16).reshape(32, 2)
        wanted = np.stack([HALVES[codes & 15], HALVES[codes >> 4 & 15]], 1)
        np.testing.assert_array_equal(got.astype(np.float32), wanted)

    @parametrize("name", ["rcp.approx.ftz.f32", "tanh.approx.f32", "ex2.approx.f32"])
    def test_approximate_functions(self, name: str):
        f = self.pairs()
        got = self.evaluate(f"{name} %r20, %r10;", f.view(np.uint32)).view(np.float32)
        x = torch.from_numpy(f[:, 0].astype(np.float64))
        function = {"rcp": torch.reciprocal, "tanh": torch.tanh, "ex2": torch.exp2}
        wanted = function[name.split(".")[0]](x).numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


instantiate_parametrized_tests(MmaTest)
instantiate_parametrized_tests(ValuesTest)

if __name__ == "__main__":
    run_tests()
