"""A static scheduler that knows nothing of groups: the kernel looks for the tile's.

For ragged M, whose right-hand side has rank 3, one matrix a group. Scalar loads and
comparisons in the shared body walk the offsets from the first group on for each tile.
The roles clone them, so the shared loop is left with work of its own and is kept.
"""

from __future__ import annotations

from torch_cute_backend.ir.expr import BinOp, Const, Expr, Param, Ref, Select
from torch_cute_backend.ir.ops import Body
from torch_cute_backend.ir.structure import If, KLoop, Let, ScalarLoad
from torch_cute_backend.ir.values import Buffer, Scheduler, SchedulerKind, Var
from torch_cute_backend.problem import Grouping
from torch_cute_backend.schedulers.base import TileScheduler
from torch_cute_backend.schedulers.group import (
    GROUP,
    GROUP_TILES,
    GROUPS,
    PLACE,
    START,
    STOP,
)

INDEX = Var("i")
LOADED = Var("loaded")
BEFORE = Var("before")
END = Var("end")
COUNT = Var("count")
LEFT = Var("left")
SPAN = Var("span")
SIZE = Var("size")


class Rank3Rhs(TileScheduler):
    """See the module docstring."""

    name = "rank3_rhs"
    kind = SchedulerKind.STATIC_PERSISTENT
    groupings = (Grouping.M,)

    def find_group(
        self,
        grouping: Grouping,
        scheduler: Scheduler,
        work: Var,
        offsets: Buffer,
        align: int = 1,
    ) -> Body:
        """``left`` counts the work index down by each group's tiles; it is not negative
        up to the group where the tile lies, and negative behind it."""
        cut = BinOp("min", Ref(LOADED), Param("m"))
        rows = _rows(align)
        found = (
            Let(var=GROUP, value=Ref(INDEX)),
            Let(var=PLACE, value=Ref(LEFT)),
            Let(var=GROUP_TILES, value=Ref(COUNT)),
            Let(var=START, value=Ref(BEFORE)),
            Let(var=STOP, value=Ref(END)),
        )
        here = If(condition=BinOp("<", Ref(LEFT), Ref(SPAN)), body=found)
        search = (
            ScalarLoad(var=LOADED, buffer=offsets, index=Ref(INDEX)),
            Let(var=END, value=BinOp("max", Ref(BEFORE), cut)),
            Let(var=COUNT, value=_tiles(rows)),
            Let(var=SPAN, value=BinOp("*", Ref(COUNT), Param("tiles_n"))),
            If(condition=BinOp(">=", Ref(LEFT), Const(0)), body=(here,)),
            Let(var=LEFT, value=BinOp("-", Ref(LEFT), Ref(SPAN))),
            Let(var=BEFORE, value=Ref(END)),
        )
        zero = Const(0)
        return (
            Let(var=GROUP, value=GROUPS),
            *(Let(var=v, value=zero) for v in (PLACE, GROUP_TILES, START, STOP)),
            Let(var=SIZE, value=BinOp("*", Param("TILE_M"), Param("CLUSTER_M"))),
            Let(var=BEFORE, value=zero),
            Let(var=LEFT, value=Ref(work)),
            KLoop(index=INDEX, count=GROUPS, body=search),
        )


def _rows(align: int) -> Expr:
    """Rows from the group's first tile on, which starts at a multiple of ``align``;
    none if the group has none."""
    own = BinOp("-", Ref(END), Ref(BEFORE))
    if align == 1:
        return own
    ahead = BinOp("%", Ref(BEFORE), Const(align))
    return Select(BinOp(">", own, Const(0)), BinOp("+", own, ahead), Const(0))


def _tiles(rows: Expr) -> BinOp:
    """Clusters that cover ``rows``."""
    filled = BinOp("-", BinOp("+", rows, Ref(SIZE)), Const(1))
    return BinOp("//", filled, Ref(SIZE))
