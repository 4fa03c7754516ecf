"""A captured kernel launch as plain data.

Filled in by ``sim.launch`` (from a compiled host function) or by hand in tests; read by
the engine. Knows nothing about the DSL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Launch:
    """One kernel launch: grid geometry, dynamic shared memory (bytes) and parameters.

    ``params[i]`` holds the raw bytes of kernel parameter ``i``.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem_bytes: int
    params: tuple[bytes, ...]
    programmatic: bool = False


@dataclass(frozen=True)
class TensorRegion:
    """A tensor that the kernel may touch, by real address.

    ``shape`` counts elements and ``strides`` counts bytes, so that padding between rows
    can be told from elements. ``output`` asks for the written-exactly-once check.
    """

    name: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    output: bool = False
    keep_alive: object = None

    @property
    def span_bytes(self) -> int:
        """Bytes from the first to behind the last element (strides are >= 0)."""
        if 0 in self.shape:
            return 0
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return reach + self.item_bytes


def region_of_array(name: str, array: np.ndarray, output: bool = False) -> TensorRegion:
    """Describe a numpy array in place (the array must outlive the simulation)."""
    return TensorRegion(
        name,
        int(array.ctypes.data),
        tuple(array.shape),
        tuple(array.strides),
        int(array.itemsize),
        output,
        array,
    )


def total_threads(block: Sequence[int]) -> int:
    """Threads of a CTA."""
    return int(np.prod(block))
