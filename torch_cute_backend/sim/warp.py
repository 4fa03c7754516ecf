"""The complete warp: all instruction classes together."""

from __future__ import annotations

from .ops_launch_control import LaunchControlOps


class Warp(LaunchControlOps):
    """What generated code calls ``W``."""
