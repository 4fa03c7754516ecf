"""Where the compiler's parts are, found without importing cutlass or touching CUDA.

Out: versions for cache keys, paths of shared libraries, of the linker and of NVIDIA's
command-line tools (triton's wheels ship them).
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from torch_cute_backend.errors import CompileError
from torch_cute_backend.status import Status

DSL_VERSIONS = ("4.8.1", "4.9")
"""Supported range of nvidia-cutlass-dsl: from the first, below the second."""

TORCH_VERSIONS = ("2.11", "2.14")
"""Supported range of torch: first and last minor version."""

TORCH_TESTED = {
    "2.11": "tests on an H200",
    "2.12": "Inductor's tests without a GPU",
    "2.13": "Inductor's tests without a GPU",
    "2.14": "tests without a GPU",
}
"""What stands behind each supported version; whoever runs more, says so here."""

RUNTIME_LIBRARY = "libcute_dsl_runtime.so"
TVM_FFI_LIBRARY = "libtvm_ffi.so"


@functools.cache
def dsl_version() -> str | None:
    """Version of the installed CuTe DSL, or None."""
    try:
        return importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def tvm_ffi_version() -> str | None:
    """Version of the installed apache-tvm-ffi, or None."""
    try:
        return importlib.metadata.version("apache-tvm-ffi")
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    parts = []
    for part in version.split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)


def dsl_supported(version: str | None) -> bool:
    """Is ``version`` inside :data:`DSL_VERSIONS`?"""
    if version is None:
        return False
    low, high = (_numbers(v) for v in DSL_VERSIONS)
    return low <= _numbers(version) < high


def torch_supported(version: str | None) -> Status:
    """Is torch ``version`` inside :data:`TORCH_VERSIONS`?"""
    if version is None:
        return Status.no("torch is not installed")
    low, high = (_numbers(v) for v in TORCH_VERSIONS)
    inside = low <= _numbers(version)[:2] <= high
    return Status.check(
        (inside, f"torch {version} is not one of {' to '.join(TORCH_VERSIONS)}")
    )


def dsl_status() -> Status:
    """Is the CuTe DSL installed, in a version inside :data:`DSL_VERSIONS`?"""
    version = dsl_version()
    found = "is not installed" if version is None else f"is {version}"
    return Status.check(
        (
            dsl_supported(version),
            f"nvidia-cutlass-dsl {found}; this package needs "
            f">={DSL_VERSIONS[0]},<{DSL_VERSIONS[1]}",
        )
    )


def require_dsl() -> str:
    """The CuTe DSL's version; ``CompileError`` if it is missing or unsupported."""
    status = dsl_status()
    if not status:
        raise CompileError(str(status))
    return str(dsl_version())


def _package_dirs(name: str) -> list[Path]:
    """Folders of a package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(place) for place in spec.submodule_search_locations]


def _cuda_majors() -> Iterator[str]:
    """CUDA major versions in order of preference: torch's own first."""
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    if cuda:
        yield cuda.split(".")[0]
    yield from ("13", "12")


def runtime_library() -> Path | None:
    """The DSL's run-time library, which every exported kernel links against."""
    for given in os.environ.get("CUTE_DSL_LIBS", "").split(os.pathsep):
        if given.endswith(RUNTIME_LIBRARY) and Path(given).is_file():
            return Path(given)
    for root in _package_dirs("nvidia_cutlass_dsl"):
        for major in _cuda_majors():
            path = root / f"cu{major}" / "lib" / RUNTIME_LIBRARY
            if path.is_file():
                return path
    return None


@functools.cache
def tvm_ffi_library() -> Path | None:
    """TVM-FFI's shared library."""
    for root in _package_dirs("tvm_ffi"):
        path = root / "lib" / TVM_FFI_LIBRARY
        if path.is_file():
            return path
    return None


@functools.cache
def linker() -> str | None:
    """A C compiler driver that can link a shared object, or None."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (path := shutil.which(name)):
            return path
    return None


@functools.cache
def cuda_tool(name: str) -> str | None:
    """Path of ``cuobjdump`` or ``nvdisasm``: triton's copy, then ``PATH``."""
    for root in _package_dirs("triton"):
        path = root / "backends" / "nvidia" / "bin" / name
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return shutil.which(name)
