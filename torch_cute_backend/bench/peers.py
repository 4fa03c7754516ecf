"""Other projects' kernels, where they can be imported. See ``providers``.

A missing package is a ``UserError`` that names it: the suite notes it and goes on.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from torch_cute_backend.bench.cases import kind_of
from torch_cute_backend.errors import UserError

if TYPE_CHECKING:
    from torch_cute_backend.bench.cases import Inputs
    from torch_cute_backend.bench.protocol import Call
    from torch_cute_backend.bench.providers import Prepared, Provider, Request


def require(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"{module} cannot be imported: {error}") from error


def vllm(request: Request) -> Prepared:
    """vLLM's CUTLASS scaled_mm, rowwise."""
    from torch_cute_backend.bench.providers import Prepared, broadcast_scales

    _only(request, "fp8", "vllm")
    ops = require("vllm._custom_ops")

    def call(x: Inputs) -> Call:
        sa, sb = broadcast_scales(x)
        b = x.b.t()
        return lambda: ops.cutlass_scaled_mm(x.a, b, sa, sb, torch.bfloat16)

    return Prepared([call(x) for x in request.sets])


def quack(request: Request) -> Prepared:
    """quack's GEMM, tuned by itself at the first call."""
    from torch_cute_backend.bench.providers import Prepared

    _only(request, "bf16", "quack")
    gemm = require("quack.gemm_interface").gemm

    def call(x: Inputs) -> Call:
        b = x.b.t()
        return lambda: gemm(x.a, b, out=x.out)

    return Prepared([call(x) for x in request.sets])


def deep_gemm(request: Request) -> Prepared:
    """DeepGEMM's bf16 GEMM. Its FP8 one scales blocks of 128, another operation."""
    from torch_cute_backend.bench.providers import Prepared

    _only(request, "bf16", "deep_gemm")
    gemm = require("deep_gemm").bf16_gemm_nt

    def call(x: Inputs) -> Call:
        return lambda: gemm(x.a, x.b, x.out)

    return Prepared([call(x) for x in request.sets])


def _only(request: Request, kind: str, name: str) -> None:
    found = kind_of(request.problem)
    if found != kind:
        raise UserError(f"{name} is compared on {kind}, not on {found}")


PEERS: dict[str, Provider] = {"vllm": vllm, "quack": quack, "deep_gemm": deep_gemm}
