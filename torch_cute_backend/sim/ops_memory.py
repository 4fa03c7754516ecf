"""Loads, stores and atomics of the generic proxy.

Shared, global, generic, local space.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .codegen import PARAM_BASE
from .global_history import Access
from .lanes import UINT, Value, full
from .machine import SHARED_WINDOW, Cta, Group
from .ops_warp import WarpOps
from .report import UnsupportedPtx

_OFFSET = SHARED_WINDOW - 1


class MemoryOps(WarpOps):
    """Synchronous memory instructions."""

    def peer(self, address: int, line: int) -> Cta | None:
        """The CTA that a shared address belongs to; None (with a finding) if there is
        none.
        """
        rank = address >> 24
        if rank == self.cta.rank:
            return self.cta
        if rank < len(self.cluster.ctas):
            return self.cluster.ctas[rank]
        self.report(
            "out_of_bounds", f"shared address {address:#x} names CTA rank {rank}", line
        )
        return None

    def note_remote(self, target: Cta, agent: int, clock: int, line: int) -> None:
        """Remember an access from outside, for the check at the exit of ``target``."""
        if target.live_warps == 0:
            self.report(
                "race",
                f"access to the shared memory of CTA {target.label}, which has exited",
                line,
            )
        target.remote[agent] = (clock, line)

    def _shared(
        self, g: Group, address: Value, size: int, total: int, line: int
    ) -> tuple[Cta | None, np.ndarray | int, Any]:
        """(CTA, offset(s), granules) of a checked shared access of ``total`` bytes per
        lane.
        """
        if address.__class__ is int:
            cta = self.peer(address, line)
            at = address & _OFFSET
            if cta is None or not self._in_shared(cta, at, at, total, line):
                return None, 0, None
            if at % total:
                self.report(
                    "misuse", f"misaligned {total}-byte shared access at {at:#x}", line
                )
                return None, 0, None
            return cta, at, slice(at >> 4, (at + total - 1 >> 4) + 1)
        lanes = address if g.n == 32 else address[g.mask]
        first = int(lanes[0])
        cta = self.peer(first, line)
        if cta is None:
            return None, 0, None
        if ((lanes >> np.uint32(24)) != first >> 24).any():
            raise UnsupportedPtx("lanes of one shared access name different CTAs", line)
        at = (lanes & np.uint32(_OFFSET)).astype(np.intp)
        if not self._in_shared(cta, int(at.min()), int(at.max()), total, line):
            return None, 0, None
        if (at % total).any():
            self.report("misuse", f"misaligned {total}-byte shared access", line)
            return None, 0, None
        granules = at >> 4
        if total > 16:
            granules = np.concatenate([granules + i for i in range(total // 16)])
        return cta, at, granules

    def _in_shared(self, cta: Cta, low: int, high: int, size: int, line: int) -> bool:
        if low >= 1024 and high + size <= cta.shared_bytes:
            return True
        self.report(
            "out_of_bounds",
            f"shared memory byte {low if low < 1024 else high:#x}: the CTA owns "
            f"0x400..{cta.shared_bytes:#x}",
            line,
        )
        return False

    def load_shared(
        self, g: Group, address: Value, size: int, count: int, line: int, order: str
    ) -> tuple[Value, ...]:
        """ld.shared; a lane outside gets zero and a finding."""
        cta, at, granules = self._shared(g, address, size, size * count, line)
        if cta is None:
            return (0,) * count
        if self.checks:
            rows = self.clock.rows[0]
            cta.shadow.read(granules, self.agent, self.clock.epoch(), rows, rows, line)
        if cta is not self.cta:
            self.note_remote(cta, self.agent, self.clock.epoch(), line)
        view = cta.views[size]
        if at.__class__ is int:
            base = at // size
            return tuple(int(view[base + i]) for i in range(count))
        index = at // size
        return tuple(self._spread(g, view[index + i]) for i in range(count))

    def _spread(self, g: Group, values: np.ndarray) -> np.ndarray:
        if values.dtype == np.uint8:
            values = values.astype(np.uint16)  # byte loads land in 16-bit registers
        if g.n == 32:
            return values
        out = np.zeros(32, values.dtype)
        out[g.mask] = values
        return out

    def store_shared(
        self,
        g: Group,
        address: Value,
        size: int,
        values: tuple[Value, ...],
        line: int,
        order: str,
    ) -> None:
        """st.shared."""
        cta, at, granules = self._shared(g, address, size, size * len(values), line)
        if cta is None:
            return
        if self.checks:
            rows = self.clock.rows[0]
            epoch = self.clock.epoch()
            cta.shadow.write(granules, self.agent, epoch, rows, rows, line)
        if cta is not self.cta:
            self.note_remote(cta, self.agent, self.clock.epoch(), line)
        view = cta.views[size]
        for i, value in enumerate(values):
            if at.__class__ is int:
                last = value if value.__class__ is int else int(value[g.mask][-1])
                view[at // size + i] = last & ((1 << 8 * size) - 1)
            else:
                lanes = value
                if value.__class__ is np.ndarray and g.n < 32:
                    lanes = value[g.mask]
                if size == 1:
                    lanes = lanes & 255
                view[at // size + i] = lanes

    def access(self) -> Access:
        """A generic-proxy access to global memory by this warp, now."""
        clock = self.clock.epoch()
        rows = self.clock.rows[0]
        return Access(self.cluster.number, self.agent, self.name, clock, rows, rows)

    def _global(self, g: Group, address: Value) -> np.ndarray:
        lanes = full(address, 64)
        return lanes if g.n == 32 else lanes[g.mask]

    def load_global(
        self, g: Group, address: Value, size: int, count: int, line: int, order: str
    ) -> tuple[Value, ...]:
        """ld.global."""
        if order in ("acquire", "volatile", "relaxed"):
            self.engine.global_acquire(self)
        access = self.access()
        if address.__class__ is int:
            one = np.array([address], np.uint64)
            out = [
                int(
                    self.engine.memory.load(
                        one + np.uint64(i * size), size, line, access
                    )[0]
                )
                for i in range(count)
            ]
            return tuple(out)
        lanes = self._global(g, address)
        parts = [
            self.engine.memory.load(lanes + np.uint64(i * size), size, line, access)
            for i in range(count)
        ]
        return tuple(self._spread(g, p) for p in parts)

    def store_global(
        self,
        g: Group,
        address: Value,
        size: int,
        values: tuple[Value, ...],
        line: int,
        order: str,
    ) -> None:
        """st.global."""
        self.engine.events += 1
        access = self.access()
        if order == "release":
            self.engine.global_release(self)
        lanes = self._global(g, address)
        for i, value in enumerate(values):
            items = full(value, 8 * size if size > 1 else 16)
            items = items if g.n == 32 else items[g.mask]
            self.engine.memory.store(
                lanes + np.uint64(i * size),
                size,
                items.astype(UINT[8 * size]),
                line,
                access,
            )

    def load_generic(
        self, g: Group, address: Value, size: int, count: int, line: int, order: str
    ) -> tuple[Value, ...]:
        """Generic load: shared windows are the low addresses."""
        first = address if address.__class__ is int else int(address[g.first])
        if first >= PARAM_BASE:
            return self.load_param(g, address, size, count, line, order)
        if first < 1 << 32:
            return self.load_shared(g, _narrow(address), size, count, line, order)
        return self.load_global(g, address, size, count, line, order)

    def store_generic(
        self,
        g: Group,
        address: Value,
        size: int,
        values: tuple[Value, ...],
        line: int,
        order: str,
    ) -> None:
        """Generic store."""
        first = address if address.__class__ is int else int(address[g.first])
        if first < 1 << 32:
            self.store_shared(g, _narrow(address), size, values, line, order)
        else:
            self.store_global(g, address, size, values, line, order)

    def load_local(
        self, g: Group, address: Value, size: int, count: int, line: int, order: str
    ) -> tuple[Value, ...]:
        """Local memory is not modelled."""
        raise UnsupportedPtx("local memory (register spills or arrays)", line)

    def store_local(
        self,
        g: Group,
        address: Value,
        size: int,
        values: tuple[Value, ...],
        line: int,
        order: str,
    ) -> None:
        """Local memory is not modelled."""
        raise UnsupportedPtx("local memory (register spills or arrays)", line)

    def stmatrix(
        self,
        g: Group,
        address: Value,
        values: tuple[Value, ...],
        transposed: bool,
        line: int,
    ) -> None:
        """stmatrix m8n8.b16: lane 8i+r gives the row address of row r of matrix i."""
        cta, _, index = self._matrix_rows(g, address, len(values), line, write=True)
        if cta is None:
            return
        for i, value in enumerate(values):
            halves = full(value, 32).view(np.uint16).reshape(8, 8)
            cta.views[2][index[i]] = halves.T if transposed else halves

    def ldmatrix(
        self, g: Group, address: Value, count: int, transposed: bool, line: int
    ) -> tuple[Value, ...]:
        """ldmatrix m8n8.b16."""
        cta, _, index = self._matrix_rows(g, address, count, line, write=False)
        if cta is None:
            return (0,) * count
        out = []
        for i in range(count):
            halves = cta.views[2][index[i]]
            out.append(
                np.ascontiguousarray(halves.T if transposed else halves)
                .reshape(-1)
                .view(np.uint32)
            )
        return tuple(out)

    def _matrix_rows(
        self, g: Group, address: Value, count: int, line: int, write: bool
    ) -> tuple[Cta | None, Any, Any]:
        self._whole(g, 0xFFFFFFFF, line)
        lanes = full(address, 32)[: 8 * count]
        at = (lanes & np.uint32(_OFFSET)).astype(np.intp)
        cta = self.peer(int(lanes[0]), line)
        if cta is None or not self._in_shared(
            cta, int(at.min()), int(at.max()), 16, line
        ):
            return None, None, None
        if (at % 16).any():
            self.report("misuse", "matrix row address is not 16-byte aligned", line)
            return None, None, None
        if self.checks:
            rows = self.clock.rows[0]
            check = cta.shadow.write if write else cta.shadow.read
            check(at >> 4, self.agent, self.clock.epoch(), rows, rows, line)
        index = (at.reshape(count, 8, 1) >> 1) + np.arange(8)
        return cta, at, index

    def atomic(
        self,
        g: Group,
        space: str,
        operation: str,
        kind: str,
        bits: int,
        order: str,
        address: Value,
        operands: tuple[tuple[Value, ...], ...],
        line: int,
    ) -> tuple[Value, ...]:
        """atom / red on global or shared memory, lane by lane in lane order."""
        from .atomics import apply

        return apply(
            self, g, space, operation, kind, bits, order, address, operands, line
        )


def _narrow(address: Value) -> Value:
    return address if address.__class__ is int else address.astype(np.uint32)
