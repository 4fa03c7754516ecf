"""Tensors that end, or begin, where mapped memory does: any access beyond is a fault.

The driver's virtual memory calls reserve a range of addresses and map all of it but
the first and last page. In: a tensor. Out: a copy of it, of the same strides, flush
with one of those pages. Mappings live as long as the process.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

_PINNED, _DEVICE, _READ_WRITE = 1, 1, 3
_ALIGNMENT = 16
"""Bytes by which a tensor's first element must be aligned."""


class _Location(ctypes.Structure):
    """``CUmemLocation``."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    """``CUmemAllocationProp``."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class _Access(ctypes.Structure):
    """``CUmemAccessDesc``."""

    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


@dataclass(frozen=True)
class _Memory:
    """Mapped bytes as ``torch.as_tensor`` takes them."""

    address: int
    size: int

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.size,),
            "typestr": "|u1",
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }


def _driver(name: str, *arguments: Any) -> None:
    error = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    if error:
        raise RuntimeError(f"{name} answers error {error}")


def _mapped(size: int) -> _Memory:
    """At least ``size`` bytes between two pages that are not mapped."""
    place = _Location(_DEVICE, torch.cuda.current_device())
    properties = _Properties(type=_PINNED, location=place)
    page = ctypes.c_size_t()
    pointer = ctypes.byref(properties)
    _driver("cuMemGetAllocationGranularity", ctypes.byref(page), pointer, 0)
    whole = -(-size // page.value) * page.value
    start, handle = ctypes.c_uint64(), ctypes.c_uint64()
    zero = ctypes.c_uint64(0)
    _driver(
        "cuMemAddressReserve",
        ctypes.byref(start),
        ctypes.c_size_t(whole + 2 * page.value),
        ctypes.c_size_t(0),
        zero,
        zero,
    )
    _driver("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(whole), pointer, zero)
    inside = ctypes.c_uint64(start.value + page.value)
    _driver(
        "cuMemMap", inside, ctypes.c_size_t(whole), ctypes.c_size_t(0), handle, zero
    )
    access = _Access(place, _READ_WRITE)
    count = ctypes.c_size_t(1)
    _driver(
        "cuMemSetAccess", inside, ctypes.c_size_t(whole), ctypes.byref(access), count
    )
    return _Memory(inside.value, whole)


def flush(tensor: torch.Tensor, at_end: bool) -> torch.Tensor:
    """A copy of ``tensor`` that ends (to within its alignment) or begins where mapped
    memory does."""
    torch.cuda.current_stream().synchronize()
    span = 1 + sum(
        (s - 1) * t for s, t in zip(tensor.shape, tensor.stride(), strict=True)
    )
    size = span * tensor.itemsize
    memory = _mapped(size)
    first = (memory.size - size) // _ALIGNMENT * _ALIGNMENT if at_end else 0
    raw = torch.as_tensor(memory, device="cuda")[first : first + size]
    view = raw.view(tensor.dtype).as_strided(
        tensor.shape, tensor.stride(), first // tensor.itemsize
    )
    return view.copy_(tensor)


def with_bytes_behind(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """The bytes of a dense tensor and ``count`` more behind it, mapped or not."""
    size = tensor.numel() * tensor.itemsize + count
    return torch.as_tensor(_Memory(tensor.data_ptr(), size), device="cuda")
