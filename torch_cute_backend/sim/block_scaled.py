"""Block-scaled tcgen05.mma: mxf8f6f4, mxf4, mxf4nvf4, and the scale-factor copy
tcgen05.cp.

Scale factors lie in tensor memory: the factors of row r are bytes of lane r % 32,
column base + r // 32, and the instruction descriptor's sf_id names the first byte.
Every factor covers 16 or 32 elements along K.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from . import operands
from .convert import decode_table
from .report import UnsupportedPtx

_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_FP4 = {1: "e2m1x2"}
_KINDS = {"mxf8f6f4": (32, _F8F6F4), "mxf4": (64, _FP4), "mxf4nvf4": (64, _FP4)}
_BLOCK = {"block16": 16, "block32": 32}


class ScaledDescriptor:
    """Decoded instruction descriptor of a block-scaled MMA."""

    def __init__(self, kind: str, vector: str, word: int) -> None:
        if kind not in _KINDS:
            raise UnsupportedPtx(f"block-scaled kind::{kind}")
        self.k, types = _KINDS[kind]
        if word & 0x4F or word >> 31:
            raise UnsupportedPtx(f"instruction descriptor {word:#x}: sparsity or K=96")
        a_format, b_format = word >> 7 & 7, word >> 10 & 7
        if a_format not in types or b_format not in types:
            raise UnsupportedPtx(f"instruction descriptor {word:#x}: operand formats")
        self.a_type, self.b_type = types[a_format], types[b_format]
        self.negate = (word >> 13 & 1) != (word >> 14 & 1)
        self.a_mn, self.b_mn = bool(word >> 15 & 1), bool(word >> 16 & 1)
        self.n, self.m = (word >> 17 & 63) * 8, (word >> 24 & 31) * 16
        self.integer = False
        self.scale_type = "ue8m0" if word >> 23 & 1 else "ue4m3"
        self.a_scale_id, self.b_scale_id = word >> 29 & 3, word >> 4 & 3
        self.block = self._block(kind, vector)

    def _block(self, kind: str, vector: str) -> int:
        """Elements per scale factor."""
        if vector in _BLOCK:
            return _BLOCK[vector]
        factors = {"1X": 1, "2X": 2, "4X": 4}.get(vector)
        if factors is not None:
            return self.k // factors
        if kind == "mxf4nvf4":
            raise UnsupportedPtx("mxf4nvf4 without scale vector size")
        return 32


@lru_cache(maxsize=256)
def scaled_descriptor(kind: str, vector: str, word: int) -> ScaledDescriptor:
    """Cached decoding."""
    return ScaledDescriptor(kind, vector, word)


def columns_of(rows: int) -> int:
    """Tensor memory columns that the factors of ``rows`` rows occupy."""
    return -(-rows // 32)


def factors(
    tmem: np.ndarray,
    column: int,
    rows: int,
    first_byte: int,
    count: int,
    scale_type: str,
) -> np.ndarray:
    """(rows, count) scale factors as f32."""
    words = np.ascontiguousarray(tmem[:32, column : column + columns_of(rows)].T)
    raw = words.reshape(-1)[:rows].view(np.uint8).reshape(rows, 4)
    if first_byte + count > 4:
        raise UnsupportedPtx(
            f"scale factors {first_byte}..{first_byte + count - 1} of 4"
        )
    table = decode_table("ue8m0") if scale_type == "ue8m0" else decode_table("ue4m3")
    codes: np.ndarray = raw[:, first_byte : first_byte + count]
    if scale_type == "ue4m3":
        codes = codes & 127  # the format is unsigned
    result: np.ndarray = table[codes]
    return result


def scaled(values: np.ndarray, scales: np.ndarray, block: int) -> np.ndarray:
    """Multiply each block of ``block`` elements along K by its factor."""
    result: np.ndarray = values * np.repeat(scales, block, axis=1)
    return result


def copy_source(descriptor: int) -> np.ndarray:
    """Granules of the 32 rows x 16 bytes that ``tcgen05.cp 32x128b`` reads."""
    return operands.granules_k_major(operands.decode_sm100(descriptor), 32, 1)
