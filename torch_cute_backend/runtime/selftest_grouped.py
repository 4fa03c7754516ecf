"""Operands of the golden self-test for grouped GEMMs: groups of odd sizes, one of them
empty, and a rest that is in no group.

In: a grouped problem, whose sizes say how long the rest is. Out: tensors as
:func:`grouped.run` takes them, and the exact result with NaN where no group writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch_cute_backend.problem import GemmProblem, Grouping, Major
from torch_cute_backend.runtime import block_scales
from torch_cute_backend.schedule import GemmSchedule

if TYPE_CHECKING:
    import torch

_SEED = 20240301
_UNIT = 16
"""Ragged sizes are multiples of it in all, since they may be a contiguous extent."""
_JOINED: dict[Grouping, tuple[str, str, str, str, str]] = {
    Grouping.M: ("rows", "stack", "rows", "rows", "stack"),
    Grouping.N: ("stack", "rows", "columns", "stack", "rows"),
    Grouping.K: ("columns", "columns", "stack", "values", "values"),
    Grouping.BATCH: ("stack", "stack", "stack", "stack", "stack"),
}
"""How the groups' A, B, D, scale_a and scale_b make up the tensors."""


@dataclass(frozen=True)
class Tensors:
    """``inputs`` are the epilogue's; ``exact`` is the result in bf16."""

    a: torch.Tensor
    b: torch.Tensor
    inputs: tuple[torch.Tensor, ...]
    offsets: torch.Tensor | None
    exact: torch.Tensor


def ragged_sizes(schedule: GemmSchedule, grouping: Grouping) -> tuple[int, ...]:
    """Sizes of the groups: none, around a tile, several tiles, one element."""
    tile = {
        Grouping.M: schedule.tile_m * schedule.cluster_m * schedule.cta_group,
        Grouping.N: schedule.tile_n * schedule.cluster_n,
        Grouping.K: schedule.tile_k * (schedule.ab_stages + 1),
    }[grouping]
    return (0, tile + 7, 2 * tile - 3, 1)


def with_groups(
    problem: GemmProblem, schedule: GemmSchedule, grouping: Grouping
) -> GemmProblem:
    """``problem`` cut into groups along ``grouping``."""
    if grouping is Grouping.BATCH:
        return replace(problem, grouping=grouping, groups=3)
    sizes = ragged_sizes(schedule, grouping)
    total = (sum(sizes) // _UNIT + 1) * _UNIT
    changed: dict[str, Any] = {grouping.value: total}
    return replace(problem, grouping=grouping, groups=len(sizes), **changed)


def operands(
    problem: GemmProblem, schedule: GemmSchedule, place: torch.device | str
) -> Tensors:
    """Integers from -2 to 2, and scales that are powers of two."""
    import torch

    generator = torch.Generator().manual_seed(_SEED)
    grouping, ends = problem.grouping, None
    shapes = [(problem.m, problem.n, problem.k)] * problem.groups
    if problem.has_offsets:
        sizes = ragged_sizes(schedule, grouping)
        total = {"m": problem.m, "n": problem.n, "k": problem.k}[grouping.value]
        shapes = [_shape(problem, size) for size in (*sizes, total - sum(sizes))]
        ends = torch.tensor(sizes).cumsum(0).to(torch.int32).to(place)
    scaled = bool(problem.epilogue.inputs) or problem.block_scaled
    part = _block_scaled_part if problem.block_scaled else _part
    parts = [part(shape, scaled, generator) for shape in shapes]
    if ends is not None:
        parts[-1][2].fill_(float("nan"))
    joined = [
        _join([part[i] for part in parts], how, ends is not None)
        for i, how in enumerate(_JOINED[grouping])
    ]
    a, b, product, *scales = joined
    inputs = tuple(s.to(place) for s in scales) if scaled else ()
    kind = getattr(torch, problem.a_dtype.name)
    return Tensors(
        _laid_out(a, problem.a_major).to(kind).to(place),
        _laid_out(b, problem.b_major).to(kind).to(place).mT,
        inputs,
        ends,
        product.to(torch.bfloat16).to(place),
    )


def _shape(problem: GemmProblem, size: int) -> tuple[int, int, int]:
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k}
    sizes[problem.grouping.value] = size
    return sizes["m"], sizes["n"], sizes["k"]


def _part(
    shape: tuple[int, int, int], scaled: bool, generator: torch.Generator
) -> tuple[torch.Tensor, ...]:
    """One group's A, B, D, scale_a and scale_b."""
    import torch

    m, n, k = shape

    def integers(limit: int, *size: int) -> torch.Tensor:
        return torch.randint(-limit, limit + 1, size, generator=generator).float()

    a, b = integers(2, m, k), integers(2, n, k)
    scale_a, scale_b = torch.exp2(integers(1, m)), torch.exp2(integers(1, n))
    product = a @ b.T
    if scaled:
        product *= scale_a[:, None] * scale_b
    return a, b, product, scale_a, scale_b


def _block_scaled_part(
    shape: tuple[int, int, int], scaled: bool, generator: torch.Generator
) -> tuple[torch.Tensor, ...]:
    """As :func:`_part`, with a power of two for each block of K, in tiles."""
    m, n, k = shape
    a, b, *_ = _part(shape, scaled, generator)
    tiles = [block_scales.drawn(rows, k, generator) for rows in (m, n)]
    return a, b, block_scales.product(a, b, *tiles), *tiles


def _join(parts: Sequence[torch.Tensor], how: str, rest: bool) -> torch.Tensor:
    """``rest``: the last part is in no group, so it has no matrix, and no values for
    each group, of its own."""
    import torch

    kind = parts[0].dtype
    if kind == torch.float8_e8m0fnu:
        # torch joins no tensors of it on the CPU.
        return _join([p.view(torch.uint8) for p in parts], how, rest).view(kind)
    groups = list(parts[: len(parts) - rest])
    if how == "stack":
        return torch.stack(groups)
    if how == "values":
        return torch.cat(groups)
    return torch.cat(list(parts), dim=0 if how == "rows" else 1)


def _laid_out(matrix: torch.Tensor, major: Major) -> torch.Tensor:
    return matrix if major is Major.K else matrix.mT.contiguous().mT
