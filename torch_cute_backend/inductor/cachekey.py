"""Our part of Inductor's cache keys: who would have generated the code.

FxGraphCache and the AOTAutograd cache see neither wrapped lowerings nor a scheduling.
A ``CustomGraphModulePass`` that does nothing, registered for cuda, puts our identity
into both keys, in every thread.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphModulePass

import torch_cute_backend
from torch_cute_backend import config
from torch_cute_backend.inductor import early, lowering
from torch_cute_backend.runtime import toolchain
from torch_cute_backend.version import __version__


@functools.cache
def package_digest() -> str:
    """Hex digest of the package's code and tables."""
    root = Path(torch_cute_backend.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".json"):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def plugin_id() -> tuple[str, ...]:
    """Versions of what generates and compiles kernels."""
    return ("torch_cute_backend", __version__, package_digest(), _dsl_version())


def _dsl_version() -> str:
    return str(toolchain.dsl_version())


class PluginPass(CustomGraphModulePass):  # type: ignore[misc]
    """Changes no graph. ``inner`` is the pass that was registered before, if any.

    Both calls come before any lowering, so they also start the compilers.
    """

    def __init__(self, inner: CustomGraphModulePass | None) -> None:
        self.inner = inner

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        early.on_graph(gm)
        if self.inner is not None:
            self.inner(gm)

    def uuid(self) -> Any | None:
        """None, which keeps Inductor from caching, if ``inner`` says so."""
        early.on_key()
        settings = config.get()
        switches = (settings.enabled, settings.decide_early, settings.dependent_launch)
        mine = (*plugin_id(), *switches)
        if self.inner is None:
            return mine
        theirs = self.inner.uuid()
        return None if theirs is None else (mine, theirs)


class CpuPass(CustomGraphModulePass):  # type: ignore[misc]
    """Changes no graph either; of those to be simulated it notes what cannot be. Our
    identity is in the key already."""

    def __init__(self, inner: CustomGraphModulePass | None) -> None:
        self.inner = inner

    def __call__(self, gm: torch.fx.GraphModule) -> None:
        lowering.note_unserved(gm)
        if self.inner is not None:
            self.inner(gm)

    def uuid(self) -> Any | None:
        return "torch_cute_backend" if self.inner is None else self.inner.uuid()
