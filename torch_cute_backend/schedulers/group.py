"""What a scheduler of grouped problems finds out about a work index.

=============  ====================================================================
variable       meaning
=============  ====================================================================
group          the tile's group; the number of groups if there is no such tile
place          the tile's place along its group's raster, in clusters
group_tiles    clusters along the ragged dimension (M or N) of the group
start, stop    the group's first element of the ragged dimension, and one more than
               its last, within the tensor whatever the offsets say
=============  ====================================================================

How many tiles the groups have together is known on the device only. The loop runs up to
what it can be at most, and a work index behind the last tile finds no group.
"""

from __future__ import annotations

from torch_cute_backend.ir.expr import BinOp, Param
from torch_cute_backend.ir.values import Var

GROUP = Var("group")
PLACE = Var("place")
GROUP_TILES = Var("group_tiles")
START = Var("start")
STOP = Var("stop")

GROUPS = Param("groups")
TILES = BinOp("*", Param("tiles_m"), Param("tiles_n"))
"""Clusters of one group, or of all where M or N is ragged."""
