"""Launches of ``kernel_cases`` that the simulator and a GPU can both run.

In: a built case. Out: run-time sizes that leave tails and fill several tiles a CTA, and
the launch on a GPU of operands that are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from kernel_cases import CASES

from torch_cute_backend.build import KernelBuild
from torch_cute_backend.errors import UserError
from torch_cute_backend.runtime.cache import KernelCache, cache_key
from torch_cute_backend.runtime.launch import load_kernel
from torch_cute_backend.sim import gemm_case

HOPPER = tuple(case for case in CASES if case.arch.name == "sm_90a")


@dataclass(frozen=True)
class Run:
    """One launch of a kernel: its sizes, and how many CTAs may be launched."""

    label: str
    m: int
    n: int
    k: int
    num_ctas: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.m, self.n, self.k


def _step(build: KernelBuild, symbol: str) -> int:
    """What an extent must be a multiple of."""
    return max(
        (
            arg.divisibility
            for arg in build.source.args
            if arg.contiguous is not None and arg.shape[arg.contiguous] == symbol
        ),
        default=1,
    )


def ragged(build: KernelBuild, k_tiles: int, extra_m: int = 0) -> tuple[int, int, int]:
    """Sizes with tails in m, n and k, as far as the entry point takes them."""
    s = build.schedule
    wanted = {
        "m": max(s.tile_m * s.cluster_m * 2 - 27, s.tile_m + 5) + extra_m,
        "n": max(s.tile_n * s.cluster_n * 2 - 3, s.tile_n * s.cluster_n + 8),
        "k": s.tile_k * k_tiles + 48,
    }
    sizes = {}
    for symbol, size in wanted.items():
        step = _step(build, symbol)
        sizes[symbol] = max(size // step * step, step)
    return sizes["m"], sizes["n"], sizes["k"]


def runs(build: KernelBuild) -> tuple[Run, ...]:
    """Tails with pipelines that wrap; K shorter than the pipeline with more CTAs than
    tiles; one CTA (or cluster) for all tiles.
    """
    s = build.schedule
    return (
        Run("tails", *ragged(build, s.ab_stages + 2), 2 * s.cluster_size),
        Run("short_k", *ragged(build, 0), 16 * s.cluster_size),
        Run("many_tiles", *ragged(build, 2, 4 * s.tile_m), s.cluster_size),
    )


def require_cached(builds: Sequence[KernelBuild], compiling: bool) -> None:
    """Check that every kernel is cached, so that none is compiled unasked.

    Raises:
        UserError: some are not, and ``compiling`` does not allow it.
    """
    cache = KernelCache()
    missing = [
        build.source.name
        for build in builds
        if cache.load(cache_key(build.source)) is None
    ]
    if missing and not compiling:
        raise UserError(
            f"{len(missing)} of {len(builds)} kernels are not in {cache.root}, first "
            f"{missing[0]}; pack them from the same commit, or pass --compile"
        )


def span_of(tensor: torch.Tensor) -> torch.Tensor:
    """All elements from a tensor's first to its last, padding between rows included."""
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return torch.as_strided(tensor, (reach + 1,), (1,))


def padding_kept(operands: gemm_case.Operands) -> bool:
    """Is what lies between the rows of the outputs still zero?"""
    for out in operands.outputs.values():
        rest = span_of(out).clone()
        torch.as_strided(rest, out.shape, out.stride()).zero_()
        if rest.view(torch.uint8).any():
            return False
    return True


def run_on_gpu(build: KernelBuild, operands: gemm_case.Operands, num_ctas: int) -> None:
    """Launch on copies with the same strides; outputs, padding included, come back in
    place. No other kernel runs on the GPU.
    """
    spans = [span_of(tensor).cuda() for tensor in operands.tensors]
    copies = [
        torch.as_strided(span, tensor.shape, tensor.stride())
        for span, tensor in zip(spans, operands.tensors, strict=True)
    ]
    load_kernel(build.source)(*copies, num_ctas)
    torch.cuda.synchronize()
    for host, span, arg in zip(operands.tensors, spans, build.source.args, strict=True):
        if arg.output:
            span_of(host).copy_(span.cpu())
