"""Grouped GEMMs for measurements: group sizes, inputs, references, ATen's calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from torch_cute_backend.bench.cases import Inputs, quantize
from torch_cute_backend.bench.protocol import Call
from torch_cute_backend.codegen.shapes import Shape, shapes_of
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Accum, GemmProblem, Grouping, Major

UNIT = 16
"""Group sizes are multiples of it: ATen needs groups along K to start at 16 bytes."""
LONG_K = 4096
"""From here on smaller integers, so that partial sums stay below the 13 bits that FP8's
fast accumulation is sure to keep."""
Draw = Callable[[tuple[int, ...]], torch.Tensor]


def ends_of(problem: GemmProblem, skewed: bool = False) -> list[int]:
    """Where each group of the ragged size ends; none if no size is ragged.

    Skewed groups get shares of 0, 1, 2, ...; the last takes what is left.
    """
    if not problem.has_offsets:
        return []
    total = {"m": problem.m, "n": problem.n, "k": problem.k}[problem.grouping.value]
    weights = [i if skewed and problem.groups > 1 else 1 for i in range(problem.groups)]
    ends, done = [], 0
    for weight in weights:
        done += weight
        ends.append(total * done // sum(weights) // UNIT * UNIT)
    return [*ends[:-1], total]


def make(problem: GemmProblem, ends: Sequence[int], draw: Draw, device: str) -> Inputs:
    """One input set; ``draw`` makes the values of A and B, which are then quantised if
    the problem's operands are FP8."""
    x = _bare(problem, ends, draw, device)
    if not problem.a_dtype.is_fp8:
        return x
    if problem.grouping is Grouping.K:
        parts = _parts(ends)
        (qa, sa), (qb, sb) = _quantize_parts(x.a, parts), _quantize_parts(x.b, parts)
    else:
        (qa, sa), (qb, sb) = quantize(x.a, True), quantize(x.b, True)
    return replace(x, a=qa, b=qb, scale_a=sa, scale_b=sb)


def exact(
    problem: GemmProblem, ends: Sequence[int], generator: torch.Generator
) -> Inputs:
    """Small integers, whose sums are exact in every accumulator, and scales that are
    powers of two; the output is poisoned."""
    place = str(generator.device)
    limit = 1 if problem.k > LONG_K else 2

    def integers(low: int, high: int, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator, device=place)

    def draw(shape: tuple[int, ...]) -> torch.Tensor:
        values = integers(-limit, limit + 1, shape)
        return values.to(getattr(torch, problem.a_dtype.name))

    x = _bare(problem, ends, draw, place)
    x.out.fill_(float("nan"))
    if not problem.a_dtype.is_fp8:
        return x
    shapes, sizes = shapes_of(problem), _sizes(problem)
    scale_a, scale_b = (
        torch.exp2(integers(-1, 2, _shape(s, sizes)).float())
        for s in (shapes.row, shapes.col)
    )
    return replace(x, scale_a=scale_a, scale_b=scale_b)


def _bare(problem: GemmProblem, ends: Sequence[int], draw: Draw, device: str) -> Inputs:
    """Tensors of the problem's shapes without scales."""
    shapes, sizes = shapes_of(problem), _sizes(problem)
    out_dtype = getattr(torch, problem.out_dtype.name)
    out = torch.empty(_shape(shapes.d, sizes), dtype=out_dtype, device=device)
    offsets = None
    if problem.has_offsets:
        offsets = torch.tensor(ends, dtype=torch.int32, device=device)
    return Inputs(
        _operand(_shape(shapes.a, sizes), problem.a_major, draw),
        _operand(_shape(shapes.b, sizes), problem.b_major, draw),
        out,
        offsets=offsets,
    )


def _sizes(problem: GemmProblem) -> dict[str, int]:
    g, m, n, k = problem.groups, problem.m, problem.n, problem.k
    return {"m": m, "n": n, "k": k, "g": g, "gm": g * m, "gn": g * n}


def _shape(symbols: Shape, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(sizes[s] for s in symbols)


def _operand(shape: tuple[int, ...], major: Major, draw: Draw) -> torch.Tensor:
    *lead, rows, columns = shape
    if major is Major.K:
        return draw((*lead, rows, columns))
    return draw((*lead, columns, rows)).mT


def _parts(ends: Sequence[int]) -> list[slice]:
    return [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def _quantize_parts(
    x: torch.Tensor, parts: Sequence[slice]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each group's columns with scales of their own, one group's after the other's."""
    codes, scales = torch.empty_like(x, dtype=torch.float8_e4m3fn), []
    for part in parts:
        if part.start == part.stop:
            scales.append(x.new_ones(x.shape[0], dtype=torch.float32))
            continue
        codes[:, part], scale = quantize(x[:, part], True)
        scales.append(scale)
    return codes, torch.cat(scales)


def reference(problem: GemmProblem, x: Inputs) -> torch.Tensor:
    """fp32 result of one input set, before the output's rounding; NaN where no group
    is. Reads the offsets."""
    want = torch.full(x.out.shape, float("nan"), device=x.out.device)
    for g, part in _groups(problem, x):
        product = _rows(problem, x.a, Grouping.M, g, part).float()
        product = product @ _rows(problem, x.b, Grouping.N, g, part).float().mT
        for i, (scale, flat) in enumerate(zip(x.scales, _RAGGED, strict=False)):
            values = _of_group(problem, scale, flat, g, part)
            product = product * (values[:, None] if i == 0 else values)
        _output(problem, want, g, part).copy_(product)
    return want


_RAGGED = (Grouping.M, Grouping.N)
"""Groupings along A's and along B's rows."""


def _groups(problem: GemmProblem, x: Inputs) -> Iterator[tuple[int, slice]]:
    if x.offsets is None:
        return enumerate([slice(None)] * x.a.shape[0])
    return enumerate(_parts(x.offsets.tolist()))


def _rows(
    problem: GemmProblem, operand: torch.Tensor, flat: Grouping, g: int, part: slice
) -> torch.Tensor:
    """A group's operand, whose rows hold the groups in grouping ``flat``."""
    if problem.grouping is Grouping.K:
        return operand[:, part]
    return operand[part] if problem.grouping is flat else operand[g]


def _of_group(
    problem: GemmProblem, scale: torch.Tensor, flat: Grouping, g: int, part: slice
) -> torch.Tensor:
    if problem.grouping is Grouping.K:
        return scale.view(problem.groups, -1)[g]
    return scale[part] if problem.grouping is flat else scale[g]


def _output(
    problem: GemmProblem, out: torch.Tensor, g: int, part: slice
) -> torch.Tensor:
    if problem.grouping is Grouping.M:
        return out[part]
    return out[:, part] if problem.grouping is Grouping.N else out[g]


def aten_call(problem: GemmProblem, x: Inputs) -> Call:
    """The call of ATen's own operator; it returns its output."""
    function = aten_function(problem)
    b = x.b.mT
    return lambda: function(x.a, b, *x.scales, *x.tail)


def aten_function(problem: GemmProblem) -> Callable[..., torch.Tensor]:
    """``f(a, b, *scales, *offsets)`` of tensors as ATen takes them.

    Raises:
        UserError: the problem is not grouped.
    """
    fast = problem.accum is Accum.FAST
    if not problem.is_grouped:
        raise UserError(f"{problem.op} is not grouped")

    def scaled(
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        offs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return torch._scaled_grouped_mm(
            a,
            b,
            scale_a,
            scale_b,
            offs=offs,
            out_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )

    def plain(
        a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None = None
    ) -> torch.Tensor:
        return torch._grouped_mm(a, b, offs=offs)

    return scaled if problem.a_dtype.is_fp8 else plain
