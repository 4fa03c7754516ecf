"""Register values and their arithmetic.

A register holds one of: a Python int or bool (the same for all lanes), a 32-lane numpy
array (``uint16/32/64`` bits, or ``bool`` for predicates), or, for 64-bit registers
only, a pair ``(low, high)`` of 32-bit values that ``mov.b64`` packed. Integers are
canonical, i.e. unsigned and reduced to the register width. Generated code does cheap
operations inline and calls this module for the rest. Floats are kept as bits;
``floats`` has their arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .report import UnsupportedPtx

Value = Any
M16, M32, M64 = 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
UINT = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SINT = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOAT = {16: np.float16, 32: np.float32, 64: np.float64}
LANE = np.arange(32, dtype=np.uint32)
ONE_HOT = tuple(i == LANE for i in range(32))
ALL_BUT = tuple(i != LANE for i in range(32))
# elect.sync makes these very masks, so their complements are looked up, not computed.
COMPLEMENT = {
    id(a): b for a, b in zip(ONE_HOT + ALL_BUT, ALL_BUT + ONE_HOT, strict=True)
}


def norm64(value: Value) -> Value:
    """Pair to plain 64-bit value."""
    if value.__class__ is not tuple:
        return value
    low, high = value
    if low.__class__ is int and high.__class__ is int:
        return low | high << 32
    wide = np.empty((32, 2), np.uint32)
    wide[:, 0] = low
    wide[:, 1] = high
    return wide.view(np.uint64)[:, 0]


def split64(value: Value) -> tuple[Value, Value]:
    """64-bit value to (low, high)."""
    if value.__class__ is tuple:
        return value
    if value.__class__ is int:
        return value & M32, value >> 32
    halves = np.ascontiguousarray(value).view(np.uint32).reshape(32, 2)
    return halves[:, 0].copy(), halves[:, 1].copy()


def full(value: Value, bits: int) -> np.ndarray:
    """Value as a 32-lane unsigned array."""
    if value.__class__ is np.ndarray:
        return value
    if value.__class__ is tuple:
        return full(norm64(value), 64)
    return np.full(32, value, np.bool_ if bits == 1 else UINT[bits])


def signed(value: Value, bits: int) -> Value:
    """Reinterpret as signed."""
    if value.__class__ is np.ndarray:
        return value.astype(UINT[bits], copy=False).view(SINT[bits])
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def unsigned(value: Value, bits: int) -> Value:
    """Reduce an int or a numpy integer array to ``bits``."""
    if value.__class__ is np.ndarray:
        return value.astype(UINT[bits])
    return int(value) & ((1 << bits) - 1)


def select(pred: Value, yes: Value, no: Value, bits: int) -> Value:
    """``pred ? yes : no`` for a per-lane predicate."""
    if pred.__class__ is bool:
        return yes if pred else no
    return np.where(pred, full(yes, bits), full(no, bits))


def sar(value: Value, count: Value, bits: int) -> Value:
    """Arithmetic shift right; counts at or above the width give the sign."""
    count = (
        np.minimum(count, bits - 1)
        if count.__class__ is np.ndarray
        else min(count, bits - 1)
    )
    if value.__class__ is int and count.__class__ is int:
        return (signed(value, bits) >> count) & ((1 << bits) - 1)
    shifted = signed(full(value, bits), bits) >> full(count, 32).astype(SINT[bits])
    return shifted.view(UINT[bits])


def shl(value: Value, count: Value, bits: int) -> Value:
    """Shift left by a register; counts at or above the width give zero."""
    if value.__class__ is int and count.__class__ is int:
        return (value << count) & ((1 << bits) - 1) if count < bits else 0
    amount = full(count, 32)
    shifted = full(value, bits) << np.minimum(amount, bits - 1).astype(UINT[bits])
    return np.where(amount >= bits, UINT[bits](0), shifted)


def shr(value: Value, count: Value, bits: int) -> Value:
    """Logical shift right by a register."""
    if value.__class__ is int and count.__class__ is int:
        return value >> count if count < bits else 0
    amount = full(count, 32)
    shifted = full(value, bits) >> np.minimum(amount, bits - 1).astype(UINT[bits])
    return np.where(amount >= bits, UINT[bits](0), shifted)


def mul_hi(a: Value, b: Value, bits: int, is_signed: bool) -> Value:
    """High half of the product (32 or 16 bits for arrays, any width for ints)."""
    if a.__class__ is int and b.__class__ is int:
        if is_signed:
            return (signed(a, bits) * signed(b, bits) >> bits) & ((1 << bits) - 1)
        return a * b >> bits
    if bits == 64:
        raise UnsupportedPtx("per-lane 64-bit mul.hi is not modelled")
    wide = np.int64 if is_signed else np.uint64
    left, right = full(a, bits), full(b, bits)
    if is_signed:
        left, right = signed(left, bits), signed(right, bits)
    product = left.astype(wide) * right.astype(wide)
    return (product >> wide(bits)).astype(UINT[bits])


def mul_wide(a: Value, b: Value, bits: int, is_signed: bool) -> Value:
    """Full product of two ``bits``-wide values, ``2 * bits`` wide."""
    if a.__class__ is int and b.__class__ is int:
        product = signed(a, bits) * signed(b, bits) if is_signed else a * b
        return product & ((1 << 2 * bits) - 1)
    left, right = full(a, bits), full(b, bits)
    if is_signed:
        left, right = signed(left, bits), signed(right, bits)
    wide = (SINT if is_signed else UINT)[2 * bits]
    return (left.astype(wide) * right.astype(wide)).astype(UINT[2 * bits])


def divide(a: Value, b: Value, bits: int, is_signed: bool, remainder: bool) -> Value:
    """Integer division toward zero.

    Division by zero gives all ones (as hardware does).
    """
    ones = (1 << bits) - 1
    if a.__class__ is int and b.__class__ is int:
        left, right = (signed(a, bits), signed(b, bits)) if is_signed else (a, b)
        if right == 0:
            return a if remainder else ones
        quotient = abs(left) // abs(right)
        if (left < 0) != (right < 0):
            quotient = -quotient
        return (left - quotient * right if remainder else quotient) & ones
    left, right = full(a, bits), full(b, bits)
    if is_signed:
        left, right = signed(left, bits), signed(right, bits)
    safe = np.where(right == 0, 1, right)
    if is_signed:
        quotient = (np.abs(left.astype(np.int64)) // np.abs(safe.astype(np.int64))) * (
            np.sign(left).astype(np.int64) * np.sign(safe).astype(np.int64)
        )
    else:
        quotient = left // safe
    result = left - quotient * safe if remainder else quotient
    fallback = left if remainder else np.full_like(result, -1 if is_signed else ones)
    return np.where(right == 0, fallback, result).astype(UINT[bits])


def extreme(a: Value, b: Value, bits: int, is_signed: bool, largest: bool) -> Value:
    """Integer min or max."""
    if a.__class__ is int and b.__class__ is int:
        pick = max if largest else min
        if is_signed:
            return pick(signed(a, bits), signed(b, bits)) & ((1 << bits) - 1)
        return pick(a, b)
    left, right = full(a, bits), full(b, bits)
    if is_signed:
        left, right = signed(left, bits), signed(right, bits)
    chosen = np.maximum(left, right) if largest else np.minimum(left, right)
    return chosen.view(UINT[bits])


def resize(value: Value, source_bits: int, is_signed: bool, bits: int) -> Value:
    """Integer conversion: sign- or zero-extend, or truncate."""
    if value.__class__ is tuple:
        value = norm64(value)
    if value.__class__ is int:
        value &= (1 << source_bits) - 1
        return (signed(value, source_bits) if is_signed else value) & ((1 << bits) - 1)
    narrow = value.astype(UINT[source_bits])
    if is_signed:
        return narrow.view(SINT[source_bits]).astype(SINT[bits]).view(UINT[bits])
    return narrow.astype(UINT[bits])


def uniform(value: Value) -> Value:
    """Turn an array whose lanes all agree into an int."""
    if value.__class__ is np.ndarray and (value == value[0]).all():
        return value[0].item()
    return value


def popc(value: Value) -> Value:
    """Number of set bits."""
    if value.__class__ is int:
        return value.bit_count()
    return np.bitwise_count(value).astype(np.uint32)


def clz(value: Value, bits: int) -> Value:
    """Leading zeros."""
    if value.__class__ is int:
        return bits - value.bit_length()
    return np.array([bits - int(v).bit_length() for v in value], np.uint32)


def brev(value: Value, bits: int) -> Value:
    """Bit reverse."""

    def flip(lane: int) -> int:
        return int(f"{lane:0{bits}b}"[::-1], 2)

    if value.__class__ is int:
        return flip(value)
    return np.array([flip(int(v)) for v in value], UINT[bits])


def prmt(a: Value, b: Value, selector: Value) -> Value:
    """Byte permute, default mode."""
    if a.__class__ is int and b.__class__ is int and selector.__class__ is int:
        source = a | b << 32
        permuted = 0
        for i in range(4):
            nibble = selector >> 4 * i & 15
            byte = source >> 8 * (nibble & 7) & 255
            if nibble & 8:
                byte = 255 if byte & 128 else 0
            permuted |= byte << 8 * i
        return permuted
    source = full(a, 32).astype(np.uint64) | full(b, 32).astype(np.uint64) << np.uint64(
        32
    )
    code = full(selector, 32)
    out = np.zeros(32, np.uint32)
    for i in range(4):
        nibble = code >> np.uint32(4 * i) & np.uint32(15)
        shift = (nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8)
        byte = (source >> shift & np.uint64(255)).astype(np.uint32)
        sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
        byte = np.where(nibble & np.uint32(8), sign, byte)
        out |= byte << np.uint32(8 * i)
    return out


def funnel(low: Value, high: Value, count: Value, left: bool, wrap: bool) -> Value:
    """shf.l / shf.r on the 64-bit value high:low."""
    if count.__class__ is int:
        count = count & 31 if wrap else min(count, 32)
    else:
        count = count & np.uint32(31) if wrap else np.minimum(count, 32)
    if low.__class__ is int and high.__class__ is int and count.__class__ is int:
        both = low | high << 32
        return (both << count) >> 32 & M32 if left else both >> count & M32
    both = full(low, 32).astype(np.uint64) | full(high, 32).astype(
        np.uint64
    ) << np.uint64(32)
    amount = full(count, 32).astype(np.uint64)
    moved = both << amount >> np.uint64(32) if left else both >> amount
    return moved.astype(np.uint32)


def lop3(a: Value, b: Value, c: Value, table: int, mask: int = M32) -> Value:
    """Three-input logic by look-up table."""
    out: Value = 0
    for index in range(8):
        if table >> index & 1:
            x = a if index & 4 else a ^ mask
            y = b if index & 2 else b ^ mask
            z = c if index & 1 else c ^ mask
            out = out | (x & y & z)
    return out


def bfe(value: Value, start: Value, length: Value, bits: int, is_signed: bool) -> Value:
    """Bit field extract with uniform position."""
    if start.__class__ is not int or length.__class__ is not int:
        raise UnsupportedPtx("per-lane bfe positions are not modelled")
    start, length = start & 255, length & 255
    if not length:
        return value & 0
    field = shr(value, start, bits)
    if length >= bits:
        return field
    field = field & ((1 << length) - 1)
    if is_signed:
        flip = 1 << (length - 1)
        field = ((field ^ flip) - flip) & ((1 << bits) - 1)
    return field


def bfi(source: Value, target: Value, start: Value, length: Value, bits: int) -> Value:
    """Bit field insert with uniform position."""
    if start.__class__ is not int or length.__class__ is not int:
        raise UnsupportedPtx("per-lane bfi positions are not modelled")
    start, length = start & 255, length & 255
    mask = ((1 << length) - 1 << start) & ((1 << bits) - 1)
    return (shl(source, start, bits) & mask) | (target & (mask ^ ((1 << bits) - 1)))
