"""MXFP8's scales in memory: tiles of 128 rows by 4 blocks of K, and back to a matrix.

What ``torch._scaled_mm`` takes as blockwise 1x32 scales on Blackwell; see
:func:`~torch_cute_backend.problem.scale_count` for the order within a tile.
"""

from __future__ import annotations

import torch

from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import (
    SCALE_BLOCK,
    SCALE_COLUMNS,
    SCALE_ROWS,
    scale_count,
)

_LANES = 32
"""Rows of a tile that lie 16 bytes apart; the other rows lie between, 4 bytes apart."""
_PADDING = 127
"""The exponent of 1, where a tile reaches beyond the matrix."""


def to_tiles(scales: torch.Tensor) -> torch.Tensor:
    """Scales as the MMA takes them.

    Args:
        scales: (rows, blocks of K) float8_e8m0fnu.

    Returns:
        ``scale_count(rows, 32 * blocks)`` float8_e8m0fnu; padding is 1.

    Raises:
        UserError: another dtype or rank.
    """
    if scales.dtype != torch.float8_e8m0fnu or scales.dim() != 2:
        raise UserError(
            f"block scales must be a float8_e8m0fnu matrix, got {scales.dim()}-D "
            f"{scales.dtype}"
        )
    rows, blocks = scales.shape
    down, across = -(-rows // SCALE_ROWS), -(-blocks // SCALE_COLUMNS)
    shape = (down * SCALE_ROWS, across * SCALE_COLUMNS)
    padded = torch.full(shape, _PADDING, dtype=torch.uint8, device=scales.device)
    padded[:rows, :blocks] = scales.view(torch.uint8)
    tiles = padded.view(down, SCALE_ROWS // _LANES, _LANES, across, SCALE_COLUMNS)
    flat = tiles.permute(0, 3, 2, 1, 4).reshape(-1)
    return flat.view(torch.float8_e8m0fnu)


def drawn(rows: int, k: int, generator: torch.Generator) -> torch.Tensor:
    """Random powers of two, a half to two, for an operand of ``rows`` by ``k``, in
    tiles."""
    shape = (rows, -(-k // SCALE_BLOCK))
    exponents = torch.randint(126, 129, shape, generator=generator)
    return to_tiles(exponents.to(torch.uint8).view(torch.float8_e8m0fnu))


def product(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    """``A @ B.T`` of an (M, K) and an (N, K) matrix, each with its tiles of scales."""
    return (a * from_tiles(scale_a, *a.shape)) @ (b * from_tiles(scale_b, *b.shape)).T


def from_tiles(tiles: torch.Tensor, rows: int, k: int) -> torch.Tensor:
    """The fp32 scale of each element of an operand of ``rows`` by ``k``; inverse of
    :func:`to_tiles` but for the padding.

    Raises:
        UserError: ``tiles`` has another size than such an operand's scales.
    """
    if tiles.numel() != scale_count(rows, k):
        raise UserError(
            f"{rows} x {k} elements have {scale_count(rows, k)} scales in tiles, got "
            f"{tiles.numel()}"
        )
    down, across = -(-rows // SCALE_ROWS), -(-k // (SCALE_BLOCK * SCALE_COLUMNS))
    parts = (down, across, _LANES, SCALE_ROWS // _LANES, SCALE_COLUMNS)
    matrix = tiles.view(torch.uint8).view(parts).permute(0, 3, 2, 1, 4)
    exponents = matrix.reshape(down * SCALE_ROWS, across * SCALE_COLUMNS)
    each = exponents.view(torch.float8_e8m0fnu).float()
    return each.repeat_interleave(SCALE_BLOCK, 1)[:rows, :k]
