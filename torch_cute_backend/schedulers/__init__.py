"""Tile schedulers, one a file. To add one, write its file and add its import here."""

from torch_cute_backend.schedulers.base import SCHEDULERS, TileScheduler
from torch_cute_backend.schedulers.grouped_static import GroupedStatic
from torch_cute_backend.schedulers.rank3_rhs import Rank3Rhs
from torch_cute_backend.schedulers.single_tile import SingleTile
from torch_cute_backend.schedulers.static_persistent import StaticPersistent

__all__ = [
    "SCHEDULERS",
    "GroupedStatic",
    "Rank3Rhs",
    "SingleTile",
    "StaticPersistent",
    "TileScheduler",
]
