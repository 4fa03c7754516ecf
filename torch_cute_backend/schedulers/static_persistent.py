"""As many clusters as the GPU holds; each takes every ``clusters``-th tile."""

from __future__ import annotations

from torch_cute_backend.ir.values import SchedulerKind
from torch_cute_backend.schedulers.base import TileScheduler


class StaticPersistent(TileScheduler):
    """A pure function of cluster index and grid, so each role walks it on its own."""

    name = "static_persistent"
    kind = SchedulerKind.STATIC_PERSISTENT
