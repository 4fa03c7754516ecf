"""``grouped_request``: a grouped GEMM of ATen as a problem we could solve.

In: ``_grouped_mm`` or ``_scaled_grouped_mm`` with Inductor's realised input nodes. Out:
the :class:`~.request.GemmRequest`, whose ``tail`` is the offsets, or a ``Status`` with
the reasons why not. What ATen refuses is refused here too; ATen's checks are repeated
where a kernel relies on them. The offsets' values are the device's business alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch

from torch_cute_backend.dtypes import BFLOAT16, DTYPES, DType
from torch_cute_backend.epilogue.graph import EpilogueGraph, InputKind
from torch_cute_backend.inductor import compat
from torch_cute_backend.inductor.epilogue import BoundEpilogue
from torch_cute_backend.inductor.request import (
    MAX_ELEMENTS,
    GemmRequest,
    OpCall,
    both_reasons,
    check_environment,
    dtype_name,
    flat_view,
    major_of,
    normal_pitch,
)
from torch_cute_backend.inductor.views import Size, View, views_of
from torch_cute_backend.problem import (
    Accum,
    GemmProblem,
    Grouping,
    Major,
    scale_count,
)
from torch_cute_backend.status import Status

_GROUPINGS = {
    (2, 3): Grouping.M,
    (3, 2): Grouping.N,
    (2, 2): Grouping.K,
    (3, 3): Grouping.BATCH,
}
"""By the dimensions of A and B."""


@dataclass(frozen=True)
class _Sizes:
    """m, n and k with the ragged one over all groups, and the number of groups."""

    m: Size
    n: Size
    k: Size
    groups: Size


@dataclass(frozen=True)
class _Operands:
    """Realised inputs by role; ``b`` as (.., N, K)."""

    grouping: Grouping
    a: View
    b: View
    scales: tuple[View, ...]
    offsets: View | None

    @property
    def block_scaled(self) -> bool:
        """Are the scales MXFP8's?"""
        return bool(self.scales) and all(
            s.dtype is torch.float8_e8m0fnu for s in self.scales
        )


def grouped_request(call: OpCall, nodes: Sequence[Any]) -> GemmRequest | Status:
    """The request of ``call``.

    Args:
        nodes: ``[a, b(, scale_a, scale_b)(, offs)]``, the order of torch 2.11 to 2.14.
    """
    status = check_environment(nodes) & _check_arguments(call)
    if not status:
        return status
    views = views_of(nodes)
    if isinstance(views, Status):
        return views
    operands = _operands(call, views)
    if isinstance(operands, Status):
        return operands
    return _build(call, operands, nodes[0].get_device(), [v.name for v in views])


def _check_arguments(call: OpCall) -> Status:
    """Arguments that ATen has, but takes no value for yet."""
    return Status.check(
        (call.get("bias") is None, "grouped GEMM with a bias"),
        (call.get("scale_result") is None, "grouped GEMM with scale_result"),
    )


def _operands(call: OpCall, views: list[View]) -> _Operands | Status:
    a, b, *rest = views
    grouping = _GROUPINGS.get((len(a.size), len(b.size)))
    if grouping is None:
        return Status.no(f"grouped GEMM of {len(a.size)}-D and {len(b.size)}-D")
    scales = 2 if call.op == "scaled_grouped_mm" else 0
    ragged = grouping is not Grouping.BATCH
    if len(rest) != scales + ragged:
        return Status.no(f"{call.op} along {grouping.value} with {len(views)} inputs")
    offsets = rest[-1] if ragged else None
    return _Operands(grouping, a, b.transposed(), tuple(rest[:scales]), offsets)


def _build(
    call: OpCall, o: _Operands, device: torch.device, names: list[str]
) -> GemmRequest | Status:
    sizes = _sizes(o)
    status = _check_sizes(o, sizes) & _check_offsets(o.offsets)
    if not status:
        return status
    a_major, b_major = major_of(o.a, "A"), major_of(o.b, "B")
    if isinstance(a_major, Status) or isinstance(b_major, Status):
        return both_reasons(a_major, b_major)
    out = _out_dtype(call, o)
    if isinstance(out, Status):
        return out
    scales = _block_scales(o, sizes) if o.block_scaled else ()
    if isinstance(scales, Status):
        return scales
    epilogue = _epilogue(o, sizes, out)
    if isinstance(epilogue, Status):
        return epilogue
    problem = _problem(call, o, sizes, epilogue, (a_major, b_major))
    status = problem.validate()
    if not status:
        return status
    return GemmRequest(
        f"aten._{call.op}",
        problem,
        normal_pitch(o.a, a_major),
        normal_pitch(o.b, b_major),
        epilogue,
        tuple(dict.fromkeys(names)),
        device,
        sizes.m,
        tail=() if o.offsets is None else (o.offsets,),
        scales=scales,
    )


def _problem(
    call: OpCall,
    o: _Operands,
    sizes: _Sizes,
    epilogue: BoundEpilogue,
    majors: tuple[Major, Major],
) -> GemmProblem:
    scaling = "rowwise" if o.scales else "none"
    scaling = "mxfp8" if o.block_scaled else scaling
    exact = scaling == "rowwise" and not call.get("use_fast_accum", False)
    (out,) = epilogue.outputs
    unit = 16 // out.dtype.itemsize
    aligned = (compat.known_multiple(x, unit) for x in (out.size[-1], out.stride[-2]))
    return GemmProblem(
        op=call.op,
        m=compat.hint(sizes.m),
        n=compat.hint(sizes.n),
        k=compat.hint(sizes.k),
        a_dtype=DTYPES[dtype_name(o.a.dtype)],
        b_dtype=DTYPES[dtype_name(o.b.dtype)],
        a_major=majors[0],
        b_major=majors[1],
        scaling=scaling,
        accum=Accum.EXACT if exact else Accum.FAST,
        epilogue=epilogue.graph,
        out_aligned=all(aligned),
        grouping=o.grouping,
        groups=compat.hint(sizes.groups),
    )


def _sizes(o: _Operands) -> _Sizes:
    groups = o.a.size[0] if o.offsets is None else o.offsets.size[0]
    return _Sizes(o.a.size[-2], o.b.size[-2], o.a.size[-1], groups)


def _check_sizes(o: _Operands, sizes: _Sizes) -> Status:
    """Sizes agree and are positive, strides do not overlap, indices fit 32 bits."""
    stacked = [v for v in (o.a, o.b) if len(v.size) == 3]
    out = _out_view(o, sizes, BFLOAT16)
    return Status.check(
        (
            compat.known_equal(sizes.k, o.b.size[-1]),
            f"K differs: {sizes.k} and {o.b.size[-1]}",
        ),
        *(
            (
                compat.known_equal(v.size[0], sizes.groups),
                f"{sizes.groups} groups and an operand of {v.size[0]}",
            )
            for v in stacked
        ),
        *(
            (compat.known_positive(s), f"size {s} may be zero")
            for s in (sizes.m, sizes.n, sizes.k, sizes.groups)
        ),
        *(
            (
                compat.known_equal(v.size[0], 1) or compat.known_positive(v.stride[0]),
                f"groups {v.stride[0]} elements apart",
            )
            for v in stacked
        ),
        *(
            (compat.hint(sympy.prod(v.size)) < MAX_ELEMENTS, f"{v.size} elements")
            for v in (o.a, o.b, out)
        ),
    )


def _check_offsets(offsets: View | None) -> Status:
    if offsets is None:
        return Status.ok()
    dense = len(offsets.size) == 1 and (
        compat.known_equal(offsets.stride[0], 1)
        or compat.known_equal(offsets.size[0], 1)
    )
    return Status.check(
        (offsets.dtype is torch.int32, f"offsets of {offsets.dtype}"),
        (dense, f"offsets of size {offsets.size} and stride {offsets.stride}"),
    )


def _out_dtype(call: OpCall, o: _Operands) -> DType | Status:
    """ATen's: bf16 of FP8, else the operands' own."""
    kinds = [DTYPES.get(dtype_name(v.dtype)) for v in (o.a, o.b)]
    a, b = kinds
    default = torch.bfloat16 if o.scales else o.a.dtype
    out = DTYPES.get(dtype_name(call.get("out_dtype", default)))
    if a is None or b is None or out is None:
        return Status.no(f"dtypes {o.a.dtype} x {o.b.dtype} -> {call.get('out_dtype')}")
    e4m3 = DTYPES["float8_e4m3fn"]
    status = Status.check(
        (a == b, f"mixed operands {a} and {b}"),
        (not o.scales or a == e4m3, f"scaled grouped GEMM of {a}"),
        (out == (BFLOAT16 if o.scales else a), f"grouped GEMM of {a} to {out}"),
    )
    return out if status else status


def _out_view(o: _Operands, sizes: _Sizes, out: DType) -> View:
    """The output as ATen lays it out: rows start at multiples of 16 bytes."""
    unit = 16 // out.bytes
    pitch = (sizes.n + unit - 1) // unit * unit
    dtype = getattr(torch, out.name)
    if o.grouping in (Grouping.M, Grouping.N):
        return View("", dtype, (sizes.m, sizes.n), (pitch, 1))
    shape = (sizes.groups, sizes.m, sizes.n)
    return View("", dtype, shape, (sizes.m * pitch, pitch, 1))


def _epilogue(o: _Operands, sizes: _Sizes, out: DType) -> BoundEpilogue | Status:
    """``cast(acc * scale_a * scale_b)``, the scales as ATen takes them."""
    view = _out_view(o, sizes, out)
    if not o.scales or o.block_scaled:
        return BoundEpilogue(EpilogueGraph.linear(out), (), (view,))
    for scale, matrix, extent in zip(
        o.scales, (o.a, o.b), (sizes.m, sizes.n), strict=True
    ):
        status = _check_scale(scale, matrix, extent, o.grouping, sizes.groups)
        if not status:
            return status
    graph = EpilogueGraph.linear(out, InputKind.ROW, InputKind.COL)
    return BoundEpilogue(graph, o.scales, (view,))


def _block_scales(o: _Operands, sizes: _Sizes) -> tuple[View, ...] | Status:
    """Of A all groups' tiles, flat; of B one row a group. How many A has depends on the
    groups, so only that they are whole tiles of rows can be checked."""
    if o.grouping is not Grouping.M:
        return Status.no(f"MXFP8 with groups along {o.grouping.value}: only along m")
    a, b = o.scales
    flat = flat_view(a)
    if flat is None or len(b.size) != 2 or not compat.known_equal(b.stride[1], 1):
        return Status.no("block scales that are not contiguous")
    if any(compat.is_dynamic(x) for x in (sizes.n, sizes.k)):
        return Status.no(f"block scales of a dynamic size {sizes.n} x {sizes.k}")
    wanted = scale_count(int(sizes.n), int(sizes.k))
    row = scale_count(1, int(sizes.k))
    status = Status.check(
        (
            compat.known_equal(b.size[0], sizes.groups)
            and compat.known_equal(b.size[1], wanted),
            f"block scales of shape {b.size}, expected {(sizes.groups, wanted)}",
        ),
        (
            compat.known_multiple(flat.size[0], row),
            f"{flat.size[0]} block scales are not a multiple of {row} for certain",
        ),
    )
    return (flat, b) if status else status


def _check_scale(
    scale: View, matrix: View, extent: Size, grouping: Grouping, groups: Size
) -> Status:
    """One fp32 value a row: (extent,) of a 2-D operand, as often as there are groups if
    they share it, (groups, extent) of a 3-D one."""
    if scale.dtype is not torch.float32:
        return Status.no(f"scales of {scale.dtype}")
    if grouping is Grouping.K:
        wanted: tuple[Size, ...] = (groups * extent,)
    else:
        wanted = (extent,) if len(matrix.size) == 2 else (groups, extent)
    same = len(scale.size) == len(wanted) and all(
        compat.known_equal(x, y) for x, y in zip(scale.size, wanted, strict=True)
    )
    return Status.check(
        (same, f"scales of shape {scale.size} are not rowwise, {wanted}"),
        (
            compat.known_equal(scale.stride[-1], 1)
            or compat.known_equal(scale.size[-1], 1),
            f"scales of strides {scale.stride}",
        ),
    )
