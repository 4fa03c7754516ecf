"""``TileScheduler``: which work tiles a cluster takes, in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch_cute_backend.ir.expr import BinOp, Expr, Param, Ref
from torch_cute_backend.ir.ops import Body
from torch_cute_backend.ir.values import Buffer, Scheduler, SchedulerKind, Var
from torch_cute_backend.problem import Grouping

SCHEDULERS: dict[str, TileScheduler] = {}
"""Registry: the name that schedules use to the scheduler."""


@dataclass(frozen=True)
class TileScheduler:
    """The tile loop ``work = first; while work < limit: ...; work += step``, and what a
    work index stands for. A subclass registers itself under its ``name``.

    ``kind`` is what the passes know of it: whether it is finite and can be walked again
    by each role, and what the host launches. ``groupings`` are those of the problems
    whose tiles it hands out.
    """

    name: ClassVar[str] = ""
    kind: ClassVar[SchedulerKind] = SchedulerKind.STATIC_PERSISTENT
    groupings: ClassVar[tuple[Grouping, ...]] = (Grouping.NONE,)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.name:
            raise TypeError(f"{cls.__name__} declares no scheduler name")
        SCHEDULERS[cls.name] = cls()

    def first(self) -> Expr:
        """This cluster's first work index."""
        return Param("cluster_id")

    def limit(self, grouping: Grouping = Grouping.NONE) -> Expr:
        """One more than the last work index of all."""
        return BinOp("*", Param("tiles_m"), Param("tiles_n"))

    def step(self) -> Expr:
        """From one work index of this cluster to its next."""
        return Param("clusters")

    def position(self, work: Var) -> Expr:
        """Where along the raster the tile of a work index lies, from 0."""
        return Ref(work)

    def find_group(
        self,
        grouping: Grouping,
        scheduler: Scheduler,
        work: Var,
        offsets: Buffer,
        align: int = 1,
    ) -> Body:
        """Statements that define the variables of :mod:`schedulers.group` for a work
        index; only schedulers of grouped problems have them. ``align``: a group's first
        tile starts at a multiple of that, so up to as many elements before it."""
        raise NotImplementedError(f"{self.name} knows no groups")
