"""Number formats: narrow-float codecs and conversions.

Decoding tables (bits to f32) for e4m3, e5m2, e2m1, e2m3, e3m2, ue8m0, and
round-to-nearest-even, saturating encoders, used by MMA operand decoding and by ``cvt``.
All results are exact numpy f32 or unsigned bits.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from .lanes import Value, full


@cache
def decode_table(name: str) -> np.ndarray:
    """All values of a format of at most 8 bits as f32, indexed by its bits."""
    if name == "ue8m0":
        with np.errstate(over="ignore"):
            table = np.exp2(np.arange(256, dtype=np.float64) - 127).astype(np.float32)
        table[255] = np.nan
        return table
    exponent, mantissa, bias = {
        "e4m3": (4, 3, 7),
        "e5m2": (5, 2, 15),
        "e2m1": (2, 1, 1),
        "e2m3": (2, 3, 1),
        "e3m2": (3, 2, 3),
        "ue4m3": (4, 3, 7),
    }[name]
    bits = 1 + exponent + mantissa
    codes = np.arange(256 if bits == 8 else 1 << bits)
    sign = np.where(codes >> (bits - 1) & 1, -1.0, 1.0)
    exp = codes >> mantissa & ((1 << exponent) - 1)
    man = codes & ((1 << mantissa) - 1)
    scale = np.exp2(np.maximum(exp, 1).astype(np.float64) - bias)
    value = sign * scale * (man / (1 << mantissa) + (exp > 0))
    if name in ("e4m3", "ue4m3"):
        value[(codes & 0x7F) == 0x7F] = np.nan
    if name == "e5m2":
        value[(exp == 31) & (man == 0)] *= np.inf
        value[(exp == 31) & (man != 0)] = np.nan
    result: np.ndarray = value.astype(np.float32)
    return result


_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m1": 6.0, "e2m3": 7.5, "e3m2": 28.0}


def encode_narrow(value: np.ndarray, name: str) -> np.ndarray:
    """f32 to the nearest code of a narrow format, ties to even.

    Saturating to finite. A NaN becomes the format's own, or its largest value where it
    has none.
    """
    table = decode_table(name)
    half = len(table) // 2
    magnitudes = table[:half].astype(np.float64)
    finite = int(np.sum(np.isfinite(magnitudes)))
    magnitudes = magnitudes[:finite]
    size = np.minimum(np.abs(value).astype(np.float64), _LARGEST[name])
    upper = np.clip(np.searchsorted(magnitudes, size), 0, finite - 1)
    lower = np.maximum(upper - 1, 0)
    down, up = size - magnitudes[lower], magnitudes[upper] - size
    code = np.where(
        down < up, lower, np.where(up < down, upper, np.where(lower & 1, upper, lower))
    )
    code = np.where(np.signbit(value), code + half, code).astype(np.uint8)
    code = np.where(np.isnan(value), np.uint8(half - 1), code)
    result: np.ndarray = code
    return result


def bf16_bits(bits: np.ndarray, mode: str = "rn") -> np.ndarray:
    """f32 bits (uint32) to bf16 bits in the low half of a uint32."""
    if mode == "rz":
        rounded = bits >> np.uint32(16)
    else:
        rounded = (
            bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
        ) >> np.uint32(16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if nan.any():
        rounded = np.where(nan, np.uint32(0x7FFF), rounded)
    result: np.ndarray = rounded
    return result


def f16_bits(bits: np.ndarray) -> np.ndarray:
    """f32 bits to f16 bits in a uint32."""
    with np.errstate(all="ignore"):
        narrow = bits.view(np.float32).astype(np.float16).view(np.uint16)
    return quiet_f16(narrow).astype(np.uint32)


def quiet_f16(bits: np.ndarray) -> np.ndarray:
    """f16 bits with the NaN that the hardware makes, whatever NaN came in."""
    nan = (bits & np.uint16(0x7FFF)) > np.uint16(0x7C00)
    return np.where(nan, np.uint16(0x7FFF), bits)


def clamp_negative(bits: np.ndarray) -> np.ndarray:
    """``.relu`` of f32 bits: what has a sign, -0 too, becomes +0; a NaN stays one."""
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where((bits >> np.uint32(31) != 0) & ~nan, np.uint32(0), bits)


def pack_pair(
    high: Value, low: Value, name: str, mode: str = "rn", relu: bool = False
) -> Value:
    """cvt.{bf16x2,f16x2}.f32: ``high`` goes to the upper half."""
    top, bottom = full(high, 32), full(low, 32)
    if relu:
        top, bottom = clamp_negative(top), clamp_negative(bottom)
    if name == "bf16x2":
        return bf16_bits(top, mode) << np.uint32(16) | bf16_bits(bottom, mode)
    return f16_bits(top) << np.uint32(16) | f16_bits(bottom)


def pack_narrow(high: Value, low: Value, name: str, relu: bool = False) -> Value:
    """cvt.{e4m3,e5m2,e2m3,e3m2}x2.f32 to two bytes, cvt.e2m1x2.f32 to one."""
    codes = []
    for part in (high, low):
        bits = clamp_negative(full(part, 32)) if relu else full(part, 32)
        codes.append(encode_narrow(bits.view(np.float32), name).astype(np.uint16))
    return codes[0] << np.uint16(4 if name == "e2m1" else 8) | codes[1]


def unpack_narrow(value: Value, name: str, relu: bool = False) -> Value:
    """cvt.f16x2.{e4m3,e5m2,e2m3,e3m2,e2m1}x2; the inverse of ``pack_narrow``."""
    bits = full(value, 16)
    table = decode_table(name)
    shift, mask = (4, 15) if name == "e2m1" else (8, len(table) - 1)
    wide = [
        table[part & np.uint16(mask)].view(np.uint32)
        for part in (bits, bits >> np.uint16(shift))
    ]
    low, high = (f16_bits(clamp_negative(part) if relu else part) for part in wide)
    return high << np.uint32(16) | low


def float_to_float(value: Value, source: str, target: str, mode: str) -> Value:
    """Scalar float conversions between f16, bf16, f32, f64."""
    bits = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
    lanes = full(value, bits[source])
    if source == "bf16":
        wide = (lanes.astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        wide = lanes.view(
            {"f16": np.float16, "f32": np.float32, "f64": np.float64}[source]
        )
    with np.errstate(all="ignore"):
        if target == "bf16":
            return bf16_bits(wide.astype(np.float32).view(np.uint32), mode).astype(
                np.uint16
            )
        if target == "f16":
            return quiet_f16(wide.astype(np.float16).view(np.uint16))
        if target == "f32":
            return wide.astype(np.float32).view(np.uint32)
        return wide.astype(np.float64).view(np.uint64)


_ROUND = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def float_to_int(
    value: Value, source_bits: int, bits: int, is_signed: bool, mode: str
) -> Value:
    """cvt.r?i.{s,u}N.fM, saturating, NaN to zero."""
    kind = {16: np.float16, 32: np.float32, 64: np.float64}[source_bits]
    real = full(value, source_bits).view(kind).astype(np.float64)
    rounded = np.nan_to_num(_ROUND[mode](real), nan=0.0)
    low, high = (
        (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
    )
    clipped = [
        min(max(int(v), low), high) & ((1 << bits) - 1)
        if np.isfinite(v)
        else (high if v > 0 else low) & ((1 << bits) - 1)
        for v in rounded
    ]
    return np.array(clipped, {16: np.uint16, 32: np.uint32, 64: np.uint64}[bits])


def int_to_float(value: Value, bits: int, is_signed: bool, target: str) -> Value:
    """cvt.rn.fN.{s,u}M."""
    lanes = full(value, bits)
    if is_signed:
        lanes = lanes.view({16: np.int16, 32: np.int32, 64: np.int64}[bits])
    if target == "f16":
        return lanes.astype(np.float16).view(np.uint16)
    if target == "bf16":
        return bf16_bits(lanes.astype(np.float32).view(np.uint32)).astype(np.uint16)
    if target == "f32":
        return lanes.astype(np.float32).view(np.uint32)
    return lanes.astype(np.float64).view(np.uint64)
