"""One cluster a tile: no persistent loop, hence nothing to omit."""

from __future__ import annotations

from torch_cute_backend.ir.values import SchedulerKind
from torch_cute_backend.schedulers.base import TileScheduler


class SingleTile(TileScheduler):
    """The loop's body runs at most once."""

    name = "single_tile"
    kind = SchedulerKind.SINGLE_TILE
