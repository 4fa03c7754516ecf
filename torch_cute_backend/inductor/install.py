"""Turning the plugin on and off.

``install`` wraps entries of Inductor's lowering table and the question whether a node
has one, replaces the schedulings in its device registry, and registers our cache key;
nothing else of torch is touched.
Importing this module imports neither Inductor nor Dynamo: if they are not loaded yet,
installation happens when they are.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from torch_cute_backend import config

_COMPILER = "torch._inductor.compile_fx"
"""Every compilation goes through it, and it has imported all that we touch."""
_REGISTRY = "torch._dynamo.backends.registry"

_lock = threading.RLock()
_wanted: list[bool] = []
_undo: list[Any] = []


def install() -> None:
    """Offer our kernels to Inductor, now or as soon as it is imported."""
    with _lock:
        _wanted[:] = [True]
        if not any(isinstance(f, _Finder) for f in sys.meta_path):
            sys.meta_path.insert(0, _Finder())
        for name in (_COMPILER, _REGISTRY):
            if _is_loaded(name):
                _on_loaded(name)


def uninstall() -> None:
    """Put back everything that :func:`install` replaced."""
    with _lock:
        _wanted.clear()
        sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _Finder)]
        while _undo:
            _undo.pop()()


def installed() -> bool:
    """Are our kernels offered in this process at this moment?"""
    return bool(_undo)


def _is_loaded(name: str) -> bool:
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)


def _on_loaded(name: str) -> None:
    with _lock:
        if not _wanted:
            return
        if name == _REGISTRY:
            _register_backend()
        elif not _undo:
            _install_now()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself; wraps the loaders of the two modules we wait for."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in (_COMPILER, _REGISTRY):
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _Finder) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """Runs ``inner``, then our installation."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        if module.__spec__ is not None:
            # Tools that read sources (inspect, linecache) ask the module's own loader.
            module.__spec__.loader = self.inner
        module.__loader__ = self.inner
        _on_loaded(module.__name__)


def _install_now() -> None:
    from torch_cute_backend.inductor import compat, reasons
    from torch_cute_backend.runtime import toolchain

    status = compat.supported() & config.readable() & toolchain.dsl_status()
    if not status:
        reasons.record("all ops", reasons.INSTALL, status)
        return
    done: list[Any] = []
    try:
        for step in (
            _wrap_lowerings,
            _let_block_scales_through,
            _replace_cuda_scheduling,
            _replace_cpu_scheduling,
            _register_cache_key,
            _register_cpu_pass,
        ):
            done.append(step())
        _undo[:] = done
    finally:
        if not _undo:
            # A step raised: leave torch as it was before the exception goes on.
            for undo in reversed(done):
                undo()


def _wrap_lowerings() -> Any:
    from torch._inductor.lowering import lowerings

    from torch_cute_backend.inductor import lowering

    replaced = {}
    for key, op, names in lowering.OPS:
        stock = lowerings.get(key)
        if stock is not None:
            replaced[key] = (stock, lowering.wrap(stock, op, names, _hook_choices))
            lowerings[key] = replaced[key][1]

    def undo() -> None:
        for key, (stock, ours) in replaced.items():
            if lowerings.get(key) is ours:
                lowerings[key] = stock
        _unhook_choices()

    return undo


def _let_block_scales_through() -> Any:
    """Replace the question that comes before the lowering table."""
    from torch._inductor import graph

    from torch_cute_backend.inductor import block_scales

    name = "fallback_node_due_to_unsupported_type"
    stock = getattr(graph, name)
    ours = block_scales.let_through(stock)
    setattr(graph, name, ours)

    def undo() -> None:
        if getattr(graph, name) is ours:
            setattr(graph, name, stock)

    return undo


def _hook_choices() -> None:
    """Register ``offer`` before all other preprocessing functions.

    At each lowering, because tests clear them, and not earlier, because building the
    selector asks for the GPU. First, so that Inductor's filters by name see ours too.
    """
    from torch._inductor.select_algorithm import get_algorithm_selector_cache

    from torch_cute_backend.inductor import choice

    functions = get_algorithm_selector_cache().preprocessing_fns
    if choice.offer not in functions:
        functions.insert(0, choice.offer)


def _unhook_choices() -> None:
    from torch._inductor import select_algorithm

    cache = getattr(select_algorithm, "_ALGORITHM_SELECTOR_CACHE", None)
    if cache is not None:
        from torch_cute_backend.inductor import choice

        functions = cache.preprocessing_fns
        functions[:] = [f for f in functions if f is not choice.offer]


def _replace_cuda_scheduling() -> Any:
    """Our scheduling wherever torch would make exactly its own CUDA one."""
    from torch._inductor.codegen.cuda_combined_scheduling import CUDACombinedScheduling

    from torch_cute_backend.inductor.scheduling import CuteScheduling

    return _replace_class("cuda", CUDACombinedScheduling, CuteScheduling, lambda: True)


def _replace_cpu_scheduling() -> Any:
    """The same for the CPU's, for graphs whose GEMMs are to be simulated."""
    from torch._inductor.codegen.cpp import CppScheduling

    from torch_cute_backend.inductor import compat
    from torch_cute_backend.inductor.scheduling import CuteCpuScheduling

    return _replace_class(
        "cpu",
        CppScheduling,
        CuteCpuScheduling,
        lambda: compat.simulated_arch() is not None,
    )


def _replace_class(
    device: str, theirs: Any, ours: Any, wanted: Callable[[], bool]
) -> Callable[[], None]:
    """Make ``ours`` where ``device``'s entry would make exactly ``theirs``."""
    import dataclasses

    from torch._inductor.codegen import common

    common.init_backend_registration()
    stock = common.device_codegens[device]

    def scheduling(scheduler: Any) -> Any:
        made = stock.scheduling(scheduler)
        return ours(scheduler) if type(made) is theirs and wanted() else made

    entry = dataclasses.replace(stock, scheduling=scheduling)
    common.device_codegens[device] = entry

    def undo() -> None:
        if common.device_codegens.get(device) is entry:
            common.device_codegens[device] = stock

    return undo


def _register_cache_key() -> Any:
    from torch_cute_backend.inductor.cachekey import PluginPass

    return _register_pass("cuda", PluginPass)


def _register_cpu_pass() -> Any:
    from torch_cute_backend.inductor.cachekey import CpuPass

    return _register_pass("cpu", CpuPass)


def _register_pass(device: str, kind: Callable[[Any], Any]) -> Callable[[], None]:
    """Put a pass before ``device``'s own, if it has one."""
    from torch._inductor.codegen.common import custom_backend_passes

    stock = custom_backend_passes.get(device)
    ours = kind(stock)
    custom_backend_passes[device] = ours

    def undo() -> None:
        if custom_backend_passes.get(device) is ours:
            custom_backend_passes[device] = stock

    return undo


def _register_backend() -> None:
    """``torch.compile(backend="cute")`` without an installed entry point."""
    registry = importlib.import_module(_REGISTRY)

    def cute(gm: Any, example_inputs: Any, **kwargs: Any) -> Any:
        """Inductor with max_autotune and the kernels of torch_cute_backend."""
        from torch_cute_backend.inductor.backend import compile_cute

        return compile_cute(gm, example_inputs, **kwargs)

    def cute_sim(gm: Any, example_inputs: Any, **kwargs: Any) -> Any:
        """The same on CPU tensors, on a simulated GPU."""
        from torch_cute_backend.inductor.backend import compile_cute_sim

        return compile_cute_sim(gm, example_inputs, **kwargs)

    for backend in (cute, cute_sim):
        if backend.__name__ not in registry._BACKENDS:
            registry.register_backend(backend, name=backend.__name__)
