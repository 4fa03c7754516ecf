"""``KERNELS``: hand-written sm_100a kernels with one or two tcgen05.mma of every kind.

A (128 rows) and B (16 rows) lie in shared memory, K-major with a 128-byte swizzle;
scale factors are copied to tensor memory by tcgen05.cp; the accumulator is read back by
tcgen05.ld. ``inputs`` also multiplies the values that the codes stand for. None of this
has run on Blackwell hardware: it pins down what the simulator does, which agrees with
NVIDIA-compiled kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import hopper_ptx
import micro
import numpy as np
import torch

THREADS = 128
M, N = 128, 16
A, B, SCALE_A, SCALE_B, BARRIER, TADDR = 0, 16384, 18432, 18944, 20480, 20496
FILL = 20480
TARGET = "sm_100a"
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
"""Magnitudes by code; the sign is bit 3."""


@dataclass(frozen=True)
class Kind:
    """An MMA kind: names, element format codes, bytes of shared memory a row."""

    name: str
    a: str
    b: str
    codes: tuple[int, int]
    vector: str = ""
    block: int = 0
    scale: str = ""

    @property
    def integer(self) -> bool:
        return self.name == "i8"

    @property
    def steps(self) -> int:
        return 1 if self.block == 16 else 2

    def __str__(self) -> str:
        return "_".join(filter(None, (self.name, self.a, self.b, self.scale)))


def table(kind: str) -> np.ndarray:
    """Values of all 8-bit (or 4-bit) codes that the tests draw from."""
    codes = np.arange(256, dtype=np.uint8)
    if kind == "e2m1":
        return np.concatenate([E2M1, -E2M1])
    if kind in ("e2m3", "e3m2"):
        exponent, mantissa, bias = (2, 3, 1) if kind == "e2m3" else (3, 2, 3)
        field = codes[:64] & (1 << 5) - 1
        e, f = field >> mantissa, (field & (1 << mantissa) - 1) / (1 << mantissa)
        size = np.where(
            e > 0, (1 + f) * 2.0 ** (e - float(bias)), f * 2.0 ** (1 - bias)
        )
        assert exponent + mantissa == 5
        return np.where(codes[:64] >> 5, -size, size)
    kinds = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    if kind in kinds:
        return torch.from_numpy(codes).view(kinds[kind]).double().numpy()
    return codes.view(np.int8).astype(float) if kind == "s8" else codes.astype(float)


def draw(
    rng: np.random.Generator, kind: str, rows: int, row_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, bytes) of codes and (rows, elements) of what they stand for."""
    if kind in ("f16", "bf16", "tf32"):
        values = rng.integers(-4, 5, (rows, row_bytes // (4 if kind == "tf32" else 2)))
        made = torch.from_numpy(values.astype(np.float32))
        to = {"f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}
        return made.to(to[kind]).view(torch.uint8).numpy(), values.astype(float)
    values = table("e2m1" if kind == "e2m1x2" else kind)
    good = np.flatnonzero(np.isfinite(values) & (np.abs(values) <= 6))
    good = good[np.mod(values[good] * 8, 1) == 0].astype(np.uint8)
    if kind == "e2m1x2":
        codes = rng.choice(good, (rows, row_bytes * 2))
        return codes[:, ::2] | codes[:, 1::2] << 4, values[codes]
    codes = rng.choice(good, (rows, row_bytes))
    return codes, values[codes]


def scales(
    rng: np.random.Generator, kind: str, rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """512 bytes as tcgen05.cp wants them, and (rows, 4) factors."""
    if kind == "ue8m0":
        codes = rng.integers(125, 130, (rows, 4)).astype(np.uint8)
        factors = 2.0 ** (codes.astype(float) - 127)
    else:
        chosen = torch.tensor([0.5, 1, 1.5, 2, 3]).to(torch.float8_e4m3fn)
        codes = rng.choice(chosen.view(torch.uint8).numpy(), (rows, 4))
        factors = table("e4m3")[codes]
    image = np.zeros((32, 4, 4), np.uint8)
    for row in range(rows):
        image[row % 32, row // 32] = codes[row]
    return image.reshape(-1), factors


def inputs(kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """Shared memory's first bytes, and the (M, N) result."""
    rng = np.random.default_rng(list(str(kind).encode()))
    row_bytes = 32 * kind.steps
    smem = np.zeros(FILL, np.uint8)
    layout = hopper_ptx.Layout(128)
    factors = []
    for base, at, rows, name in ((A, SCALE_A, M, kind.a), (B, SCALE_B, N, kind.b)):
        codes, values = draw(rng, name, rows, row_bytes)
        layout.place(smem, base, codes, 1)
        if kind.block:
            image, by_row = scales(rng, kind.scale, rows)
            smem[at : at + 512] = image
            repeated = np.repeat(by_row, kind.block, axis=1)
            values = values * repeated[:, : values.shape[1]]
        factors.append(values)
    return smem, factors[0] @ factors[1].T


def descriptor(base: int, swizzled: bool = True) -> int:
    """Matrix descriptor; without swizzle for the 32 x 16 bytes of factors."""
    stride = 1024 if swizzled else 128
    return base >> 4 | 1 << 16 | stride >> 4 << 32 | 1 << 46 | (2 << 61) * swizzled


def instruction(kind: Kind, step: int) -> int:
    """Instruction descriptor; ``step`` picks the scale factors of the second MMA."""
    word = kind.codes[0] << 7 | kind.codes[1] << 10 | N >> 3 << 17 | M >> 4 << 24
    if not kind.block:
        return word | (2 if kind.integer else 1) << 4
    first = step * (32 if kind.name == "mxf8f6f4" else 64) // kind.block
    return word | (kind.scale == "ue8m0") << 23 | first << 29 | first << 4


def body(kind: Kind) -> str:
    lines = [hopper_ptx.THREAD, hopper_ptx._fill(FILL), "mov.b32 %r30, smem;"]
    lines += [f"add.s32 %r31, %r30, {BARRIER};", f"add.s32 %r32, %r30, {TADDR};"]
    lines += ["shr.u32 %r33, %r200, 5;", "setp.eq.u32 %p1, %r33, 0;"]
    lines += ["@!%p1 bra READY;"]
    lines += ["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r32], 64;"]
    lines += ["elect.sync %r34|%p2, -1;", "@!%p2 bra READY;"]
    lines += ["mbarrier.init.shared::cta.b64 [%r31], 1;"]
    lines += ["fence.mbarrier_init.release.cluster;", "READY:", "bar.sync 0;"]
    lines += ["tcgen05.fence::after_thread_sync;", "ld.shared.b32 %r35, [%r32];"]
    lines += ["@!%p1 bra WAIT;", "elect.sync %r34|%p2, -1;", "@!%p2 bra WAIT;"]
    lines += ["add.s32 %r36, %r35, 32;", "add.s32 %r37, %r35, 36;"]
    lines += ["shr.u32 %r38, %r30, 4;", "cvt.u64.u32 %rd9, %r38;"]
    for i, base in enumerate((A, B, SCALE_A, SCALE_B)):
        word = descriptor(base, swizzled=i < 2)
        lines += [f"add.s64 %rd{1 + i}, %rd9, {word};"]
    if kind.block:
        for column, source in ((36, 3), (37, 4)):
            cp = "tcgen05.cp.cta_group::1.32x128b.warpx4"
            lines += [f"{cp} [%r{column}], %rd{source};"]
    lines += ["mov.u32 %r39, %ntid.x;", "setp.eq.u32 %p3, %r39, 0;"]
    for step in range(kind.steps):
        if step:
            lines += ["add.s64 %rd1, %rd1, 2;", "add.s64 %rd2, %rd2, 2;"]
            lines += ["setp.ne.u32 %p3, %r39, 0;"]
        lines += [f"mov.b32 %r40, {instruction(kind, step)};", mma(kind)]
    lines += ["tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 "]
    lines[-1] += "[%r31];"
    lines += ["WAIT:", "mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r31], 0;"]
    lines += ["@!%p4 bra WAIT;", "tcgen05.fence::after_thread_sync;"]
    lines += ["shl.b32 %r41, %r33, 21;", "add.s32 %r41, %r35, %r41;"]
    d = [f"%r{100 + i}" for i in range(N)]
    lines += [f"tcgen05.ld.sync.aligned.32x32b.x{N}.b32 {{{', '.join(d)}}}, [%r41];"]
    lines += ["tcgen05.wait::ld.sync.aligned;", hopper_ptx._store(d)]
    lines += ["tcgen05.fence::before_thread_sync;", "bar.sync 0;"]
    lines += ["@!%p1 bra END;", "tcgen05.fence::after_thread_sync;"]
    lines += ["tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r35, 64;", "END:"]
    return "\n".join(lines)


def mma(kind: Kind) -> str:
    scaled = f".block_scale.{kind.vector}" if kind.block else ""
    factors = " [%r36], [%r37]," if kind.block else ""
    name = f"tcgen05.mma.cta_group::1.kind::{kind.name}{scaled}"
    return f"{name} [%r35], %rd1, %rd2, %r40,{factors} %p3;"


def _kinds() -> Iterator[Kind]:
    yield Kind("f16", "f16", "f16", (0, 0))
    yield Kind("f16", "bf16", "bf16", (1, 1))
    yield Kind("tf32", "tf32", "tf32", (2, 2))
    yield Kind("i8", "s8", "s8", (1, 1))
    yield Kind("i8", "u8", "s8", (0, 1))
    yield Kind("f8f6f4", "e4m3", "e5m2", (0, 1))
    yield Kind("f8f6f4", "e2m3", "e3m2", (3, 4))
    yield Kind("f8f6f4", "e5m2", "e2m1", (1, 5))
    mxf8 = {"vector": "scale_vec::1X", "block": 32, "scale": "ue8m0"}
    yield Kind("mxf8f6f4", "e4m3", "e4m3", (0, 0), **mxf8)
    yield Kind("mxf8f6f4", "e4m3", "e2m1", (0, 5), **mxf8)
    fp4 = ("e2m1x2", "e2m1x2", (1, 1))
    yield Kind("mxf4", *fp4, vector="scale_vec::2X", block=32, scale="ue8m0")
    yield Kind("mxf4nvf4", *fp4, vector="scale_vec::2X", block=32, scale="ue8m0")
    yield Kind("mxf4nvf4", *fp4, vector="scale_vec::4X", block=16, scale="ue4m3")


KERNELS = tuple(_kinds())


def text(kind: Kind) -> str:
    """The whole PTX module."""
    return micro.text(body(kind), [8, 8], TARGET)


def simulate(kind: Kind, mode: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Result, what it should be, and kinds of findings."""
    smem, wanted = inputs(kind)
    data = micro.aligned(smem.shape, np.uint8)
    data[...] = smem
    out = micro.aligned((M, N), np.uint32, 0xFFFFFFFF)
    report = micro.run(
        body(kind),
        [data, out],
        outputs=[1],
        threads=THREADS,
        smem_bytes=FILL + 1024,
        target=TARGET,
        mode=mode,
    )
    found = out.view(np.int32 if kind.integer else np.float32)
    return found, wanted, [str(f) for f in report.findings]
