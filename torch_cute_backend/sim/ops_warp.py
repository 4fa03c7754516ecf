"""Warp-wide operations: elect, shuffles, votes, parameters, register hints, end of a
warp.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .codegen import PARAM_BASE
from .lanes import LANE, M32, ONE_HOT, UINT, Value, full
from .machine import Group, WarpState
from .report import SimError, UnsupportedPtx


class WarpOps(WarpState):
    """Instructions that involve only the lanes of one warp."""

    def _whole(self, g: Group, mask: Value, line: int) -> None:
        """A ``.sync`` operation must be executed by all lanes that its mask names."""
        if g.n == 32:
            return
        members = mask if mask.__class__ is int else int(full(mask, 32)[g.first])
        alive = sum(group.bits for group in self.groups)
        if members & alive & ~g.bits:
            self.report(
                "misuse",
                f"a .sync operation names lanes {members:#x} but only {g.bits:#x} "
                "execute it together",
                line,
            )

    def elect(self, g: Group, mask: Value, line: int) -> tuple[int, Value]:
        """elect.sync: the lowest lane is the leader."""
        self._whole(g, mask, line)
        if g.n == 1:
            return g.first, True
        return g.first, ONE_HOT[g.first]

    def warp_sync(self, g: Group, mask: Value, line: int) -> None:
        """bar.warp.sync."""
        self._whole(g, mask, line)

    def shfl(
        self, g: Group, mode: str, a: Value, b: Value, c: Value, mask: Value, line: int
    ) -> tuple[Value, Value]:
        """shfl.sync: (value, in-range predicate)."""
        if g.n < 32:
            self._whole(g, mask, line)
        if a.__class__ is int and c.__class__ is int:
            return a, True
        if mode == "idx" and b.__class__ is int and c == 31:
            return int(a[b & 31]), True
        control = full(c, 32).astype(np.int64)
        amount = full(b, 32).astype(np.int64) & 31
        lane = LANE.astype(np.int64)
        segment = control >> 8 & 31
        clamp = control & 31
        highest = (lane & segment) | (clamp & ~segment)
        lowest = lane & segment
        if mode == "up":
            source = lane - amount
            valid = source >= highest
        elif mode == "down":
            source = lane + amount
            valid = source <= highest
        elif mode == "bfly":
            source = lane ^ amount
            valid = source <= highest
        elif mode == "idx":
            source = lowest | (amount & ~segment)
            valid = source <= highest
        else:
            raise UnsupportedPtx(f"shfl.{mode}", line)
        source = np.where(valid, source, lane) & 31
        if not g.mask[source[g.mask]].all():
            self.report("misuse", "shuffle reads a lane that does not take part", line)
        return full(a, 32)[source], valid

    def vote(self, g: Group, mode: str, pred: Value, mask: Value, line: int) -> Value:
        """vote.sync."""
        self._whole(g, mask, line)
        lanes = full(pred, 1) & g.mask
        if mode == "ballot":
            return (
                int((1 << np.flatnonzero(lanes).astype(object)).sum())
                if lanes.any()
                else 0
            )
        if mode == "any":
            return bool(lanes.any())
        every = bool(lanes[g.mask].all())
        return every if mode == "all" else every or not lanes.any()

    def redux(
        self, g: Group, operation: str, kind: str, value: Value, mask: Value, line: int
    ) -> Value:
        """redux.sync on 32-bit integers."""
        self._whole(g, mask, line)
        lanes = full(value, 32)[g.mask]
        if kind == "s32":
            lanes = lanes.view(np.int32)
        if kind not in ("s32", "u32", "b32"):
            raise UnsupportedPtx(f"redux .{kind}", line)
        table: dict[str, Any] = {
            "add": lambda: lanes.astype(np.int64).sum(),
            "min": lanes.min,
            "max": lanes.max,
            "and": lambda: np.bitwise_and.reduce(lanes),
            "or": lambda: np.bitwise_or.reduce(lanes),
            "xor": lambda: np.bitwise_xor.reduce(lanes),
        }
        if operation not in table:
            raise UnsupportedPtx(f"redux.{operation}", line)
        return int(table[operation]()) & M32

    def load_param(
        self, g: Group, address: Value, size: int, count: int, line: int, order: str
    ) -> tuple[Value, ...]:
        """ld.param: address into the parameter window."""
        data = self.engine.params
        if address.__class__ is not int:
            return self._param_lanes(g, full(address, 64), size, count, line)
        at = address - PARAM_BASE
        if at < 0 or at + size * count > len(data):
            raise SimError(f"parameter read at offset {at} of {len(data)}", line)
        return tuple(
            int.from_bytes(data[at + i * size : at + (i + 1) * size], "little")
            for i in range(count)
        )

    def _param_lanes(
        self, g: Group, address: np.ndarray, size: int, count: int, line: int
    ) -> tuple[Value, ...]:
        """Parameter reads at per-lane addresses."""
        data = np.frombuffer(self.engine.params, np.uint8)
        at = (address - np.uint64(PARAM_BASE)).astype(np.int64)
        at = np.where(g.mask, at, 0)
        if at.min() < 0 or at.max() + size * count > len(data):
            raise SimError("parameter read outside the parameters", line)
        out = []
        for i in range(count):
            index = (at + i * size)[:, None] + np.arange(size)
            raw = np.ascontiguousarray(data[index])
            out.append(raw.view(UINT[8 * size]).reshape(32))
        return tuple(out)

    def setmaxnreg(self, g: Group, direction: str, registers: int, line: int) -> None:
        """Register reallocation has no effect on values; the multiple-of-8 rule is
        checked.
        """
        if registers % 8 or not 24 <= registers <= 256:
            self.report(
                "misuse",
                f"setmaxnreg {registers}: must be a multiple of 8 in 24..256",
                line,
            )
        self._whole(g, M32, line)

    def griddep(self, kind: str, line: int) -> None:
        """griddepcontrol. No other kernel runs here, so nothing is waited for; but
        what is not ordered behind the wait could run beside one.
        """
        if kind == "wait":
            clock = self.clock.epoch()
            self.engine.history.wait_predecessor(self.cluster.number, self.agent, clock)

    def trap(self, line: int) -> int:
        """trap ends the kernel."""
        self.report("misuse", "the kernel executed trap", line)
        raise SimError("the kernel executed trap", line)

    def mapa(self, address: Value, rank: Value, line: int) -> Value:
        """Address of the same location in another CTA of the cluster."""
        size = len(self.cluster.ctas)
        if rank.__class__ is int:
            if rank >= size:
                self.report("out_of_bounds", f"mapa to CTA rank {rank} of {size}", line)
        elif (rank >= size).any():
            self.report(
                "out_of_bounds", f"mapa to CTA rank {int(rank.max())} of {size}", line
            )
        if address.__class__ is int and rank.__class__ is int:
            return address & 0xFFFFFF | rank << 24
        return full(address, 32) & np.uint32(0xFFFFFF) | full(rank, 32) << np.uint32(24)

    def finish(self) -> None:
        """The last lanes of the warp have returned."""
        self.done = True
        self.before_exit()
        self.cta.warp_exited(self.clock.rows)
        self.cluster.barrier.live -= 1
        self.cluster.barrier.check()
        if self.cta.live_warps == 0:
            self.cta_exit()

    def before_exit(self) -> None:
        """Checks on outstanding asynchronous operations; extended by the operation
        classes.
        """

    def cta_exit(self) -> None:
        """Checks when the CTA's shared memory is given back."""
        for barrier in self.cta.mbarriers.values():
            known = self.cta.exit_rows[barrier.agent]
            if barrier.agent >= 0 and known < barrier.loads:
                self.report(
                    "race",
                    f"CTA {self.cta.label} may exit before TMA loads into mbarrier "
                    f"{barrier.address:#x} have arrived: nothing waits for them",
                    0,
                )
        for agent, (clock, line) in self.cta.remote.items():
            if clock > self.cta.exit_rows[agent]:
                name = self.cluster.clocks.names[agent]
                self.report(
                    "race",
                    f"CTA {self.cta.label} may exit before an access to its shared "
                    f"memory by "
                    f"{name}: no cluster barrier orders it",
                    line,
                )
