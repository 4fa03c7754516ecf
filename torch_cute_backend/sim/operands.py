"""Matrix operands in shared memory: descriptors to granule indices, bytes to f32.

Shared by wgmma and tcgen05. A *granule* is 16 bytes. Index arrays are cached by
descriptor, because a pipeline uses the same few descriptors again and again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .convert import decode_table
from .report import UnsupportedPtx

# e2m1 takes a byte in kind::f8f6f4; e2m1x2 is the packed form of the fp4 kinds.
_ITEM_BITS = {
    "e4m3": 8,
    "e5m2": 8,
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "s8": 8,
    "u8": 8,
    "e2m3": 8,
    "e3m2": 8,
    "e2m1": 8,
    "e2m1x2": 4,
}


@dataclass(frozen=True)
class SmemOperand:
    """A decoded matrix descriptor.

    Offsets in granules, ``swizzle`` in bytes (0 none).
    """

    start: int
    leading: int
    stride: int
    swizzle: int


@lru_cache(maxsize=4096)
def decode_sm90(descriptor: int) -> SmemOperand:
    """wgmma descriptor: layout type in bits 62..63, no version field."""
    if descriptor & 0x3FFFC000C000C000:
        raise UnsupportedPtx(
            f"wgmma descriptor {descriptor:#x} with a base offset or unknown bits"
        )
    swizzle = (0, 128, 64, 32)[descriptor >> 62 & 3]
    return SmemOperand(
        descriptor & 0x3FFF,
        descriptor >> 16 & 0x3FFF,
        descriptor >> 32 & 0x3FFF,
        swizzle,
    )


@lru_cache(maxsize=4096)
def decode_sm100(descriptor: int) -> SmemOperand:
    """tcgen05 descriptor: version 1 in bits 46..47, layout type in bits 61..63."""
    if descriptor & 0x1FFF0000C000C000:
        raise UnsupportedPtx(
            f"tcgen05 descriptor {descriptor:#x} with a base offset or unknown bits"
        )
    if descriptor >> 46 & 3 != 1:
        raise UnsupportedPtx(f"tcgen05 descriptor version {descriptor >> 46 & 3}")
    layout = {0: 0, 2: 128, 4: 64, 6: 32}.get(descriptor >> 61 & 7)
    if layout is None:
        raise UnsupportedPtx(f"tcgen05 descriptor layout type {descriptor >> 61 & 7}")
    return SmemOperand(
        descriptor & 0x3FFF,
        descriptor >> 16 & 0x3FFF,
        descriptor >> 32 & 0x3FFF,
        layout,
    )


def swizzle_granules(
    index: np.ndarray, swizzle_bytes: int, atom: int = 16
) -> np.ndarray:
    """Apply the address XOR to absolute granule indices.

    ``atom`` bytes stay together.
    """
    if not swizzle_bytes:
        return index
    if atom == 32:
        return np.asarray(index ^ (index >> 3 & 3) << 1)
    return np.asarray(index ^ (index >> 3 & (swizzle_bytes // 16 - 1)))


@lru_cache(maxsize=8192)
def granules_k_major(operand: SmemOperand, rows: int, row_granules: int) -> np.ndarray:
    """(rows, row_granules) granule indices of a K-major operand."""
    r = np.arange(rows)[:, None]
    c = np.arange(row_granules)[None, :]
    if operand.swizzle:
        span = operand.swizzle // 16
        index = operand.start + (r // 8) * operand.stride + (r % 8) * span + c
    else:
        index = operand.start + (r // 8) * operand.stride + c * operand.leading + r % 8
    return swizzle_granules(index, operand.swizzle).astype(np.intp)


@lru_cache(maxsize=8192)
def granules_mn_major(operand: SmemOperand, mn_granules: int, k: int) -> np.ndarray:
    """(k, mn_granules) granule indices of an MN-major operand."""
    kk = np.arange(k)[:, None]
    m = np.arange(mn_granules)[None, :]
    if operand.swizzle:
        span = operand.swizzle // 16
        index = (
            operand.start
            + (m // span) * operand.leading
            + m % span
            + (kk // 8) * operand.stride
            + (kk % 8) * span
        )
    else:
        index = (
            operand.start + m * operand.stride + kk % 8 + (kk // 8) * operand.leading
        )
    return swizzle_granules(index, operand.swizzle).astype(np.intp)


def item_bytes(kind: str) -> int:
    """Bytes that an element takes in shared memory (6/4-bit kinds take one)."""
    return _ITEM_BITS[kind] // 8


def to_f32(raw: np.ndarray, kind: str) -> np.ndarray:
    """Decode a (rows, bytes) uint8 array to (rows, elements) f32."""
    if kind in ("e4m3", "e5m2"):
        return np.asarray(decode_table(kind)[raw])
    if kind == "bf16":
        return np.asarray(
            (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        )
    if kind == "f16":
        return raw.view(np.float16).astype(np.float32)
    if kind == "tf32":
        return np.asarray(
            (raw.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        )
    if kind == "s8":
        return raw.view(np.int8).astype(np.float32)
    if kind == "u8":
        return raw.astype(np.float32)
    if kind in ("e2m3", "e3m2"):
        return np.asarray(decode_table(kind)[raw & 63])
    if kind == "e2m1x2":
        table = decode_table("e2m1")
        out = np.empty((raw.shape[0], raw.shape[1] * 2), np.float32)
        out[:, 0::2] = table[raw & 15]
        out[:, 1::2] = table[raw >> 4]
        return out
    if kind == "e2m1":
        return np.asarray(decode_table(kind)[raw & 15])
    raise UnsupportedPtx(f"operand type {kind}")


def granules_of(
    operand: SmemOperand, mn: int, k: int, kind: str, mn_major: bool
) -> np.ndarray:
    """Granule indices of an mn x k operand."""
    bits = _ITEM_BITS[kind]
    if mn_major:
        return granules_mn_major(operand, mn * bits // 128, k)
    return granules_k_major(operand, mn, k * bits // 128)


def fetch(
    smem16: np.ndarray, index: np.ndarray, kind: str, mn_major: bool
) -> np.ndarray:
    """Read an operand as an (mn, k) f32 matrix."""
    raw = smem16[index].view(np.uint8)
    values = to_f32(raw, kind)
    return values.T if mn_major else values
