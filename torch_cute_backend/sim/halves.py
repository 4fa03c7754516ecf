"""Packing and splitting of registers, and 16-bit float arithmetic.

Small helpers that generated code calls by name; values follow ``lanes``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .convert import bf16_bits, quiet_f16
from .floats import flush, odd32
from .lanes import COMPLEMENT, Value, full, norm64, split64


def inv(value: Value) -> Value:
    """Predicate not."""
    if value.__class__ is bool:
        return not value
    known = COMPLEMENT.get(id(value))
    return ~value if known is None else known


def pack32(low: Value, high: Value) -> Value:
    """Two 16-bit values to 32 bits."""
    if low.__class__ is int and high.__class__ is int:
        return low | high << 16
    return full(low, 16).astype(np.uint32) | full(high, 16).astype(
        np.uint32
    ) << np.uint32(16)


def pack16(low: Value, high: Value) -> Value:
    """Two bytes (each in a 16-bit or 8-bit register) to 16 bits."""
    if low.__class__ is int and high.__class__ is int:
        return low & 255 | (high & 255) << 8
    low, high = full(low, 16) & np.uint16(255), full(high, 16) & np.uint16(255)
    return (low | high << np.uint16(8)).astype(np.uint16)


def pack32x4(a: Value, b: Value, c: Value, d: Value) -> Value:
    """Four bytes to 32 bits."""
    return pack32(pack16(a, b), pack16(c, d))


def split32(value: Value) -> tuple[Value, Value]:
    """32 bits to two 16-bit values."""
    if value.__class__ is int:
        return value & 0xFFFF, value >> 16
    return value.astype(np.uint16), (value >> np.uint32(16)).astype(np.uint16)


def split16(value: Value) -> tuple[Value, Value]:
    """16 bits to two bytes (in 16-bit registers)."""
    return value & 255, value >> 8


def split32x4(value: Value) -> tuple[Value, ...]:
    """32 bits to four bytes (in 16-bit registers)."""
    low, high = split32(value)
    return (*split16(low), *split16(high))


def split64x4(value: Value) -> tuple[Value, ...]:
    """64 bits to four 16-bit values."""
    low, high = split64(value)
    return (*split32(low), *split32(high))


def pairwise(function: Callable[..., Value], *args: Value) -> tuple[Value, Value]:
    """Apply a 32-bit function to both halves of 64-bit values."""
    parts = [split64(a) for a in args]
    return function(*[p[0] for p in parts]), function(*[p[1] for p in parts])


def _wide(bits: np.ndarray, name: str) -> np.ndarray:
    if name == "bf16":
        result: np.ndarray = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return result
    return bits.astype(np.uint16).view(np.float16).astype(np.float32)


def _narrow(value: np.ndarray, name: str) -> np.ndarray:
    """One rounding of f32, or of what ``fused`` returns."""
    if name == "bf16":
        wide = odd32(value) if value.dtype == np.float64 else value
        return bf16_bits(wide.view(np.uint32)).astype(np.uint16)
    return quiet_f16(value.astype(np.float16).view(np.uint16))


def half_op(
    function: Callable[..., Any], kind: str, *args: Value, ftz: bool = False
) -> Value:
    """16-bit float arithmetic. ``function`` gets f32 numbers and returns f32 or odd
    f64; f32 has so many more digits that a sum or product of two numbers, rounded
    there and then here, is what one rounding gives. ``ftz``: of f16 only.
    """
    if kind.endswith("x2"):
        parts = [split32(full(a, 32)) for a in args]
        low, high = (
            half_op(function, kind[:-2], *[p[i] for p in parts], ftz=ftz)
            for i in (0, 1)
        )
        return pack32(low, high)
    halves = [full(a, 16).astype(np.uint16) for a in args]
    if ftz:
        halves = [flush(half, 16) for half in halves]
    with np.errstate(all="ignore"):
        result = _narrow(function(*[_wide(half, kind) for half in halves]), kind)
    return flush(result, 16) if ftz else result


__all__ = [
    "half_op",
    "inv",
    "norm64",
    "pack16",
    "pack32",
    "pack32x4",
    "pairwise",
    "split16",
    "split32",
    "split32x4",
    "split64x4",
]
