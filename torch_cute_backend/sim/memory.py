"""Global memory: the caller's tensors at their real addresses.

Every access must fall into a registered tensor; bytes between the elements of a strided
tensor and outside all tensors are guard zones. For output tensors a per-byte count
proves that each element is written exactly once. Kernel parameters live in an own
window (``PARAM_BASE``). No unregistered address is ever dereferenced.
"""

from __future__ import annotations

import bisect
import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .global_history import Access, GlobalHistory
from .launch_record import TensorRegion

Report = Callable[[str, str, int], None]


class Region:
    """One tensor's bytes, with write counts if it is an output."""

    def __init__(self, tensor: TensorRegion) -> None:
        self.tensor = tensor
        self.start = tensor.address
        self.size = tensor.span_bytes
        self.stop = self.start + self.size
        # Views start on a 16-byte boundary, so that wider types can view any aligned
        # address.
        self.base = self.start & ~15
        padded = -(-(self.stop - self.base) // 16) * 16
        buffer: Any = (ctypes.c_ubyte * padded).from_address(self.base)
        self.bytes: np.ndarray = np.frombuffer(buffer, np.uint8)
        self.views: dict[int, np.ndarray] = {
            1: self.bytes,
            2: self.bytes.view(np.uint16),
            4: self.bytes.view(np.uint32),
            8: self.bytes.view(np.uint64),
        }
        self.count = np.zeros(padded, np.uint8) if tensor.output else None
        self.reduced = np.zeros(padded, np.bool_) if tensor.output else None
        self.writers: np.ndarray | None = None

    def element_mask(self) -> np.ndarray:
        """Which bytes of ``bytes`` belong to elements."""
        mask = np.zeros(len(self.bytes), np.bool_)
        tensor = self.tensor
        window = np.lib.stride_tricks.as_strided(
            mask[self.start - self.base :],
            (*tensor.shape, tensor.item_bytes),
            (*tensor.strides, 1),
        )
        window[...] = True
        return mask


class GlobalMemory:
    """All registered tensors, searchable by address."""

    def __init__(
        self, tensors: Iterable[TensorRegion], report: Report, history: GlobalHistory
    ) -> None:
        self.report = report
        self.history = history
        self.regions = sorted(
            (Region(t) for t in _merge(tensors) if t.span_bytes), key=lambda r: r.start
        )
        self.starts = [region.start for region in self.regions]

    def find(self, address: int, size: int = 1) -> Region | None:
        """The region that holds ``[address, address + size)``, or None."""
        index = bisect.bisect_right(self.starts, address) - 1
        if index < 0:
            return None
        region = self.regions[index]
        return region if address + size <= region.stop else None

    def describe(self, address: int) -> str:
        """Human name of an address: nearest tensor and distance."""
        index = bisect.bisect_right(self.starts, address) - 1
        if index < 0:
            return f"address {address:#x} (below all tensors)"
        region = self.regions[index]
        over = address - region.stop
        where = (
            f"{over} bytes behind" if over >= 0 else f"byte {address - region.start} of"
        )
        return f"address {address:#x} ({where} tensor {region.tensor.name})"

    def load(
        self, address: np.ndarray, size: int, line: int, access: Access
    ) -> np.ndarray:
        """Gather ``size``-byte items at per-lane addresses; out-of-bounds lanes read
        zero.
        """
        region = self.find(int(address[0]), size)
        if region is not None:
            low, high = int(address.min()), int(address.max())
            if (
                low >= region.start
                and high + size <= region.stop
                and not self._misaligned(address, size, line)
            ):
                index = (address - region.base).astype(np.intp)
                self.history.read(region, index, access, line)
                result: np.ndarray = region.views[size][index // size]
                return result
        out = np.zeros(len(address), region.views[size].dtype if region else f"u{size}")
        for lane, where in enumerate(address.tolist()):
            found = self.find(where, size)
            if found is None or where % size:
                self._complain("read", where, size, line)
            else:
                out[lane] = found.views[size][(where - found.base) // size]
        return out

    def store(
        self,
        address: np.ndarray,
        size: int,
        values: np.ndarray,
        line: int,
        access: Access,
    ) -> None:
        """Scatter items; out-of-bounds lanes are dropped with a finding."""
        region = self.find(int(address[0]), size)
        if region is not None:
            low, high = int(address.min()), int(address.max())
            if (
                low >= region.start
                and high + size <= region.stop
                and not self._misaligned(address, size, line)
            ):
                first = (address - region.base).astype(np.intp)
                self.history.write(region, first, access, line)
                index = first // size
                region.views[size][index] = values
                if region.count is not None:
                    self._count(region, index, size)
                return
        for lane, where in enumerate(address.tolist()):
            found = self.find(where, size)
            if found is None or where % size:
                self._complain("write", where, size, line)
            else:
                index = np.array([(where - found.base) // size])
                found.views[size][index] = values[lane]
                if found.count is not None:
                    self._count(found, index, size)

    def _count(self, region: Region, index: np.ndarray, size: int) -> None:
        assert region.count is not None
        if size == 1:
            np.add.at(region.count, index, 1)
        else:
            np.add.at(region.count.reshape(-1, size), index, 1)

    def _misaligned(self, address: np.ndarray, size: int, line: int) -> bool:
        return bool((address % size).any())

    def _complain(self, verb: str, address: int, size: int, line: int) -> None:
        if address % size:
            self.report(
                "misuse",
                f"misaligned {size}-byte {verb} at {self.describe(address)}",
                line,
            )
        else:
            self.report(
                "out_of_bounds", f"{size}-byte {verb} at {self.describe(address)}", line
            )

    def final_check(self, line: int = 0) -> bool | None:
        """Report elements of outputs not written exactly once; None without outputs."""
        once: bool | None = None
        for region in self.regions:
            if region.count is None or region.reduced is None:
                continue
            mask = region.element_mask()
            count = region.count
            missing = mask & (count == 0) & ~region.reduced
            double = mask & (count > 1) & ~region.reduced
            padding = ~mask & (count > 0)
            once = (True if once is None else once) and not (
                missing.any() or double.any()
            )
            for kind, bad, text in (
                ("missing_write", missing, "never written"),
                ("double_write", double, "written more than once"),
                (
                    "out_of_bounds",
                    padding,
                    "is padding between elements, but was written",
                ),
            ):
                if bad.any():
                    first = int(np.flatnonzero(bad)[0]) + region.base
                    items = int(bad.sum()) // region.tensor.item_bytes
                    self.report(
                        kind,
                        f"{items} elements of {region.tensor.name} {text}; first: "
                        f"{_element(region.tensor, first)}",
                        line,
                    )
        return once


def _element(tensor: TensorRegion, address: int) -> str:
    """Index of the element at an address, e.g. ``[3, 17]``."""
    rest = address - tensor.address
    index = [0] * len(tensor.shape)
    for axis in sorted(range(len(tensor.shape)), key=lambda a: -tensor.strides[a]):
        if tensor.strides[axis] and tensor.shape[axis] > 1:
            index[axis], rest = divmod(rest, tensor.strides[axis])
    return f"{index}"


def _merge(tensors: Iterable[TensorRegion]) -> list[TensorRegion]:
    """Drop regions that lie inside another one (views of the same storage)."""
    kept: list[TensorRegion] = []
    for tensor in sorted(tensors, key=lambda t: (not t.output, -t.span_bytes)):
        stop = tensor.address + tensor.span_bytes
        inside = any(
            k.address <= tensor.address and stop <= k.address + k.span_bytes
            for k in kept
        )
        if not inside:
            kept.append(tensor)
    return kept
