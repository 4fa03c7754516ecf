"""Other projects' kernels, where they can be imported. See ``providers``.

A missing package is a ``UserError`` that names it and how to get it: the suite writes
that as the entry's reason and goes on with the others.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torch_cute_backend.bench.cases import kind_of
from torch_cute_backend.errors import UserError

if TYPE_CHECKING:
    from torch_cute_backend.bench.cases import Inputs
    from torch_cute_backend.bench.protocol import Call
    from torch_cute_backend.bench.providers import Prepared, Provider, Request

HELION_FILE = "HELION_SCALED_MM"
"""Variable that holds the path of Helion's ``pretuned_kernels/scaled_mm/scaled_mm.py``;
its tuned configurations lie beside it. No wheel of Helion contains them."""

_SOURCES = {
    "vllm": "pip install vllm",
    "quack": "pip install quack-kernels",
    "deep_gemm": "build it from github.com/deepseek-ai/DeepGEMM; it needs nvcc",
    "helion": "pip install helion",
}


def require(module: str) -> Any:
    """Import a peer's module.

    Raises:
        UserError: it is not installed, or it is and cannot be imported.
    """
    package = module.split(".")[0]
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise UserError(f"{package} is not installed ({_SOURCES[package]})")
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        raise UserError(
            f"{package} is installed but {module} cannot be imported: {error}"
        ) from error


def vllm(request: Request) -> Prepared:
    """vLLM's CUTLASS scaled_mm, rowwise."""
    from torch_cute_backend.bench.providers import broadcast_scales

    _only(request, "fp8", "vllm")
    ops = require("vllm._custom_ops")

    def call(x: Inputs) -> Call:
        sa, sb = broadcast_scales(x)
        b = x.b.t()
        return lambda: ops.cutlass_scaled_mm(x.a, b, sa, sb, torch.bfloat16)

    return _prepared(request, call)


def quack(request: Request) -> Prepared:
    """quack's GEMM, tuned by itself at the first call."""
    return _quack(request, tuned=True)


def quack_untuned(request: Request) -> Prepared:
    """quack's GEMM with its default schedule: compiled in seconds instead of tuned."""
    return _quack(request, tuned=False)


def _quack(request: Request, tuned: bool) -> Prepared:
    _only(request, "bf16", "quack")
    gemm = require("quack.gemm_interface").gemm

    def call(x: Inputs) -> Call:
        b = x.b.t()
        return lambda: gemm(x.a, b, out=x.out, tuned=tuned)

    return _prepared(request, call)


def deep_gemm(request: Request) -> Prepared:
    """DeepGEMM's bf16 GEMM. Its FP8 one scales blocks of 128, another operation."""
    _only(request, "bf16", "deep_gemm")
    gemm = require("deep_gemm").bf16_gemm_nt

    def call(x: Inputs) -> Call:
        return lambda: gemm(x.a, x.b, x.out)

    return _prepared(request, call)


def helion(request: Request) -> Prepared:
    """Helion's pretuned rowwise ``scaled_mm``, from the file named by
    :data:`HELION_FILE`. Triton compiles it at the first call."""
    _only(request, "fp8", "helion")
    scaled_mm = helion_scaled_mm()

    def call(x: Inputs) -> Call:
        scale_a, scale_b = (s[:, None] for s in x.scales)
        b = x.b.t()
        return lambda: scaled_mm(x.out, x.a, b, scale_a, scale_b)

    return _prepared(request, call)


@functools.cache
def helion_scaled_mm() -> Callable[..., Any]:
    """Helion's kernel: ``scaled_mm(out, a, b, scale_a (M, 1), scale_b (N, 1))``.

    Raises:
        UserError: Helion is not installed, or the file is not there or not that file.
    """
    compat = importlib.import_module("torch._inductor.runtime.triton_compat")
    if not hasattr(compat, "IntelGPUError"):
        # Helion 1.5 imports it from torch, and torch 2.11 lacks it.
        vars(compat)["IntelGPUError"] = type("IntelGPUError", (Exception,), {})
    require("helion")
    path = Path(os.environ.get(HELION_FILE, ""))
    if not path.is_file():
        raise UserError(
            f"{HELION_FILE}={str(path)!r} is not a file; set it to scaled_mm.py of "
            "Helion's pretuned_kernels/scaled_mm, which has its tuned configurations"
        )
    # Helion looks for the configurations beside the module that defines the kernel.
    sys.path.insert(0, str(path.parent))
    try:
        module = importlib.import_module(path.stem)
    except ImportError as error:
        raise UserError(f"{path} cannot be imported: {error}") from error
    found: Callable[..., Any] | None = getattr(module, "scaled_mm", None)
    if found is None:
        raise UserError(f"{path} defines no scaled_mm")
    return found


def _prepared(request: Request, call: Callable[[Inputs], Call]) -> Prepared:
    from torch_cute_backend.bench.providers import Prepared

    return Prepared([call(x) for x in request.sets])


def _only(request: Request, kind: str, name: str) -> None:
    found = kind_of(request.problem)
    if found != kind:
        raise UserError(f"{name} is compared on {kind}, not on {found}")


PEERS: dict[str, Provider] = {
    "vllm": vllm,
    "quack": quack,
    "quack_untuned": quack_untuned,
    "deep_gemm": deep_gemm,
    "helion": helion,
}
