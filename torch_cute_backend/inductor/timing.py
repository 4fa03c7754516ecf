"""Time one kernel on the GPU, free of host noise.

Inductor times single launches between events, so host latency shows in its numbers for
kernels of a few µs. Here a CUDA graph of several launches is replayed, on copies of the
operands that together exceed the L2 cache: Inductor's own benchmarks flush it, and a
kernel that found its weights there would look faster than it is.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.utils import preserve_rng_state

from torch_cute_backend import phases
from torch_cute_backend.codegen.source import KernelSource
from torch_cute_backend.errors import CuteBackendError
from torch_cute_backend.inductor.views import View
from torch_cute_backend.runtime import device as devices
from torch_cute_backend.runtime import launch
from torch_cute_backend.runtime.pool import shared_pool
from torch_cute_backend.status import Status

FOOTPRINT_BYTES = 256 * 2**20
"""Operands in one graph: over four times the L2 of an H200."""
MAX_SETS = 16
LAUNCHES = 20
REPLAYS = 10

Hints = tuple[tuple[int, ...], tuple[int, ...], int]


def warm(children: int) -> None:
    """Start so many compiler processes without waiting for them."""
    shared_pool().warm(children)


def compile_source(source: KernelSource) -> None:
    """Compile in a child process unless it is cached.

    Raises:
        CompileError: the DSL or ptxas rejected it, a build gate failed, or time was up.
    """
    with phases.span("wait for a compiler", source.name):
        shared_pool().submit(source).result()


def prefetch(sources: Sequence[KernelSource]) -> None:
    """Start compiling; Inductor asks for the results later, if it asks at all."""
    for source in sources:
        shared_pool().submit(source)


def compiled(sources: Sequence[KernelSource]) -> list[Status]:
    """Compile side by side in child processes; for each source ok, or why not."""
    with phases.span("wait for compilers", f"{len(sources)} kernels"):
        return _outcomes(sources)


def _outcomes(sources: Sequence[KernelSource]) -> list[Status]:
    futures = [shared_pool().submit(source, gate=False) for source in sources]
    statuses = []
    for future in futures:
        try:
            future.result()
            statuses.append(Status.ok())
        except CuteBackendError as error:
            statuses.append(Status.no(f"{type(error).__name__}: {error}"))
    return statuses


def time_source(
    source: KernelSource,
    views: Sequence[View],
    buffers: Mapping[str, torch.Tensor],
    device: torch.device,
    cluster_size: int = 1,
) -> float | Status:
    """Milliseconds of one launch, or why it could not be timed.

    Args:
        views: the kernel's arguments in order; sizes as traced.
        buffers: example tensors by buffer name; missing ones are made here.
    """
    layouts = [(v.name, v.dtype, v.hints()) for v in views]
    return time_layouts(source, layouts, buffers, device, cluster_size)


def time_layouts(
    source: KernelSource,
    layouts: Sequence[tuple[str, torch.dtype, Hints]],
    buffers: Mapping[str, torch.Tensor],
    device: torch.device,
    cluster_size: int = 1,
) -> float | Status:
    """As :func:`time_source`, for views given as (buffer name, dtype, hints)."""
    try:
        kernel = launch.load_kernel(source)
        # Compiling must not change the random numbers of the user's program.
        with torch.cuda.device(device), preserve_rng_state():
            tensors = [_tensor(*entry, buffers, device) for entry in layouts]
            sets = _copies(tensors)
            index = devices.device_index(device)
            ctas = devices.resident_ctas(index, cluster_size)
            return _replay(lambda i: kernel(*sets[i % len(sets)], ctas))
    except (CuteBackendError, RuntimeError, ValueError) as error:
        # A kernel that cannot run is no choice; Inductor takes inf for an answer.
        return Status.no(f"{type(error).__name__}: {error}")


def _tensor(
    name: str,
    dtype: torch.dtype,
    hints: Hints,
    buffers: Mapping[str, torch.Tensor],
    device: torch.device,
) -> torch.Tensor:
    """A view of the named example buffer, or of a new one where there is none."""
    size, stride, offset = hints
    needed = offset + 1 + sum((s - 1) * t for s, t in zip(size, stride, strict=True))
    base = buffers.get(name)
    if base is not None:
        base = base if base._base is None else base._base
        enough = base.untyped_storage().size() >= needed * dtype.itemsize
        if enough and base.dtype is dtype:
            return base.as_strided(size, stride, offset)
    fresh = torch.randint(-2, 3, (needed,), device=device, dtype=torch.int8).to(dtype)
    return fresh.as_strided(size, stride, offset)


def _copies(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The tensors, and as many copies of all as fill ``FOOTPRINT_BYTES``."""
    total = sum(t.numel() * t.itemsize for t in tensors)
    count = max(1, min(MAX_SETS, FOOTPRINT_BYTES // max(total, 1)))
    sets = [list(tensors)]
    for _ in range(count - 1):
        sets.append([_clone(t) for t in tensors])
    return sets


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    copy = torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return copy.copy_(tensor)


def _replay(launch_one: Callable[[int], Any]) -> float:
    """Shortest time of a launch over several replays of a graph, in milliseconds."""
    launch_one(0)
    torch.cuda.synchronize()
    graph = _captured(launch_one)
    graph.replay()
    best = float("inf")
    for _ in range(REPLAYS):
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / LAUNCHES)
    return best


def _captured(launch_one: Callable[[int], Any]) -> torch.cuda.CUDAGraph:
    """A graph of :data:`LAUNCHES` launches.

    Not by ``torch.cuda.graph``, which collects garbage and empties the allocator's
    cache each time: in a process of Inductor's size longer than all the rest here.
    """
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    collects = gc.isenabled()
    # CUDA memory that garbage frees meanwhile would spoil the capture.
    gc.disable()
    try:
        with torch.cuda.stream(side):
            # Other threads compile and may allocate meanwhile: capture only this one.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                for i in range(LAUNCHES):
                    launch_one(i)
            finally:
                graph.capture_end()
    finally:
        if collects:
            gc.enable()
    torch.cuda.current_stream().wait_stream(side)
    return graph
