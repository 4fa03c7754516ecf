"""Engine calls for asynchronous instructions: cp.async.bulk, wgmma, tcgen05.

Static facts of an instruction (shapes, element types, modes) become frozen constant
objects, so that the engine decodes nothing twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .blocks import registers
from .parse import Imm, Instr, Mem, Operand, Reg, Vec
from .report import UnsupportedPtx

if TYPE_CHECKING:
    from .codegen import BlockEmitter


@dataclass(frozen=True)
class WgmmaShape:
    """One wgmma instruction: D is m x n, ``registers`` numbers its D registers."""

    m: int
    n: int
    k: int
    d_type: str
    a_type: str
    b_type: str
    registers: tuple[int, ...]
    a_registers: tuple[int, ...]
    line: int


def emit(e: BlockEmitter, instr: Instr) -> bool:
    """Emit an asynchronous instruction; False when the opcode is unknown."""
    handler = _HANDLERS.get(instr.parts[0])
    if handler is None:
        return False
    handler(e, instr)
    return True


def _memory(operand: Operand) -> Mem:
    if not isinstance(operand, Mem):
        raise UnsupportedPtx(f"expected an address, got {operand}")
    return operand


def _cp(e: BlockEmitter, instr: Instr) -> None:
    parts = instr.parts
    if parts[:3] == ["cp", "async", "bulk"]:
        if parts[3] == "commit_group":
            e.lines.append("W.bulk_commit()")
        elif parts[3] == "wait_group":
            count = e.val(instr.operands[0], 32)
            read = "read" in parts
            e.lines.append(
                f"if not W.bulk_wait(g, {count}, {read}, {instr.line}): return BLOCKED"
            )
        elif parts[3] == "tensor":
            _bulk_tensor(e, instr, None)
        elif parts[3:5] == ["prefetch", "tensor"]:
            tensor = _memory(instr.operands[0])
            e.lines.append(
                f"W.tma_prefetch(g, {e.address(tensor, 64)}, "
                f"{_coordinates(e, tensor)}, {instr.line})"
            )
        elif parts[3] == "prefetch":
            return
        else:
            _bulk_plain(e, instr, None)
    elif parts[:4] == ["cp", "reduce", "async", "bulk"]:
        operation = next(
            (
                p
                for p in parts
                if p in ("add", "min", "max", "inc", "dec", "and", "or", "xor")
            ),
            "",
        )
        if parts[4] != "tensor":
            raise UnsupportedPtx("non-tensor bulk reduction", instr.line)
        _bulk_tensor(e, instr, operation)
    else:
        raise UnsupportedPtx("cp.async", instr.line)


def _bulk_tensor(e: BlockEmitter, instr: Instr, reduction: str | None) -> None:
    parts = instr.parts
    known = {
        "cp",
        "async",
        "bulk",
        "tensor",
        "reduce",
        "tile",
        "shared::cta",
        "shared::cluster",
        "global",
        "mbarrier::complete_tx::bytes",
        "multicast::cluster",
        "cta_group::1",
        "cta_group::2",
        "L2::cache_hint",
        "bulk_group",
        reduction,
    }
    extra = [p for p in parts if p not in known and not re.fullmatch(r"[1-5]d", p)]
    if extra:
        raise UnsupportedPtx(f"qualifiers {extra}", instr.line)
    operands = list(instr.operands)
    if "L2::cache_hint" in parts:
        operands.pop()
    if "bulk_group" in parts:
        tensor, source = _memory(operands[0]), _memory(operands[1])
        e.lines.append(
            f"W.tma_store(g, {e.address(tensor, 64)}, {_coordinates(e, tensor)}, "
            f"{e.address(source, 32)}, {reduction!r}, {instr.line})"
        )
        return
    target, tensor, barrier = (_memory(o) for o in operands[:3])
    mask = e.val(operands[3], 16) if "multicast::cluster" in parts else "None"
    pair = "cta_group::2" in parts
    e.lines.append(
        f"W.tma_load(g, {e.address(target, 32)}, {e.address(tensor, 64)}, "
        f"{_coordinates(e, tensor)}, {e.address(barrier, 32)}, {mask}, {pair}, "
        f"{instr.line})"
    )


def _coordinates(e: BlockEmitter, tensor: Mem) -> str:
    if len(tensor.extra) != 1 or not isinstance(tensor.extra[0], Vec):
        raise UnsupportedPtx("tensor coordinates")
    return "(" + ", ".join(e.val(o, 32) for o in tensor.extra[0].items) + ",)"


def _bulk_plain(e: BlockEmitter, instr: Instr, reduction: str | None) -> None:
    parts = instr.parts
    operands = list(instr.operands)
    if "L2::cache_hint" in parts:
        operands.pop()
    known = {
        "cp",
        "async",
        "bulk",
        "shared::cta",
        "shared::cluster",
        "global",
        "mbarrier::complete_tx::bytes",
        "L2::cache_hint",
        "bulk_group",
    }
    spaces = [p for p in parts if p in ("shared::cta", "shared::cluster", "global")]
    if set(parts) - known or len(spaces) != 2:
        raise UnsupportedPtx("bulk copy form", instr.line)
    size = e.val(operands[2], 32)
    if "bulk_group" in parts and spaces[0] == "global":
        e.lines.append(
            f"W.bulk_store(g, {e.address(_memory(operands[0]), 64)}, "
            f"{e.address(_memory(operands[1]), 32)}, {size}, {instr.line})"
        )
    elif spaces[1] == "global":
        e.lines.append(
            f"W.bulk_load(g, {e.address(_memory(operands[0]), 32)}, "
            f"{e.address(_memory(operands[1]), 64)}, {size}, "
            f"{e.address(_memory(operands[3]), 32)}, {instr.line})"
        )
    else:
        raise UnsupportedPtx("bulk copy form", instr.line)


_WGMMA = re.compile(r"m(\d+)n(\d+)k(\d+)")


def _wgmma(e: BlockEmitter, instr: Instr) -> None:
    kind = instr.parts[1]
    if kind == "fence":
        e.lines.append("W.wgmma_fence()")
    elif kind == "commit_group":
        e.lines.append("W.wgmma_commit()")
    elif kind == "wait_group":
        count = e.val(instr.operands[0], 32)
        e.lines.append(f"if not W.wgmma_wait(g, {count}, {instr.line}): return BLOCKED")
    else:
        _wgmma_mma(e, instr)


def _wgmma_mma(e: BlockEmitter, instr: Instr) -> None:
    parts = instr.parts
    shape = _WGMMA.fullmatch(parts[4])
    if (
        parts[1:4] != ["mma_async", "sync", "aligned"]
        or shape is None
        or len(parts) != 8
    ):
        raise UnsupportedPtx("wgmma form", instr.line)
    d_type, a_type, b_type = parts[5:8]
    if d_type != "f32" and (d_type, a_type) not in (("s32", "s8"), ("s32", "u8")):
        raise UnsupportedPtx(f"wgmma with {d_type} accumulators", instr.line)
    numbers = e.module.flow.numbers
    d = tuple(numbers[n] for n in registers(instr.operands[0]))
    a_operand = instr.operands[1]
    a_regs = (
        tuple(numbers[n] for n in registers(a_operand))
        if isinstance(a_operand, Vec)
        else ()
    )
    m, n, k = (int(x) for x in shape.groups())
    constant = e.constant(
        WgmmaShape(
            m,
            n,
            k,
            d_type,
            a_type,
            b_type,
            d,
            a_regs,
            instr.line,
        )
    )
    a = "None" if a_regs else e.val(a_operand, 64)
    b = e.val(instr.operands[2], 64)
    scale_d = e.val(instr.operands[3], 1)
    flags = [_literal(o, instr) for o in instr.operands[4:]]
    negate_a, negate_b = (
        (flags[0] == -1, flags[1] == -1) if len(flags) >= 2 else (False, False)
    )
    transposes = flags[2:] if len(flags) > 2 else []
    trans_b = bool(transposes[-1]) if transposes else False
    trans_a = bool(transposes[0]) if len(transposes) == 2 else False
    e.lines.append(
        f"W.wgmma(g, {constant}, {a}, {b}, {scale_d}, {negate_a}, {negate_b}, "
        f"{trans_a}, {trans_b})"
    )
    e.forget([n for n in e.known if n in e.module.accumulators])


def _literal(operand: Operand, instr: Instr) -> int:
    if not isinstance(operand, Imm):
        raise UnsupportedPtx("wgmma scale or transpose must be a literal", instr.line)
    return operand.value


def _tcgen05(e: BlockEmitter, instr: Instr) -> None:
    kind = instr.parts[1].split("::")[0]
    handler = _TCGEN05.get(kind)
    if handler is None:
        raise UnsupportedPtx(f"tcgen05.{kind}", instr.line)
    handler(e, instr)


def _group(instr: Instr) -> int:
    return 2 if "cta_group::2" in instr.parts else 1


def _tc_alloc(e: BlockEmitter, instr: Instr) -> None:
    address = e.address(_memory(instr.operands[0]), 32)
    columns = e.val(instr.operands[1], 32)
    e.lines.append(
        f"if not W.tc_alloc(g, {address}, {columns}, {_group(instr)}, "
        f"{instr.line}): return BLOCKED"
    )


def _tc_dealloc(e: BlockEmitter, instr: Instr) -> None:
    base, columns = (e.val(o, 32) for o in instr.operands)
    e.lines.append(
        f"if not W.tc_dealloc(g, {base}, {columns}, {_group(instr)}, "
        f"{instr.line}): return BLOCKED"
    )


def _tc_relinquish(e: BlockEmitter, instr: Instr) -> None:
    e.lines.append(f"W.tc_relinquish(g, {instr.line})")


def _tc_mma(e: BlockEmitter, instr: Instr) -> None:
    kinds = [p for p in instr.parts if p.startswith("kind::")]
    scale = [
        p for p in instr.parts if p.startswith(("scale_vec::", "block16", "block32"))
    ]
    known = (
        "tcgen05",
        "mma",
        "cta_group",
        "kind",
        "collector",
        "scale_vec",
        "block16",
        "block32",
        "block_scale",
    )
    extra = [p for p in instr.parts if p.split("::")[0] not in known]
    if extra or len(kinds) != 1:
        raise UnsupportedPtx(f"qualifiers {extra}", instr.line)
    d, a, b, idesc = instr.operands[:4]
    rest = list(instr.operands[4:])
    d_text = e.address(_memory(d), 32)
    a_text = e.address(a, 32) if isinstance(a, Mem) else e.val(a, 64)
    b_text, i_text = e.val(b, 64), e.val(idesc, 32)
    scales = "None"
    if "block_scale" in instr.parts:
        scales = (
            f"({e.address(_memory(rest[0]), 32)}, {e.address(_memory(rest[1]), 32)})"
        )
        rest = rest[2:]
    lanes_off = "None"
    if rest and isinstance(rest[0], Vec):
        lanes_off = "(" + ", ".join(e.val(o, 32) for o in rest[0].items) + ",)"
        rest = rest[1:]
    enable = e.val(rest.pop(0), 1)
    if rest:
        raise UnsupportedPtx("scale-input-d", instr.line)
    vector = scale[0].split("::")[-1] if scale else ""
    e.lines.append(
        f"W.tc_mma(g, {kinds[0][6:]!r}, {vector!r}, {_group(instr)}, {d_text}, "
        f"{a_text}, "
        f"{isinstance(a, Mem)}, {b_text}, {i_text}, {scales}, {lanes_off}, "
        f"{enable}, {instr.line})"
    )


def _tc_commit(e: BlockEmitter, instr: Instr) -> None:
    address = e.address(_memory(instr.operands[0]), 32)
    mask = (
        e.val(instr.operands[1], 16) if "multicast::cluster" in instr.parts else "None"
    )
    e.lines.append(f"W.tc_commit(g, {address}, {mask}, {_group(instr)}, {instr.line})")


def _tc_ld_st(e: BlockEmitter, instr: Instr) -> None:
    parts = instr.parts
    load = parts[1] == "ld"
    shape = next((p for p in parts if re.fullmatch(r"\d+x\d+b(x2)?|16x32bx2", p)), "")
    count = next(int(p[1:]) for p in parts if re.fullmatch(r"x\d+", p))
    packed = "pack::16b" in parts or "unpack::16b" in parts
    if packed or "red" in parts:
        raise UnsupportedPtx("packed or reducing tcgen05.ld/st", instr.line)
    if load:
        memory = _memory(instr.operands[1])
        targets = (
            instr.operands[0].items
            if isinstance(instr.operands[0], Vec)
            else (instr.operands[0],)
        )
        names = e.module.with_copies(t.name for t in targets if isinstance(t, Reg))
        constant = e.constant(frozenset(e.module.flow.numbers[n] for n in names))
        address = e.address(memory, 32)
        e.assign_many(
            targets,
            f"W.tc_ld(g, {shape!r}, {count}, {address}, {constant}, {instr.line})",
        )
    else:
        address = e.address(_memory(instr.operands[0]), 32)
        source = instr.operands[1]
        items = source.items if isinstance(source, Vec) else (source,)
        values = ", ".join(e.val(o, 32) for o in items)
        e.lines.append(
            f"W.tc_st(g, {shape!r}, {count}, {address}, ({values},), {instr.line})"
        )


def _tc_wait(e: BlockEmitter, instr: Instr) -> None:
    kind = "ld" if instr.parts[1] == "wait::ld" else "st"
    e.lines.append(f"if not W.tc_wait(g, {kind!r}, {instr.line}): return BLOCKED")


def _tc_fence(e: BlockEmitter, instr: Instr) -> None:
    e.lines.append(f"W.tc_fence({instr.parts[1].split('::')[1]!r})")


def _tc_cp(e: BlockEmitter, instr: Instr) -> None:
    address, descriptor = (
        e.address(_memory(instr.operands[0]), 32),
        e.val(instr.operands[1], 64),
    )
    shape = instr.parts[3]
    multicast = next((p for p in instr.parts if p.startswith("warpx")), "")
    known = {"tcgen05", "cp", "cta_group::1", "cta_group::2", shape, multicast}
    if set(instr.parts) - known:
        raise UnsupportedPtx("tcgen05.cp form", instr.line)
    e.lines.append(
        f"W.tc_cp(g, {shape!r}, {multicast!r}, {_group(instr)}, {address}, "
        f"{descriptor}, {instr.line})"
    )


_TCGEN05: dict[str, Callable[[BlockEmitter, Instr], None]] = {
    "alloc": _tc_alloc,
    "dealloc": _tc_dealloc,
    "relinquish_alloc_permit": _tc_relinquish,
    "mma": _tc_mma,
    "commit": _tc_commit,
    "ld": _tc_ld_st,
    "st": _tc_ld_st,
    "wait": _tc_wait,
    "fence": _tc_fence,
    "cp": _tc_cp,
}
_HANDLERS: dict[str, Callable[[BlockEmitter, Instr], None]] = {
    "cp": _cp,
    "wgmma": _wgmma,
    "tcgen05": _tcgen05,
}
