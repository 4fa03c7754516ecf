"""Tensor maps changed by the kernel: tensormap.replace and tensormap.cp_fenceproxy.

Grouped kernels rewrite address, sizes and strides of a descriptor in shared or global
memory, once per group. Fields are those of ``tensormap``; others are refused.
"""

from __future__ import annotations

import numpy as np

from .lanes import Value
from .machine import SHARED_WINDOW, Group
from .ops_tcgen05 import Tcgen05Ops
from .report import UnsupportedPtx

_OFFSET = SHARED_WINDOW - 1


def replace_field(words: np.ndarray, field: str, ordinal: int, value: int) -> None:
    """Change one field of a descriptor given as sixteen 64-bit words.

    ``global_stride`` counts bytes; ``ordinal`` 0 is the stride of dimension 1.
    """
    if field == "global_address":
        words[0] = value
    elif field == "global_dim":
        _put(words, 4 + ordinal // 2, 32 * (ordinal % 2), 32, value - 1)
    elif field == "global_stride":
        units = value >> 4
        word, shift = ((1, 32), (2, 0), (2, 32), (3, 0))[ordinal]
        _put(words, word, shift, 32, units & 0xFFFFFFFF)
        _put(words, 3, 32 + 4 * ordinal, 4, units >> 32)
    else:
        raise UnsupportedPtx(f"tensormap.replace of {field}")


def _put(words: np.ndarray, index: int, shift: int, bits: int, value: int) -> None:
    mask = (1 << bits) - 1 << shift
    words[index] = int(words[index]) & ~mask | (value << shift) & mask


class TensorMapOps(Tcgen05Ops):
    """Instructions that change tensor maps."""

    def tensormap_replace(
        self,
        g: Group,
        shared: bool,
        field: str,
        address: Value,
        ordinal: Value,
        value: Value,
        line: int,
    ) -> None:
        """tensormap.replace, by one lane or by lanes that agree."""
        where, number = self._one(g, address, line), self._one(g, ordinal, line)
        new = self._one(g, value, line)
        words = self._map_words(where, shared, line)
        if words is None:
            return
        if field == "global_stride" and new % 16:
            self.report(
                "misuse", f"tensor map stride {new} is not a multiple of 16", line
            )
        replace_field(words, field, number, new)

    def _map_words(self, where: int, shared: bool, line: int) -> np.ndarray | None:
        """The 16 words of a descriptor that this warp writes."""
        if where % 128:
            self.report("misuse", f"tensor map at {where:#x} is not 128-aligned", line)
            return None
        if shared:
            cta, at = self.peer(where, line), where & _OFFSET
            if cta is None or not self._in_shared(cta, at, at, 128, line):
                return None
            rows, clock = self.clock.rows[0], self.clock.epoch()
            place = slice(at >> 4, (at >> 4) + 8)
            cta.shadow.write(place, self.agent, clock, rows, rows, line)
            return cta.smem[at : at + 128].view(np.uint64)
        region = self.engine.memory.find(where, 128)
        if region is None:
            text = f"tensor map at {self.engine.memory.describe(where)}"
            self.report("out_of_bounds", text, line)
            return None
        first = where - region.base
        place = slice(first, first + 128)
        self.engine.history.write(region, place, self.access(), line)
        return region.bytes[place].view(np.uint64)

    def tensormap_copy(self, g: Group, target: Value, source: Value, line: int) -> None:
        """tensormap.cp_fenceproxy: shared to global, with a release at gpu scope."""
        self._whole(g, 0xFFFFFFFF, line)
        origin = self._one(g, source, line)
        words = self._map_words(self._one(g, target, line), False, line)
        cta, at = self.peer(origin, line), origin & _OFFSET
        if words is None or cta is None:
            return
        if not self._in_shared(cta, at, at, 128, line):
            return
        rows, clock = self.clock.rows[0], self.clock.epoch()
        place = slice(at >> 4, (at >> 4) + 8)
        cta.shadow.read(place, self.agent, clock, rows, rows, line)
        words[...] = cta.smem[at : at + 128].view(np.uint64)
        self.fence_async()
        self.fence_thread()
