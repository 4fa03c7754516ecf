"""The fifth-generation tensor core: MMA runs, scale-factor copies, commits.

MMA, cp and commit of a CTA (or CTA pair) form one FIFO, executed by the agent of the
leader's tensor core. Consecutive MMAs that walk along K of one swizzle span run as one
matrix product. Tensor memory is 128 lanes x 512 columns of 32 bits; its history is kept
per 16-lane group and column.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from . import block_scaled, operands
from .block_scaled import ScaledDescriptor
from .clocks import Stamp
from .machine import TMEM_COLUMNS, Cta
from .report import UnsupportedPtx

_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_KINDS: dict[str, tuple[int, dict[int, str]]] = {
    "f16": (16, {0: "f16", 1: "bf16"}),
    "tf32": (8, {2: "tf32"}),
    "f8f6f4": (32, _F8F6F4),
    "i8": (32, {0: "u8", 1: "s8"}),
}


class InstructionDescriptor:
    """Decoded 32-bit instruction descriptor of a dense MMA."""

    def __init__(self, kind: str, word: int) -> None:
        if kind not in _KINDS:
            raise UnsupportedPtx(f"tcgen05.mma kind::{kind}")
        self.k, types = _KINDS[kind]
        d_format, a_format, b_format = word >> 4 & 3, word >> 7 & 7, word >> 10 & 7
        if word & 0xF or word >> 23 & 1 or word >> 29:
            raise UnsupportedPtx(
                f"instruction descriptor {word:#x}: sparsity, saturation or shift"
            )
        if a_format not in types or b_format not in types:
            raise UnsupportedPtx(f"instruction descriptor {word:#x}: operand formats")
        if d_format != (2 if kind == "i8" else 1):
            raise UnsupportedPtx(
                f"instruction descriptor {word:#x}: accumulator format {d_format}"
            )
        self.a_type, self.b_type = types[a_format], types[b_format]
        self.negate = (word >> 13 & 1) != (word >> 14 & 1)
        self.a_mn, self.b_mn = bool(word >> 15 & 1), bool(word >> 16 & 1)
        self.n, self.m = (word >> 17 & 63) * 8, (word >> 24 & 31) * 16
        self.integer = kind == "i8"


@lru_cache(maxsize=256)
def instruction_descriptor(kind: str, word: int) -> InstructionDescriptor:
    """Cached decoding."""
    return InstructionDescriptor(kind, word)


@lru_cache(maxsize=4096)
def tmem_granules(first: int, columns: int, lane: int, lanes: int) -> np.ndarray:
    """Shadow indices of a column range in the 16-lane groups of a lane range."""
    cols = np.arange(first, first + columns)
    groups = np.arange(lane // 16, (lane + lanes) // 16)
    return (groups[:, None] * TMEM_COLUMNS + cols).reshape(-1)


@lru_cache(maxsize=512)
def tmem_granules_half(first: int, columns: int, lane: int) -> np.ndarray:
    """Shadow indices of an M=64 accumulator: 16 lanes of each 32-lane quarter."""
    parts = [tmem_granules(first, columns, 32 * q + lane, 16) for q in range(4)]
    return np.concatenate(parts)


Descriptor = InstructionDescriptor | ScaledDescriptor


class Mma:
    """A run of tcgen05.mma that differ only by steps along K."""

    __slots__ = (
        "a",
        "a_tmem",
        "b",
        "closed",
        "d",
        "enable",
        "group",
        "idesc",
        "issued",
        "line",
        "scales",
        "stamp",
        "steps",
    )

    def __init__(
        self,
        idesc: Descriptor,
        group: int,
        d: int,
        a: int,
        a_tmem: bool,
        b: int,
        enable: bool,
        stamp: Stamp,
        line: int,
    ) -> None:
        self.idesc = idesc
        self.group = group
        self.d = d
        self.a = a
        self.a_tmem = a_tmem
        self.b = b
        self.enable = enable
        self.stamp = stamp
        self.line = line
        self.steps = 1
        self.closed = False
        self.issued = 0
        self.scales: tuple[int, int] | None = None

    def extends(
        self,
        idesc: Descriptor,
        d: int,
        a: int,
        a_tmem: bool,
        b: int,
        enable: bool,
        stamp: Stamp,
    ) -> bool:
        """Can a further MMA be appended? (K-major 128-byte swizzle, next 32 bytes of
        the row)
        """
        step = 2 * self.steps
        return (
            not self.closed
            and enable
            and self.scales is None
            and idesc is self.idesc
            and d == self.d
            and stamp is self.stamp
            and not a_tmem
            and not self.a_tmem
            and a == self.a + step
            and b == self.b + step
            and not idesc.a_mn
            and not idesc.b_mn
            and self.a >> 61 == 2
            and self.b >> 61 == 2
            and (self.a & 7) + step < 8
            and (self.b & 7) + step < 8
        )


class TensorCore:
    """FIFO and clock of one CTA's (or pair leader's) tensor core."""

    def __init__(self, cta: Cta) -> None:
        cta.make_tmem()
        self.cta = cta
        self.agent = cta.core_agent
        self.rows = cta.cluster.clocks.rows()
        self.clock = 1
        self.rows[:, self.agent] = 0
        self.key = ("tcgen05", cta.label)
        self.queue = cta.cluster.engine.queue(self.key)
        self.open: Mma | None = None

    def pair(self, group: int) -> list[Cta]:
        """CTAs that take part: this one, or the even-odd pair."""
        if group == 1:
            return [self.cta]
        rank = self.cta.rank & ~1
        return self.cta.cluster.ctas[rank : rank + 2]

    def run_mma(self, mma: Mma) -> bool:
        """Execute a run of MMAs."""
        mma.closed = True
        if self.open is mma:
            self.open = None
        trace = self.cta.cluster.engine.trace
        if trace:
            trace.operation(
                "tensor core",
                self.cta.label,
                f"mma into column {mma.d & 0xFFFF}",
                mma.issued,
                steps=mma.steps,
                line=mma.line,
            )
        stamp, idesc = mma.stamp, mma.idesc
        np.maximum(self.rows, stamp.rows, out=self.rows)
        ctas = self.pair(mma.group)
        k = idesc.k * mma.steps
        share = len(ctas)
        a_parts = [self._a(cta, mma, k, idesc.m // share) for cta in ctas]
        b = (
            np.concatenate(
                [
                    self._operand(
                        cta,
                        mma.b,
                        idesc.n // share,
                        k,
                        idesc.b_type,
                        idesc.b_mn,
                        stamp,
                        mma.line,
                    )
                    for cta in ctas
                ]
            )
            if share > 1
            else self._operand(
                ctas[0], mma.b, idesc.n, k, idesc.b_type, idesc.b_mn, stamp, mma.line
            )
        )
        for cta, a in zip(ctas, a_parts, strict=True):
            if isinstance(idesc, ScaledDescriptor):
                product = self._scaled(cta, mma, idesc, a, b)
            else:
                product = a @ b.T
            if idesc.negate:
                product = -product
            self._accumulate(cta, mma, product)
        return True

    def _scaled(
        self, cta: Cta, mma: Mma, idesc: ScaledDescriptor, a: np.ndarray, b: np.ndarray
    ) -> np.ndarray:
        """Product with the factors in this CTA's tensor memory."""
        assert mma.scales is not None
        parts = []
        for values, address, first in (
            (a, mma.scales[0], idesc.a_scale_id),
            (b, mma.scales[1], idesc.b_scale_id),
        ):
            column, rows = address & 0xFFFF, len(values)
            columns = block_scaled.columns_of(rows)
            order = order_with(mma.stamp.order, self)
            cta.tmem_shadow.read(
                tmem_granules(column, columns, 0, 32),
                self.agent,
                self.clock,
                order,
                order,
                mma.line,
            )
            scales = block_scaled.factors(
                cta.tmem, column, rows, first, idesc.k // idesc.block, idesc.scale_type
            )
            parts.append(block_scaled.scaled(values, scales, idesc.block))
        result: np.ndarray = parts[0] @ parts[1].T
        return result

    def run_copy(
        self, group: int, column: int, descriptor: int, stamp: Stamp, line: int
    ) -> bool:
        """tcgen05.cp 32x128b.warpx4: 32 rows of 16 bytes to all four lane quarters."""
        np.maximum(self.rows, stamp.rows, out=self.rows)
        index = block_scaled.copy_source(descriptor).reshape(-1)
        for cta in self.pair(group):
            cta.shadow.read(
                index, self.agent, self.clock, stamp.need, stamp.order, line
            )
            if (
                column + 4 > TMEM_COLUMNS
                or not cta.tmem_owner[column : column + 4].all()
            ):
                cta.cluster.engine.report(
                    "tmem",
                    f"tcgen05.cp to columns {column}..{column + 3}, not all allocated",
                    line,
                )
                continue
            order = order_with(stamp.order, self)
            cta.tmem_shadow.write(
                tmem_granules(column, 4, 0, 128),
                self.agent,
                self.clock,
                order,
                stamp.order,
                line,
            )
            words = cta.views[16][index].view(np.uint32).reshape(32, 4)
            cta.tmem[:, column : column + 4] = np.tile(words, (4, 1))
        return True

    def _a(self, cta: Cta, mma: Mma, k: int, rows: int) -> np.ndarray:
        idesc = mma.idesc
        if not mma.a_tmem:
            return self._operand(
                cta, mma.a, rows, k, idesc.a_type, idesc.a_mn, mma.stamp, mma.line
            )
        size = operands.item_bytes(idesc.a_type)
        columns = k * size // 4
        first = mma.a & 0xFFFF
        if mma.a >> 16 or rows != 128:
            raise UnsupportedPtx(
                "A in tensor memory with lane offset or fewer than 128 rows", mma.line
            )
        cta.tmem_shadow.read(
            tmem_granules(first, columns, 0, 128),
            self.agent,
            self.clock,
            mma.stamp.order,
            mma.stamp.order,
            mma.line,
        )
        raw = np.ascontiguousarray(cta.tmem[:, first : first + columns])
        return operands.to_f32(raw.view(np.uint8), idesc.a_type)

    def _operand(
        self,
        cta: Cta,
        descriptor: int,
        mn: int,
        k: int,
        kind: str,
        mn_major: bool,
        stamp: Stamp,
        line: int,
    ) -> np.ndarray:
        index = operands.granules_of(
            operands.decode_sm100(descriptor), mn, k, kind, mn_major
        )
        if int(index.max()) >= len(cta.views[16]):
            cta.cluster.engine.report(
                "out_of_bounds",
                f"MMA operand reaches byte {int(index.max()) * 16 + 15:#x} of shared "
                f"memory, the CTA owns {cta.shared_bytes:#x}",
                line,
            )
            return np.zeros((mn, k), np.float32)
        cta.shadow.read(
            index.reshape(-1), self.agent, self.clock, stamp.need, stamp.order, line
        )
        return operands.fetch(cta.views[16], index, kind, mn_major)

    def _accumulate(self, cta: Cta, mma: Mma, product: np.ndarray) -> None:
        idesc = mma.idesc
        first = mma.d & 0xFFFF
        rows, n = product.shape
        split = mma.group == 2 and rows == 64
        columns = n // 2 if split else n
        lane = mma.d >> 16
        half = rows == 64 and not split
        if lane and not (half and lane == 16):
            raise UnsupportedPtx(f"accumulator of {rows} rows at lane {lane}", mma.line)
        if (
            first + columns > TMEM_COLUMNS
            or not cta.tmem_owner[first : first + columns].all()
        ):
            cta.cluster.engine.report(
                "tmem",
                f"MMA writes columns {first}..{first + columns - 1}, not all allocated",
                mma.line,
            )
            return
        where = (
            tmem_granules_half(first, columns, lane)
            if half
            else tmem_granules(first, columns, 0, 128)
        )
        order = mma.stamp.order
        if mma.enable:
            cta.tmem_shadow.read(
                where, self.agent, self.clock, order_with(order, self), order, mma.line
            )
        cta.tmem_shadow.write(
            where, self.agent, self.clock, order_with(order, self), order, mma.line
        )
        kind = np.int32 if idesc.integer else np.float32
        target = cta.tmem[:, first : first + columns].view(kind)
        product = product.astype(kind, copy=False)
        if split:
            product = np.concatenate([product[:, :columns], product[:, columns:]])
        elif half:
            lanes = np.arange(64)
            index = 32 * (lanes // 16) + lanes % 16 + lane
            target[index] = target[index] + product if mma.enable else product
            return
        if mma.enable:
            target += product
        else:
            target[...] = product

    def run_commit(self, targets: list[tuple[Any, int]]) -> bool:
        """Arrive on mbarriers behind all earlier operations."""
        self.rows[:, self.agent] = self.clock
        self.clock += 1
        for barrier, line in targets:
            complaint = barrier.arrive(1, self.rows)
            if complaint:
                self.cta.cluster.engine.report(
                    "misuse", f"mbarrier {barrier.address:#x}: {complaint}", line
                )
        return True


def order_with(order: np.ndarray, core: TensorCore) -> np.ndarray:
    """Issue order plus the FIFO order of the core itself."""
    if order[core.agent] >= core.clock:
        return order
    own = order.copy()
    own[core.agent] = core.clock
    result: np.ndarray = own
    return result
