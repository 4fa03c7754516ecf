"""tcgen05 instructions of a warp: allocation, issue of MMA and commit, ld and st.

The tensor core itself is in ``tensor_core``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import block_scaled
from .lanes import Value, full
from .machine import TMEM_COLUMNS, Group
from .ops_wgmma import WgmmaOps
from .report import UnsupportedPtx, at_line
from .tensor_core import (
    Descriptor,
    Mma,
    TensorCore,
    instruction_descriptor,
    tmem_granules,
)


class Tcgen05Ops(WgmmaOps):
    """tcgen05 instructions of one warp."""

    pending_loads: set[int] | None = None
    tc_stores = False

    def _core(self, group: int) -> TensorCore:
        cta = self.cta
        if group == 2:
            cta = self.cluster.ctas[self.cta.rank & ~1]
            self.cluster.ctas[self.cta.rank | 1].make_tmem()
        found: TensorCore | None = self.engine.cores.get(cta.label)
        if found is None:
            found = self.engine.cores[cta.label] = TensorCore(cta)
        return found

    def tc_alloc(
        self, g: Group, address: Value, columns: Value, group: int, line: int
    ) -> bool:
        """tcgen05.alloc: first fit; blocks while too few columns are free."""
        self._whole(g, 0xFFFFFFFF, line)
        cta, count = self.cta, self._one(g, columns, line)
        cta.make_tmem()
        if count < 32 or count > TMEM_COLUMNS or count & count - 1:
            self.report(
                "tmem", f"alloc of {count} columns (power of two, 32..512)", line
            )
        if not cta.tmem_permit:
            self.report("tmem", "alloc after relinquish_alloc_permit", line)
        free = [
            c
            for c in range(0, TMEM_COLUMNS - count + 1, 32)
            if not cta.tmem_owner[c : c + count].any()
        ]
        if not free:
            self.waiting = f"{count} free tensor memory columns"
            self.wait_line = line
            cta.tmem_waiters.append(self)
            return False
        base = free[0]
        cta.tmem_owner[base : base + count] = group
        cta.tmem_allocated[base] = count
        self.store_shared(g, address, 4, (base,), line, "weak")
        return True

    def tc_dealloc(
        self, g: Group, base: Value, columns: Value, group: int, line: int
    ) -> bool:
        """tcgen05.dealloc: all accesses must be ordered before."""
        self._whole(g, 0xFFFFFFFF, line)
        cta, first = self.cta, self._one(g, base, line)
        count = self._one(g, columns, line)
        if cta.tmem_allocated.get(first) != count:
            self.report(
                "tmem",
                f"dealloc of {count} columns at {first}: no such allocation",
                line,
            )
            return True
        where = tmem_granules(first, count, 0, 128)
        order = self.clock.rows[0]
        cta.tmem_shadow.write(where, self.agent, self.clock.epoch(), order, order, line)
        cta.tmem_shadow.forget(where)
        cta.tmem_owner[first : first + count] = 0
        del cta.tmem_allocated[first]
        waiters, cta.tmem_waiters = cta.tmem_waiters, []
        self.engine.wake(waiters)
        return True

    def tc_relinquish(self, g: Group, line: int) -> None:
        """tcgen05.relinquish_alloc_permit."""
        self.cta.tmem_permit = False

    def tc_mma(
        self,
        g: Group,
        kind: str,
        vector: str,
        group: int,
        d: Value,
        a: Value,
        a_tmem: bool,
        b: Value,
        idesc: Value,
        scales: Any,
        lanes_off: Any,
        enable: Value,
        line: int,
    ) -> None:
        """tcgen05.mma, issued by one lane."""
        if g.n > 1:
            self.report("misuse", f"tcgen05.mma issued by {g.n} lanes", line)
        if (scales is None) != (not kind.startswith("mx")):
            raise UnsupportedPtx(
                f"kind::{kind} and block_scale do not go together", line
            )
        if lanes_off is not None and any(self._one(g, v, line) for v in lanes_off):
            raise UnsupportedPtx("disable-output-lane", line)
        if group == 2 and self.cta.rank & 1:
            self.report(
                "misuse", "a pair MMA is issued by the odd CTA of the pair", line
            )
        core = self._core(group)
        word = self._one(g, idesc, line)
        with at_line(line):
            decoded: Descriptor = (
                instruction_descriptor(kind, word)
                if scales is None
                else block_scaled.scaled_descriptor(kind, vector, word)
            )
        if (
            decoded.m not in ((64, 128) if group == 1 else (128, 256))
            or not 8 <= decoded.n <= 256
        ):
            self.report(
                "misuse",
                f"MMA shape {decoded.m} x {decoded.n} for cta_group::{group}",
                line,
            )
            return
        values = [self._one(g, v, line) for v in (d, a, b)]
        accumulate = bool(self._one(g, enable, line))
        stamp = self.clock.issue()
        last = core.open
        if last is not None and last.extends(
            decoded, values[0], values[1], a_tmem, values[2], accumulate, stamp
        ):
            last.steps += 1
            return
        mma = Mma(
            decoded,
            group,
            values[0],
            values[1],
            a_tmem,
            values[2],
            accumulate,
            stamp,
            line,
        )
        if scales is not None:
            first, second = (self._one(g, v, line) for v in scales)
            mma.scales = (first, second)
        if self.engine.trace:
            mma.issued = self.engine.trace.now
        core.open = mma

        def run() -> bool:
            with at_line(line):
                return core.run_mma(mma)

        core.queue.append(run)

    def tc_commit(
        self, g: Group, address: Value, mask: Value | None, group: int, line: int
    ) -> None:
        """tcgen05.commit: an mbarrier tracks all earlier operations of this thread."""
        if g.n > 1:
            self.report("misuse", f"tcgen05.commit issued by {g.n} lanes", line)
        core = self._core(group)
        where = self._one(g, address, line)
        homes = [where]
        if mask is not None:
            bits = self._one(g, mask, line)
            homes = [
                where & 0xFFFFFF | rank << 24 for rank in range(16) if bits >> rank & 1
            ]
        targets = []
        for home in homes:
            barrier, cta = self.find_mbar(home, line, self.clock.rows[0])
            if barrier is not None and cta is not None:
                if cta is not self.cta:
                    self.note_remote(cta, core.agent, core.clock, line)
                targets.append((barrier, line))
        rows = self.clock.issue().rows
        core.open = None

        def run() -> bool:
            np.maximum(core.rows, rows, out=core.rows)
            return core.run_commit(targets)

        core.queue.append(run)
        if self.engine.mode == "eager":
            self.engine.drain(core.key)

    def _window(
        self, address: int, lanes: int, columns: int, line: int, verb: str
    ) -> tuple[int, int]:
        """(first lane, first column), checked against the warp's window and the
        allocation.
        """
        lane, column = address >> 16, address & 0xFFFF
        window = self.index % 4 * 32
        if not window <= lane or lane + lanes > window + 32:
            self.report(
                "tmem",
                f"tcgen05.{verb} of lanes {lane}..{lane + lanes - 1} by warp "
                f"{self.index}, whose "
                f"window is {window}..{window + 31}",
                line,
            )
        self.cta.make_tmem()
        inside = column + columns <= TMEM_COLUMNS
        if not inside or not self.cta.tmem_owner[column : column + columns].all():
            self.report(
                "tmem",
                f"tcgen05.{verb} of columns {column}..{column + columns - 1}, not "
                f"all allocated",
                line,
            )
        return min(lane, 128 - lanes), min(column, max(TMEM_COLUMNS - columns, 0))

    def tc_ld(
        self,
        g: Group,
        shape: str,
        count: int,
        address: Value,
        registers: frozenset[int],
        line: int,
    ) -> tuple[np.ndarray, ...]:
        """tcgen05.ld: tensor memory to registers."""
        self._whole(g, 0xFFFFFFFF, line)
        where = self._one(g, address, line)
        if self.pending_loads is None:
            self.pending_loads = set()
        self.pending_loads.update(registers)
        lanes = 32 if shape == "32x32b" else 16
        columns = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8}.get(
            shape, 0
        ) * count
        if not columns:
            raise UnsupportedPtx(f"tcgen05.ld shape {shape}", line)
        lane, column = self._window(where, lanes, columns, line, "ld")
        rows = self.clock.rows[0]
        self.cta.tmem_shadow.read(
            tmem_granules(column, columns, lane, lanes),
            self.agent,
            self.clock.epoch(),
            rows,
            rows,
            line,
        )
        block = self.cta.tmem[lane : lane + lanes, column : column + columns]
        return tuple(_to_registers(block, shape, count))

    def tc_st(
        self,
        g: Group,
        shape: str,
        count: int,
        address: Value,
        values: tuple[Value, ...],
        line: int,
    ) -> None:
        """tcgen05.st: registers to tensor memory (32x32b)."""
        self._whole(g, 0xFFFFFFFF, line)
        if shape != "32x32b":
            raise UnsupportedPtx(f"tcgen05.st shape {shape}", line)
        lane, column = self._window(self._one(g, address, line), 32, count, line, "st")
        rows = self.clock.rows[0]
        self.cta.tmem_shadow.write(
            tmem_granules(column, count, lane, 32),
            self.agent,
            self.clock.epoch(),
            rows,
            rows,
            line,
        )
        block = np.stack([full(v, 32) for v in values], axis=1)
        self.cta.tmem[lane : lane + 32, column : column + count] = block
        self.tc_stores = True

    def tc_wait(self, g: Group, kind: str, line: int) -> bool:
        """tcgen05.wait::ld / ::st."""
        if kind == "ld":
            self.pending_loads = None
        else:
            self.tc_stores = False
        return True

    def unwaited(self, registers: frozenset[int], line: int) -> None:
        """A register of a tcgen05.ld is used; called only while loads are pending."""
        pending = self.pending_loads
        if pending and not pending.isdisjoint(registers):
            self.report(
                "async_register",
                "a register is read or written before tcgen05.wait::ld completes its "
                "tcgen05.ld",
                line,
                advice=not self.engine.strict_wait,
            )
            pending -= registers

    def tc_fence(self, kind: str) -> None:
        """tcgen05.fence::before/after_thread_sync: ordering is modelled as always
        present.
        """

    def tc_cp(
        self,
        g: Group,
        shape: str,
        multicast: str,
        group: int,
        address: Value,
        descriptor: Value,
        line: int,
    ) -> None:
        """tcgen05.cp of scale factors."""
        if shape != "32x128b" or multicast != "warpx4":
            raise UnsupportedPtx(f"tcgen05.cp.{shape}.{multicast}", line)
        if g.n > 1:
            self.report("misuse", f"tcgen05.cp issued by {g.n} lanes", line)
        core = self._core(group)
        where, source = self._one(g, address, line), self._one(g, descriptor, line)
        if where >> 16:
            raise UnsupportedPtx("tcgen05.cp with a lane offset", line)
        stamp = self.clock.issue()
        core.open = None
        core.queue.append(lambda: core.run_copy(group, where, source, stamp, line))

    def before_exit(self) -> None:
        """Tensor memory must be freed before the CTA ends."""
        super().before_exit()
        if self.cta.live_warps == 1 and self.cta.tmem_allocated:
            self.report(
                "tmem", f"CTA {self.cta.label} exits with tensor memory allocated", 0
            )


def _to_registers(block: np.ndarray, shape: str, count: int) -> list[np.ndarray]:
    """Distribute a TMEM block over lanes as the load shape says."""
    if shape == "32x32b":
        return list(np.ascontiguousarray(block.T))
    # 16 lanes; per 8x(4 lanes x 64 bit) matrix as in mma fragments: lane l holds row
    # l//4 (+8).
    columns = {"16x64b": 2, "16x128b": 4, "16x256b": 8}[shape]
    out = []
    for i in range(count):
        part = block[:, i * columns : (i + 1) * columns]
        if shape == "16x256b":
            halves = part.reshape(2, 8, 4, 2).transpose(0, 3, 1, 2)
            out += list(np.ascontiguousarray(halves).reshape(4, 32))
        elif shape == "16x128b":
            halves = part.reshape(2, 8, 4)
            out += list(np.ascontiguousarray(halves).reshape(2, 32))
        else:
            raise UnsupportedPtx(f"tcgen05.ld shape {shape}")
    return out
