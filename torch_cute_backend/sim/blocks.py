"""Instructions to basic blocks with liveness.

In: a parsed ``Kernel``. Out: ``Block`` list in program order. A block starts at a
label, behind a branch, and at every instruction that can block, so that re-running a
block from its start after a failed wait repeats nothing. Guarded non-branch
instructions become a branch around the instruction, so execution knows no predication,
only lane masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .parse import Dual, Instr, Kernel, Mem, Operand, Reg, Sym, Vec

_NO_DESTINATION = frozenset(
    (
        *("st", "bra", "bar", "barrier", "ret", "exit", "fence", "membar", "trap"),
        *("prefetch", "prefetchu", "cp", "red", "setmaxnreg", "griddepcontrol"),
        *("stmatrix", "nanosleep", "brkpt", "discard", "applypriority", "tensormap"),
        "try_cancel",
    )
)
_BLOCKING = (
    "mbarrier.try_wait",
    "mbarrier.test_wait",
    "bar.",
    "barrier.",
    "cp.async.bulk.wait_group",
    "cp.async.wait",
    "wgmma.wait_group",
    "tcgen05.wait",
    "tcgen05.alloc",
    "griddepcontrol.wait",
    "tcgen05.dealloc",
)


@dataclass
class Block:
    """A straight run of instructions. ``taken``/``next`` are block indices (-1.

    None).
    """

    index: int
    instrs: list[Instr]
    next: int = -1
    taken: int = -1
    defs: int = 0
    uses: int = 0
    live_in: int = 0
    synthetic: set[int] = field(default_factory=set)


@dataclass
class Flow:
    """Blocks, register numbering and types of one kernel."""

    kernel: Kernel
    blocks: list[Block]
    numbers: dict[str, int]
    bits: list[int]


_BITS = {
    "pred": 1,
    "b8": 8,
    "b16": 16,
    "u16": 16,
    "s16": 16,
    "f16": 16,
    "b32": 32,
    "u32": 32,
    "s32": 32,
    "f32": 32,
    "b64": 64,
    "u64": 64,
    "s64": 64,
    "f64": 64,
    "b128": 128,
    "f16x2": 32,
}


def registers(operand: Operand) -> Iterator[str]:
    """Names of all registers in an operand."""
    if isinstance(operand, Reg):
        yield operand.name
    elif isinstance(operand, Vec):
        for item in operand.items:
            yield from registers(item)
    elif isinstance(operand, Dual):
        yield from registers(operand.first)
        yield from registers(operand.second)
    elif isinstance(operand, Mem):
        yield from registers(operand.base)
        for item in operand.extra:
            yield from registers(item)


def defs_and_uses(instr: Instr) -> tuple[list[str], list[str]]:
    """Registers written and read by an instruction (guard included)."""
    uses = [instr.guard.name] if instr.guard else []
    operands = instr.operands
    head = instr.parts[0]
    if head == "clusterlaunchcontrol":
        head = instr.parts[1]
    if instr.opcode.startswith("wgmma.mma_async"):
        accumulators = list(registers(operands[0]))
        return accumulators, uses + accumulators + _all(operands[1:])
    writes = (
        bool(operands)
        and not isinstance(operands[0], Mem)
        and head not in _NO_DESTINATION
    )
    if head == "tcgen05":
        writes = instr.parts[1] == "ld"
    if not writes:
        return [], uses + _all(operands)
    return list(registers(operands[0])), uses + _all(operands[1:])


def _all(operands: tuple[Operand, ...]) -> list[str]:
    return [name for operand in operands for name in registers(operand)]


def build(kernel: Kernel) -> Flow:
    """Split into blocks and compute liveness."""
    instrs, labels, synthetic = _expand_guards(kernel)
    starts = _leaders(instrs, labels)
    index_of = {start: i for i, start in enumerate(starts)}
    blocks = []
    for i, start in enumerate(starts):
        stop = starts[i + 1] if i + 1 < len(starts) else len(instrs)
        block = Block(i, instrs[start:stop])
        block.synthetic = {n - start for n in synthetic if start <= n < stop}
        last = block.instrs[-1]
        head = last.parts[0]
        if head == "bra":
            target = last.operands[0]
            assert isinstance(target, Sym)
            block.taken = index_of[labels[target.name]]
            block.next = i + 1 if last.guard else -1
        elif head not in ("ret", "exit", "trap"):
            block.next = i + 1
        blocks.append(block)
    numbers = {name: i for i, name in enumerate(kernel.registers)}
    flow = Flow(kernel, blocks, numbers, [_BITS[t] for t in kernel.registers.values()])
    _liveness(flow)
    return flow


def _expand_guards(kernel: Kernel) -> tuple[list[Instr], dict[str, int], list[int]]:
    """Turn ``@p op`` into ``@!p bra over; op; over:``."""
    out: list[Instr] = []
    synthetic: list[int] = []
    moved: dict[int, int] = {}
    labels: dict[str, int] = {}
    for index, instr in enumerate(kernel.instrs):
        moved[index] = len(out)
        guard = instr.guard
        if guard and instr.parts[0] != "bra":
            over = f"$over{index}"
            synthetic.append(len(out))
            inverse = Reg(guard.name, not guard.negated)
            out.append(
                Instr(instr.line, "bra", (Sym(over),), inverse, instr.scopes, instr.loc)
            )
            out.append(
                Instr(
                    instr.line,
                    instr.opcode,
                    instr.operands,
                    None,
                    instr.scopes,
                    instr.loc,
                )
            )
            labels[over] = len(out)
        else:
            out.append(instr)
    moved[len(kernel.instrs)] = len(out)
    for name, at in kernel.labels.items():
        labels[name] = moved[at]
    if (
        not out
        or out[-1].parts[0] not in ("ret", "exit", "bra", "trap")
        or len(out) in labels.values()
    ):
        out.append(Instr(out[-1].line if out else 0, "ret", ()))
        synthetic.append(len(out) - 1)
    return out, labels, synthetic


def _leaders(instrs: list[Instr], labels: dict[str, int]) -> list[int]:
    leaders = {0, *labels.values()}
    for index, instr in enumerate(instrs):
        if instr.parts[0] in ("bra", "ret", "exit", "trap"):
            leaders.add(index + 1)
        if instr.opcode.startswith(_BLOCKING):
            leaders.add(index)
    return sorted(i for i in leaders if i < len(instrs))


def _liveness(flow: Flow) -> None:
    numbers = flow.numbers
    for block in flow.blocks:
        for instr in block.instrs:
            written, read = defs_and_uses(instr)
            for name in read:
                bit = 1 << numbers[name]
                if not block.defs & bit:
                    block.uses |= bit
            for name in written:
                block.defs |= 1 << numbers[name]
    changed = True
    while changed:
        changed = False
        for block in reversed(flow.blocks):
            out = 0
            for successor in (block.next, block.taken):
                if 0 <= successor < len(flow.blocks):
                    out |= flow.blocks[successor].live_in
            live = block.uses | (out & ~block.defs)
            if live != block.live_in:
                block.live_in = live
                changed = True
