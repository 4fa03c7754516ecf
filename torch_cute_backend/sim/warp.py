"""The complete warp: all instruction classes together."""

from __future__ import annotations

from .ops_tensormap import TensorMapOps


class Warp(TensorMapOps):
    """What generated code calls ``W``."""
