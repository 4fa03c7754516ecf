"""CPU tensors and fp32 references for grouped kernels, to simulate them with.

As :mod:`sim.gemm_case`, with group ends as the kernel gets them, good or bad. What
belongs to no group holds NaN in the operands, and in the references of the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torch_cute_backend.build import KernelBuild
from torch_cute_backend.codegen.shapes import Shape, shapes_of
from torch_cute_backend.epilogue.graph import InputKind
from torch_cute_backend.problem import (
    SCALE_NAMES,
    GemmProblem,
    Grouping,
    Major,
    scale_count,
)
from torch_cute_backend.runtime import block_scales

from .gemm_case import Operands, evaluate


@dataclass
class GroupedOperands(Operands):
    """``untouched``: how many elements of each output belong to no group."""

    untouched: int = 0

    def exact(self) -> bool:
        """As of :class:`Operands`; what belongs to no group must still be NaN."""
        pairs = [
            (out.float(), self.references[n].float()) for n, out in self.outputs.items()
        ]
        return all(
            bool(((out == ref) | (out.isnan() & ref.isnan())).all())
            for out, ref in pairs
        )


def cut(problem: GemmProblem, ends: Sequence[int]) -> list[tuple[int, int]]:
    """Where each group starts and stops, from ends as the kernel reads them: a group
    lies behind the one before it and within the tensor, whatever they say. Of K, where
    groups share no output, the end of the one before it is taken as it stands."""
    total = {Grouping.M: problem.m, Grouping.N: problem.n, Grouping.K: problem.k}
    extent = total[problem.grouping]
    ranges: list[tuple[int, int]] = []
    start = 0
    for end in ends:
        stop = max(start, min(end, extent))
        ranges.append((start, stop))
        start = stop
        if problem.grouping is Grouping.K:
            start = max(min(end, extent), 0)
    return ranges


def make(
    build: KernelBuild, problem: GemmProblem, ends: Sequence[int] = (), seed: int = 0
) -> GroupedOperands:
    """Operands of a kernel for the sizes of ``problem``; without ``ends``, for groups
    of equal size."""
    gen = torch.Generator().manual_seed(seed)
    groups = len(ends) or problem.groups
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "g": groups, "1": 1}
    sizes |= {"gm": groups * problem.m, "gn": groups * problem.n}
    shapes, graph = shapes_of(problem), problem.epilogue

    def shape(symbols: Shape) -> tuple[int, ...]:
        return tuple(sizes[s] for s in symbols)

    a = _operand(shape(shapes.a), problem.a_major, problem.a_dtype.name, gen)
    b = _operand(shape(shapes.b), problem.b_major, problem.b_dtype.name, gen)
    named = {"a": a, "b": b}
    if problem.block_scaled:
        named |= _block_scales(problem, ranges_of(problem, ends, groups), gen)
    for entry in graph.inputs:
        values = torch.randint(-1, 2, shape(shapes.of_input(entry.kind)), generator=gen)
        named[entry.name] = torch.exp2(values.float()).to(_dtype(entry.dtype.name))
    outputs, references = {}, {}
    for out in graph.outputs:
        *rest, n = shape(shapes.d)
        pitch = -(-n // 16) * 16 if problem.out_aligned else n
        kind = _dtype(out.dtype.name)
        outputs[out.name] = torch.zeros((*rest, pitch), dtype=kind)[..., :n]
        references[out.name] = torch.full((*rest, n), float("nan")).to(kind)
    ranges = ranges_of(problem, ends, groups)
    _spoil(problem, a, b, ranges)
    _refer(problem, named, references, ranges)
    if problem.has_offsets:
        named["offsets"] = torch.tensor(ends, dtype=torch.int32)
    named |= outputs
    tensors = [named[arg.name] for arg in build.source.args]
    first = next(iter(references.values()))
    untouched = int(first.float().isnan().sum())
    found = GroupedOperands(tensors, outputs, references, untouched)
    found.poison()
    return found


def ranges_of(
    problem: GemmProblem, ends: Sequence[int], groups: int
) -> list[tuple[int, int]]:
    """As :func:`cut`; empty ones where there are no ends."""
    return cut(problem, ends) if problem.has_offsets else [(0, 0)] * groups


def _block_scales(
    problem: GemmProblem, ranges: list[tuple[int, int]], gen: torch.Generator
) -> dict[str, torch.Tensor]:
    """Scales of A, each group's padded by itself, and of B, one row a group; NaN where
    no group has any."""

    def tiles(rows: int) -> torch.Tensor:
        return block_scales.drawn(rows, problem.k, gen).view(torch.uint8)

    beyond = torch.full((scale_count(1, problem.k),), 255, dtype=torch.uint8)
    a = torch.cat([*(tiles(stop - start) for start, stop in ranges), beyond])
    b = torch.stack([tiles(problem.n) for _ in ranges])
    parts = (t.view(torch.float8_e8m0fnu) for t in (a, b))
    return dict(zip(SCALE_NAMES, parts, strict=True))


def _scales_of_group(
    problem: GemmProblem,
    named: dict[str, torch.Tensor],
    ranges: list[tuple[int, int]],
    g: int,
) -> dict[str, torch.Tensor]:
    """Group ``g``'s block scales."""
    counts = [scale_count(stop - start, problem.k) for start, stop in ranges]
    first = sum(counts[:g])
    parts = (named[SCALE_NAMES[0]][first : first + counts[g]], named[SCALE_NAMES[1]][g])
    return dict(zip(SCALE_NAMES, parts, strict=True))


def _dtype(name: str) -> torch.dtype:
    kind: torch.dtype = getattr(torch, name)
    return kind


def _operand(
    shape: tuple[int, ...], major: Major, name: str, gen: torch.Generator
) -> torch.Tensor:
    """Small integers; all pitches are multiples of 16 elements, as TMA needs."""
    *lead, rows, cols = shape
    if major is Major.MN:
        rows, cols = cols, rows
    pitch = -(-cols // 16) * 16
    data = torch.randint(-2, 3, (*lead, rows, pitch), generator=gen).to(_dtype(name))
    data = data[..., :cols]
    return data if major is Major.K else data.transpose(-1, -2)


def _spoil(
    problem: GemmProblem,
    a: torch.Tensor,
    b: torch.Tensor,
    ranges: list[tuple[int, int]],
) -> None:
    """NaN in what lies in no group."""
    ragged = {
        Grouping.M: ((a, 0),),
        Grouping.N: ((b, 0),),
        Grouping.K: ((a, 1), (b, 1)),
    }
    for tensor, dim in ragged.get(problem.grouping, ()):
        keep = torch.zeros(tensor.shape[dim], dtype=torch.bool)
        for start, stop in ranges:
            keep[start:stop] = True
        nan = torch.full((1,), float("nan")).to(tensor.dtype)
        if tensor.dtype.itemsize == 1:
            nan, tensor = nan.view(torch.uint8), tensor.view(torch.uint8)
        tensor.transpose(0, dim)[~keep] = nan


def _refer(
    problem: GemmProblem,
    named: dict[str, torch.Tensor],
    references: dict[str, torch.Tensor],
    ranges: list[tuple[int, int]],
) -> None:
    """Compute each group's product and put it into its place."""
    kind, graph = problem.grouping, problem.epilogue
    for g, (start, stop) in enumerate(ranges):
        part = slice(start, stop)
        a = _matrix(named["a"], kind, Grouping.M, g, part)
        b = _matrix(named["b"], kind, Grouping.N, g, part)
        mine = dict(named)
        for entry in graph.inputs:
            mine[entry.name] = _input(problem, entry.kind, named[entry.name], g, part)
        mine |= {"a": a, "b": b}
        if problem.block_scaled:
            mine |= _scales_of_group(problem, named, ranges, g)
        values = evaluate(graph, mine)
        where: tuple[int | slice, ...] = (g,)
        if kind is Grouping.M:
            where = (part,)
        elif kind is Grouping.N:
            where = (slice(None), part)
        for out, value in zip(graph.outputs, values, strict=True):
            references[out.name][where] = value.to(references[out.name].dtype)


def _matrix(
    tensor: torch.Tensor, kind: Grouping, flat: Grouping, g: int, part: slice
) -> torch.Tensor:
    """Group ``g``'s A or B, whose rows are ragged in grouping ``flat``."""
    if kind is Grouping.K:
        return tensor[:, part]
    return tensor[part] if kind is flat else tensor[g]


def _input(
    problem: GemmProblem, kind: InputKind, value: torch.Tensor, g: int, part: slice
) -> torch.Tensor:
    """Group ``g``'s part of an epilogue input."""
    grouping = problem.grouping
    if kind is InputKind.SCALAR:
        return value
    if kind is InputKind.FULL:
        if grouping is Grouping.M:
            return value[part]
        return value[:, part] if grouping is Grouping.N else value[g]
    ragged = {InputKind.ROW: Grouping.M, InputKind.COL: Grouping.N}[kind]
    if grouping is ragged:
        return value[part]
    if grouping is Grouping.K:
        size = problem.m if kind is InputKind.ROW else problem.n
        return value[g * size : (g + 1) * size]
    return value[g]
