"""Kernels on the simulated device, called as ``runtime.launch`` has them on a GPU.

In: a build. Out: a function of CPU tensors and the CTA count that runs the kernel in
the process's simulator child, writes the outputs, and raises if anything was found.
Its calls are counted in ``runtime.launch.launches()`` as well.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch_cute_backend.build import KernelBuild
from torch_cute_backend.runtime import launch

from .child import SimChild
from .report import SimError, SimReport

if TYPE_CHECKING:
    import torch

    from torch_cute_backend.codegen.source import TensorArg

_lock = threading.Lock()
_children: dict[int, SimChild] = {}
_launches: Counter[str] = Counter()
_reports: dict[str, SimReport] = {}


def load_kernel(build: KernelBuild) -> Callable[..., Any]:
    """The kernel as a function of its tensors, in the order of its entry, and the
    number of CTAs; compiled at its first call.

    The function raises:
        SimError: a finding, an element not written exactly once, or tensors that the
            kernel does not take.
        CompileError: the kernel does not compile.
    """
    source, roles = build.source, role_of_warp(build)

    def run(*arguments: Any) -> None:
        *given, num_ctas = arguments
        tensors = [_aligned(t, a) for t, a in zip(given, source.args, strict=True)]
        with _lock:
            report = _child().simulate(source, tensors, num_ctas=num_ctas, roles=roles)
        if not report.clean:
            raise SimError(f"{source.name} is not clean: {report.summary()}")
        with _lock:
            _launches[source.sha256] += 1
            _reports[source.sha256] = report

    return launch.counted(run, source.name)


def role_of_warp(build: KernelBuild) -> dict[int, str]:
    """Warp index -> role name."""
    return {
        warp: role.name
        for role in build.after.roles
        for warp in range(role.first_warp, role.first_warp + role.all_warps)
    }


def launches() -> dict[str, int]:
    """Clean launches in this process by sha256 of the kernel's source."""
    with _lock:
        return dict(_launches)


def last_reports() -> dict[str, SimReport]:
    """The report of each kernel's last clean launch, by the same key."""
    with _lock:
        return dict(_reports)


def _aligned(tensor: torch.Tensor, arg: TensorArg) -> torch.Tensor:
    """An input as the entry takes it: Inductor copies misaligned inputs of GPU graphs
    before the first kernel, but not those of CPU graphs."""
    if arg.output or tensor.data_ptr() % arg.align_bytes == 0:
        return tensor
    return tensor.new_empty_strided(tensor.shape, tensor.stride()).copy_(tensor)


def _child() -> SimChild:
    """This process's child; a new one after a fork, or if the last one died."""
    pid = os.getpid()
    if pid not in _children or not _children[pid].alive():
        _close()
        _children[pid] = SimChild()
    return _children[pid]


@atexit.register
def _close() -> None:
    """End this process's own child, not one of the process it was forked from."""
    child = _children.pop(os.getpid(), None)
    if child is not None:
        child.close()
