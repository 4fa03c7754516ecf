"""NVIDIA's CuTe DSL example GEMM as a peer, from a file that the user has.

    CUTE_EXAMPLE=.../hopper/kernel/dense_gemm/dense_gemm_persistent.py \
    torch-cute bench headline --providers torch_cute_backend,aten,\
cute_example=benchmarks/peers/cute_example.py

The example has no scales: for FP8 they are applied by one torch multiplication behind
it, as its user would have to. Tiles are tried briefly for each shape and the fastest is
kept. Needs the CuTe DSL; each tile is compiled once a process.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import cutlass
import torch
from cutlass import cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from torch_cute_backend.bench import protocol
from torch_cute_backend.bench.cases import Inputs
from torch_cute_backend.bench.protocol import Call
from torch_cute_backend.bench.providers import Prepared, Request
from torch_cute_backend.errors import UserError

CLASS = "HopperWgmmaGemmPersistentKernel"
TILES = (
    ((64, 64), (1, 1)),
    ((64, 128), (1, 1)),
    ((128, 128), (2, 1)),
    ((128, 256), (1, 1)),
    ((128, 256), (2, 1)),
)
"""(tile, cluster)"""


@functools.cache
def example() -> ModuleType:
    path = Path(os.environ.get("CUTE_EXAMPLE", ""))
    spec = importlib.util.spec_from_file_location("cute_example_gemm", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UserError(f"CUTE_EXAMPLE={path} is not the example's file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, CLASS):
        raise UserError(f"{path} has no {CLASS}")
    return module


@functools.cache
def compiled(fp8: bool, tile: tuple[int, int], cluster: tuple[int, int]) -> Any:
    """The example for K-major operands and bf16 output, sizes at run time: a function
    of a, b (N, K), out and the CTA count."""
    kernel = getattr(example(), CLASS)(cutlass.Float32, tile, cluster, 1, True)

    def batched(x: cute.Tensor) -> cute.Tensor:
        rows, columns = x.shape
        layout = cute.make_layout((rows, columns, 1), stride=(*x.stride, 0))
        return cute.make_tensor(x.iterator, layout)

    @cute.jit
    def entry(
        a: cute.Tensor,
        b: cute.Tensor,
        out: cute.Tensor,
        clusters: cutlass.Int32,
        stream: Any,
    ) -> None:
        kernel(batched(a), batched(b), batched(out), clusters, stream)

    operand = cutlass.Float8E4M3FN if fp8 else cutlass.BFloat16
    unit = 16 if fp8 else 8
    m, n = cute.sym_int(32), cute.sym_int(32, divisibility=8)
    k = cute.sym_int(32, divisibility=unit)

    def fake(kind: Any, rows: Any, columns: Any, divisor: int) -> Any:
        pitch = cute.sym_int(64, divisibility=divisor)
        return make_fake_tensor(kind, (rows, columns), (pitch, 1), assumed_align=16)

    return cute.compile(
        entry,
        fake(operand, m, k, unit),
        fake(operand, n, k, unit),
        fake(cutlass.BFloat16, m, n, 8),
        cutlass.Int32(132),
        make_fake_stream(use_tvm_ffi_env_stream=True),
        options="--enable-tvm-ffi --gpu-arch sm_90a",
    )


def prepare(request: Request) -> Prepared:
    """The fastest of :data:`TILES`."""
    fp8 = request.problem.a_dtype.is_fp8
    sms = torch.cuda.get_device_properties("cuda").multi_processor_count

    def call(x: Inputs, function: Any, ctas: int) -> Call:
        if not x.scales:
            return lambda: function(x.a, x.b, x.out, ctas)
        scale = x.scales[0][:, None] * x.scales[1][None, :]

        def scaled() -> None:
            function(x.a, x.b, x.out, ctas)
            x.out.mul_(scale)

        return scaled

    tried: dict[str, list[Call]] = {}
    for tile, cluster in TILES:
        function = compiled(fp8, tile, cluster)
        name = f"{tile[0]}x{tile[1]}_c{cluster[0]}x{cluster[1]}"
        ctas = sms // (cluster[0] * cluster[1])
        tried[name] = [call(x, function, ctas) for x in request.sets]
    timings = protocol.interleaved(tried, rounds=3)
    best = min(timings, key=lambda name: timings[name].us)
    return Prepared(tried[best], f"cute_example_{best}")
