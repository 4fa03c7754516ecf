"""Zeros, subnormals, NaNs and rounding of float instructions in the simulator.

``H200`` are words that an H200 gave (``benchmarks/results/ptx_vs_gpu.jsonl``); the rest
follows from the PTX manual and exact arithmetic.
"""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction

import _paths  # noqa: F401
import hopper_ptx
import micro
import numpy as np
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

from torch_cute_backend.sim.report import UnsupportedPtx

H200 = {
    "mul_ftz": (4, 0x80000000),
    "max_f32": (0, 0x00000000),
    "min_f32": (0, 0x80000000),
    "cvt_e4m3_relu": (0, 0x0000),
    "cvt_f16x2_e4m3": (81, 0x30807FFF),
    "cvt_f16x2_e5m2": (15, 0xDB007FFF),
    "fma_bf16x2": (11, 0xCFDF0000),
}
ONE, MINUS_ZERO, NAN, MINUS_NAN = 0x3F800000, 0x80000000, 0x7FC00000, 0xFFC00000
TINY, MINUS_TINY, SMALLEST = 0x00000001, 0x80700000, 0x00800000
HALF = 0x3F000000
CANONICAL = 0x7FFFFFFF
FLUSHED = {
    "add.rn.ftz.f32 %r12, %r10, %r11;": {
        (TINY, TINY): 0,
        (MINUS_TINY, MINUS_TINY): MINUS_ZERO,
        (SMALLEST, TINY): SMALLEST,
        (0x00800001, 0x80800000): 0,
    },
    "sub.rn.ftz.f32 %r12, %r10, %r11;": {
        (MINUS_TINY, 0): MINUS_ZERO,
        (0x80800001, 0x80800000): MINUS_ZERO,
    },
    "mul.rn.ftz.f32 %r12, %r10, %r11;": {
        (TINY, 0x7F000000): 0,
        (MINUS_TINY, ONE): MINUS_ZERO,
        (0x80800000, HALF): MINUS_ZERO,
        (TINY, 0x7F800000): CANONICAL,
    },
    "fma.rn.ftz.f32 %r12, %r10, %r11, %r11;": {
        (TINY, ONE): ONE,
        (0, MINUS_TINY): MINUS_ZERO,
    },
    "fma.rn.ftz.f32 %r12, %r10, %r11, 0f80000000;": {
        (0x80800000, HALF): MINUS_ZERO,
        (SMALLEST, HALF): 0,
    },
    "max.ftz.f32 %r12, %r10, %r11;": {(TINY, MINUS_TINY): 0, (TINY, ONE): ONE},
    "min.ftz.f32 %r12, %r10, %r11;": {(TINY, MINUS_TINY): MINUS_ZERO, (TINY, ONE): 0},
    "abs.ftz.f32 %r12, %r10;": {(MINUS_TINY, 0): 0},
    "neg.ftz.f32 %r12, %r10;": {(TINY, 0): MINUS_ZERO, (MINUS_TINY, 0): 0},
    "rcp.approx.ftz.f32 %r12, %r10;": {(MINUS_TINY, 0): 0xFF800000},
    "cvt.rpi.ftz.f32.f32 %r12, %r10;": {(TINY, 0): 0},
    "cvt.rpi.ftz.s32.f32 %r12, %r10;": {(TINY, 0): 0, (SMALLEST, 0): 1},
    "setp.eq.ftz.f32 %p9, %r10, %r11; selp.b32 %r12, 1, 0, %p9;": {
        (TINY, MINUS_TINY): 1,
        (SMALLEST, TINY): 0,
    },
    "add.rn.ftz.f16x2 %r12, %r10, %r11;": {
        (0x83FF0001, 0x83FF0001): 0x80000000,
        (0x04018401, 0x84000400): 0x00008000,
    },
    "fma.rn.ftz.f16x2 %r12, %r10, %r11, %r11;": {(0x3C003C00, 0x03FF8001): 0x00008000},
    "max.ftz.f16x2 %r12, %r10, %r11;": {(0x00010400, 0x80010001): 0x00000400},
    "mov.b64 %rd1, {%r10, %r11}; mul.rn.ftz.f32x2 %rd2, %rd1, %rd1; "
    "mov.b64 {%r12, %r13}, %rd2;": {(0x20000000, 0): 0x00800000, (0x1FFFFFFF, 0): 0},
    "mov.b64 %rd1, {%r10, %r11}; fma.rn.ftz.f32x2 %rd2, %rd1, %rd1, %rd1; "
    "mov.b64 {%r13, %r12}, %rd2;": {(0, TINY): 0, (0, ONE): 0x40000000},
}
"""Instructions with .ftz: results by operands %r10 and %r11."""
EXTREMES = {
    "max{}.f32 %r12, %r10, %r11;": {
        (0, MINUS_ZERO): (0, 0),
        (MINUS_ZERO, 0): (0, 0),
        (MINUS_ZERO, MINUS_ZERO): (MINUS_ZERO, MINUS_ZERO),
        (MINUS_NAN, ONE): (ONE, CANONICAL),
        (ONE, NAN): (ONE, CANONICAL),
        (NAN, MINUS_NAN): (CANONICAL, CANONICAL),
        (TINY, MINUS_TINY): (TINY, TINY),
    },
    "min{}.f32 %r12, %r10, %r11;": {
        (0, MINUS_ZERO): (MINUS_ZERO, MINUS_ZERO),
        (MINUS_ZERO, 0): (MINUS_ZERO, MINUS_ZERO),
        (0, 0): (0, 0),
        (MINUS_NAN, ONE): (ONE, CANONICAL),
        (NAN, MINUS_NAN): (CANONICAL, CANONICAL),
    },
    "max{}.f16x2 %r12, %r10, %r11;": {
        (0x00008000, 0x80000000): (0, 0),
        (0x7E003C00, 0x3C00FE01): (0x3C003C00, 0x7FFF7FFF),
        (0x7E01FE00, 0x7C01FC01): (0x7FFF7FFF, 0x7FFF7FFF),
    },
    "min{}.f16x2 %r12, %r10, %r11;": {
        (0x00008000, 0x80000000): (0x80008000, 0x80008000),
        (0x7E003C00, 0x3C00FE01): (0x3C003C00, 0x7FFF7FFF),
    },
    "max{}.bf16x2 %r12, %r10, %r11;": {
        (0x00008000, 0x80000000): (0, 0),
        (0x7FC03F80, 0x3F80FFC1): (0x3F803F80, 0x7FFF7FFF),
        (0x7FC1FFC0, 0x7F81FF81): (0x7FFF7FFF, 0x7FFF7FFF),
    },
    "min{}.bf16x2 %r12, %r10, %r11;": {
        (0x00008000, 0x80000000): (0x80008000, 0x80008000),
    },
}
"""Results without and with .NaN."""
NARROW = "{} %rs3, %r10, %r11; cvt.u32.u16 %r12, %rs3;"
WIDE = "cvt.u16.u32 %rs1, %r10; {} %r12, %rs1;"
SCALAR = "{} %rs3, %r10; cvt.u32.u16 %r12, %rs3;"
CONVERTED = {
    NARROW.format("cvt.rn.satfinite.relu.e4m3x2.f32"): {
        (MINUS_ZERO, ONE): 0x0038,
        (MINUS_NAN, 0xBF800000): 0x7F00,
        (MINUS_TINY, NAN): 0x007F,
    },
    NARROW.format("cvt.rn.satfinite.relu.e5m2x2.f32"): {
        (MINUS_ZERO, ONE): 0x003C,
        (MINUS_NAN, 0xFF800000): 0x7F00,
    },
    NARROW.format("cvt.rn.satfinite.e5m2x2.f32"): {(MINUS_NAN, MINUS_ZERO): 0x7F80},
    "cvt.rn.relu.bf16x2.f32 %r12, %r10, %r11;": {
        (MINUS_ZERO, MINUS_NAN): 0x00007FFF,
        (0xBF800000, ONE): 0x00003F80,
    },
    "cvt.rn.relu.f16x2.f32 %r12, %r10, %r11;": {
        (MINUS_ZERO, MINUS_NAN): 0x00007FFF,
        (0xBF800000, ONE): 0x00003C00,
    },
    "cvt.rn.f16x2.f32 %r12, %r10, %r11;": {(NAN, MINUS_NAN): 0x7FFF7FFF},
    "cvt.rn.bf16x2.f32 %r12, %r10, %r11;": {(0x7F800001, MINUS_NAN): 0x7FFF7FFF},
    SCALAR.format("cvt.rn.f16.f32"): {(MINUS_NAN, 0): 0x7FFF, (ONE, 0): 0x3C00},
    SCALAR.format("cvt.rn.bf16.f32"): {(MINUS_NAN, 0): 0x7FFF},
    SCALAR.format("cvt.rn.relu.f16.f32"): {(MINUS_ZERO, 0): 0, (MINUS_NAN, 0): 0x7FFF},
    SCALAR.format("cvt.rn.relu.bf16.f32"): {(0xBF800000, 0): 0, (ONE, 0): 0x3F80},
    WIDE.format("cvt.rn.f16x2.e4m3x2"): {
        (0xFF7F, 0): 0x7FFF7FFF,
        (0x8038, 0): 0x80003C00,
    },
    WIDE.format("cvt.rn.f16x2.e5m2x2"): {
        (0xFD7E, 0): 0x7FFF7FFF,
        (0xFC7C, 0): 0xFC007C00,
    },
    WIDE.format("cvt.rn.relu.f16x2.e4m3x2"): {(0xB880, 0): 0, (0xFF38, 0): 0x7FFF3C00},
}
REFUSED = (
    "cvt.rn.satfinite.f16x2.f32 %r12, %r10, %r11;",
    "cvt.rz.f16x2.f32 %r12, %r10, %r11;",
    SCALAR.format("cvt.rz.f16.f32"),
    SCALAR.format("cvt.rm.bf16.f32"),
    "cvt.relu.f32.f32 %r12, %r10;",
    "fma.rn.ftz.bf16x2 %r12, %r10, %r11, %r11;",
    "fma.rn.relu.f16x2 %r12, %r10, %r11, %r11;",
)


def compute(line: str, *operands: np.ndarray) -> np.ndarray:
    """``%r12`` of 32 lanes, with the operands in ``%r10``, ``%r11``, ..."""
    pairs = micro.aligned((32, 4), np.uint32)
    for i, operand in enumerate(operands):
        pairs[:, i] = operand
    out = micro.aligned((32,), np.uint32, 0xDEADBEEF)
    body = f"""
    mov.u32 %r200, %tid.x;
    ld.param.u64 %rd60, [p0];
    ld.param.u64 %rd61, [p1];
    mul.wide.u32 %rd62, %r200, 16;
    add.s64 %rd62, %rd60, %rd62;
    ld.global.v4.b32 {{%r10, %r11, %r14, %r15}}, [%rd62];
    {line}
    mul.wide.u32 %rd63, %r200, 4;
    add.s64 %rd63, %rd61, %rd63;
    st.global.b32 [%rd63], %r12;
    """
    report = micro.run(body, [pairs, out], outputs=[1])
    assert micro.kinds(report) == []
    return out


class FloatsTest(TestCase):
    @parametrize("name", list(H200))
    def test_words_of_an_h200(self, name):
        kernel = next(k for k in hopper_ptx.KERNELS if k.name == name)
        word, value = H200[name]
        self.assertEqual(hex(hopper_ptx.simulate(kernel)[0][word]), hex(value))

    def check(self, line: str, cases: dict[tuple[int, int], int]) -> None:
        """Lane by lane, and with operands that are the same in all lanes."""
        keys = list(cases)
        lanes = [keys[i % len(keys)] for i in range(32)]
        left, right = (np.array(part, np.uint32) for part in zip(*lanes, strict=True))
        got = compute(line, left, right)
        for i, (a, b) in enumerate(lanes):
            self.same(got[i], cases[a, b], line, (a, b))
        for a, b in keys:
            fixed = f"mov.b32 %r10, {a}; mov.b32 %r11, {b}; {line}"
            got = compute(fixed, left, right)
            for word in got:
                self.same(word, cases[a, b], fixed, (a, b))

    def same(self, got: int, wanted: int, line: str, operands: tuple[int, int]):
        if wanted == CANONICAL and "max" not in line and "min" not in line:
            got = wanted if (got & CANONICAL) > 0x7F800000 else got
        shown = [hex(x) for x in operands]
        self.assertEqual(hex(got), hex(wanted), f"{line} of {shown}")

    @parametrize("line", list(FLUSHED))
    def test_ftz(self, line):
        self.check(line, FLUSHED[line])

    @parametrize("line", list(EXTREMES))
    def test_extremes(self, line):
        for i, form in enumerate(("", ".NaN")):
            cases = {key: both[i] for key, both in EXTREMES[line].items()}
            self.check(line.format(form), cases)

    @parametrize("line", list(CONVERTED))
    def test_conversions(self, line):
        self.check(line, CONVERTED[line])

    @parametrize("line", list(REFUSED))
    def test_refused(self, line):
        with self.assertRaises(UnsupportedPtx):
            compute(line, np.zeros(32, np.uint32))

    @parametrize("kind", ["bf16", "f16"])
    def test_half_fma_rounds_once(self, kind):
        """Against exact fractions, on sums near ties, where two roundings differ."""
        values = numbers(kind)
        finite = {bits: v for bits, v in enumerate(values) if np.isfinite(v)}
        ladder = sorted((Fraction(float(v)), b) for b, v in finite.items() if b < 32768)
        x, y, z = near_ties(kind)
        line = f"fma.rn.{kind}x2 %r12, %r10, %r11, %r14;"
        got = np.concatenate(
            [
                compute(line, *(part[i : i + 32] for part in (x, y, z)))
                for i in range(0, len(x), 32)
            ]
        )
        twice = 0
        for a, b, c, found in zip(x, y, z, got, strict=True):
            for shift in (0, 16):
                p, q, r = (int(word) >> shift & 65535 for word in (a, b, c))
                exact = Fraction(float(values[p])) * Fraction(float(values[q]))
                exact += Fraction(float(values[r]))
                wanted = nearest(exact, ladder)
                self.assertEqual(hex(int(found) >> shift & 65535), hex(wanted))
                single = np.float32(values[p]) * values[q] + values[r]
                twice += nearest(Fraction(float(single)), ladder) != wanted
        self.assertGreater(twice, 10)

    def test_f32_fma_rounds_once(self):
        """A tie of f32 and an addend that f64 has no digits for."""
        x = 0x3F800800  # 1 + 2^-12: its square has a tie at 2^-24.
        for addend, wanted in ((TINY, 0x3F801001), (0x80000001, 0x3F801000)):
            line = f"mov.b32 %r11, {addend}; fma.rn.f32 %r12, %r10, %r10, %r11;"
            got = compute(line, np.full(32, x, np.uint32))
            self.assertEqual({hex(word) for word in got}, {hex(wanted)})


def numbers(kind: str) -> np.ndarray:
    """f32 value of each 16-bit code."""
    codes = np.arange(65536, dtype=np.uint32)
    if kind == "bf16":
        return (codes << np.uint32(16)).view(np.float32)
    return codes.astype(np.uint16).view(np.float16).astype(np.float32)


def near_ties(kind: str) -> list[np.ndarray]:
    """Packed operands: products that are ties beside addends far below f32's digits of
    them, and any operands of moderate size.
    """
    rng = np.random.default_rng(3)
    digits, bias = (7, 127) if kind == "bf16" else (10, 15)
    factors = np.arange(1 << digits, 2 << digits)
    products = factors[:, None] * factors
    half = np.where(products >> 2 * digits + 1, 1 << digits, 1 << digits - 1)
    ties = np.argwhere(products % (2 * half) == half)
    count = 320
    x, y = ties[rng.integers(0, len(ties), count)].T + (bias + 4 << digits)
    z = rng.integers(1, 8, count)  # Subnormal.
    any_size = rng.integers(0, 2, count).astype(bool)
    others = rng.integers(bias - 4 << digits, bias + 5 << digits, (3, count))
    x, y, z = (np.where(any_size, b, a) for a, b in zip((x, y, z), others, strict=True))
    signs = rng.integers(0, 2, (2, count)) << 15
    x, z = x | signs[0], z | signs[1]
    return [part.astype(np.uint16).view(np.uint32) for part in (x, y, z)]


def nearest(exact: Fraction, ladder: list[tuple[Fraction, int]]) -> int:
    """16-bit code of the number nearest to ``exact``, the even one of two."""
    sign, size = (0x8000, -exact) if exact < 0 else (0, exact)
    at = bisect_left(ladder, (size, 0))
    low, high = ladder[at - 1] if at else ladder[0], ladder[at]
    below, above = size - low[0], high[0] - size
    if below == above:
        return sign | (high[1] if low[1] & 1 else low[1])
    return sign | (low[1] if below < above else high[1])


instantiate_parametrized_tests(FloatsTest)

if __name__ == "__main__":
    run_tests()
