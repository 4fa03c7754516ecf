"""Float arithmetic on register bits: zeros, subnormals, NaNs and rounding as PTX has.

Generated code calls ``float_op``, ``fma32``, ``compare_float`` and ``flush`` by name;
``larger`` and its kin are the functions that ``float_op`` and ``halves.half_op`` take.
Values follow ``lanes``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .lanes import FLOAT, UINT, Value

_EXPONENT = {16: 0x7C00, 32: 0x7F800000}
_CANONICAL = np.uint32(0x7FFFFFFF).view(np.float32)
"""The f32 NaN that PTX names canonical."""


def as_float(value: Value, bits: int) -> np.ndarray:
    """Bits to floats; a uniform value gives a 0-d array."""
    if value.__class__ is np.ndarray:
        return value.view(FLOAT[bits])
    return np.array(value, UINT[bits]).view(FLOAT[bits])


def from_float(value: Any, bits: int) -> Value:
    """Floats to bits; 0-d results become uniform ints."""
    array = np.asarray(value, FLOAT[bits])
    if array.ndim == 0:
        return int(array.view(UINT[bits]))
    return array.view(UINT[bits])


def flush(value: Value, bits: int) -> Value:
    """``.ftz``: a subnormal f16 or f32 becomes a zero of its sign."""
    exponent, sign = _EXPONENT[bits], 1 << (bits - 1)
    if value.__class__ is int:
        return value if value & exponent else value & sign
    return np.where(value & exponent, value, value & sign)


def float_op(
    function: Callable[..., Any], bits: int, *args: Value, ftz: bool = False
) -> Value:
    """Apply a numpy function to register bits as floats of ``bits``."""
    if ftz:
        args = tuple(flush(a, bits) for a in args)
    with np.errstate(all="ignore"):
        result = from_float(function(*[as_float(a, bits) for a in args]), bits)
    return flush(result, bits) if ftz else result


def larger(x: np.ndarray, y: np.ndarray, nan: bool = False) -> np.ndarray:
    """max: +0 is above -0; a number wins over a NaN unless ``nan``, and a NaN result is
    the canonical one (PTX ISA, max).
    """
    # +0 if either is +0, as a sum of zeros is.
    chosen = np.where((x == 0) & (y == 0), x + y, np.fmax(x, y))
    return _canonical(chosen, x, y, nan)


def smaller(x: np.ndarray, y: np.ndarray, nan: bool = False) -> np.ndarray:
    """min: see ``larger``."""
    chosen = np.where((x == 0) & (y == 0), -(-x - y), np.fmin(x, y))
    return _canonical(chosen, x, y, nan)


def larger_nan(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """max.NaN."""
    return larger(x, y, True)


def smaller_nan(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """min.NaN."""
    return smaller(x, y, True)


def _canonical(
    chosen: np.ndarray, x: np.ndarray, y: np.ndarray, nan: bool
) -> np.ndarray:
    lost = np.isnan(x) | np.isnan(y) if nan else np.isnan(x) & np.isnan(y)
    return np.where(lost, _CANONICAL.astype(chosen.dtype), chosen)


def fused(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """``x * y + z`` of f32, bf16 or f16 numbers as f64, rounded to odd.

    Rounding that once more, to f32 or less, gives what one rounding of the exact sum
    does (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    product, z = x.astype(np.float64) * y, z.astype(np.float64)
    total = product + z
    from_z = total - product
    error = (product - (total - from_z)) + (z - from_z)
    rounded_away = (error < 0) != (total < 0)
    inexact = np.isfinite(error) & (error != 0)
    return _to_odd(np.asarray(total), inexact, rounded_away)


def odd32(value: np.ndarray) -> np.ndarray:
    """f64 to f32, rounded to odd: the sum of ``fused`` on its way to bf16."""
    near = np.asarray(value.astype(np.float32))
    inexact = (near != value) & ~np.isnan(value)
    return _to_odd(near, inexact, np.abs(near) > np.abs(value))


def _to_odd(
    near: np.ndarray, inexact: np.ndarray, rounded_away: np.ndarray
) -> np.ndarray:
    """Truncate what was rounded away from zero, and mark inexact numbers as odd."""
    bits = near.view(UINT[near.dtype.itemsize * 8])
    one = bits.dtype.type(1)
    bits = np.where(inexact, (bits - rounded_away.astype(bits.dtype)) | one, bits)
    return bits.view(near.dtype)


def fma32(a: Value, b: Value, c: Value, down: bool = False, ftz: bool = False) -> Value:
    """f32 fused multiply-add, rounded once, to nearest or ``down`` (.rm)."""
    if ftz:
        a, b, c = (flush(v, 32) for v in (a, b, c))
    with np.errstate(all="ignore"):
        exact = fused(*[as_float(v, 32) for v in (a, b, c)])
        near = exact.astype(np.float32)
        if down:
            below = np.nextafter(near, np.float32(-np.inf))
            near = np.where(near > exact, below, near)
    result = from_float(near, 32)
    return flush(result, 32) if ftz else result


def compare_float(name: str, a: Value, b: Value, bits: int) -> Value:
    """Float setp; the ``u`` forms are true on NaN."""
    x, y = as_float(a, bits), as_float(b, bits)
    nan = np.isnan(x) | np.isnan(y)
    if name == "num":
        result = ~nan
    elif name == "nan":
        result = nan
    else:
        base = name[:2] if name in ("equ", "neu", "ltu", "leu", "gtu", "geu") else name
        table = {
            "eq": np.equal,
            "ne": np.not_equal,
            "lt": np.less,
            "le": np.less_equal,
            "gt": np.greater,
            "ge": np.greater_equal,
        }
        result = table[base](x, y)
        result = result | nan if name.endswith("u") else result & ~nan
    return bool(result) if np.ndim(result) == 0 else result
