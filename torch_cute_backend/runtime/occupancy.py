"""How many clusters a GPU holds at once, asked of the CUDA driver.

A cluster lies within one GPC, and GPCs differ in how many SMs are switched on. SMs that
fill no cluster stay idle: an H200 with 132 SMs holds 66 clusters of 2, but fewer than
32 of 4. A persistent kernel that launches more runs the rest in a second round.
"""

from __future__ import annotations

import ctypes
import logging

log = logging.getLogger(__name__)

_SHARED_BYTES = 120 * 1024
"""More than half of an SM's: one CTA an SM, as for our kernels."""
_THREADS = 128
_MAX_DYNAMIC_SHARED = 8
"""``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES``"""
_CLUSTER_DIMENSION = 4
"""``CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION``"""
_PTX = b"""\
.version 7.8
.target sm_90
.address_size 64
.visible .entry probe() { ret; }
"""


class _Dimensions(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in ("x", "y", "z")]


class _Value(ctypes.Union):
    _fields_ = [("cluster", _Dimensions), ("pad", ctypes.c_char * 64)]


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", _Value)]


class _Config(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z")),
        *((name, ctypes.c_uint) for name in ("block_x", "block_y", "block_z")),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]


def max_clusters(size: int) -> int | None:
    """Clusters of ``size`` CTAs, one CTA an SM, that the current context's GPU runs
    side by side; None if the driver cannot say."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        log.info("no CUDA driver: %s", error)
        return None
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    if driver.cuModuleLoadData(ctypes.byref(module), _PTX):
        return None
    try:
        if driver.cuModuleGetFunction(ctypes.byref(function), module, b"probe"):
            return None
        return _ask(driver, function, size)
    finally:
        driver.cuModuleUnload(module)


def _ask(driver: ctypes.CDLL, function: ctypes.c_void_p, size: int) -> int | None:
    attribute = _Attribute(id=_CLUSTER_DIMENSION)
    attribute.value.cluster = _Dimensions(size, 1, 1)
    config = _Config(
        grid_x=size,
        grid_y=1,
        grid_z=1,
        block_x=_THREADS,
        block_y=1,
        block_z=1,
        shared_bytes=_SHARED_BYTES,
        attributes=ctypes.pointer(attribute),
        attribute_count=1,
    )
    found = ctypes.c_int()
    error = driver.cuFuncSetAttribute(
        function, _MAX_DYNAMIC_SHARED, _SHARED_BYTES
    ) or driver.cuOccupancyMaxActiveClusters(
        ctypes.byref(found), function, ctypes.byref(config)
    )
    if error or found.value < 1:
        log.info("clusters of %d: the driver answers error %d", size, error)
        return None
    return found.value
