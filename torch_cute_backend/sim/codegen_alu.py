"""Python expressions for PTX instructions that only compute.

``emit(e, instr)`` writes the assignment(s) through the block emitter and returns False
if the opcode is not an ALU instruction. Values follow ``lanes``. Anything not listed is
refused by the caller, so a new opcode can never be guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .parse import Dual, Imm, Instr, Reg, Vec
from .report import UnsupportedPtx

if TYPE_CHECKING:
    from .codegen import BlockEmitter

_ROUNDING = ("rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna")
_INT_COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
_NARROW = ("e4m3x2", "e5m2x2", "e2m3x2", "e3m2x2", "e2m1x2")
_FLOAT_BITS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


def _int_type(part: str) -> tuple[int, bool]:
    return int(part[1:]), part[0] == "s"


def _mask(bits: int) -> str:
    return hex((1 << bits) - 1)


def emit(e: BlockEmitter, instr: Instr) -> bool:
    """Emit an ALU instruction; False when the opcode is not one."""
    handler = _HANDLERS.get(instr.parts[0])
    if handler is None:
        return False
    handler(e, instr)
    return True


def _mov(e: BlockEmitter, instr: Instr) -> None:
    target, source = instr.operands
    kind = instr.parts[-1]
    bits = 1 if kind == "pred" else int(kind[1:])
    if isinstance(source, Vec):
        _pack(e, target, source, bits, instr)
    elif isinstance(target, Vec):
        _unpack(e, target, e.raw(source), bits, instr)
    else:
        e.assign(
            target, e.raw(source) if isinstance(source, Reg) else e.val(source, bits)
        )


def _pack(
    e: BlockEmitter, target: object, source: Vec, bits: int, instr: Instr
) -> None:
    part = bits // len(source.items)
    items = [e.val(item, part) for item in source.items]
    if bits in (64, 128) and len(items) == 2:
        e.assign(target, f"({items[0]}, {items[1]})")
    elif bits == 32 and len(items) == 2:
        e.assign(target, f"pack32({items[0]}, {items[1]})")
    elif bits == 32 and len(items) == 4:
        e.assign(target, f"pack32x4({', '.join(items)})")
    elif bits == 64 and len(items) == 4:
        low, high = f"pack32({items[0]}, {items[1]})", f"pack32({items[2]}, {items[3]})"
        e.assign(target, f"({low}, {high})")
    elif bits == 16 and len(items) == 2:
        e.assign(target, f"pack16({items[0]}, {items[1]})")
    else:
        raise UnsupportedPtx(f"mov pack of {len(items)} into b{bits}", instr.line)


def _unpack(e: BlockEmitter, target: Vec, value: str, bits: int, instr: Instr) -> None:
    names = {
        (64, 2): "split64",
        (32, 2): "split32",
        (64, 4): "split64x4",
        (32, 4): "split32x4",
        (16, 2): "split16",
    }
    name = names.get((bits, len(target.items)))
    if name is None:
        raise UnsupportedPtx(f"mov unpack b{bits} into {len(target.items)}", instr.line)
    e.assign_many(target.items, f"{name}({value})")


def _add_sub(e: BlockEmitter, instr: Instr) -> None:
    operator = "+" if instr.parts[0] == "add" else "-"
    kind = instr.parts[-1]
    if kind[0] in "us" or (kind[0] == "b" and kind[1:].isdigit()):
        if len(instr.parts) > 2:
            raise UnsupportedPtx(f"{instr.opcode}", instr.line)
        bits, _ = _int_type(kind)
        a, b = (e.val(o, bits) for o in instr.operands[1:])
        e.assign(instr.operands[0], f"({a} {operator} {b}) & {_mask(bits)}")
        return
    function = "np.add" if operator == "+" else "np.subtract"
    if instr.parts[-2] == "f32":
        _mixed(e, instr, f"lambda x, y: float_op({function}, 32, x, y)", widened=1)
    else:
        _float_binary(e, instr, function)


def _mixed(e: BlockEmitter, instr: Instr, function: str, widened: int) -> None:
    """``add``, ``sub`` and ``fma`` of f32 whose first ``widened`` operands are f16 or
    bf16."""
    kind = instr.parts[-1]
    if kind not in ("f16", "bf16") or instr.parts[1:-2] not in ([], ["rn"]):
        raise UnsupportedPtx(instr.opcode, instr.line)
    narrow, wide = instr.operands[1 : 1 + widened], instr.operands[1 + widened :]
    values = [f"float_to_float({e.val(o, 16)}, {kind!r}, 'f32', 'rn')" for o in narrow]
    values += [e.val(o, 32) for o in wide]
    e.assign(instr.operands[0], f"({function})({', '.join(values)})")


def _float_binary(e: BlockEmitter, instr: Instr, function: str) -> None:
    kind = instr.parts[-1]
    modifiers = set(instr.parts[1:-1]) - {"rn", "ftz", "full", "approx", "NaN"}
    if modifiers:
        raise UnsupportedPtx(f"{instr.opcode}: {sorted(modifiers)}", instr.line)
    ftz = _flushes(instr)
    if kind == "f32x2":
        a, b = (e.raw(o) for o in instr.operands[1:])
        e.assign(
            instr.operands[0],
            f"pairwise(lambda x, y: float_op({function}, 32, x, y{ftz}), {a}, {b})",
        )
    elif kind in ("f16x2", "bf16x2", "bf16", "f16"):
        a, b = (e.val(o, 32 if kind[-2:] == "x2" else 16) for o in instr.operands[1:])
        e.assign(instr.operands[0], f"half_op({function}, {kind!r}, {a}, {b}{ftz})")
    elif kind in _FLOAT_BITS:
        bits = _FLOAT_BITS[kind]
        a, b = (e.val(o, bits) for o in instr.operands[1:])
        e.assign(instr.operands[0], f"float_op({function}, {bits}, {a}, {b}{ftz})")
    else:
        raise UnsupportedPtx(instr.opcode, instr.line)


def _flushes(instr: Instr) -> str:
    """Argument that makes ``float_op`` and its kin flush subnormals, for ``.ftz``."""
    if "ftz" not in instr.parts:
        return ""
    if instr.parts[-1] not in ("f32", "f32x2", "f16", "f16x2"):
        raise UnsupportedPtx(instr.opcode, instr.line)
    return ", ftz=True"


def _mul(e: BlockEmitter, instr: Instr) -> None:
    kind = instr.parts[-1]
    if kind[0] not in "us":
        _float_binary(e, instr, "np.multiply")
        return
    e.assign(instr.operands[0], _product(e, instr, instr.parts[1]))


def _product(e: BlockEmitter, instr: Instr, mode: str) -> str:
    bits, is_signed = _int_type(instr.parts[-1])
    a, b = (e.val(o, bits) for o in instr.operands[1:3])
    if mode == "lo":
        return f"(({a} * {b}) & {_mask(bits)})"
    if mode == "hi":
        return f"mul_hi({a}, {b}, {bits}, {is_signed})"
    if mode == "wide":
        return f"mul_wide({a}, {b}, {bits}, {is_signed})"
    raise UnsupportedPtx(instr.opcode, instr.line)


def _mad(e: BlockEmitter, instr: Instr) -> None:
    kind = instr.parts[-1]
    if kind[0] not in "us":
        _fma(e, instr)
        return
    bits, _ = _int_type(kind)
    wide = bits * 2 if instr.parts[1] == "wide" else bits
    c = e.val(instr.operands[3], wide)
    e.assign(
        instr.operands[0],
        f"({_product(e, instr, instr.parts[1])} + {c}) & {_mask(wide)}",
    )


def _fma(e: BlockEmitter, instr: Instr) -> None:
    kind = instr.parts[-1]
    if instr.parts[-2] == "f32":
        _mixed(e, instr, "fma32", widened=2)
        return
    if instr.parts[1:] == ["rm", "f32"]:
        a, b, c = (e.val(o, 32) for o in instr.operands[1:])
        e.assign(instr.operands[0], f"fma32({a}, {b}, {c}, True)")
        return
    modifiers = set(instr.parts[1:-1]) - {"rn", "ftz"}
    if modifiers:
        raise UnsupportedPtx(instr.opcode, instr.line)
    ftz = _flushes(instr)
    if kind == "f32x2":
        a, b, c = (e.raw(o) for o in instr.operands[1:])
        function = f"lambda x, y, z: fma32(x, y, z{ftz})" if ftz else "fma32"
        e.assign(instr.operands[0], f"pairwise({function}, {a}, {b}, {c})")
    elif kind == "f32":
        a, b, c = (e.val(o, 32) for o in instr.operands[1:])
        e.assign(instr.operands[0], f"fma32({a}, {b}, {c}{ftz})")
    elif kind in ("f16x2", "bf16x2", "bf16", "f16"):
        a, b, c = (
            e.val(o, 32 if kind[-2:] == "x2" else 16) for o in instr.operands[1:]
        )
        e.assign(
            instr.operands[0],
            f"half_op(fused, {kind!r}, {a}, {b}, {c}{ftz})",
        )
    else:
        raise UnsupportedPtx(instr.opcode, instr.line)


def _div_rem(e: BlockEmitter, instr: Instr) -> None:
    kind = instr.parts[-1]
    remainder = instr.parts[0] == "rem"
    if kind[0] not in "us":
        _float_binary(e, instr, "np.divide")
        return
    bits, is_signed = _int_type(kind)
    a, b = (e.val(o, bits) for o in instr.operands[1:])
    e.assign(instr.operands[0], f"divide({a}, {b}, {bits}, {is_signed}, {remainder})")


def _min_max(e: BlockEmitter, instr: Instr) -> None:
    kind = instr.parts[-1]
    largest = instr.parts[0] == "max"
    if kind[0] in "us":
        relu = tuple(instr.parts[1:]) == ("relu", "s32")
        if len(instr.parts) != 2 and not relu:
            raise UnsupportedPtx(instr.opcode, instr.line)
        bits, is_signed = _int_type(kind)
        a, b = (e.val(o, bits) for o in instr.operands[1:])
        text = f"extreme({a}, {b}, {bits}, {is_signed}, {largest})"
        if relu:  # Negative results become 0 (PTX ISA, min and max).
            text = f"extreme({text}, 0, {bits}, True, True)"
        e.assign(instr.operands[0], text)
        return
    # PTX returns the number when one operand is NaN, unless .NaN is given.
    function = "larger" if largest else "smaller"
    _float_binary(e, instr, f"{function}_nan" if "NaN" in instr.parts else function)


def _neg_abs(e: BlockEmitter, instr: Instr) -> None:
    kind, negate = instr.parts[-1], instr.parts[0] == "neg"
    if kind[0] == "s":
        bits, _ = _int_type(kind)
        a = e.val(instr.operands[1], bits)
        text = f"(0 - {a}) & {_mask(bits)}"
        if not negate:
            text = f"extreme({a}, (0 - {a}) & {_mask(bits)}, {bits}, True, True)"
        e.assign(instr.operands[0], text)
        return
    sign = {
        "f32": 0x80000000,
        "f64": 1 << 63,
        "f16": 0x8000,
        "bf16": 0x8000,
        "f16x2": 0x80008000,
        "bf16x2": 0x80008000,
    }.get(kind)
    if sign is None:
        raise UnsupportedPtx(instr.opcode, instr.line)
    bits = {"f64": 64, "f16": 16, "bf16": 16}.get(kind, 32)
    a = e.val(instr.operands[1], bits)
    if _flushes(instr):
        if kind != "f32":
            raise UnsupportedPtx(instr.opcode, instr.line)
        a = f"flush({a}, 32)"
    rest = ((1 << bits) - 1) ^ sign
    e.assign(instr.operands[0], f"{a} ^ {sign:#x}" if negate else f"{a} & {rest:#x}")


def _logic(e: BlockEmitter, instr: Instr) -> None:
    kind = instr.parts[-1]
    bits = 1 if kind == "pred" else int(kind[1:])
    a, b = (e.val(o, bits) for o in instr.operands[1:])
    operator = {"and": "&", "or": "|", "xor": "^"}[instr.parts[0]]
    e.assign(instr.operands[0], f"{a} {operator} {b}")


def _not(e: BlockEmitter, instr: Instr) -> None:
    kind = instr.parts[-1]
    if kind == "pred":
        e.assign(instr.operands[0], f"inv({e.val(instr.operands[1], 1)})")
    else:
        bits = int(kind[1:])
        e.assign(instr.operands[0], f"{e.val(instr.operands[1], bits)} ^ {_mask(bits)}")


def _shift(e: BlockEmitter, instr: Instr) -> None:
    target, source, count = instr.operands
    bits, is_signed = _int_type(instr.parts[-1])
    a = e.val(source, bits)
    left = instr.parts[0] == "shl"
    if isinstance(count, Imm) and not (is_signed and not left):
        if count.value >= bits:
            e.assign(target, f"{a} & 0")
        elif left:
            e.assign(target, f"({a} << {count.value}) & {_mask(bits)}")
        else:
            e.assign(target, f"{a} >> {count.value}")
        return
    name = "shl" if left else "sar" if is_signed else "shr"
    e.assign(target, f"{name}({a}, {e.val(count, 32)}, {bits})")


def _setp(e: BlockEmitter, instr: Instr) -> None:
    parts = [p for p in instr.parts[1:] if p != "ftz"]
    compare, kind = parts[0], parts[-1]
    a_op, b_op = instr.operands[1:3]
    if kind in _FLOAT_BITS and kind != "bf16":
        bits = _FLOAT_BITS[kind]
        a, b = e.val(a_op, bits), e.val(b_op, bits)
        if _flushes(instr):
            a, b = f"flush({a}, {bits})", f"flush({b}, {bits})"
        text = f"compare_float({compare!r}, {a}, {b}, {bits})"
    elif kind[0] in "usb" and kind[1:].isdigit():
        bits, is_signed = _int_type(kind)
        a, b = e.val(a_op, bits), e.val(b_op, bits)
        if is_signed and compare not in ("eq", "ne"):
            flip = 1 << (bits - 1)
            a, b = f"({a} ^ {flip:#x})", f"({b} ^ {flip:#x})"
        text = f"{a} {_INT_COMPARE[compare]} {b}"
    else:
        raise UnsupportedPtx(instr.opcode, instr.line)
    target = instr.operands[0]
    if len(parts) == 3:
        operator = {"and": "&", "or": "|", "xor": "^"}[parts[1]]
        text = f"({text}) {operator} {e.val(instr.operands[3], 1)}"
    if isinstance(target, Dual):
        if len(parts) == 3:
            raise UnsupportedPtx("setp p|q with a combining predicate", instr.line)
        e.assign(target.first, text)
        e.assign(target.second, f"inv({e.val(target.first, 1)})")
    else:
        e.assign(target, text)


def _selp(e: BlockEmitter, instr: Instr) -> None:
    bits = int(instr.parts[-1][1:])
    a, b = (e.val(o, bits) for o in instr.operands[1:3])
    p = e.val(instr.operands[3], 1)
    e.assign(
        instr.operands[0],
        f"{a} if {p} is True else {b} if {p} is False else select({p}, {a}, {b}, "
        f"{bits})",
    )


def _cvt(e: BlockEmitter, instr: Instr) -> None:
    parts = instr.parts[1:]
    target, source = parts[-2], parts[-1]
    flags = set(parts[:-2])
    mode = next((f for f in parts[:-2] if f in _ROUNDING), "rn")
    saturate, relu = "satfinite" in flags or "sat" in flags, "relu" in flags
    unknown = flags - set(_ROUNDING) - {"satfinite", "relu", "ftz", "sat"}
    if unknown:
        raise UnsupportedPtx(instr.opcode, instr.line)
    d = instr.operands[0]
    if target in ("bf16x2", "f16x2") and source == "f32":
        # f16_bits rounds to nearest; finite saturation is not modelled.
        modes = ("rn", "rz") if target == "bf16x2" else ("rn",)
        if saturate or mode not in modes or "ftz" in flags:
            raise UnsupportedPtx(instr.opcode, instr.line)
        a, b = (e.val(o, 32) for o in instr.operands[1:3])
        e.assign(d, f"pack_pair({a}, {b}, {target!r}, {mode!r}, {relu})")
    elif target in _NARROW and source == "f32" and saturate and mode == "rn":
        a, b = (e.val(o, 32) for o in instr.operands[1:3])
        e.assign(d, f"pack_narrow({a}, {b}, {target[:4]!r}, {relu})")
    elif target == "f16x2" and source in _NARROW:
        a = e.val(instr.operands[1], 16)
        e.assign(d, f"unpack_narrow({a}, {source[:4]!r}, {relu})")
    elif relu and (target not in ("f16", "bf16") or source != "f32"):
        raise UnsupportedPtx(instr.opcode, instr.line)
    else:
        _cvt_scalar(e, instr, target, source, mode, saturate)


def _cvt_scalar(
    e: BlockEmitter, instr: Instr, target: str, source: str, mode: str, saturate: bool
) -> None:
    d, a_op = instr.operands[:2]
    is_float = {"f16", "bf16", "f32", "f64"}
    source_bits = _FLOAT_BITS.get(source) or int(source[1:])
    a = e.val(a_op, source_bits)
    flushed = "ftz" in instr.parts
    if flushed and source == "f32":
        a = f"flush({a}, 32)"
    if "relu" in instr.parts:
        a = f"clamp_negative(full({a}, 32))"
    if target not in is_float and source not in is_float:
        if saturate:
            raise UnsupportedPtx(instr.opcode, instr.line)
        bits, _ = _int_type(target)
        register = e.register_bits(d)
        text = f"resize({a}, {source_bits}, {source[0] == 's'}, {bits})"
        if register > bits:
            text = f"resize({text}, {bits}, {target[0] == 's'}, {register})"
        e.assign(d, text)
    elif [p for p in instr.parts[1:] if p != "ftz"] == ["sat", "f32", "f32"]:
        # To [+0, 1], NaN to +0.
        limit = "lambda x: np.fmin(np.fmax(x, np.float32(0)) + np.float32(0), "
        e.assign(d, f"float_op({limit}np.float32(1)), 32, {a})")
    elif target in is_float and source in is_float and not saturate:
        if mode in ("rni", "rzi", "rmi", "rpi"):
            function = {
                "rni": "np.rint",
                "rzi": "np.trunc",
                "rmi": "np.floor",
                "rpi": "np.ceil",
            }
            e.assign(d, f"float_op({function[mode]}, {source_bits}, {a})")
        else:
            if mode != "rn" and (target, mode) != ("bf16", "rz"):
                raise UnsupportedPtx(instr.opcode, instr.line)
            text = f"float_to_float({a}, {source!r}, {target!r}, {mode!r})"
            flush = flushed and (target, source) == ("f32", "f64")
            e.assign(d, f"flush({text}, 32)" if flush else text)
    elif target in is_float and source not in is_float:
        e.assign(d, f"int_to_float({a}, {source_bits}, {source[0] == 's'}, {target!r})")
    elif target not in is_float and source != "bf16":
        bits, is_signed = _int_type(target)
        e.assign(d, f"float_to_int({a}, {source_bits}, {bits}, {is_signed}, {mode!r})")
    else:
        raise UnsupportedPtx(instr.opcode, instr.line)


def _cvta(e: BlockEmitter, instr: Instr) -> None:
    """Address-space windows coincide with generic addresses in the model."""
    bits = int(instr.parts[-1][1:])
    e.assign(instr.operands[0], e.val(instr.operands[1], bits))


_UNARY = {
    "ex2": "np.exp2",
    "lg2": "np.log2",
    "rsqrt": "lambda x: np.float32(1) / np.sqrt(x)",
    "rcp": "lambda x: np.float32(1) / x",
    "sqrt": "np.sqrt",
    "tanh": "np.tanh",
    "sin": "np.sin",
    "cos": "np.cos",
}


def _unary(e: BlockEmitter, instr: Instr) -> None:
    kind = instr.parts[-1]
    if set(instr.parts[1:-1]) - {"approx", "ftz", "rn"} or kind != "f32":
        raise UnsupportedPtx(instr.opcode, instr.line)
    a = e.val(instr.operands[1], 32)
    e.assign(
        instr.operands[0],
        f"float_op({_UNARY[instr.parts[0]]}, 32, {a}{_flushes(instr)})",
    )


def _bits(e: BlockEmitter, instr: Instr) -> None:
    name, kind = instr.parts[0], instr.parts[-1]
    bits = int(kind[1:])
    args = instr.operands[1:]
    if name == "popc":
        text = f"popc({e.val(args[0], bits)})"
    elif name in ("clz", "brev"):
        text = f"{name}({e.val(args[0], bits)}, {bits})"
    elif name == "bfe":
        start, length = (e.val(o, 32) for o in args[1:])
        text = (
            f"bfe({e.val(args[0], bits)}, {start}, {length}, {bits}, {kind[0] == 's'})"
        )
    elif name == "bfi":
        start, length = (e.val(o, 32) for o in args[2:])
        a, b = (e.val(o, bits) for o in args[:2])
        text = f"bfi({a}, {b}, {start}, {length}, {bits})"
    elif name == "prmt" and len(instr.parts) == 2:
        text = f"prmt({', '.join(e.val(o, 32) for o in args)})"
    elif name == "shf":
        values = ", ".join(e.val(o, 32) for o in args)
        text = f"funnel({values}, {instr.parts[1] == 'l'}, {instr.parts[2] == 'wrap'})"
    elif name == "lop3" and isinstance(args[3], Imm):
        text = f"lop3({', '.join(e.val(o, 32) for o in args[:3])}, {args[3].value})"
    else:
        raise UnsupportedPtx(instr.opcode, instr.line)
    e.assign(instr.operands[0], text)


def _copysign(e: BlockEmitter, instr: Instr) -> None:
    # PTX takes the sign of the first operand and the magnitude of the second.
    a, b = (e.val(o, 32) for o in instr.operands[1:])
    e.assign(instr.operands[0], f"({a} & 0x80000000) | ({b} & 0x7fffffff)")


_HANDLERS: dict[str, Callable[[BlockEmitter, Instr], None]] = {
    "mov": _mov,
    "add": _add_sub,
    "sub": _add_sub,
    "mul": _mul,
    "mad": _mad,
    "fma": _fma,
    "div": _div_rem,
    "rem": _div_rem,
    "min": _min_max,
    "max": _min_max,
    "neg": _neg_abs,
    "abs": _neg_abs,
    "and": _logic,
    "or": _logic,
    "xor": _logic,
    "not": _not,
    "shl": _shift,
    "shr": _shift,
    "setp": _setp,
    "selp": _selp,
    "cvt": _cvt,
    "cvta": _cvta,
    "popc": _bits,
    "clz": _bits,
    "brev": _bits,
    "bfe": _bits,
    "bfi": _bits,
    "prmt": _bits,
    "shf": _bits,
    "lop3": _bits,
    "copysign": _copysign,
    **dict.fromkeys(_UNARY, _unary),
}

__all__ = ["emit"]
