"""A grouped GEMM in fp32, straight from its definition, on any device.

Used in place of the kernel on a CPU, and as what a kernel is compared with on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from torch_cute_backend.problem import Grouping, scale_count
from torch_cute_backend.runtime.block_scales import from_tiles

Slices = tuple[int, slice]


def groups_of(offsets: Sequence[int]) -> Iterator[Slices]:
    """Each group's number and its part of the ragged dimension."""
    begin = 0
    for g, end in enumerate(offsets):
        yield g, slice(begin, end)
        begin = end


def _block_scaled(
    a: torch.Tensor, b: torch.Tensor, scales: Sequence[torch.Tensor], ends: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of groups along M with MXFP8's scales applied."""
    a, b, k = a.clone(), b.clone(), a.shape[1]
    tiles = scales[0].reshape(-1)
    for g, part in groups_of(ends):
        rows = part.stop - part.start
        count = scale_count(rows, k)
        a[part] *= from_tiles(tiles[:count], rows, k)
        b[g] *= from_tiles(scales[1][g], b.shape[1], k)
        tiles = tiles[count:]
    return a, b


def grouped_product(
    grouping: Grouping,
    a: torch.Tensor,
    b: torch.Tensor,
    scales: Sequence[torch.Tensor] = (),
    offsets: torch.Tensor | None = None,
) -> torch.Tensor:
    """D in fp32; NaN where no group writes.

    Args:
        a, b: as the kernel takes them, b with N before K.
        scales: ``scale_a`` and ``scale_b`` as ATen takes them, or none.
        offsets: ends of the groups; none for :attr:`Grouping.BATCH`.
    """
    a, b = a.float(), b.float()
    if scales and scales[0].dtype is torch.float8_e8m0fnu and offsets is not None:
        a, b = _block_scaled(a, b, scales, [int(x) for x in offsets])
        scales = ()
    if offsets is None:
        out = a @ b.mT
        if scales:
            out = out * scales[0][..., :, None] * scales[1][..., None, :]
        return out
    ends = [int(x) for x in offsets]
    shape = {
        Grouping.M: (a.shape[-2], b.shape[-2]),
        Grouping.N: (a.shape[-2], b.shape[-2]),
        Grouping.K: (len(ends), a.shape[-2], b.shape[-2]),
    }[grouping]
    out = torch.full(shape, float("nan"), device=a.device)
    for g, part in groups_of(ends):
        one = [
            s.reshape(len(ends), -1)[g] if _per_group(s, grouping, i) else s
            for i, s in enumerate(scales)
        ]
        if grouping is Grouping.M:
            product, rows, columns = a[part] @ b[g].T, part, slice(None)
            where = out[part]
        elif grouping is Grouping.N:
            product, rows, columns = a[g] @ b[part].T, slice(None), part
            where = out[:, part]
        else:
            product, rows, columns = a[:, part] @ b[:, part].T, slice(None), slice(None)
            where = out[g]
        if scales:
            product = product * one[0][rows, None] * one[1][None, columns]
        where.copy_(product)
    return out


def _per_group(scale: torch.Tensor, grouping: Grouping, operand: int) -> bool:
    """Has each group values of its own in this scale of A (0) or B (1)?"""
    shared = {Grouping.M: 0, Grouping.N: 1}.get(grouping)
    return operand != shared
