"""What is known of the GPU at hand, asked of torch once a device.

torch is imported when it is asked, so that whoever only compiles need not wait for it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from torch_cute_backend.arch import ArchSpec, arch_for_capability

if TYPE_CHECKING:
    import torch


@functools.cache
def sm_count(index: int) -> int:
    """Streaming multiprocessors of CUDA device ``index``."""
    import torch

    return int(torch.cuda.get_device_properties(index).multi_processor_count)


_resident: dict[tuple[int, int], int] = {}


def resident_ctas(index: int, cluster_size: int) -> int:
    """CTAs of CUDA device ``index`` that run at once, one an SM, in clusters of
    ``cluster_size``: what a persistent kernel should launch at most."""
    import torch

    from torch_cute_backend.runtime import occupancy

    sms = sm_count(index)
    if cluster_size == 1:
        return sms
    known = _resident.get((index, cluster_size))
    if known is not None:
        return known
    if not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing():
        # Loading the probe could spoil a capture; a few idle clusters cannot.
        return sms
    with torch.cuda.device(index):
        torch.cuda.synchronize()
        clusters = occupancy.max_clusters(cluster_size)
    most = sms // cluster_size
    _resident[index, cluster_size] = min(clusters or most, most) * cluster_size
    return _resident[index, cluster_size]


@functools.cache
def arch_of(index: int) -> ArchSpec | None:
    """The arch whose cubins load on CUDA device ``index``, or None if there is none."""
    import torch

    return arch_for_capability(*torch.cuda.get_device_capability(index))


@functools.cache
def name_of(index: int) -> str:
    """Marketing name, for records and reports."""
    import torch

    return str(torch.cuda.get_device_name(index))


def device_index(device: torch.device) -> int:
    """Index of a CUDA device; the current one if ``device`` names none."""
    import torch

    return torch.cuda.current_device() if device.index is None else device.index


def default_arch() -> ArchSpec | None:
    """The arch of the current GPU; None without one, or if it is not supported."""
    import torch

    if not torch.cuda.is_available():
        return None
    return arch_of(torch.cuda.current_device())
