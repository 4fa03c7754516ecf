"""Engine calls for PTX instructions with side effects: memory, barriers, warp-wide
operations.

``emit(e, instr)`` translates one instruction into calls of the warp object ``W``;
asynchronous tensor instructions are in ``codegen_async``. Every qualifier is checked
against a list, so an unmodelled one is refused with its PTX line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from . import codegen_async
from .parse import Dual, Instr, Mem, Operand, Reg, Vec
from .report import UnsupportedPtx

if TYPE_CHECKING:
    from .codegen import BlockEmitter

_SPACES = (
    "param",
    "shared",
    "shared::cta",
    "shared::cluster",
    "global",
    "const",
    "local",
)
_ORDER = ("weak", "relaxed", "acquire", "release", "volatile", "acq_rel", "mmio")
_SCOPES = ("cta", "cluster", "gpu", "sys")
_HINTS = ("nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt")


def emit(e: BlockEmitter, instr: Instr) -> bool:
    """Emit a side-effect instruction; False when the opcode is unknown."""
    head = instr.parts[0]
    handler = _HANDLERS.get(head)
    if handler is not None:
        handler(e, instr)
        return True
    return codegen_async.emit(e, instr)


def _qualifiers(instr: Instr, first: int) -> tuple[str, str, int, str]:
    """(space, order, vector length, type) of a load or store."""
    space, order, count = "generic", "weak", 1
    for part in instr.parts[first:-1]:
        if part in _SPACES:
            space = part
        elif part in _ORDER:
            order = part
        elif part in ("v2", "v4", "v8"):
            count = int(part[1:])
        elif (
            part not in _SCOPES
            and part not in _HINTS
            and not part.startswith(("L1::", "L2::"))
        ):
            raise UnsupportedPtx(f"qualifier .{part}", instr.line)
    return space, order, count, instr.parts[-1]


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vec) else (operand,)


def _memory(operand: Operand) -> Mem:
    if not isinstance(operand, Mem):
        raise UnsupportedPtx(f"expected an address, got {operand}")
    return operand


def _load(e: BlockEmitter, instr: Instr) -> None:
    space, order, count, kind = _qualifiers(instr, 1)
    memory = _memory(instr.operands[1])
    targets = _items(instr.operands[0])
    size = int(kind[1:]) // 8
    address = e.address(memory, 32 if space.startswith("shared") else 64)
    method = {
        "param": "load_param",
        "const": "load_global",
        "generic": "load_generic",
        "global": "load_global",
        "local": "load_local",
    }.get(space, "load_shared")
    call = f"W.{method}(g, {address}, {size}, {count}, {instr.line}, {order!r})"
    e.assign_many(targets, call)
    if kind[0] == "s" and size < 8:
        for target in targets:
            width = e.register_bits(target)
            if width > size * 8:
                e.assign(
                    target, f"resize({e.val(target, width)}, {size * 8}, True, {width})"
                )


def _store(e: BlockEmitter, instr: Instr) -> None:
    space, order, count, kind = _qualifiers(instr, 1)
    memory = _memory(instr.operands[0])
    size = int(kind[1:]) // 8
    address = e.address(memory, 32 if space.startswith("shared") else 64)
    sources = _items(instr.operands[1])
    if len(sources) != count:
        raise UnsupportedPtx("vector length", instr.line)
    values = ", ".join(e.val(o, size * 8) for o in sources)
    method = {
        "generic": "store_generic",
        "global": "store_global",
        "local": "store_local",
    }.get(space, "store_shared")
    e.lines.append(
        f"W.{method}(g, {address}, {size}, ({values},), {instr.line}, {order!r})"
    )


def _prefetch(e: BlockEmitter, instr: Instr) -> None:
    if instr.parts[1] == "tensormap" or instr.parts[-1] == "tensormap":
        memory = _memory(instr.operands[0])
        e.lines.append(
            f"W.prefetch_tensormap(g, {e.address(memory, 64)}, {instr.line})"
        )


def _atomic(e: BlockEmitter, instr: Instr) -> None:
    returns = instr.parts[0] == "atom"
    space, order, vector = "generic", "relaxed", 1
    rest = []
    for part in instr.parts[1:-1]:
        if part in _SPACES:
            space = part
        elif part in _ORDER:
            order = part
        elif part in ("v2", "v4", "v8"):
            vector = int(part[1:])
        elif (
            part not in _SCOPES
            and not part.startswith("L2::")
            and part not in ("noftz", "async")
        ):
            rest.append(part)
    if len(rest) != 1 or "async" in instr.parts:
        raise UnsupportedPtx(f"operation {rest}", instr.line)
    kind, operation = instr.parts[-1], rest[0]
    bits = {"f16x2": 32, "bf16x2": 32, "bf16": 16}.get(kind) or int(kind[1:])
    operands = instr.operands[1:] if returns else instr.operands
    address = e.address(_memory(operands[0]), 32 if space.startswith("shared") else 64)
    values = "".join(
        "(" + ", ".join(e.val(o, bits) for o in _items(operand)) + ",), "
        for operand in operands[1:]
    )
    call = (
        f"W.atomic(g, {space!r}, {operation!r}, {kind!r}, {bits}, {order!r}, "
        f"{address}, "
        f"({values}), {instr.line})"
    )
    if not returns:
        e.lines.append(call)
    elif vector == 1:
        e.assign(instr.operands[0], f"{call}[0]")
    else:
        e.assign_many(_items(instr.operands[0]), call)


def _bar(e: BlockEmitter, instr: Instr) -> None:
    parts = [p for p in instr.parts if p not in ("cta", "aligned")]
    kind = parts[1]
    if kind == "warp":
        mask = e.val(instr.operands[0], 32)
        e.lines.append(f"W.warp_sync(g, {mask}, {instr.line})")
        return
    if kind == "cluster":
        _cluster_barrier(e, instr, parts)
        return
    if kind not in ("sync", "arrive") or len(parts) > 2:
        raise UnsupportedPtx("barrier kind", instr.line)
    number = e.val(instr.operands[0], 32)
    count = e.val(instr.operands[1], 32) if len(instr.operands) > 1 else "None"
    if kind == "arrive":
        e.lines.append(f"W.bar_arrive(g, {number}, {count}, {instr.line})")
    else:
        e.lines.append(
            f"if not W.bar_sync(g, {number}, {count}, {instr.line}): return BLOCKED"
        )


def _cluster_barrier(e: BlockEmitter, instr: Instr, parts: list[str]) -> None:
    flags = set(parts[3:])
    if parts[2] == "arrive" and flags <= {"release", "relaxed"}:
        e.lines.append(f"W.cluster_arrive(g, {'relaxed' not in flags}, {instr.line})")
    elif parts[2] == "wait" and flags <= {"acquire"}:
        e.lines.append(f"if not W.cluster_wait(g, {instr.line}): return BLOCKED")
    else:
        raise UnsupportedPtx("cluster barrier form", instr.line)


def _mbarrier(e: BlockEmitter, instr: Instr) -> None:
    kind = instr.parts[1]
    if kind in ("try_wait", "test_wait"):
        _mbarrier_wait(e, instr, kind)
        return
    allowed = {
        "init",
        "inval",
        "arrive",
        "expect_tx",
        "complete_tx",
        "release",
        "relaxed",
        "cta",
        "cluster",
        "shared",
        "shared::cta",
        "shared::cluster",
        "b64",
    }
    extra = set(instr.parts[1:]) - allowed
    operands = instr.operands
    if extra or kind == "complete_tx":
        raise UnsupportedPtx(f"qualifiers {sorted(extra)}", instr.line)
    if kind == "arrive" and not isinstance(operands[0], Mem):
        if isinstance(operands[0], Reg):
            e.assign(
                operands[0], "0"
            )  # the phase token; reading it by test_wait is refused
        operands = operands[1:]
    address = e.address(_memory(operands[0]), 32)
    value = e.val(operands[1], 32) if len(operands) > 1 else "1"
    if kind == "init":
        e.lines.append(f"W.mbar_init(g, {address}, {value}, {instr.line})")
    elif kind == "inval":
        e.lines.append(f"W.mbar_inval(g, {address}, {instr.line})")
    elif kind == "expect_tx":
        e.lines.append(f"W.mbar_arrive(g, {address}, 0, {value}, {instr.line})")
    elif "expect_tx" in instr.parts:
        e.lines.append(f"W.mbar_arrive(g, {address}, 1, {value}, {instr.line})")
    else:
        e.lines.append(f"W.mbar_arrive(g, {address}, {value}, 0, {instr.line})")


def _mbarrier_wait(e: BlockEmitter, instr: Instr, kind: str) -> None:
    allowed = {
        kind,
        "parity",
        "acquire",
        "relaxed",
        "cta",
        "cluster",
        "shared",
        "shared::cta",
        "b64",
    }
    extra = set(instr.parts[1:]) - allowed
    if extra or "parity" not in instr.parts:
        raise UnsupportedPtx("only parity waits are modelled", instr.line)
    address = e.address(_memory(instr.operands[1]), 32)
    parity = e.val(instr.operands[2], 32)
    pc = e.block.index
    e.lines += [
        f"t = W.mbar_try(g, {address}, {parity}, {pc}, {instr.line}, "
        f"{kind == 'try_wait'})",
        "if t is None: return BLOCKED",
    ]
    e.assign(instr.operands[0], "t")


def _fence(e: BlockEmitter, instr: Instr) -> None:
    parts = instr.parts
    if parts[1] == "proxy" and parts[2] == "async":
        if set(parts[3:]) - {"shared::cta", "shared::cluster", "global"}:
            raise UnsupportedPtx("proxy fence", instr.line)
        e.lines.append("W.fence_async()")
    elif parts[1] == "proxy" and parts[2].startswith(("tensormap::generic", "alias")):
        e.lines.append("W.fence_async()")
    elif parts[1] == "mbarrier_init":
        e.lines.append("W.fence_mbarrier_init()")
    elif parts[1] in ("acq_rel", "sc", "acquire", "release") or parts[0] == "membar":
        e.lines.append("W.fence_thread()")
    else:
        raise UnsupportedPtx("fence", instr.line)


def _elect(e: BlockEmitter, instr: Instr) -> None:
    target = instr.operands[0]
    if not isinstance(target, Dual):
        raise UnsupportedPtx("elect.sync without a predicate", instr.line)
    mask = e.val(instr.operands[1], 32)
    e.assign_many((target.first, target.second), f"W.elect(g, {mask}, {instr.line})")


def _shfl(e: BlockEmitter, instr: Instr) -> None:
    if instr.parts[1] != "sync" or instr.parts[3] != "b32":
        raise UnsupportedPtx("shuffle form", instr.line)
    target = instr.operands[0]
    a, b, c, mask = (e.val(o, 32) for o in instr.operands[1:])
    call = f"W.shfl(g, {instr.parts[2]!r}, {a}, {b}, {c}, {mask}, {instr.line})"
    if isinstance(target, Dual):
        e.assign_many((target.first, target.second), call)
    else:
        e.assign(target, f"{call}[0]")


def _vote(e: BlockEmitter, instr: Instr) -> None:
    mode = instr.parts[2]
    if mode not in ("all", "any", "uni", "ballot"):
        raise UnsupportedPtx("vote form", instr.line)
    pred, mask = e.val(instr.operands[1], 1), e.val(instr.operands[2], 32)
    e.assign(instr.operands[0], f"W.vote(g, {mode!r}, {pred}, {mask}, {instr.line})")


def _redux(e: BlockEmitter, instr: Instr) -> None:
    operation, kind = instr.parts[2], instr.parts[-1]
    value, mask = e.val(instr.operands[1], 32), e.val(instr.operands[2], 32)
    e.assign(
        instr.operands[0],
        f"W.redux(g, {operation!r}, {kind!r}, {value}, {mask}, {instr.line})",
    )


def _matrix(e: BlockEmitter, instr: Instr) -> None:
    parts = instr.parts
    if parts[3] != "m8n8" or parts[-1] != "b16":
        raise UnsupportedPtx("only m8n8 b16 matrices are modelled", instr.line)
    count = next(int(p[1:]) for p in parts if p in ("x1", "x2", "x4"))
    transposed = "trans" in parts
    if parts[0] == "stmatrix":
        address = e.address(_memory(instr.operands[0]), 32)
        values = ", ".join(e.val(o, 32) for o in _items(instr.operands[1]))
        e.lines.append(
            f"W.stmatrix(g, {address}, ({values},), {transposed}, {instr.line})"
        )
    else:
        address = e.address(_memory(instr.operands[1]), 32)
        e.assign_many(
            _items(instr.operands[0]),
            f"W.ldmatrix(g, {address}, {count}, {transposed}, {instr.line})",
        )


def _mapa(e: BlockEmitter, instr: Instr) -> None:
    bits = int(instr.parts[-1][1:])
    address, rank = e.val(instr.operands[1], bits), e.val(instr.operands[2], 32)
    e.assign(instr.operands[0], f"W.mapa({address}, {rank}, {instr.line})")


def _getctarank(e: BlockEmitter, instr: Instr) -> None:
    e.assign(instr.operands[0], f"{e.val(instr.operands[1], 32)} >> 24")


def _setmaxnreg(e: BlockEmitter, instr: Instr) -> None:
    e.lines.append(
        f"W.setmaxnreg(g, {instr.parts[1]!r}, {e.val(instr.operands[0], 32)}, "
        f"{instr.line})"
    )


def _griddep(e: BlockEmitter, instr: Instr) -> None:
    e.lines.append(f"W.griddep({instr.parts[1]!r}, {instr.line})")


def _activemask(e: BlockEmitter, instr: Instr) -> None:
    e.assign(instr.operands[0], "g.bits")


def _createpolicy(e: BlockEmitter, instr: Instr) -> None:
    e.assign(instr.operands[0], "0")  # cache policies have no effect on values


def _tensormap(e: BlockEmitter, instr: Instr) -> None:
    parts, line = instr.parts, instr.line
    shared = "shared::cta" in parts
    if parts[1] == "cp_fenceproxy":
        known = ["global", "shared::cta", "tensormap::generic", "release"]
        if parts[2:6] != known or parts[7:] != ["sync", "aligned"]:
            raise UnsupportedPtx("tensormap.cp_fenceproxy form", line)
        target = e.address(_memory(instr.operands[0]), 64)
        source = e.address(_memory(instr.operands[1]), 32)
        e.lines.append(f"W.tensormap_copy(g, {target}, {source}, {line})")
        return
    fields = ("global_address", "global_dim", "global_stride")
    if parts[1:3] != ["replace", "tile"] or parts[3] not in fields:
        raise UnsupportedPtx("tensormap.replace field", line)
    if parts[4] not in ("shared::cta", "global") or parts[5] != "b1024":
        raise UnsupportedPtx("tensormap.replace form", line)
    address = e.address(_memory(instr.operands[0]), 32 if shared else 64)
    ordinal = e.val(instr.operands[1], 32) if len(instr.operands) == 3 else "0"
    value = e.val(instr.operands[-1], int(parts[-1][1:]))
    e.lines.append(
        f"W.tensormap_replace(g, {shared}, {parts[3]!r}, {address}, {ordinal}, "
        f"{value}, {line})"
    )


def _launch_control(e: BlockEmitter, instr: Instr) -> None:
    """Cluster launch control: ask for the work of a cluster not yet launched."""
    parts, line = instr.parts, instr.line
    if parts[1] == "try_cancel":
        known = {"async", "shared::cta", "mbarrier::complete_tx::bytes", "b128"}
        multicast = "multicast::cluster::all" in parts
        if set(parts[2:]) - known - {"multicast::cluster::all"}:
            raise UnsupportedPtx("try_cancel form", line)
        target, barrier = (e.address(_memory(o), 32) for o in instr.operands)
        e.lines.append(f"W.try_cancel(g, {target}, {barrier}, {multicast}, {line})")
    elif parts[1:] == ["query_cancel", "is_canceled", "pred", "b128"]:
        handle = e.raw(instr.operands[1])
        e.assign(instr.operands[0], f"W.query_cancel({handle}, {line}) is not None")
    elif parts[1] == "query_cancel" and parts[2].startswith("get_first_ctaid::"):
        axis = "xyz".index(parts[2][-1])
        handle = e.raw(instr.operands[1])
        e.assign(instr.operands[0], f"W.first_ctaid({handle}, {axis}, {line})")
    else:
        raise UnsupportedPtx("clusterlaunchcontrol form", line)


def _nothing(e: BlockEmitter, instr: Instr) -> None:
    """Hints without effect on results or ordering."""


_HANDLERS: dict[str, Callable[[BlockEmitter, Instr], None]] = {
    "ld": _load,
    "ldu": _load,
    "st": _store,
    "prefetch": _prefetch,
    "prefetchu": _nothing,
    "atom": _atomic,
    "red": _atomic,
    "bar": _bar,
    "barrier": _bar,
    "mbarrier": _mbarrier,
    "fence": _fence,
    "membar": _fence,
    "elect": _elect,
    "shfl": _shfl,
    "vote": _vote,
    "redux": _redux,
    "stmatrix": _matrix,
    "ldmatrix": _matrix,
    "mapa": _mapa,
    "getctarank": _getctarank,
    "setmaxnreg": _setmaxnreg,
    "griddepcontrol": _griddep,
    "activemask": _activemask,
    "createpolicy": _createpolicy,
    "tensormap": _tensormap,
    "clusterlaunchcontrol": _launch_control,
    "nanosleep": _nothing,
    "discard": _nothing,
    "applypriority": _nothing,
}
__all__ = ["emit"]
