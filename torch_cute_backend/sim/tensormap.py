"""CUtensorMap descriptors: 128 bytes to fields.

Bit positions follow the facts measured against the driver's encoder. Fields that the
simulator does not model (interleave, element strides, NaN fill) are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .report import UnsupportedPtx

_ITEM_BITS = {
    0: 8,
    1: 16,
    2: 32,
    3: 32,
    4: 64,
    5: 64,
    6: 16,
    7: 32,
    8: 32,
    9: 64,
    10: 16,
    11: 4,
}
_TYPE_NAMES = (
    "u8",
    "u16",
    "u32",
    "s32",
    "u64",
    "s64",
    "f16",
    "f32",
    "f32ftz",
    "f64",
    "bf16",
    "u4",
)


@dataclass(frozen=True)
class TensorMap:
    """A decoded tensor map; ``strides`` and ``box`` inner extents are in bytes.

    ``dims``, ``box`` run from the innermost dimension outwards; ``strides[0]`` belongs
    to dimension 1 (dimension 0 is dense). ``l2_bytes`` (promotion) and ``tf32`` are
    decoded to be compared with the driver's encoder; they do not change what is copied.
    """

    address: int
    type_name: str
    item_bits: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int
    swizzle_atom: int = 16
    l2_bytes: int = 0
    tf32: bool = False

    @property
    def inner_bytes(self) -> int:
        """Bytes of one box row."""
        return self.box[0] * self.item_bits // 8

    @property
    def box_bytes(self) -> int:
        """Bytes of the whole box in shared memory."""
        return self.inner_bytes * int(np.prod(self.box[1:], dtype=np.int64))

    @property
    def footprint(self) -> int:
        """Bytes from the first to behind the last element in global memory."""
        reach = sum(
            (n - 1) * s for n, s in zip(self.dims[1:], self.strides, strict=True)
        )
        return reach + self.dims[0] * self.item_bits // 8


@lru_cache(maxsize=4096)
def decode(raw: bytes) -> TensorMap:
    """Decode the first 64 bytes of a descriptor (the rest is undefined)."""
    w = np.frombuffer(raw[:64], np.uint64).tolist()
    w1 = w[1]
    rank = (w1 >> 4 & 7) + 1
    dtype = w1 >> 7 & 15
    interleave, swizzle = w1 >> 11 & 3, w1 >> 13 & 3
    if dtype not in _ITEM_BITS or rank > 5:
        raise UnsupportedPtx(
            f"tensor map: data type code {dtype}, rank {rank}: not a tensor map?"
        )
    if interleave or w1 >> 15 & 1:
        raise UnsupportedPtx("tensor map with interleave or NaN fill")
    if w1 & 0xFFC0000D:
        raise UnsupportedPtx(
            f"tensor map with unknown bits {w1 & 0xFFC0000D:#x} in word 1"
        )
    atom = {0: 16, 1: 32}.get(w1 >> 19 & 3)
    if atom is None or (atom == 32 and swizzle != 3):
        raise UnsupportedPtx(f"tensor map with swizzle atom code {w1 >> 19 & 3}")
    low = [w1 >> 32, w[2] & 0xFFFFFFFF, w[2] >> 32, w[3] & 0xFFFFFFFF]
    high = [w[3] >> 32 & 15, w[3] >> 36 & 15, w[3] >> 40 & 15, w[3] >> 44 & 15]
    strides = [(a | b << 32) << 4 for a, b in zip(low, high, strict=True)]
    sizes = [
        w[4] & 0xFFFFFFFF,
        w[4] >> 32,
        w[5] & 0xFFFFFFFF,
        w[5] >> 32,
        w[6] & 0xFFFFFFFF,
    ]
    box = [
        w[6] >> 56 & 255,
        w[7] & 255,
        w[7] >> 8 & 255,
        w[7] >> 16 & 255,
        w[7] >> 24 & 255,
    ]
    element_strides = [(w[6] >> 32 + 3 * i & 7) + 1 for i in range(rank)]
    if any(s != 1 for s in element_strides):
        raise UnsupportedPtx(f"tensor map with element strides {element_strides}")
    bits = _ITEM_BITS[dtype]
    found = TensorMap(
        w[0],
        _TYPE_NAMES[dtype],
        bits,
        tuple(n + 1 for n in sizes[:rank]),
        tuple(strides[: rank - 1]),
        tuple(n + 1 for n in box[:rank]),
        (0, 32, 64, 128)[swizzle],
        atom,
        (0, 64, 128, 256)[w1 >> 17 & 3],
        bool(w1 >> 16 & 1),
    )
    if found.inner_bytes % 16:
        raise UnsupportedPtx(f"tensor map box row of {found.inner_bytes} bytes")
    if found.swizzle_bytes and found.inner_bytes > found.swizzle_bytes:
        raise UnsupportedPtx("tensor map box row wider than its swizzle span")
    return found


def encode(
    address: int,
    type_name: str,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    swizzle_bytes: int = 0,
) -> bytes:
    """Inverse of ``decode`` for hand-written launches and tests."""
    rank = len(dims)
    w = [0] * 16
    w[0] = address
    w[1] = (rank - 1) << 4 | _TYPE_NAMES.index(type_name) << 7
    w[1] |= (0, 32, 64, 128).index(swizzle_bytes) << 13
    units = [s >> 4 for s in strides] + [0] * (5 - rank)
    w[1] |= (units[0] & 0xFFFFFFFF) << 32 if units else 0
    units += [0] * (4 - len(units))
    w[2] = units[1] & 0xFFFFFFFF | (units[2] & 0xFFFFFFFF) << 32
    w[3] = units[3] & 0xFFFFFFFF
    for i in range(4):
        w[3] |= (units[i] >> 32 & 15) << 32 + 4 * i
    size = [n - 1 for n in dims] + [0] * (5 - rank)
    w[4], w[5], w[6] = size[0] | size[1] << 32, size[2] | size[3] << 32, size[4]
    boxes = [n - 1 for n in box] + [0] * (5 - rank)
    w[6] |= boxes[0] << 56
    w[7] = boxes[1] | boxes[2] << 8 | boxes[3] << 16 | boxes[4] << 24
    return np.array(w, np.uint64).tobytes()
