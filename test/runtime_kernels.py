"""Small hand-written kernels for the run-time tests (not GEMMs)."""

from __future__ import annotations

import secrets

from torch_cute_backend.codegen.source import KernelSource, TensorArg
from torch_cute_backend.dtypes import BFLOAT16, FLOAT32
from torch_cute_backend.runtime import compile as rt
from torch_cute_backend.status import Status

SCALE = '''\
"""y = x * s, element by element."""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute


@cute.kernel
def scale_kernel(x: cute.Tensor, s: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    rows = cute.size(x, mode=[0])
    cols = cute.size(x, mode=[1])
    factor = s[0]
    for i in cutlass.range(block * 128 + thread, rows * cols, blocks * 128):
        value = x[i // cols, i % cols].to(cutlass.Float32) * factor
        y[i // cols, i % cols] = value.to(cutlass.BFloat16)


@cute.jit
def scale(
    x: cute.Tensor,
    s: cute.Tensor,
    y: cute.Tensor,
    num_ctas: cutlass.Int32,
    stream: cuda.CUstream,
):
    scale_kernel(x, s, y).launch(
        grid=[num_ctas, 1, 1], block=[128, 1, 1], stream=stream
    )
'''

SPILL = '''\
"""Far more live values than the register budget that it asks for."""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute


@cute.kernel
def spill_kernel(x: cute.Tensor, s: cute.Tensor, y: cute.Tensor):
    smem = cutlass.memory.SmemAllocator()
    staged = smem.allocate_tensor(cutlass.Float32, cute.make_layout((128,)), 16)
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    staged[thread % 128] = s[0]
    cute.arch.sync_threads()
    if thread < 128:
        cute.arch.setmaxregister_decrease(24)
    else:
        cute.arch.setmaxregister_increase(240)
    live = cute.make_rmem_tensor((160,), cutlass.Float32)
    for i in cutlass.range_constexpr(160):
        live[i] = x[block, i * 8 + thread % 8].to(cutlass.Float32)
    for _ in cutlass.range(block):
        for i in cutlass.range_constexpr(160):
            live[i] = live[i] * live[(i * 7 + 1) % 160] + staged[127 - thread % 128]
    for i in cutlass.range_constexpr(160):
        y[block, i * 8 + thread % 8] = live[i].to(cutlass.BFloat16)


@cute.jit
def scale(
    x: cute.Tensor,
    s: cute.Tensor,
    y: cute.Tensor,
    num_ctas: cutlass.Int32,
    stream: cuda.CUstream,
):
    spill_kernel(x, s, y).launch(
        grid=[num_ctas, 1, 1], block=[512, 1, 1], stream=stream
    )
'''

ARGS = (
    TensorArg("x", BFLOAT16, ("m", "n"), 1, divisibility=8),
    TensorArg("s", FLOAT32, ("1",), 0, align_bytes=4),
    TensorArg("y", BFLOAT16, ("m", "n"), 1, divisibility=8, output=True),
)


def scale_source(arch: str = "sm_90a", note: str = "") -> KernelSource:
    """The element-wise kernel; ``note`` makes it another source."""
    text = SCALE + (f"\n# {note}\n" if note else "")
    return KernelSource("scale", text, "scale", arch, ARGS)


def spill_source(arch: str = "sm_90a") -> KernelSource:
    return KernelSource("spill", SPILL, "scale", arch, ARGS)


def fake_compiled(source: KernelSource | None = None) -> rt.CompiledKernel:
    """A ``CompiledKernel`` of random bytes, for tests that never load it."""
    source = source or scale_source()
    return rt.CompiledKernel(
        source=source,
        symbol=rt.symbol_name(source),
        object=secrets.token_bytes(4096),
        cubin=secrets.token_bytes(1024),
        kernel="scale_kernel",
        resources=rt.Resources(24, 0, 0, 0, 0, 0, 128, 1024),
        warnings=(),
        gate=Status.ok(),
        dsl_version="4.8.1",
        options=rt.compile_options(source),
        seconds=1.0,
    )
