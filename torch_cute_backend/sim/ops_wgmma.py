"""wgmma: asynchronous warpgroup MMA with register accumulators.

Each of the four warps issues the instruction; the operation runs once all have.
Accumulators live in a ``Tile`` (64 x n f32) from the first wgmma on, and go back to
registers only when another instruction touches one (``materialise``), so that a main
loop moves no register. Touching them before ``wait_group``, or a wgmma without
``wgmma.fence`` behind register accesses, is a finding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import operands
from .clocks import Stamp
from .codegen_async import WgmmaShape
from .lanes import Value, full
from .machine import Cta, Group
from .operands import SmemOperand
from .ops_tma import TmaOps
from .report import UnsupportedPtx, at_line


class Tile:
    """Accumulators of one D register list, for the four warps of a warpgroup."""

    def __init__(self, shape: WgmmaShape) -> None:
        self.shape = shape
        self.registers = frozenset(shape.registers)
        self.values = np.zeros(
            (64, shape.n), np.float32 if shape.d_type == "f32" else np.int32
        )
        self.resident = [False] * 4
        self.last = [0] * 4


class Operation:
    """One wgmma instance; ready once all four warps issued it."""

    __slots__ = (
        "a",
        "a_rows",
        "b",
        "born",
        "flags",
        "issuers",
        "rows",
        "scale_d",
        "sequence",
        "shape",
        "tile",
    )

    def __init__(
        self,
        shape: WgmmaShape,
        tile: Tile,
        sequence: int,
        a: Value | None,
        b: int,
        scale_d: bool,
        flags: tuple[bool, ...],
        rows: np.ndarray,
    ) -> None:
        self.shape = shape
        self.tile = tile
        self.sequence = sequence
        self.a = a
        self.b = b
        self.scale_d = scale_d
        self.flags = flags
        self.issuers = 0
        self.rows = rows
        self.a_rows: np.ndarray | None = None
        self.born = 0


class Warpgroup:
    """Four warps and their wgmma pipe."""

    def __init__(self, cta: Cta, index: int) -> None:
        self.cta = cta
        self.agent = cta.cluster.clocks.add(
            f"wgmma of CTA {cta.label} warpgroup {index}"
        )
        self.key = ("wgmma", cta.label, index)
        self.queue = cta.cluster.engine.queue(self.key)
        self.issued = [0] * 4
        self.pending: dict[int, Operation] = {}
        self.executed = 0
        self.tiles: dict[tuple[int, ...], Tile] = {}
        self.waiters: list[Any] = []

    def tile(self, shape: WgmmaShape) -> Tile:
        """The tile of a D register list."""
        found = self.tiles.get(shape.registers)
        if found is None:
            found = self.tiles[shape.registers] = Tile(shape)
        return found

    def run(self, operation: Operation) -> bool:
        """Execute the oldest operation; False while a warp has not issued it.

        Directly following operations that continue along K run in the same matrix
        product.
        """
        if operation.sequence < self.executed:
            return True
        if operation.issuers < 4:
            return False
        batch = [operation]
        while True:
            following = self.pending.get(operation.sequence + len(batch))
            if following is None or not self._continues(
                operation, following, len(batch)
            ):
                break
            batch.append(following)
        trace = self.cta.cluster.engine.trace
        if trace:
            trace.operation(
                "wgmma",
                self.cta.label,
                f"wgmma {operation.sequence}",
                operation.born,
                steps=len(batch),
                line=operation.shape.line,
            )
        with at_line(operation.shape.line):
            self._multiply(operation, len(batch))
        self.executed = batch[-1].sequence + 1
        for done in batch:
            del self.pending[done.sequence]
        waiters, self.waiters = self.waiters, []
        self.cta.cluster.engine.wake(waiters)
        return True

    def _continues(self, first: Operation, following: Operation, steps: int) -> bool:
        """Is ``following`` the next 32 bytes of the same 128-byte swizzled rows?"""
        if (
            following.issuers < 4
            or following.tile is not first.tile
            or not following.scale_d
            or following.flags != first.flags
            or first.flags[2]
            or first.flags[3]
            or first.a is None
            or following.a is None
            or first.b >> 62 != 1
            or first.a >> 62 != 1
        ):
            return False
        step = 2 * steps
        same = (
            following.shape.k == first.shape.k
            and following.shape.a_type == first.shape.a_type
        )
        return bool(
            same
            and following.shape.b_type == first.shape.b_type
            and following.a == first.a + step
            and following.b == first.b + step
            and (first.a & 7) + step < 8
            and (first.b & 7) + step < 8
        )

    def _multiply(self, operation: Operation, steps: int) -> None:
        shape = operation.shape
        negate_a, negate_b, trans_a, trans_b = operation.flags
        stamp = Stamp(operation.rows, self.cta.cluster.clocks.generic)
        clock = operation.sequence + steps
        k = shape.k * steps
        if operation.a_rows is not None:
            a = operation.a_rows
        else:
            assert operation.a is not None
            source = operands.decode_sm90(operation.a)
            a = self._fetch(
                source, 64, k, shape.a_type, trans_a, stamp, clock, shape.line
            )
        other = operands.decode_sm90(operation.b)
        b = self._fetch(
            other, shape.n, k, shape.b_type, trans_b, stamp, clock, shape.line
        )
        product = a @ b.T
        if negate_a != negate_b:
            product = -product
        values = operation.tile.values
        if shape.d_type == "s32":
            product = product.astype(np.int32)
        if operation.scale_d:
            values += product
        else:
            values[...] = product

    def _fetch(
        self,
        source: SmemOperand,
        mn: int,
        k: int,
        kind: str,
        mn_major: bool,
        stamp: Stamp,
        clock: int,
        line: int,
    ) -> np.ndarray:
        index = operands.granules_of(source, mn, k, kind, mn_major)
        cta = self.cta
        if int(index.max()) >= len(cta.views[16]):
            cta.cluster.engine.report(
                "out_of_bounds",
                f"wgmma operand reaches byte {int(index.max()) * 16 + 15:#x} of shared "
                f"memory, the CTA owns {cta.shared_bytes:#x}",
                line,
            )
            return np.zeros((mn, k), np.float32)
        cta.shadow.read(
            index.reshape(-1), self.agent, clock, stamp.need, stamp.order, line
        )
        return operands.fetch(cta.views[16], index, kind, mn_major)


class WgmmaOps(TmaOps):
    """wgmma instructions of one warp."""

    _wg: Warpgroup | None = None
    _wg_unfenced = True
    _wg_retired = 0
    _wg_groups: list[int]

    def _warpgroup(self) -> Warpgroup:
        if self._wg is None:
            number = self.index // 4
            groups = self.cta.warpgroups
            if number not in groups:
                groups[number] = Warpgroup(self.cta, number)
            self._wg = groups[number]
            self._wg_groups = []
        return self._wg

    def wgmma_fence(self) -> None:
        """wgmma.fence: register accesses are ordered before the following wgmma."""
        self._wg_unfenced = False

    def wgmma(
        self,
        g: Group,
        shape: WgmmaShape,
        a: Value | None,
        b: Value,
        scale_d: Value,
        negate_a: bool,
        negate_b: bool,
        trans_a: bool,
        trans_b: bool,
    ) -> None:
        """Issue by one warp."""
        group, lane = self._warpgroup(), self.index % 4
        self._whole(g, 0xFFFFFFFF, shape.line)
        if scale_d.__class__ is not bool:
            raise UnsupportedPtx("wgmma scale-d differs between lanes", shape.line)
        if self._wg_unfenced:
            self.report(
                "async_register",
                "wgmma without wgmma.fence behind accesses of its registers",
                shape.line,
            )
            self._wg_unfenced = False
        tile = group.tile(shape)
        if not tile.resident[lane]:
            self._load_tile(g, group, tile, lane, scale_d)
        sequence = group.issued[lane]
        group.issued[lane] += 1
        tile.last[lane] = sequence + 1
        operation = group.pending.get(sequence)
        flags = (negate_a, negate_b, trans_a, trans_b)
        rows = self.clock.issue().rows
        if operation is None:
            first = None if a is None else self._one(g, a, shape.line)
            operation = Operation(
                shape,
                tile,
                sequence,
                first,
                self._one(g, b, shape.line),
                scale_d,
                flags,
                rows,
            )
            if self.engine.trace:
                operation.born = self.engine.trace.now
            group.pending[sequence] = operation
            group.queue.append(lambda: group.run(operation))
        else:
            mine = (shape.line, a, b, scale_d)
            theirs = (operation.shape.line, operation.a, operation.b, operation.scale_d)
            if mine != theirs:
                self.report(
                    "misuse",
                    f"warps of a warpgroup disagree on wgmma: {mine} and {theirs}",
                    shape.line,
                )
            operation.rows = np.maximum(operation.rows, rows)
        if shape.a_registers:
            self._register_operand(g, operation, shape, lane)
        operation.issuers += 1

    def _load_tile(
        self, g: Group, group: Warpgroup, tile: Tile, lane: int, keep: bool
    ) -> None:
        for other in group.tiles.values():
            if (
                other is not tile
                and other.resident[lane]
                and (not other.registers.isdisjoint(tile.registers))
            ):
                self._write_back(group, other, lane, tile.shape.line)
        tile.resident[lane] = True
        if keep:
            registers = g.R
            stack = np.stack([full(registers[r], 32) for r in tile.shape.registers])
            n = tile.shape.n
            blocks = (
                stack.reshape(n // 8, 2, 2, 8, 4)
                .transpose(1, 3, 0, 4, 2)
                .reshape(16, n)
            )
            tile.values[16 * lane : 16 * lane + 16] = blocks.view(tile.values.dtype)

    def _register_operand(
        self, g: Group, operation: Operation, shape: WgmmaShape, lane: int
    ) -> None:
        """A from registers: four 32-bit registers hold two row halves and two column
        halves.
        """
        size = operands.item_bytes(shape.a_type)
        per = 4 // size
        stack = np.stack([full(g.R[r], 32) for r in shape.a_registers])
        raw = stack.reshape(2, 2, 8, 4).transpose(1, 2, 0, 3)
        rows = operands.to_f32(
            np.ascontiguousarray(raw).view(np.uint8).reshape(16, 2 * 4 * per * size),
            shape.a_type,
        )
        if operation.a_rows is None:
            operation.a_rows = np.zeros((64, shape.k), np.float32)
        operation.a_rows[16 * lane : 16 * lane + 16] = rows

    def materialise(
        self, touched: tuple[frozenset[int], frozenset[int]], line: int
    ) -> None:
        """Write resident accumulators back to registers: other instructions touch them.

        ``touched`` holds the registers that arithmetic and stores use, and those that
        only plain moves use; the latter need no ``wgmma.fence``.
        """
        group = self._wg
        hard, soft = touched
        if hard:
            self._wg_unfenced = True
        if group is None:
            return
        lane = self.index % 4
        for tile in group.tiles.values():
            if not tile.resident[lane] or (
                tile.registers.isdisjoint(hard) and tile.registers.isdisjoint(soft)
            ):
                continue
            self._write_back(group, tile, lane, line)

    def _write_back(self, group: Warpgroup, tile: Tile, lane: int, line: int) -> None:
        if tile.last[lane] > self._wg_retired:
            self.report(
                "async_register",
                "accumulator registers are touched before wgmma.wait_group "
                f"retires the wgmma at PTX line {tile.shape.line}",
                line,
            )
            self.engine.drain(group.key)
        tile.resident[lane] = False
        n = tile.shape.n
        rows = tile.values[16 * lane : 16 * lane + 16].view(np.uint32)
        spread = rows.reshape(2, 8, n // 8, 4, 2).transpose(2, 0, 4, 1, 3)
        flat = np.ascontiguousarray(spread).reshape(n // 2, 32)
        for holder in self.groups:
            for register, value in zip(tile.shape.registers, flat, strict=True):
                holder.R[register] = value

    def wgmma_commit(self) -> None:
        """wgmma.commit_group."""
        group = self._warpgroup()
        self._wg_groups.append(group.issued[self.index % 4])
        if self.engine.mode == "eager":
            self.engine.drain(group.key)

    def wgmma_wait(self, g: Group, count: Value, line: int) -> bool:
        """wgmma.wait_group: all but the last ``count`` groups have completed."""
        group = self._warpgroup()
        keep = self._one(g, count, line)
        groups = self._wg_groups
        if len(groups) <= keep:
            return True
        last = groups[len(groups) - keep - 1]
        if group.executed < last:
            self.block(group, f"wgmma {last} of warpgroup {self.index // 4}", line)
            return False
        self.clock.acquire_agent(group.agent, last)
        self._wg_retired = max(self._wg_retired, last)
        del groups[: len(groups) - keep]
        return True

    def before_exit(self) -> None:
        """All wgmma must have been waited for."""
        super().before_exit()
        group = self._wg
        if group is not None and group.issued[self.index % 4] > self._wg_retired:
            self.report(
                "async_register", f"{self.name} exits with wgmma not waited for", 0
            )
