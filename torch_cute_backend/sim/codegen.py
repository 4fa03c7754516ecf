"""Basic blocks to Python functions.

In: the ``Flow`` of a kernel. Out: ``Program``: one function per block, taking the lane
group and returning the next block index (or a negative signal), plus the static facts
that the engine needs (liveness masks, instruction categories, PTX lines).

Within a block, registers become Python locals and are written through to ``g.R``. Code
is the same for full warps and divergent lane groups: a group owns a register file, and
only operations with side effects look at its lane mask.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import codegen_alu, codegen_ops, convert, floats, halves, lanes
from .blocks import Block, Flow, build, registers
from .parse import Imm, Instr, Kernel, Mem, Operand, Reg, Sink, Sym, Vec
from .report import SimError, UnsupportedPtx

BLOCKED, FORKED, EXITED = -1, -2, -3
PARAM_BASE = 1 << 56
_SPECIAL = frozenset(
    f"%{name}.{axis}"
    for name in (
        "tid",
        "ntid",
        "ctaid",
        "nctaid",
        "clusterid",
        "nclusterid",
        "cluster_ctaid",
        "cluster_nctaid",
    )
    for axis in "xyz"
) | frozenset(
    [
        "%laneid",
        "%warpid",
        "%nwarpid",
        "%cluster_ctarank",
        "%cluster_nctarank",
        "%smid",
        "%nsmid",
        "%dynamic_smem_size",
        "%total_smem_size",
        "%gridid",
        "%lanemask_lt",
        "%lanemask_le",
        "%lanemask_eq",
        "%lanemask_gt",
        "%lanemask_ge",
    ]
)


@dataclass
class Program:
    """Executable form of a kernel."""

    kernel: Kernel
    flow: Flow
    functions: list[Callable[[Any], int]]
    live_in: list[int]
    defs: list[int]
    categories: list[Counter[str]]
    shared_offsets: dict[str, int]
    static_shared: int
    source: str
    constants: list[Any] = field(default_factory=list)

    def line(self, pc: int) -> int:
        """PTX line of the first instruction of a block."""
        return self.flow.blocks[pc].instrs[0].line


class BlockEmitter:
    """Writes the body of one block function."""

    def __init__(self, module: ModuleEmitter, block: Block) -> None:
        self.module = module
        self.block = block
        self.lines: list[str] = []
        self.known: dict[str, str] = {}
        self.tiles_clean = False
        self.loads_checked = False

    def local(self, name: str) -> str:
        """Python local that holds a register, loading it on first use."""
        found = self.known.get(name)
        if found is None:
            number = self.module.flow.numbers[name]
            found = self.known[name] = f"r{number}"
            self.lines.append(f"r{number} = R[{number}]")
        return found

    def raw(self, operand: Operand) -> str:
        """A register without conversion (64-bit pairs stay pairs); other operands as 64
        bits.
        """
        return (
            self.local(operand.name)
            if isinstance(operand, Reg)
            else self.val(operand, 64)
        )

    def val(self, operand: Operand, bits: int) -> str:
        """Expression of an operand as an unsigned ``bits``-wide value."""
        if isinstance(operand, Reg):
            name = self.local(operand.name)
            if bits == 1:
                return f"inv({name})" if operand.negated else name
            return f"norm64({name})" if operand.name in self.module.pairs else name
        if isinstance(operand, Imm):
            if bits == 1:
                return str(operand.value != 0)
            return str(operand.value & ((1 << bits) - 1))
        if isinstance(operand, Sym):
            return self.symbol(operand)
        raise SimError(f"unexpected operand {operand}")

    def symbol(self, operand: Sym) -> str:
        """Special register, parameter or variable address."""
        name = operand.name
        if name in _SPECIAL:
            return f"W.special[{name!r}]"
        params = self.module.param_offsets
        if name in params:
            return str(PARAM_BASE + params[name] + operand.offset)
        offset = self.module.shared_offsets.get(name)
        if offset is None:
            raise UnsupportedPtx(f"symbol {name}")
        return f"(W.rank_base + {offset + operand.offset})"

    def register_bits(self, operand: Operand) -> int:
        """Declared width of a register operand."""
        if not isinstance(operand, Reg):
            return 32
        return self.module.flow.bits[self.module.flow.numbers[operand.name]]

    def assign(self, target: Any, text: str) -> None:
        """``target = text``, written through to the register file."""
        if isinstance(target, Sink):
            self.lines.append(text)
            return
        if not isinstance(target, Reg):
            raise SimError(f"cannot assign to {target}")
        number = self.module.flow.numbers[target.name]
        self.known[target.name] = f"r{number}"
        self.lines.append(f"R[{number}] = r{number} = {text}")

    def assign_many(self, targets: Sequence[Operand], text: str) -> None:
        """Unpack a tuple expression into registers."""
        slots = []
        for target in targets:
            if isinstance(target, Reg):
                slots.append(f"r{self.module.flow.numbers[target.name]}")
            else:
                slots.append("_")
        comma = "," if len(slots) == 1 else ""
        self.lines.append(f"{', '.join(slots)}{comma} = {text}")
        for target in targets:
            if isinstance(target, Reg):
                number = self.module.flow.numbers[target.name]
                self.known[target.name] = f"r{number}"
                self.lines.append(f"R[{number}] = r{number}")

    def address(self, memory: Mem, bits: int) -> str:
        """Address expression of ``[base+offset]``."""
        base = self.val(memory.base, bits)
        if not memory.offset:
            return base
        return (
            f"({base} + {memory.offset})"
            if memory.offset > 0
            else f"({base} - {-memory.offset})"
        )

    def constant(self, value: Any) -> str:
        """Name of a module-level constant object."""
        self.module.constants.append(value)
        return f"K[{len(self.module.constants) - 1}]"

    def forget(self, names: Sequence[str]) -> None:
        """Drop cached locals whose registers the engine changed."""
        for name in names:
            self.known.pop(name, None)


class ModuleEmitter:
    """Emits all block functions of one kernel."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.constants: list[Any] = []
        self.param_offsets: dict[str, int] = {}
        offset = 0
        for param in flow.kernel.params:
            self.param_offsets[param.name] = offset
            offset += -(-param.size // 64) * 64
        self.shared_offsets, self.static_shared = _place_shared(flow.kernel)
        self.accumulators = {
            name
            for block in flow.blocks
            for instr in block.instrs
            if instr.opcode.startswith("wgmma.mma_async")
            for name in registers(instr.operands[0])
        }
        self.copies = _copies(flow)
        self.tmem_loads = self.with_copies(
            name
            for block in flow.blocks
            for instr in block.instrs
            if instr.opcode.startswith("tcgen05.ld")
            for name in registers(instr.operands[0])
        )
        self.pairs = _pair_registers(flow)

    def with_copies(self, names: Iterable[str]) -> set[str]:
        """Registers and everything that plain moves make of them."""
        found: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo.extend(self.copies.get(name, ()))
        return found

    def block_source(self, block: Block) -> str:
        emitter = BlockEmitter(self, block)
        for at, instr in enumerate(block.instrs):
            self._tile_guard(emitter, block, at)
            self._load_guard(emitter, block, at)
            try:
                self._instruction(emitter, block, instr)
            except UnsupportedPtx as error:
                text = str(error).split(": ", 1)[-1] if error.ptx_line else str(error)
                raise UnsupportedPtx(f"{instr.opcode}: {text}", instr.line) from None
            except (KeyError, ValueError, IndexError, SimError) as error:
                if isinstance(error, SimError) and error.ptx_line:
                    raise
                raise UnsupportedPtx(
                    f"{instr.opcode}: {error!r}", instr.line
                ) from error
        if block.instrs[-1].parts[0] not in ("bra", "ret", "exit", "trap"):
            emitter.lines.append(f"return {block.next}")
        body = "\n    ".join(["R = g.R", "W = g.w", *emitter.lines])
        return f"def b{block.index}(g):\n    {body}\n"

    def _tile_guard(self, emitter: BlockEmitter, block: Block, at: int) -> None:
        """Before anything but wgmma touches accumulator registers, materialise their
        tiles.

        One call covers the run of instructions up to the next wgmma. Plain moves are
        told apart: NVVM places initialising moves behind ``wgmma.fence``, which ptxas
        sorts out.
        """
        instr = block.instrs[at]
        if instr.opcode.startswith("wgmma.mma_async"):
            emitter.tiles_clean = False
            return
        if emitter.tiles_clean or not self.accumulators:
            return
        if not self._accumulators_of(instr):
            return
        hard: set[str] = set()
        soft: set[str] = set()
        for following in block.instrs[at:]:
            if following.opcode.startswith("wgmma.mma_async"):
                break
            names = self._accumulators_of(following)
            (soft if following.opcode.startswith("mov.b32") else hard).update(names)
        numbers = self.flow.numbers
        constant = emitter.constant(
            tuple(frozenset(numbers[n] for n in names) for names in (hard, soft))
        )
        emitter.lines.append(f"W.materialise({constant}, {instr.line})")
        emitter.forget([n for n in emitter.known if n in self.accumulators])
        emitter.tiles_clean = True

    def _load_guard(self, emitter: BlockEmitter, block: Block, at: int) -> None:
        """Before registers of a tcgen05.ld are used.

        Check that wait::ld came between.
        """
        instr = block.instrs[at]
        if instr.opcode.startswith("tcgen05."):
            emitter.loads_checked = False
            if instr.parts[1] == "ld":
                return
        if emitter.loads_checked or not self.tmem_loads:
            return
        names: set[str] = set()
        for following in block.instrs[at:]:
            if following is not instr and following.opcode.startswith("tcgen05."):
                break
            # Moves only rename: ptxas sees through them, so they do not use the value.
            if following.parts[0] != "mov":
                names |= {
                    n for o in following.operands for n in registers(o)
                } & self.tmem_loads
            if following is instr and not names:
                return
        constant = emitter.constant(frozenset(self.flow.numbers[n] for n in names))
        emitter.lines.append(
            f"if W.pending_loads: W.unwaited({constant}, {instr.line})"
        )
        emitter.loads_checked = True

    def _accumulators_of(self, instr: Instr) -> set[str]:
        names = {name for o in instr.operands for name in registers(o)}
        return names & self.accumulators

    def _instruction(self, e: BlockEmitter, block: Block, instr: Instr) -> None:
        head = instr.parts[0]
        if head == "bra":
            _branch(e, block, instr)
        elif head in ("ret", "exit"):
            e.lines.append("return g.exit()")
        elif head == "trap":
            e.lines.append(f"return W.trap({instr.line})")
        elif not codegen_alu.emit(e, instr) and not codegen_ops.emit(e, instr):
            raise UnsupportedPtx("unknown opcode", instr.line)


def _branch(e: BlockEmitter, block: Block, instr: Instr) -> None:
    guard = instr.guard
    if guard is None:
        e.lines.append(f"return {block.taken}")
        return
    pred = e.local(guard.name)
    yes, no = (block.next, block.taken) if guard.negated else (block.taken, block.next)
    e.lines += [
        f"if {pred} is True: return {yes}",
        f"if {pred} is False: return {no}",
        f"return g.branch({pred}, {yes}, {no})",
    ]


def _place_shared(kernel: Kernel) -> tuple[dict[str, int], int]:
    """Static variables first, then dynamic shared memory, as the driver does.

    The first 1024 bytes are reserved by the system on sm_90 and later.
    """
    offsets, at = {}, 1024
    for name, size, align in kernel.shared:
        if size:
            at = -(-at // align) * align
            offsets[name] = at
            at += size
    at = -(-at // 1024) * 1024
    for name, size, _ in kernel.shared:
        if not size:
            offsets[name] = at
    return offsets, at


def _copies(flow: Flow) -> dict[str, set[str]]:
    """For each register, the registers that a mov (pack, unpack.

    Copy) writes from it.
    """
    copies: dict[str, set[str]] = {}
    for block in flow.blocks:
        for instr in block.instrs:
            if instr.parts[0] == "mov":
                targets = set(registers(instr.operands[0]))
                for source in registers(instr.operands[1]):
                    copies.setdefault(source, set()).update(targets)
    return copies


def _pair_registers(flow: Flow) -> set[str]:
    """64-bit registers that may hold (low, high) pairs."""
    pairs: set[str] = set()
    changed = True
    while changed:
        changed = False
        for block in flow.blocks:
            for instr in block.instrs:
                if not instr.operands or not isinstance(instr.operands[0], Reg):
                    continue
                target = instr.operands[0].name
                packs = instr.parts[-1] == "f32x2"
                if instr.opcode == "mov.b64" and len(instr.operands) == 2:
                    source = instr.operands[1]
                    packs = isinstance(source, Vec) or (
                        isinstance(source, Reg) and source.name in pairs
                    )
                if packs and target not in pairs:
                    pairs.add(target)
                    changed = True
    return pairs


def compile_kernel(kernel: Kernel) -> Program:
    """Generate and load the block functions of a kernel."""
    flow = build(kernel)
    module = ModuleEmitter(flow)
    source = "\n".join(module.block_source(block) for block in flow.blocks)
    scope: dict[str, Any] = {"np": np, "K": module.constants}
    for library in (lanes, floats, convert, halves):
        scope.update(
            {n: getattr(library, n) for n in dir(library) if not n.startswith("_")}
        )
    scope.update(BLOCKED=BLOCKED)
    name = f"<ptx {kernel.name[:40]}>"
    exec(compile(source, name, "exec"), scope)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return Program(
        kernel,
        flow,
        [scope[f"b{b.index}"] for b in flow.blocks],
        [b.live_in for b in flow.blocks],
        [b.defs for b in flow.blocks],
        [_categories(b) for b in flow.blocks],
        module.shared_offsets,
        module.static_shared,
        source,
        module.constants,
    )


_CATEGORIES = (
    ("bar.", "bar.sync"),
    ("barrier.sync", "bar.sync"),
    ("barrier.cluster", "cluster barrier"),
    ("shfl", "shfl"),
    ("elect", "elect"),
    ("mbarrier.try_wait", "try_wait"),
    ("mbarrier.test_wait", "try_wait"),
    ("mbarrier.arrive", "arrive"),
    ("cp.async.bulk.commit", ""),
    ("cp.async.bulk.wait", ""),
    ("cp.async.bulk", "tma"),
    ("cp.reduce.async.bulk", "tma"),
    ("tcgen05.mma", "mma"),
    ("wgmma.mma", "mma"),
    ("tcgen05.commit", "commit"),
    ("wgmma.commit", "commit"),
)


def _categories(block: Block) -> Counter[str]:
    counts: Counter[str] = Counter()
    for index, instr in enumerate(block.instrs):
        if index in block.synthetic:
            continue
        counts["instructions"] += 1
        for prefix, name in _CATEGORIES:
            if instr.opcode.startswith(prefix):
                counts[name or "instructions"] += 1 if name else 0
                break
    return counts
