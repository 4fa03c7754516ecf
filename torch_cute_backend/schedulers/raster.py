"""From a place along the raster to a tile: the order in which tiles are visited.

Pure integer statements, so that each role computes them for itself. A grouped problem
has one raster a group, whose extents are those of the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch_cute_backend.ir.expr import BinOp, Const, Expr, Param, Ref
from torch_cute_backend.ir.ops import Body
from torch_cute_backend.ir.structure import Let
from torch_cute_backend.ir.values import Var

if TYPE_CHECKING:
    from torch_cute_backend.schedule import GemmSchedule

TILE_M = Var("tile_m")
TILE_N = Var("tile_n")
TILES_M = Param("tiles_m")
TILES_N = Param("tiles_n")


def tile_coordinates(
    schedule: GemmSchedule,
    place: Expr,
    rows: Expr = TILES_M,
    columns: Expr = TILES_N,
) -> Body:
    """Define ``tile_m`` and ``tile_n`` of this CTA's tile.

    ``place`` counts clusters along the raster from 0; ``rows`` and ``columns`` are the
    raster's extents in clusters.
    """
    if schedule.raster == "grouped":
        lets, row, column = _bands(schedule.group_m, place, rows, columns)
    else:
        along_m = schedule.raster == "along_m"
        extent = rows if along_m else columns
        fast = BinOp("%", place, extent)
        slow = BinOp("//", place, extent)
        lets, row, column = (), *((fast, slow) if along_m else (slow, fast))
    m = _in_cluster(row, schedule.cluster_m, "cta_m")
    n = _in_cluster(column, schedule.cluster_n, "cta_n")
    return (*lets, Let(var=TILE_M, value=m), Let(var=TILE_N, value=n))


def _bands(
    group_m: int, place: Expr, rows: Expr, columns: Expr
) -> tuple[Body, Expr, Expr]:
    """Bands of ``group_m`` rows, each walked along M; the last band may be lower."""
    band, first, height, within = (
        Var(name) for name in ("band", "band_row", "band_rows", "band_tile")
    )
    band_tiles = BinOp("*", Const(group_m), columns)
    left = BinOp("-", rows, Ref(first))
    lets = (
        Let(var=band, value=BinOp("//", place, band_tiles)),
        Let(var=within, value=BinOp("%", place, band_tiles)),
        Let(var=first, value=BinOp("*", Ref(band), Const(group_m))),
        Let(var=height, value=BinOp("min", left, Const(group_m))),
    )
    row = BinOp("+", Ref(first), BinOp("%", Ref(within), Ref(height)))
    return lets, row, BinOp("//", Ref(within), Ref(height))


def _in_cluster(cluster_index: Expr, extent: int, rank: str) -> Expr:
    if extent == 1:
        return cluster_index
    scaled = BinOp(
        "*", cluster_index, Param("CLUSTER_M" if rank == "cta_m" else "CLUSTER_N")
    )
    return BinOp("+", scaled, Param(rank))
