"""The complete warp: all instruction classes together."""

from __future__ import annotations

from .ops_tcgen05 import Tcgen05Ops


class Warp(Tcgen05Ops):
    """What generated code calls ``W``."""
