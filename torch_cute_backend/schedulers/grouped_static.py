"""Groups walked statically: the scheduler supplies tile and group.

Cluster ``c`` takes the work indices ``c``, ``c + clusters``, ...; the tiles of a group
follow one another. Whose tile an index is follows from the group offsets, which each
role reads for itself: a warp looks at 32 groups at a time.
"""

from __future__ import annotations

from torch_cute_backend.ir.expr import BinOp, Expr, Param, Ref
from torch_cute_backend.ir.ops import Body
from torch_cute_backend.ir.structure import Let, ScheduledCoordinates
from torch_cute_backend.ir.values import Buffer, Scheduler, SchedulerKind, Var
from torch_cute_backend.problem import Grouping
from torch_cute_backend.schedulers.base import TileScheduler
from torch_cute_backend.schedulers.group import (
    GROUP,
    GROUP_TILES,
    PLACE,
    START,
    STOP,
    TILES,
)


class GroupedStatic(TileScheduler):
    """A pure function of cluster index, grid and offsets, so each role walks it on its
    own."""

    name = "grouped_static"
    kind = SchedulerKind.GROUPED_STATIC
    groupings = (Grouping.M, Grouping.N, Grouping.K, Grouping.BATCH)

    def limit(self, grouping: Grouping = Grouping.NONE) -> Expr:
        """``tiles_m * tiles_n`` is the output of one group, or all that the groups can
        have where M or N is ragged."""
        ragged = grouping in (Grouping.M, Grouping.N)
        return TILES if ragged else BinOp("*", Param("groups"), TILES)

    def find_group(
        self,
        grouping: Grouping,
        scheduler: Scheduler,
        work: Var,
        offsets: Buffer,
        align: int = 1,
    ) -> Body:
        equal = (
            Let(var=GROUP, value=BinOp("//", Ref(work), TILES)),
            Let(var=PLACE, value=BinOp("%", Ref(work), TILES)),
        )
        if grouping is Grouping.BATCH:
            return equal
        targets: tuple[Var, ...] = (GROUP, PLACE, START, STOP)
        if grouping is not Grouping.K:
            targets = (GROUP, PLACE, GROUP_TILES, START, STOP)
        return (
            ScheduledCoordinates(
                scheduler=scheduler, work=work, buffer=offsets, targets=targets
            ),
        )
