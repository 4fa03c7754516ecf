"""Start the compiler processes before a kernel is asked for.

Importing the DSL takes a compiler process seconds. Inductor needs seconds too until it
lowers the first GEMM; here the two run side by side. In: the two moments at which
Inductor calls :mod:`cachekey`. A process whose kernels are all cached starts no
compiler: it only would on the first moment if the kernel cache were empty.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_cute_backend import config
from torch_cute_backend.inductor import compat, lowering, timing
from torch_cute_backend.runtime import device
from torch_cute_backend.runtime.cache import KernelCache

_GEMMS = frozenset(key for key, _, _ in lowering.OPS)


def on_key() -> None:
    """Inductor hashes a graph; it may be in its cache. Without any cached kernel there
    is nothing to be found, and the compilers will be needed."""
    if _wanted() and KernelCache().is_empty():
        timing.warm(config.get().compile_workers)


def on_graph(gm: torch.fx.GraphModule) -> None:
    """Inductor is about to lower ``gm``, which it has not in its cache.

    One compiler where kernels are cached already, perhaps those of this graph too.
    """
    if _wanted() and any(_is_gemm(node) for node in gm.graph.nodes):
        empty = KernelCache().is_empty()
        timing.warm(config.get().compile_workers if empty else 1)


def _is_gemm(node: Any) -> bool:
    return node.op == "call_function" and node.target in _GEMMS


def _wanted() -> bool:
    """Would a GEMM on the current GPU get kernels of ours? Initialises no CUDA."""
    return bool(
        config.get().enabled
        and compat.max_autotune_is_on()
        and compat.asked_for()
        and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        and device.default_arch() is not None
    )
