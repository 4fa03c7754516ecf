"""``load_kernel``: from a source or a cache key to the function to call.

The function returned is TVM-FFI's own: called with raw torch tensors and the CTA count,
it launches on torch's current stream of the tensors' device, with nothing of ours in
between. It checks dtypes, sizes, strides and alignment itself, but NOT empty sizes (a
zero M divides by zero in the host code), negated or conjugated views, or gradients: the
caller must keep those away. ``gemm.run`` does.

A cached kernel is loaded without importing cutlass, from its shared object; without one
from its object through the DSL; and compiled only if it is in no cache.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch_cute_backend import config, phases
from torch_cute_backend.codegen.source import KernelSource
from torch_cute_backend.errors import CacheError
from torch_cute_backend.runtime import toolchain
from torch_cute_backend.runtime.cache import CacheEntry, KernelCache, cache_key
from torch_cute_backend.runtime.pool import shared_pool

log = logging.getLogger(__name__)

Kernel = Callable[..., Any]


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel in this process.

    Attributes:
        function: call it with the tensors, then the CTA count.
        entry: its cache entry (resources, versions).
        how: ``"shared object"`` or ``"object"``: what was loaded.
        compiled: it had to be compiled first.
    """

    function: Kernel
    entry: CacheEntry
    how: str
    compiled: bool
    module: Any
    """Owns the code; kept so that it outlives every caller."""


_loaded: dict[str, LoadedKernel] = {}
_lock = threading.Lock()
_key_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
_launches: Counter[str] = Counter()
_libraries: list[ctypes.CDLL] = []


def load_kernel(source: KernelSource | str) -> Kernel:
    """The callable of a source, or of a cache key that is known to be stored.

    Raises:
        CacheError: an unknown key, or an unusable cache folder.
        CompileError: the source does not compile.
    """
    return load(source).function


def load(source: KernelSource | str) -> LoadedKernel:
    """As :func:`load_kernel`, with what is known about the kernel."""
    key = source if isinstance(source, str) else cache_key(source)
    loaded = _loaded.get(key)
    if loaded is not None:
        return loaded
    with _lock:
        key_lock = _key_locks[key]
    # One lock a kernel: threads that need different ones compile them side by side.
    with key_lock:
        loaded = _loaded.get(key)
        if loaded is None:
            loaded = _load(source, key)
            _loaded[key] = loaded
        return loaded


def load_kernels(sources: Sequence[KernelSource]) -> list[Kernel]:
    """As :func:`load_kernel` for several; those not cached are compiled at once."""
    cache = KernelCache()
    missing = [s for s in sources if cache.load(cache_key(s)) is None]
    for future in [shared_pool().submit(s, gate=False) for s in missing]:
        future.result()
    return [load_kernel(source) for source in sources]


def loaded_kernels() -> tuple[LoadedKernel, ...]:
    """All kernels that this process has loaded."""
    return tuple(_loaded.values())


def launches() -> dict[str, int]:
    """Calls by kernel name, of kernels loaded while ``config.count_launches`` was on.

    A replayed CUDA graph counts as the one call that was captured.
    """
    return dict(_launches)


def reset_launches() -> None:
    _launches.clear()


def forget() -> None:
    """Load again on the next request (another cache folder, the counter on or off)."""
    _loaded.clear()


def _load(source: KernelSource | str, key: str) -> LoadedKernel:
    entry = KernelCache().load(key)
    compiled = entry is None
    if entry is None:
        if isinstance(source, str):
            raise CacheError(f"no intact cache entry {key}")
        # Ungated: a spill makes a kernel slow, not wrong, and by now it was chosen.
        entry = shared_pool().submit(source, gate=False).result()
        if not entry.gate:
            log.warning("%s: %s", entry.name, entry.gate)
    with phases.span("load", entry.name):
        module, how = _open(entry)
    function = getattr(module, entry.symbol)
    if config.get().count_launches:
        function = counted(function, entry.name)
    return LoadedKernel(function, entry, how, compiled, module)


def _open(entry: CacheEntry) -> tuple[Any, str]:
    """Load an entry's code: the shared object, or else the object through the DSL."""
    import tvm_ffi

    if entry.shared is not None and _load_runtime_library():
        try:
            return tvm_ffi.load_module(str(entry.shared)), "shared object"
        except (OSError, RuntimeError) as error:
            log.info("cannot load %s: %s", entry.shared, error)
    from cutlass.cute.runtime import load_module

    return load_module(str(entry.object), enable_tvm_ffi=True), "object"


def _load_runtime_library() -> bool:
    """Make the DSL's run-time symbols global; the shared objects refer to them."""
    if _libraries:
        return True
    path = toolchain.runtime_library()
    if path is None:
        return False
    _libraries.append(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))
    return True


def counted(function: Kernel, name: str) -> Kernel:
    """Count the calls of ``function`` that return, under ``name``."""

    def call(*args: Any) -> Any:
        result = function(*args)
        _launches[name] += 1
        return result

    return call
