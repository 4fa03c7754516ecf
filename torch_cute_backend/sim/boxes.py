"""TMA boxes: their place in shared memory, the part inside the tensor, the copy.

Functions of a decoded tensor map and coordinates; no engine state.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .convert import bf16_bits
from .memory import Region
from .operands import swizzle_granules
from .report import UnsupportedPtx
from .tensormap import TensorMap

Slices = tuple[slice, ...]


@lru_cache(maxsize=1024)
def box_granules(
    start: int, count: int, row: int, swizzle: int, atom: int = 16
) -> np.ndarray | slice:
    """Granules of a box in shared memory; rows are dense, the XOR is on absolute
    addresses.
    """
    if not swizzle:
        return slice(start, start + count)
    if row * 16 != swizzle:
        raise UnsupportedPtx(
            f"TMA box row of {row * 16} bytes with a {swizzle}-byte swizzle"
        )
    return swizzle_granules(np.arange(start, start + count), swizzle, atom).astype(
        np.intp
    )


def place_of(tensor: TensorMap, start: int) -> np.ndarray | slice:
    """Shared-memory granules of a tensor map's box at granule ``start``."""
    return box_granules(
        start,
        tensor.box_bytes // 16,
        tensor.inner_bytes // 16,
        tensor.swizzle_bytes,
        tensor.swizzle_atom,
    )


def clip(
    tensor: TensorMap, coordinates: tuple[int, ...]
) -> tuple[Slices, Slices] | None:
    """(global, box) slices of the in-bounds part, outermost dimension first, bytes
    innermost.
    """
    outer: list[slice] = []
    inner: list[slice] = []
    for axis, (at, extent, box) in enumerate(
        zip(coordinates, tensor.dims, tensor.box, strict=True)
    ):
        low, high = max(0, at), min(extent, at + box)
        if low >= high:
            return None
        scale = tensor.item_bits if axis == 0 else 8
        outer.append(slice(low * scale // 8, high * scale // 8))
        inner.append(slice((low - at) * scale // 8, (high - at) * scale // 8))
    return tuple(reversed(outer)), tuple(reversed(inner))


def strided(data: np.ndarray, region: Region, tensor: TensorMap) -> np.ndarray:
    """View of per-byte ``data`` of a region with the shape of the tensor (innermost in
    bytes).
    """
    shape = (*reversed(tensor.dims[1:]), tensor.dims[0] * tensor.item_bits // 8)
    # ``data`` has one entry per byte of the tensor, whatever the entry's own size.
    strides = tuple(s * data.itemsize for s in (*reversed(tensor.strides), 1))
    return np.lib.stride_tricks.as_strided(
        data[tensor.address - region.base :], shape, strides
    )


def read_box(
    tensor: TensorMap, at: tuple[int, ...], region: Region | None
) -> np.ndarray:
    """The box as granules; what lies outside the tensor is zero."""
    parts = clip(tensor, at)
    shape = (*reversed(tensor.box[1:]), tensor.inner_bytes)
    if region is None or parts is None:
        return np.zeros(tensor.box_bytes // 16, np.complex128)
    source = strided(region.bytes, region, tensor)[parts[0]]
    if source.shape == shape:
        data = np.ascontiguousarray(source)
    else:
        data = np.zeros(shape, np.uint8)
        data[parts[1]] = source
    return data.reshape(-1).view(np.complex128)


_REDUCE_TYPES = {
    "f32": np.float32,
    "f16": np.float16,
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "f64": np.float64,
}


def write_box(
    tensor: TensorMap,
    at: tuple[int, ...],
    region: Region,
    granules: np.ndarray,
    reduction: str | None,
    line: int,
) -> None:
    parts = clip(tensor, at)
    if parts is None:
        return
    outer, inner = parts
    shape = (*reversed(tensor.box[1:]), tensor.inner_bytes)
    data = granules.view(np.uint8).reshape(shape)[inner]
    target = strided(region.bytes, region, tensor)
    if reduction is None:
        target[outer] = data
        if region.count is not None:
            strided(region.count, region, tensor)[outer] += 1
        return
    if reduction != "add":
        raise UnsupportedPtx(f"bulk reduction .{reduction}", line)
    old = np.ascontiguousarray(target[outer])
    new = np.ascontiguousarray(data)
    if tensor.type_name == "bf16":
        wide = [
            (x.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
            for x in (old, new)
        ]
        total = (
            bf16_bits((wide[0] + wide[1]).view(np.uint32))
            .astype(np.uint16)
            .view(np.uint8)
        )
    else:
        kind = _REDUCE_TYPES.get(tensor.type_name)
        if kind is None:
            raise UnsupportedPtx(f"bulk reduction of {tensor.type_name}", line)
        total = (old.view(kind) + new.view(kind)).view(np.uint8)
    target[outer] = total
    if region.reduced is not None:
        strided(region.reduced, region, tensor)[outer] = True
