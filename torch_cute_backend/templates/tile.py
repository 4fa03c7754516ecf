"""Where one work tile lies: what distinguishes a dense tile from a tile of a group."""

from __future__ import annotations

from dataclasses import dataclass

from torch_cute_backend.ir.expr import Expr, Param
from torch_cute_backend.ir.ops import Body
from torch_cute_backend.ir.values import Var

TILE = Var("tile_idx")
K_TILE = Var("k_tile")
SUBTILE = Var("subtile")

Exprs = tuple[Expr, ...]


@dataclass(frozen=True)
class WorkTile:
    """How the statements of a template refer to their tile.

    Attributes:
        a, b: coordinates of the boxes of A and B at the k tile ``k_tile``.
        k_tiles: how many of those there are.
        index: tile indices (m, n) in the output; empty where tiles start at any
            element, as those of a group do.
        origin: the first element in the output, (row, column) and the group where
            outputs are stacked; empty for a dense tile.
        end: where the group's rows and columns end; empty if the tensor's do.
        begin: where they begin; empty if no tile starts before them.
        spare: negative iff the tile reaches beyond the group, so that it cannot be
            stored as a whole; None if it may always be.
        scale_a, scale_b: coordinates of the boxes of block scales of A and B; those of
            A and B if empty.
        before_load, before_store: statements of the load and epilogue roles in front of
            their part of the tile.
        before_mma: statements of the MMA's role for each k tile, before its MMA.
    """

    a: Exprs
    b: Exprs
    k_tiles: Expr = Param("k_tiles")
    index: Exprs = ()
    origin: Exprs = ()
    end: Exprs = ()
    begin: Exprs = ()
    spare: Expr | None = None
    scale_a: Exprs = ()
    scale_b: Exprs = ()
    before_load: Body = ()
    before_store: Body = ()
    before_mma: Body = ()
