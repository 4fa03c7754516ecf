"""Helion's pretuned ``scaled_mm`` as a peer, from a checkout that the user has.

    HELION_SCALED_MM=.../pretuned_kernels/scaled_mm/scaled_mm.py \
    torch-cute bench fp8-rowwise-decode --providers torch_cute_backend,aten,\
helion=benchmarks/peers/helion_scaled_mm.py

Its tuned configurations lie beside that file. Needs the ``helion`` package.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from torch_cute_backend.bench.cases import Inputs, kind_of
from torch_cute_backend.bench.protocol import Call
from torch_cute_backend.bench.providers import Prepared, Request
from torch_cute_backend.errors import UserError


@functools.cache
def kernel() -> Any:
    path = Path(os.environ.get("HELION_SCALED_MM", ""))
    if not path.is_file():
        raise UserError(f"HELION_SCALED_MM={path} is not a file")
    compat = importlib.import_module("torch._inductor.runtime.triton_compat")
    if not hasattr(compat, "IntelGPUError"):
        # Helion 1.5 imports it from torch, and torch 2.11 lacks it.
        compat.IntelGPUError = type("IntelGPUError", (Exception,), {})
    sys.path.insert(0, str(path.parent))
    try:
        module = importlib.import_module(path.stem)
    except ImportError as error:
        raise UserError(f"{path} cannot be imported: {error}") from error
    return module.scaled_mm


def prepare(request: Request) -> Prepared:
    if kind_of(request.problem) != "fp8":
        raise UserError("helion is compared on fp8 rowwise")
    scaled_mm = kernel()

    def call(x: Inputs) -> Call:
        scale_a, scale_b = (s[:, None] for s in x.scales)
        b = x.b.t()
        return lambda: scaled_mm(x.out, x.a, b, scale_a, scale_b)

    return Prepared([call(x) for x in request.sets])
