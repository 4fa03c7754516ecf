"""``KERNELS``: small hand-written sm_90a kernels that pin down what instructions mean.

Each runs in the simulator and on a GPU; both must give the same bits (approximate
functions: within some units in the last place), and what ``expected`` computes from the
PTX manual's own layouts, independently of the simulator. They cover what our GEMMs do
not use: wgmma with tf32, 8-bit integers, A in registers, every swizzle and both majors;
ldmatrix and stmatrix; conversions and arithmetic with special values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import micro
import numpy as np
import torch

THREADS = 128
FILL_BYTES = 16384
TARGET = "sm_90a"


@dataclass(frozen=True)
class PtxKernel:
    """A kernel body with parameters ``p0`` (in) and ``p1`` (out, 32-bit words).

    ``ulps``: how far results may be apart, as f32 numbers; 0 asks for equal bits.
    ``floats``: ``f32``, ``f16x2`` or ``bf16x2`` where a word holds results of
    arithmetic: hardware has one NaN of its own, so there any NaN is like another.
    """

    name: str
    body: str
    data: np.ndarray
    out_words: int
    expected: Callable[[], np.ndarray] | None = None
    ulps: int = 0
    floats: str = ""

    @property
    def text(self) -> str:
        return micro.text(self.body, [8, 8], TARGET)


THREAD = """
mov.u32 %r200, %tid.x;
ld.param.u64 %rd60, [p0];
ld.param.u64 %rd61, [p1];
"""


def _fill(size: int) -> str:
    """Copy ``size`` bytes of p0 to shared memory, and make them visible to wgmma."""
    lines = ["shl.b32 %r201, %r200, 4;", "mov.b32 %r202, smem;"]
    lines += ["add.s32 %r202, %r202, %r201;", "cvt.u64.u32 %rd62, %r201;"]
    lines += ["add.s64 %rd62, %rd60, %rd62;"]
    quad = "{%r204, %r205, %r206, %r207}"
    for at in range(0, size, THREADS * 16):
        lines += [f"ld.global.v4.b32 {quad}, [%rd62+{at}];"]
        lines += [f"st.shared.v4.b32 [%r202+{at}], {quad};"]
    return "\n".join([*lines, "fence.proxy.async.shared::cta;", "bar.sync 0;"])


def _store(registers: list[str]) -> str:
    """Thread t writes its words to p1[t * count ...]."""
    lines = [f"mul.wide.u32 %rd63, %r200, {4 * len(registers)};"]
    lines += ["add.s64 %rd63, %rd61, %rd63;"]
    lines += [
        f"st.global.b32 [%rd63+{4 * i}], {name};" for i, name in enumerate(registers)
    ]
    return "\n".join(lines)


# wgmma: D is 64 x 16, K covers whole swizzle rows.

N = 16
_TYPES = {
    "bf16": (2, 16),
    "f16": (2, 16),
    "tf32": (4, 8),
    "e4m3": (1, 32),
    "e5m2": (1, 32),
    "s8": (1, 32),
    "u8": (1, 32),
}
"""Bytes of an element, K of one instruction."""
_CODES = {0: 0, 128: 1, 64: 2, 32: 3}


def _bytes(values: np.ndarray, kind: str) -> np.ndarray:
    """(rows, k) small integers to (rows, k * size) bytes."""
    made = torch.from_numpy(values.astype(np.float32))
    torch_kinds = {
        "bf16": torch.bfloat16,
        "f16": torch.float16,
        "tf32": torch.float32,
        "e4m3": torch.float8_e4m3fn,
        "e5m2": torch.float8_e5m2,
        "s8": torch.int8,
        "u8": torch.uint8,
    }
    return made.to(torch_kinds[kind]).view(torch.uint8).numpy()


def _swizzled(address: int, swizzle: int) -> int:
    """PTX manual: XOR bits 4.. of an address with bits 7.. of it."""
    return address ^ (address >> 7 & swizzle // 16 - 1) << 4 if swizzle else address


@dataclass(frozen=True)
class Layout:
    """An operand in shared memory and the strides of its descriptor, in bytes."""

    swizzle: int
    mn_major: bool = False

    def place(self, smem: np.ndarray, base: int, matrix: np.ndarray, size: int) -> None:
        """Write a (rows, k * size) byte matrix as the manual lays it out."""
        rows, width = matrix.shape
        for row in range(rows):
            for k in range(width // size):
                for byte in range(size):
                    at = base + self.offset(row, k * size + byte, k, byte, size)
                    smem[_swizzled(at, self.swizzle)] = matrix[row, k * size + byte]

    def offset(self, row: int, k_byte: int, k: int, byte: int, size: int) -> int:
        if self.mn_major:
            lead, stride = self.strides()
            mn_byte = row * size + byte
            span = mn_byte // self.swizzle * lead + mn_byte % self.swizzle
            return span + k // 8 * stride + k % 8 * self.swizzle
        if self.swizzle:
            return row // 8 * 8 * self.swizzle + row % 8 * self.swizzle + k_byte
        core = row // 8 * 256 + k_byte // 16 * 128
        return core + row % 8 * 16 + k_byte % 16

    def strides(self) -> tuple[int, int]:
        """(leading, stride) byte offsets."""
        if self.mn_major:
            # Two groups of eight k rows, then the next span along m or n.
            return 16 * self.swizzle, 8 * self.swizzle
        return (16, 8 * self.swizzle) if self.swizzle else (128, 256)

    def descriptor(self, base: int) -> int:
        lead, stride = self.strides()
        word = base >> 4 | lead >> 4 << 16 | stride >> 4 << 32
        return word | _CODES[self.swizzle] << 62


B_BASE = 8192


def _wgmma(
    a_kind: str, b_kind: str, a: Layout, b: Layout, from_registers: bool = False
) -> PtxKernel:
    size, k = _TYPES[a_kind]
    steps = max(1, min(a.swizzle, b.swizzle) // 32) if not a.mn_major else 1
    if b.mn_major or from_registers:
        steps = 1
    rng = np.random.default_rng(len(a_kind) + 10 * a.swizzle + b.swizzle)
    low = 0 if "u8" in (a_kind, b_kind) else -3
    left = rng.integers(low, 4, (64, k * steps))
    right = rng.integers(low, 4, (N, k * steps))
    smem = np.zeros(FILL_BYTES, np.uint8)
    a.place(smem, 0, _bytes(left, a_kind), size)
    b.place(smem, B_BASE, _bytes(right, b_kind), size)
    fragment = _fragment(_bytes(left, a_kind)[:, : k * size])
    data = np.concatenate([smem, fragment.reshape(-1)])
    d_kind = "s32" if a_kind in ("s8", "u8") else "f32"
    wanted = (left @ right.T).astype(np.int32 if d_kind == "s32" else np.float32)
    layout = [a, b] if not from_registers else [b]
    name = f"wgmma_{a_kind}_{b_kind}_" + "_".join(
        f"{'mn' if one.mn_major else 'k'}{one.swizzle}" for one in layout
    )
    return PtxKernel(
        name + ("_rs" if from_registers else ""),
        _wgmma_body(a_kind, b_kind, d_kind, a, b, steps, from_registers),
        data,
        THREADS * N // 2,
        lambda: _d_fragment(wanted),
    )


def _wgmma_body(
    a_kind: str,
    b_kind: str,
    d_kind: str,
    a: Layout,
    b: Layout,
    steps: int,
    from_registers: bool,
) -> str:
    d = [f"%r{i}" for i in range(N // 2)]
    k = _TYPES[a_kind][1]
    lines = [THREAD, _fill(FILL_BYTES)]
    if from_registers:
        lines += ["mul.wide.u32 %rd10, %r200, 16;", "add.s64 %rd10, %rd60, %rd10;"]
        quad = "{%r20, %r21, %r22, %r23}"
        lines += [f"ld.global.v4.b32 {quad}, [%rd10+{FILL_BYTES}];"]
    for place, layout, base in ((1, a, 0), (2, b, B_BASE)):
        lines += [f"mov.b32 %r30, smem;\nadd.s32 %r30, %r30, {base};"]
        lines += ["shr.u32 %r30, %r30, 4;", f"cvt.u64.u32 %rd{place}, %r30;"]
        lines += [f"or.b64 %rd{place}, %rd{place}, {layout.descriptor(0)};"]
    lines += ["mov.u32 %r31, %ntid.x;", "setp.eq.u32 %p1, %r31, 0;"]
    lines += ["setp.ne.u32 %p2, %r31, 0;"]
    lines += ["wgmma.fence.sync.aligned;"]
    flags = "" if d_kind == "s32" else ", 1, 1"
    if a_kind in ("bf16", "f16"):
        flags += "" if from_registers else f", {int(a.mn_major)}"
        flags += f", {int(b.mn_major)}"
    for step in range(steps):
        if step:
            lines += ["add.s64 %rd1, %rd1, 2;", "add.s64 %rd2, %rd2, 2;"]
        source = "{%r20, %r21, %r22, %r23}" if from_registers else "%rd1"
        lines += [
            f"wgmma.mma_async.sync.aligned.m64n{N}k{k}.{d_kind}.{a_kind}.{b_kind} "
            f"{{{', '.join(d)}}}, {source}, %rd2, %p{2 if step else 1}{flags};"
        ]
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    return "\n".join([*lines, _store(d)])


def _fragment(matrix: np.ndarray) -> np.ndarray:
    """(64, 32) bytes as the four A registers of 128 threads (manual's figure)."""
    out = np.zeros((THREADS, 4, 4), np.uint8)
    for thread in range(THREADS):
        row, group = thread // 32 * 16 + thread % 32 // 4, thread % 4
        for j in range(4):
            at = group * 4 + 16 * (j >> 1)
            out[thread, j] = matrix[row + 8 * (j & 1), at : at + 4]
    return out


def _d_fragment(d: np.ndarray) -> np.ndarray:
    """(64, N) values as the threads' registers."""
    out = np.zeros((THREADS, N // 2), d.dtype)
    for thread in range(THREADS):
        row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
        for i in range(N // 2):
            out[thread, i] = d[row + 8 * (i // 2 % 2), i // 4 * 8 + column + i % 2]
    return out.view(np.uint32)


def _wgmmas() -> Iterator[PtxKernel]:
    for swizzle in _CODES:
        both = Layout(swizzle)
        for kind in ("bf16", "tf32", "e4m3", "s8"):
            yield _wgmma(kind, kind, both, both)
    plain = Layout(128)
    yield _wgmma("f16", "f16", plain, plain)
    for pair in (("e5m2", "e4m3"), ("e4m3", "e5m2"), ("u8", "s8"), ("u8", "u8")):
        yield _wgmma(*pair, plain, plain)
    yield _wgmma("bf16", "bf16", Layout(128, True), Layout(32, True))
    yield _wgmma("f16", "f16", Layout(64, True), plain)
    yield _wgmma("bf16", "bf16", Layout(32, True), Layout(32, True))
    for kind in ("bf16", "f16", "tf32", "e4m3", "e5m2", "s8", "u8"):
        yield _wgmma(kind, kind, plain, plain, from_registers=True)
    yield _wgmma("bf16", "bf16", plain, Layout(32, True), from_registers=True)


# ldmatrix and stmatrix: eight 16-byte rows a matrix, lane i points at row i.

ROW = """
and.b32 %r1, %r200, 31;
shl.b32 %r2, %r1, 4;
mov.b32 %r3, smem;
add.s32 %r4, %r3, %r2;
"""


def _matrices() -> Iterator[PtxKernel]:
    values = np.arange(THREADS * 8, dtype=np.uint16)
    tiles = values[:256].reshape(4, 8, 8)
    quad = [f"%r{10 + i}" for i in range(4)]
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            regs = ", ".join(quad[:count])
            load = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            body = [THREAD, _fill(2048), ROW, f"{load} {{{regs}}}, [%r4];"]
            yield PtxKernel(
                f"ldmatrix_x{count}{trans.replace('.', '_')}",
                "\n".join([*body, _store(quad[:count])]),
                values.view(np.uint8),
                THREADS * count,
                lambda t=tiles, n=count, tr=bool(trans): _loaded(t, n, tr),
            )
            store = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            body = [THREAD, _fill(2048), "setp.lt.u32 %p1, %r200, 32;", ROW]
            body += ["shl.b32 %r5, %r200, 3;"]
            body += [f"add.s32 {name}, %r5, {i}00000;" for i, name in enumerate(quad)]
            body += ["@!%p1 bra SKIP;", f"{store} [%r4], {{{regs}}};", "SKIP:"]
            body += ["bar.sync 0;", "shl.b32 %r6, %r200, 4;", "add.s32 %r6, %r3, %r6;"]
            body += ["ld.shared.v4.b32 {%r20, %r21, %r22, %r23}, [%r6];"]
            yield PtxKernel(
                f"stmatrix_x{count}{trans.replace('.', '_')}",
                "\n".join([*body, _store([f"%r{20 + i}" for i in range(4)])]),
                values.view(np.uint8),
                THREADS * 4,
                lambda v=values, n=count, tr=bool(trans): _stored(v, n, tr),
            )


def _loaded(tiles: np.ndarray, count: int, transposed: bool) -> np.ndarray:
    """Lane l holds elements (l / 4, 2 (l % 4) and the next) of each matrix."""
    parts = [(t.T if transposed else t).reshape(-1).view(np.uint16) for t in tiles]
    words = np.stack([np.ascontiguousarray(p).view(np.uint32) for p in parts[:count]])
    return np.tile(words.T, (4, 1))


def _stored(values: np.ndarray, count: int, transposed: bool) -> np.ndarray:
    smem = values.copy().reshape(-1, 8, 8)
    lanes = np.arange(32, dtype=np.uint32) * 8
    for i in range(count):
        tile = (lanes + np.uint32(i * 100000)).view(np.uint16).reshape(8, 8)
        smem[i] = tile.T if transposed else tile
    return smem.reshape(-1).view(np.uint32).reshape(THREADS, 4)


# One instruction a thread: %r10 in (and %r11 its neighbour), %r20 out.

_EXACT = {
    "add_f32": "add.rn.f32 %r20, %r10, %r11;",
    "mul_f32": "mul.rn.f32 %r20, %r10, %r11;",
    "fma_f32": "fma.rn.f32 %r20, %r10, %r11, %r10;",
    "mul_ftz": "mul.rn.ftz.f32 %r20, %r10, %r11;",
    "min_f32": "min.f32 %r20, %r10, %r11;",
    "max_f32": "max.f32 %r20, %r10, %r11;",
    "sqrt_rn": "sqrt.rn.f32 %r20, %r10;",
    "div_rn": "div.rn.f32 %r20, %r10, %r11;",
    "rcp_rn": "rcp.rn.f32 %r20, %r10;",
    "cvt_e4m3": "cvt.rn.satfinite.e4m3x2.f32 %rs1, %r10, %r11; cvt.u32.u16 %r20, %rs1;",
    "cvt_e5m2": "cvt.rn.satfinite.e5m2x2.f32 %rs1, %r10, %r11; cvt.u32.u16 %r20, %rs1;",
    "cvt_e4m3_relu": (
        "cvt.rn.satfinite.relu.e4m3x2.f32 %rs1, %r10, %r11; cvt.u32.u16 %r20, %rs1;"
    ),
    "cvt_f16x2_e4m3": "cvt.u16.u32 %rs1, %r10; cvt.rn.f16x2.e4m3x2 %r20, %rs1;",
    "cvt_f16x2_e5m2": "cvt.u16.u32 %rs1, %r10; cvt.rn.f16x2.e5m2x2 %r20, %rs1;",
    "cvt_bf16x2": "cvt.rn.bf16x2.f32 %r20, %r10, %r11;",
    "cvt_bf16x2_rz": "cvt.rz.bf16x2.f32 %r20, %r10, %r11;",
    "cvt_f16x2": "cvt.rn.f16x2.f32 %r20, %r10, %r11;",
    "cvt_bf16x2_relu": "cvt.rn.relu.bf16x2.f32 %r20, %r10, %r11;",
    "cvt_rni": "cvt.rni.f32.f32 %r20, %r10;",
    "cvt_sat": "cvt.sat.f32.f32 %r20, %r10;",
    "cvt_s32": "cvt.rzi.s32.f32 %r20, %r10;",
    "cvt_u32": "cvt.rni.u32.f32 %r20, %r10;",
    "cvt_from_s32": "cvt.rn.f32.s32 %r20, %r10;",
    "cvt_from_u32": "cvt.rn.f32.u32 %r20, %r10;",
    "fma_bf16x2": "fma.rn.bf16x2 %r20, %r10, %r11, %r10;",
    "fma_f16x2": "fma.rn.f16x2 %r20, %r10, %r11, %r10;",
    "add_f16x2": "add.rn.f16x2 %r20, %r10, %r11;",
    "mul_f16x2": "mul.rn.f16x2 %r20, %r10, %r11;",
    "mul_hi": "mul.hi.u32 %r20, %r10, %r11;",
    "mad_lo": "mad.lo.s32 %r20, %r10, %r11, %r10;",
    "prmt": "prmt.b32 %r20, %r10, %r11, 0x9532;",
    "lop3": "lop3.b32 %r20, %r10, %r11, 12345, 0x96;",
    "shf_l": "shf.l.wrap.b32 %r20, %r10, %r11, 13;",
    "bfe": "bfe.s32 %r20, %r10, 5, 11;",
    "bfi": "bfi.b32 %r20, %r10, %r11, 7, 9;",
    "popc": "popc.b32 %r20, %r10;",
    "clz": "clz.b32 %r20, %r10;",
    "brev": "brev.b32 %r20, %r10;",
    "shfl_bfly": "shfl.sync.bfly.b32 %r20, %r10, 5, 31, -1;",
    "shfl_up": "shfl.sync.up.b32 %r20, %r10, 3, 0, -1;",
    "shfl_idx": "shfl.sync.idx.b32 %r20, %r10, 7, 31, -1;",
    "redux": "redux.sync.add.s32 %r20, %r10, -1;",
    "ballot": "setp.lt.s32 %p3, %r10, 0; vote.sync.ballot.b32 %r20, %p3, -1;",
}
_F32 = ("mul_ftz", "sqrt_rn", "div_rn", "rcp_rn", "cvt_rni")
_NANS = {
    "f32": (np.uint32, 0x7F800000),
    "bf16x2": (np.uint16, 0x7F80),
    "f16x2": (np.uint16, 0x7C00),
}
"""Word of one number, and its bits in an infinity."""
_APPROXIMATE = {
    "ex2": ("ex2.approx.ftz.f32 %r20, %r10;", 4),
    "lg2": ("lg2.approx.ftz.f32 %r20, %r10;", 1 << 10),
    "rcp": ("rcp.approx.ftz.f32 %r20, %r10;", 2),
    "rsqrt": ("rsqrt.approx.ftz.f32 %r20, %r10;", 4),
    "sqrt": ("sqrt.approx.ftz.f32 %r20, %r10;", 4),
    "tanh": ("tanh.approx.f32 %r20, %r10;", 1 << 14),
    "div_full": ("div.full.f32 %r20, %r10, %r11;", 4),
}
"""With a bound on the distance: tanh.approx is good to about 2^-11, and lg2.approx has
an absolute error, which is many units where the result is near 0."""


def _scalars() -> Iterator[PtxKernel]:
    rng = np.random.default_rng(7)
    values = (rng.standard_normal(256) * 2.0 ** rng.integers(-12, 12, 256)).astype(
        np.float32
    )
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 464.0, 480.0, -465.0]
    special += [1e-40, -1e-40, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 65504.0, 65520.0]
    special += [57344.0, 61440.0, 2.0**-17, 0.5, 1.5, 2.5, -2.5, 3e9, -3e9, 1e38]
    values[: len(special)] = special
    load = [THREAD, "mul.wide.u32 %rd10, %r200, 8;", "add.s64 %rd10, %rd60, %rd10;"]
    load += ["ld.global.v2.b32 {%r10, %r11}, [%rd10];"]
    for name, body in _EXACT.items():
        text = "\n".join([*load, body, _store(["%r20"])])
        floats = next((f for f in _NANS if name.endswith(f)), "")
        if name in _F32:
            floats = "f32"
        yield PtxKernel(name, text, values.view(np.uint8), THREADS, None, 0, floats)
    finite = np.abs(values)
    finite = np.where(np.isfinite(finite) & (finite > 1e-30), finite, np.float32(1))
    small = (np.minimum(finite, np.float32(60)) + np.float32(0.125)).astype(np.float32)
    for name, (body, ulps) in _APPROXIMATE.items():
        text = "\n".join([*load, body, _store(["%r20"])])
        yield PtxKernel(name, text, small.view(np.uint8), THREADS, None, ulps)


KERNELS = (*_wgmmas(), *_matrices(), *_scalars())


def simulate(kernel: PtxKernel, mode: str = "lazy") -> tuple[np.ndarray, list[str]]:
    """Output words and the kinds of findings."""
    data = micro.aligned(kernel.data.shape, np.uint8)
    data[...] = kernel.data
    out = micro.aligned((kernel.out_words,), np.uint32, 0xFFFFFFFF)
    report = micro.run(
        kernel.body,
        [data, out],
        outputs=[1],
        threads=THREADS,
        smem_bytes=FILL_BYTES,
        target=TARGET,
        mode=mode,
    )
    return out, micro.kinds(report)


def one_nan(words: np.ndarray, floats: str) -> np.ndarray:
    """``words`` with every NaN made the same."""
    if not floats:
        return words
    kind, infinity = _NANS[floats]
    parts = words.view(kind).copy()
    magnitude = parts & kind(np.iinfo(kind).max >> 1)
    parts[magnitude > infinity] = infinity + 1
    return parts.view(np.uint32)


def distance(left: np.ndarray, right: np.ndarray) -> int:
    """Largest distance of two arrays of f32 bits in units in the last place; 2^32 if
    one holds an infinity or NaN where the other has something else.
    """
    if np.array_equal(left, right):
        return 0
    finite = np.isfinite(left.view(np.float32)) & np.isfinite(right.view(np.float32))
    if not (finite | (left == right)).all():
        return 1 << 32
    ordered = [
        np.where(bits >> 31, -(bits.astype(np.int64) & 0x7FFFFFFF), bits)
        for bits in (left, right)
    ]
    return int(np.abs(ordered[0].astype(np.int64) - ordered[1].astype(np.int64)).max())
