"""``GemmRequest``: one ATen call, with realised inputs, as a problem we could solve.

In: the op's arguments and Inductor's input nodes. Out: the :class:`GemmProblem` with
the views that its kernel is called with, or a ``Status`` with the reasons why not. What
ATen refuses is refused here too; meaning comes from ATen, not from Inductor's templates
(beta=0 drops ``input``; ``scale_result`` scales an FP8 output).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import ir

from torch_cute_backend.dtypes import DTYPES, DType
from torch_cute_backend.epilogue.graph import EpilogueBuilder, InputKind
from torch_cute_backend.inductor import compat
from torch_cute_backend.inductor.epilogue import BoundEpilogue
from torch_cute_backend.inductor.target import target_of
from torch_cute_backend.inductor.views import Size, View, view_of, views_of
from torch_cute_backend.problem import Accum, GemmProblem, Major, scale_count
from torch_cute_backend.status import Status

MAX_ELEMENTS = 2**31


@dataclass(frozen=True)
class OpCall:
    """An ATen call as its lowering sees it: op name and named arguments."""

    op: str
    arguments: Mapping[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        value = self.arguments.get(name)
        return default if value is None else value


@dataclass(frozen=True)
class GemmRequest:
    """A problem and what to call its kernel with.

    Attributes:
        op: the ATen op, for logs.
        problem: sizes are hints where they are dynamic.
        a, b: views of A (M, K) and B (N, K).
        epilogue: scales and bias; its output's buffer has no name yet (``""``).
        inputs: names of the realised inputs, in the order in which Inductor hands
            over benchmark tensors.
        device: where it runs.
        m: M, symbolic if it is dynamic.
        scales: block scales of A and B, which the kernel takes before the epilogue's
            inputs.
        tail: what the kernel takes after the epilogue's inputs (a grouped GEMM's
            offsets).
        must_decide: other choices would give another result, so none may compete.
    """

    op: str
    problem: GemmProblem
    a: View
    b: View
    epilogue: BoundEpilogue
    inputs: tuple[str, ...]
    device: torch.device
    m: Size
    must_decide: bool = False
    tail: tuple[View, ...] = ()
    scales: tuple[View, ...] = ()

    @property
    def out(self) -> View:
        return self.epilogue.outputs[0]

    def arguments(self, epilogue: BoundEpilogue) -> tuple[View, ...]:
        """What the kernel of this request with ``epilogue`` is called with."""
        inputs = (*self.scales, *epilogue.inputs, *self.tail)
        return (self.a, self.b, *epilogue.outputs, *inputs)


@dataclass(frozen=True)
class _Operands:
    """Realised inputs of an op by role."""

    a: View
    b: View
    bias: View | None = None
    scale_a: View | None = None
    scale_b: View | None = None


def gemm_request(call: OpCall, nodes: Sequence[Any]) -> GemmRequest | Status:
    """The request of ``call`` on Inductor's realised input nodes.

    Args:
        nodes: ``[a, b]`` for mm, ``[input, a, b]`` for addmm and ``[a, b, scale_a,
            scale_b(, bias)]`` for scaled_mm: the order of torch 2.11 to 2.14.
    """
    environment = check_environment(nodes)
    if not environment:
        return environment
    views = views_of(nodes)
    if isinstance(views, Status):
        return views
    operands = _operands(call.op, views)
    if isinstance(operands, Status):
        return operands
    return _build(call, operands, nodes[0].get_device(), [v.name for v in views])


def check_environment(nodes: Sequence[Any]) -> Status:
    devices = {node.get_device() for node in nodes}
    sizes = [s for node in nodes for s in (*node.get_size(), *node.get_stride())]
    return Status.check(
        (not compat.exports_cpp(), "cpp_wrapper or AOTInductor: no Python kernels"),
        (not compat.in_subgraph(), "GEMM in a nested graph"),
        (len(devices) == 1, f"inputs on several devices: {sorted(map(str, devices))}"),
        *(
            (not isinstance(target, Status), str(target))
            for target in map(target_of, devices)
        ),
        (not any(compat.is_unbacked(s) for s in sizes), "unbacked symbolic sizes"),
    )


def _operands(op: str, views: list[View]) -> _Operands | Status:
    if op == "mm" and len(views) == 2:
        return _Operands(views[0], views[1])
    if op == "addmm" and len(views) == 3:
        return _Operands(views[1], views[2], bias=views[0])
    if op == "scaled_mm" and len(views) in (4, 5):
        bias = views[4] if len(views) == 5 else None
        return _Operands(views[0], views[1], bias, views[2], views[3])
    return Status.no(f"{op} with {len(views)} input nodes")


def _build(
    call: OpCall, operands: _Operands, device: torch.device, names: list[str]
) -> GemmRequest | Status:
    a, b = operands.a, operands.b.transposed()
    status = _check_sizes(a, b)
    if not status:
        return status
    a_major, b_major = major_of(a, "A"), major_of(b, "B")
    if isinstance(a_major, Status) or isinstance(b_major, Status):
        return both_reasons(a_major, b_major)
    m, n = a.size[0], b.size[0]
    kinds = [a.dtype, b.dtype, call.get("out_dtype", a.dtype)]
    rows = [DTYPES.get(dtype_name(kind)) for kind in kinds]
    a_dtype, b_dtype, out_dtype = rows
    if a_dtype is None or b_dtype is None or out_dtype is None:
        return Status.no("dtypes {} x {} -> {}".format(*kinds))
    epilogue = _epilogue(call, operands, out_dtype, m, n)
    if isinstance(epilogue, Status):
        return epilogue
    scaling = _scaling(operands)
    scales = _block_scales(operands, m, n) if scaling == "mxfp8" else ()
    if isinstance(scales, Status):
        return scales
    exact = scaling in ("tensorwise", "rowwise") and not call.get("use_fast_accum")
    problem = GemmProblem(
        op=call.op,
        m=compat.hint(m),
        n=compat.hint(n),
        k=compat.hint(a.size[1]),
        a_dtype=a_dtype,
        b_dtype=b_dtype,
        a_major=a_major,
        b_major=b_major,
        scaling=scaling,
        accum=Accum.EXACT if exact else Accum.FAST,
        epilogue=epilogue.graph,
        out_aligned=compat.known_multiple(n, max(16 // out_dtype.bytes, 1)),
    )
    status = problem.validate()
    if not status:
        return status
    return GemmRequest(
        f"aten.{call.op}",
        problem,
        normal_pitch(a, a_major),
        normal_pitch(b, b_major),
        epilogue,
        tuple(dict.fromkeys(names)),
        device,
        m,
        must_decide=call.get("scale_result") is not None and out_dtype.is_fp8,
        scales=scales,
    )


def _check_sizes(a: View, b: View) -> Status:
    """Matrices (M, K) and (N, K) of sizes that are never zero and not too large?"""
    if len(a.size) != 2 or len(b.size) != 2:
        return Status.no("operands are not matrices")
    (m, k), n = a.size, b.size[0]
    return Status.check(
        (compat.known_equal(k, b.size[1]), f"K differs: {k} and {b.size[1]}"),
        *((compat.known_positive(s), f"size {s} may be zero") for s in (m, n, k)),
        *(
            (compat.hint(x) * compat.hint(y) < MAX_ELEMENTS, f"{x} x {y} elements")
            for x, y in ((m, n), (m, k), (n, k))
        ),
    )


def dtype_name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def both_reasons(a: Major | Status, b: Major | Status) -> Status:
    status = Status.ok()
    for x in (a, b):
        if isinstance(x, Status):
            status = status & x
    return status


def major_of(view: View, what: str) -> Major | Status:
    """Which mode has stride 1, for a view (outer, K) or (groups, outer, K).

    Overlapping rows (a pitch shorter than a row) are refused: TMA is given a pitch, and
    an expanded operand has none.
    """
    last = len(view.size) - 1
    for major, inner in ((Major.K, last), (Major.MN, last - 1)):
        outer = 2 * last - 1 - inner
        pitch, extent = view.stride[outer], view.size[inner]
        if not compat.known_equal(view.stride[inner], 1):
            continue
        if compat.known_equal(view.size[outer], 1):
            return major
        if compat.known_at_least(pitch, extent):
            return major
    return Status.no(f"{what} has strides {view.stride}: no row of unit stride")


def normal_pitch(view: View, major: Major) -> View:
    """Give a single row the pitch of a dense one: its own pitch means nothing."""
    last = len(view.size) - 1
    inner, outer = (last, last - 1) if major is Major.K else (last - 1, last)
    if not compat.known_equal(view.size[outer], 1):
        return view
    stride = list(view.stride)
    stride[outer] = view.size[inner]
    return View(view.name, view.dtype, view.size, tuple(stride), view.offset)


def _scaling(operands: _Operands) -> str:
    if operands.scale_a is None or operands.scale_b is None:
        return "none"
    if operands.scale_a.dtype is operands.scale_b.dtype is torch.float8_e8m0fnu:
        return "mxfp8"
    single = _is_single(operands.scale_a) and _is_single(operands.scale_b)
    return "tensorwise" if single else "rowwise"


def _block_scales(operands: _Operands, m: Size, n: Size) -> tuple[View, ...] | Status:
    """MXFP8's, as flat views; as many as ATen wants, which must be known."""
    found = []
    pairs = ((operands.scale_a, m), (operands.scale_b, n))
    for view, rows in pairs:
        flat = None if view is None else flat_view(view)
        if flat is None:
            return Status.no("block scales that are not contiguous")
        k = operands.a.size[1]
        if any(compat.is_dynamic(x) for x in (rows, k)):
            return Status.no(f"block scales of a dynamic size {rows} x {k}")
        wanted = scale_count(int(rows), int(k))
        if not compat.known_equal(flat.size[0], wanted):
            return Status.no(f"{flat.size[0]} block scales, expected {wanted}")
        found.append(flat)
    return tuple(found)


def flat_view(view: View) -> View | None:
    """A contiguous view as 1-D, else None."""
    step: Size = 1
    for size, stride in zip(reversed(view.size), reversed(view.stride), strict=True):
        if not compat.known_equal(size, 1) and not compat.known_equal(stride, step):
            return None
        step = step * size
    return View(view.name, view.dtype, (step,), (1,), view.offset)


def _is_single(view: View) -> bool:
    return all(compat.known_equal(s, 1) for s in view.size)


class _Epilogue:
    """Builds a graph and its input views side by side."""

    def __init__(self) -> None:
        self.builder = EpilogueBuilder()
        self.inputs: list[View] = []

    def load(self, name: str, kind: InputKind, view: View) -> int:
        self.inputs.append(view)
        return self.builder.input(name, kind, DTYPES[dtype_name(view.dtype)])


def _epilogue(
    call: OpCall, operands: _Operands, out_dtype: DType, m: Size, n: Size
) -> BoundEpilogue | Status:
    """``cast(alpha * acc * scale_a * scale_b + beta * bias)``, parts as the op has."""
    e = _Epilogue()
    value = e.builder.acc()
    for step in (_apply_scales, _apply_addmm, _apply_bias):
        result = step(e, call, operands, value, m, n)
        if isinstance(result, Status):
            return result
        value = result
    if call.get("scale_result") is not None and out_dtype.is_fp8:
        view = view_of(ir.ExternKernel.realize_input(call.get("scale_result")))
        if isinstance(view, Status):
            return view
        if not _is_single(view) or view.dtype is not torch.float32:
            return Status.no("scale_result is not one fp32 value")
        one = _vector(view, 1, 1)
        scale = e.load("scale_result", InputKind.SCALAR, one)
        value = e.builder.op("mul", value, scale)
    e.builder.output(value, out_dtype)
    torch_dtype = getattr(torch, out_dtype.name)
    out = View("", torch_dtype, (m, n), (n, 1))
    return BoundEpilogue(e.builder.graph(), tuple(e.inputs), (out,))


def _vector(view: View, size: Size, stride: Size) -> View:
    return View(view.name, view.dtype, (size,), (stride,), view.offset)


def _apply_scales(
    e: _Epilogue, call: OpCall, operands: _Operands, value: int, m: Size, n: Size
) -> int | Status:
    scale_a, scale_b = operands.scale_a, operands.scale_b
    if scale_a is None or scale_b is None or _scaling(operands) == "mxfp8":
        return value
    if scale_a.dtype is not torch.float32 or scale_b.dtype is not torch.float32:
        return Status.no(f"scales of {scale_a.dtype} and {scale_b.dtype}")
    if _is_single(scale_a) and _is_single(scale_b):
        a, b = _vector(scale_a, 1, 1), _vector(scale_b, 1, 1)
        kinds = (InputKind.SCALAR, InputKind.SCALAR)
    else:
        rows, columns = _along(scale_a, m), _along(scale_b, n)
        if rows is None or columns is None:
            shapes = f"{scale_a.size} and {scale_b.size}"
            return Status.no(f"scales of shape {shapes} are not tensor- or rowwise")
        a, b, kinds = rows, columns, (InputKind.ROW, InputKind.COL)
    value = e.builder.op("mul", value, e.load("scale_a", kinds[0], a))
    return e.builder.op("mul", value, e.load("scale_b", kinds[1], b))


def _along(view: View, extent: Size) -> View | None:
    """A (extent, 1), (1, extent) or (extent,) view as 1-D, else None."""
    long = [
        (size, stride)
        for size, stride in zip(view.size, view.stride, strict=True)
        if not compat.known_equal(size, 1)
    ]
    if not long and compat.known_equal(extent, 1):
        return _vector(view, 1, 1)
    if len(long) != 1 or not compat.known_equal(long[0][0], extent):
        return None
    return _vector(view, extent, long[0][1])


def _apply_addmm(
    e: _Epilogue, call: OpCall, operands: _Operands, value: int, m: Size, n: Size
) -> int | Status:
    if call.op != "addmm" or operands.bias is None:
        return value
    alpha, beta = call.get("alpha", 1), call.get("beta", 1)
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if not isinstance(factor, (int, float)) or not math.isfinite(factor):
            return Status.no(f"{name}={factor} is not a finite number")
    if alpha == 0:
        # Whether NaN in A or B survives depends on ATen's backend: leave it to ATen.
        return Status.no("alpha=0")
    if alpha != 1:
        value = e.builder.op("mul", value, e.builder.const(float(alpha)))
    if beta == 0:
        return value
    loaded = _load_bias(e, operands.bias, m, n)
    if isinstance(loaded, Status):
        return loaded
    if beta != 1:
        loaded = e.builder.op("mul", loaded, e.builder.const(float(beta)))
    return e.builder.op("add", value, loaded)


def _apply_bias(
    e: _Epilogue, call: OpCall, operands: _Operands, value: int, m: Size, n: Size
) -> int | Status:
    if call.op != "scaled_mm" or operands.bias is None:
        return value
    loaded = _load_bias(e, operands.bias, m, n)
    if isinstance(loaded, Status):
        return loaded
    return e.builder.op("add", value, loaded)


def _load_bias(e: _Epilogue, bias: View, m: Size, n: Size) -> int | Status:
    """Load a bias by its strides, which alone tell (N,), (M, 1) and (M, N) apart."""
    if dtype_name(bias.dtype) not in DTYPES or DTYPES[dtype_name(bias.dtype)].is_fp8:
        return Status.no(f"bias of {bias.dtype}")
    if len(bias.size) == 1:
        size: tuple[Size, ...] = (m, bias.size[0])
        stride: tuple[Size, ...] = (0, bias.stride[0])
    else:
        size, stride = bias.size, bias.stride
    if len(size) != 2:
        return Status.no(f"bias of shape {bias.size}")
    steps: list[Size] = []
    for extent, step, full in zip(size, stride, (m, n), strict=True):
        if compat.known_equal(extent, 1):
            steps.append(0)
        elif compat.known_equal(extent, full):
            steps.append(step)
        else:
            return Status.no(f"bias of shape {bias.size}")
    by_row = not compat.known_equal(steps[0], 0)
    by_col = not compat.known_equal(steps[1], 0)
    if by_row and by_col:
        if not compat.known_equal(steps[1], 1):
            return Status.no(f"bias of strides {bias.stride}")
        full_view = View(bias.name, bias.dtype, (m, n), tuple(steps), bias.offset)
        return e.load("bias", InputKind.FULL, full_view)
    if by_row:
        return e.load("bias", InputKind.ROW, _vector(bias, m, steps[0]))
    if by_col:
        return e.load("bias", InputKind.COL, _vector(bias, n, steps[1]))
    return e.load("bias", InputKind.SCALAR, _vector(bias, 1, 1))
