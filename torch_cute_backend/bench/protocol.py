"""How everything here is timed.

Short kernels are dominated by what surrounds them, so:

* each provider's calls are captured in a CUDA graph: no host time between them;
* the calls rotate over input sets that together exceed three times the L2 ("cold");
  the "warm" protocol uses one set;
* providers are interleaved in one process and their order rotates each round, so that
  clocks and temperature are shared;
* a round is queued as a whole behind one replay that is not timed, so that the GPU
  never waits for the host between two replays;
* all providers get the same random-normal data, since the data moves the clock;
* a row is the median over rounds, with the smallest and the largest.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

L2_MULTIPLE = 3
MIN_CALLS = 20
ROUNDS = 20
MAX_SETS = 256
"""Enough for three L2s of any shape above 1 MB."""
WARMUP_REPLAYS = 3

Call = Callable[[], object]
Captured = tuple[torch.cuda.CUDAGraph, int]
"""A graph and the number of calls in it."""


@dataclass(frozen=True)
class Timing:
    """Microseconds a call: median, smallest and largest over the rounds."""

    us: float
    us_min: float
    us_max: float


def input_sets(bytes_per_set: int, device: torch.device, cold: bool = True) -> int:
    """How many input sets the cold protocol rotates over."""
    if not cold:
        return 1
    l2 = torch.cuda.get_device_properties(device).L2_cache_size
    wanted = -(-L2_MULTIPLE * l2 // max(bytes_per_set, 1))
    return min(max(2, wanted), MAX_SETS)


def capture(calls: Sequence[Call]) -> Captured:
    """A graph of ``calls`` in order, repeated to at least ``MIN_CALLS``.

    Returns:
        The graph and the number of calls in it.
    """
    repeats = max(1, -(-MIN_CALLS // len(calls)))
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side), _no_collection():
        calls[0]()
        # Not ``torch.cuda.graph``: it empties the allocator's cache at each capture,
        # which costs more than everything else here.
        graph.capture_begin()
        try:
            for _ in range(repeats):
                for call in calls:
                    call()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    return graph, repeats * len(calls)


def interleaved(
    providers: Mapping[str, Sequence[Call]], rounds: int = ROUNDS
) -> dict[str, Timing]:
    """Time every provider; ``providers`` maps a name to one call per input set."""
    graphs = {name: capture(calls) for name, calls in providers.items()}
    return time_graphs(graphs, rounds)


def time_graphs(
    graphs: Mapping[str, Captured], rounds: int = ROUNDS
) -> dict[str, Timing]:
    """Replay captured providers in turns; the order rotates each round."""
    for graph, _ in graphs.values():
        for _ in range(WARMUP_REPLAYS):
            graph.replay()
    torch.cuda.synchronize()
    names = list(graphs)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for r in range(rounds):
        shift = r % len(names)
        order = names[shift:] + names[:shift]
        for name, us in zip(order, _round_us(graphs, order), strict=True):
            samples[name].append(us)
    return {
        name: Timing(statistics.median(s), min(s), max(s))
        for name, s in samples.items()
    }


def _round_us(graphs: Mapping[str, Captured], order: Sequence[str]) -> list[float]:
    """µs a call of each provider, replayed once in this order."""
    marks = [
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(len(order) + 1)
    ]
    graphs[order[-1]][0].replay()
    marks[0].record()
    for name, mark in zip(order, marks[1:], strict=True):
        graphs[name][0].replay()
        mark.record()
    marks[-1].synchronize()
    return [
        float(marks[i].elapsed_time(marks[i + 1])) * 1e3 / graphs[name][1]
        for i, name in enumerate(order)
    ]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Freed CUDA memory of unrelated garbage would spoil a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
