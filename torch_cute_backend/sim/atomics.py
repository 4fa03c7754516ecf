"""atom and red on shared and global memory.

Executed lane by lane in lane order, so every kernel that relies on a particular order
of atomics is at the mercy of one schedule; ``random`` modes vary the order of warps.
Acquire and release forms order accesses of different CTAs (see
``Engine.global_acquire``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .halves import half_op
from .lanes import Value, full
from .report import UnsupportedPtx

_SIGNED = {"s32": np.int32, "s64": np.int64}


def _combine(operation: str, kind: str, bits: int) -> Callable[[int, int], int]:
    mask = (1 << bits) - 1
    if kind in ("f32", "f64"):
        float_type = np.float32 if kind == "f32" else np.float64
        uint_type = np.uint32 if kind == "f32" else np.uint64

        def add_float(old: int, new: int) -> int:
            a, b = (np.array(v, uint_type).view(float_type) for v in (old, new))
            return int(np.asarray(a + b, float_type).view(uint_type))

        if operation == "add":
            return add_float
    if kind in ("f16", "bf16", "f16x2", "bf16x2") and operation == "add":
        return lambda old, new: int(full(half_op(np.add, kind, old, new), bits)[0])
    if kind.startswith(("f", "bf")):
        raise UnsupportedPtx(f"atomic {operation} on {kind}")

    def signed(value: int) -> int:
        return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value

    table: dict[str, Callable[[int, int], int]] = {
        "add": lambda old, new: (old + new) & mask,
        "min": lambda old, new: min(signed(old), signed(new)) & mask,
        "max": lambda old, new: max(signed(old), signed(new)) & mask,
        "and": lambda old, new: old & new,
        "or": lambda old, new: old | new,
        "xor": lambda old, new: old ^ new,
        "exch": lambda old, new: new,
        "inc": lambda old, new: 0 if old >= new else old + 1,
        "dec": lambda old, new: new if old == 0 or old > new else old - 1,
    }
    if operation not in table:
        raise UnsupportedPtx(f"atomic {operation}")
    return table[operation]


def apply(
    warp: Any,
    g: Any,
    space: str,
    operation: str,
    kind: str,
    bits: int,
    order: str,
    address: Value,
    operands: tuple[tuple[Value, ...], ...],
    line: int,
) -> tuple[Value, ...]:
    """Execute for all active lanes; returns the old values, one per vector element."""
    compare_swap = operation == "cas"
    width = bits if not (kind.endswith("x2") and bits == 16) else 32
    size = width // 8
    lanes = np.flatnonzero(g.mask)
    where = full(
        address, 64 if address.__class__ is not np.ndarray else address.itemsize * 8
    )
    vectors = [[full(v, width) for v in operand] for operand in operands]
    combine = None if compare_swap else _combine(operation, kind, width)
    shared = space.startswith("shared") or (
        space == "generic" and int(where[lanes[0]]) < 1 << 32
    )
    if not shared and order in ("acquire", "acq_rel", "release"):
        if order != "acquire":
            warp.engine.global_release(warp)
        if order != "release":
            warp.engine.global_acquire(warp)
    old = [np.zeros(32, vectors[0][0].dtype) for _ in vectors[0]]
    for lane in lanes.tolist():
        for element in range(len(vectors[0])):
            at = int(where[lane]) + element * size
            cell = (
                _shared_cell(warp, at, size, line)
                if shared
                else _global_cell(warp, at, size, line)
            )
            if cell is None:
                continue
            view, index = cell
            before = int(view[index])
            value = int(vectors[0][element][lane])
            if compare_swap:
                after = int(vectors[1][element][lane]) if before == value else before
            else:
                assert combine is not None
                after = combine(before, value)
            view[index] = after
            if after != before:
                warp.engine.events += 1
            old[element][lane] = before
    if len(lanes) == 1 or (address.__class__ is int and len(lanes) == 1):
        return tuple(int(o[lanes[0]]) if g.n == 1 else o for o in old)
    return tuple(old)


def _shared_cell(
    warp: Any, at: int, size: int, line: int
) -> tuple[np.ndarray, int] | None:
    cta = warp.peer(at, line)
    offset = at & 0xFFFFFF
    if cta is None or not warp._in_shared(cta, offset, offset, size, line):
        return None
    if offset % size:
        warp.report("misuse", f"misaligned atomic at {offset:#x}", line)
        return None
    # Atomics do not race with each other, so only the ordinary accesses around them are
    # checked.
    rows = warp.clock.rows[0]
    cta.shadow.read(
        slice(offset >> 4, (offset >> 4) + 1),
        warp.agent,
        warp.clock.epoch(),
        rows,
        rows,
        line,
    )
    return cta.views[size], offset // size


def _global_cell(
    warp: Any, at: int, size: int, line: int
) -> tuple[np.ndarray, int] | None:
    region = warp.engine.memory.find(at, size)
    if region is None or at % size:
        where = warp.engine.memory.describe(at)
        warp.report(
            "out_of_bounds" if region is None else "misuse", f"atomic at {where}", line
        )
        return None
    if region.reduced is not None:
        start = at - region.base
        region.reduced[start : start + size] = True
    return region.views[size], (at - region.base) // size
