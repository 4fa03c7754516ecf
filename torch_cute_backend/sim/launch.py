"""Launch capture: run a compiled CuTe DSL host function against a stub runtime.

The compiled host code computes grid, parameters and TMA descriptors itself. With
``CUTE_DSL_LIBS`` naming our stub (built with the system C compiler) it runs without
driver and GPU, and ``_cudaLaunchKernelEx`` lands in a callback that records the launch.

In: any ``cute.compile`` result (compiled with ``--keep-ptx``) and its arguments.
Out: ``Launch`` records, the PTX text, and the tensor regions named by the arguments.

``prepare()`` must run before ``cutlass`` is imported, because the DSL reads the
variable then; a process that simulates can therefore not launch on a real GPU.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .launch_record import Launch, TensorRegion
from .parse import entry_param_sizes
from .report import BadInput, SimError

_ATTRIBUTE_CLUSTER = 4
_ATTRIBUTE_PROGRAMMATIC = 6
_STUB_SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef struct {
  uint32_t grid[3], block[3]; uint64_t smem; void *stream; void *attrs; uint32_t nattrs;
} config;
typedef int (*launch_callback)(const config *, const char *, void **);
static launch_callback on_launch;
static int optin_shared_bytes = 232448, sm_count = 132, capability = 90;
void sim_set_callback(launch_callback f) { on_launch = f; }
void sim_set_device(int sms, int cc) { sm_count = sms; capability = cc; }
int _cudaLaunchKernelEx(const config *c, void *kernel, void **args) {
  return on_launch ? on_launch(c, (const char *)kernel, args) : 98;
}
int _cudaLibraryLoadData(void **lib, const void *image) {
  *lib = (void *)image; return 0;
}
int _cudaLibraryGetKernel(void **kernel, void *lib, const char *name) {
  *kernel = strdup(name); return 0;
}
int _cudaLibraryUnload(void *lib) { return 0; }
int _cudaDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case 97: *value = optin_shared_bytes; break;
    case 16: *value = sm_count; break;
    case 75: *value = capability / 10; break;
    case 76: *value = capability % 10; break;
    default: *value = 0;
  }
  return 0;
}
int _cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
  *value = 0; return 0;
}
int _cudaGetDevice(int *device) { *device = 0; return 0; }
int _cudaSetDevice(int device) { return 0; }
int _cudaFuncSetAttribute(void *kernel, int attribute, int value) { return 0; }
int _cudaKernelSetAttributeForDevice(void *k, int a, int v, int d) { return 0; }
int _cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n) { *n = 1; return 0; }
int cuda_dialect_init_library_once(void *a, void *b, void *c, void *d) { return 0; }
"""


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("smem", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
        ("attrs", ctypes.c_void_p),
        ("nattrs", ctypes.c_uint32),
    )


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_int32),
        ("pad", ctypes.c_int8 * 4),
        ("value", ctypes.c_int32 * 16),
    )


_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(_Config),
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_void_p),
)


def build_stub(folder: str | os.PathLike[str]) -> Path:
    """Compile the stub runtime into ``folder`` and return its path."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise SimError(
            "the simulator needs a C compiler to build its stub runtime: "
            "install cc/gcc or set CC"
        )
    source = Path(folder) / "cute_sim_stub.c"
    library = Path(folder) / "libcute_sim_stub.so"
    source.write_text(_STUB_SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SimError(f"building the stub runtime failed:\n{done.stderr.strip()}")
    return library


_stub_path: Path | None = None


def prepare(folder: str | os.PathLike[str] | None = None) -> Path:
    """Build the stub and point the DSL to it; call before ``cutlass`` is imported."""
    global _stub_path
    if _stub_path is not None:
        return _stub_path
    named = os.environ.get("CUTE_DSL_LIBS", "")
    if named.endswith("libcute_sim_stub.so") and Path(named).exists():
        _stub_path = Path(named)
        return _stub_path
    if "cutlass" in sys.modules:
        raise SimError(
            "cutlass was imported before the simulator: its runtime is chosen at "
            "import. "
            "Call torch_cute_backend.sim.launch.prepare() first, or simulate in a "
            "child "
            "process (torch_cute_backend.sim.child)"
        )
    _stub_path = build_stub(folder or tempfile.mkdtemp(prefix="cute_sim_"))
    os.environ["CUTE_DSL_LIBS"] = str(_stub_path)
    return _stub_path


def ptx_of(compiled: Any) -> str:
    """PTX text of a compiled function.

    It must have been compiled with ``--keep-ptx``.
    """
    text = getattr(compiled, "__ptx__", None)
    if not isinstance(text, str) or ".entry" not in text:
        raise BadInput(
            'no PTX in the compiled function: compile with options="--keep-ptx ..."'
        )
    return text


def capture(
    compiled: Any, args: Sequence[Any], *, sms: int = 132, arch: str = "sm_90a"
) -> tuple[list[Launch], str]:
    """Run the host function on ``args`` and return its launches and PTX."""
    stub = ctypes.CDLL(str(prepare()))
    ptx = ptx_of(compiled)
    sizes = entry_param_sizes(ptx)
    launches: list[Launch] = []
    failures: list[BaseException] = []

    def record(config: Any, name: bytes, params: Any) -> int:
        try:
            launches.append(_read_launch(config.contents, name.decode(), params, sizes))
        except SimError as error:
            failures.append(error)
            return 1
        return 0

    callback = _CALLBACK(record)
    stub.sim_set_device(sms, 100 if arch.startswith("sm_10") else 90)
    stub.sim_set_callback(callback)
    try:
        _bind_executor(compiled)
        status = compiled(*args)
    finally:
        stub.sim_set_callback(_CALLBACK(0))
    if failures:
        raise failures[0]
    if status:
        raise SimError(f"the host function failed with status {status}")
    if not launches:
        raise SimError("the host function launched no kernel")
    return launches, ptx


def _bind_executor(compiled: Any) -> None:
    """Load the kernel library through the stub, without asking a driver for devices."""
    from cutlass.base_dsl.jit_executor import JitExecutor
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitModule

    if getattr(compiled, "_default_executor", None) is not None:
        return
    if not hasattr(compiled, "_get_cuda_init_and_load"):
        raise BadInput(
            f"cannot simulate a {type(compiled).__name__}: pass the result of "
            f"cute.compile, "
            "compiled without --enable-tvm-ffi"
        )
    if compiled.engine is None:
        _make_engine(compiled)
    init, load = compiled._get_cuda_init_and_load()
    library = ctypes.c_void_p()
    library_pp = ctypes.pointer(ctypes.pointer(library))
    status = ctypes.c_int32(0)
    device = ctypes.c_int32(0)
    _call_packed(init, library_pp, ctypes.pointer(status))
    _call_packed(load, library_pp, ctypes.pointer(device), ctypes.pointer(status))
    if status.value:
        raise SimError(f"loading the kernel library failed with status {status.value}")
    module = CudaDialectJitModule(
        compiled.engine, compiled.capi_func, compiled.execution_args, []
    )
    compiled.jit_module = module
    compiled._default_executor = JitExecutor(module, None, False, spec=None)


def _make_engine(compiled: Any) -> None:
    """JIT the host code of a cross-compiled function (the DSL skips that without a
    matching GPU).
    """
    from cutlass.cutlass_dsl import CuTeDSL

    if compiled.ir_module is None:
        raise SimError("the compiled function holds no host code to run")
    dsl = CuTeDSL._get_dsl()
    compiled.engine = dsl.compiler_provider.jit(
        compiled.ir_module, shared_libs=dsl.get_shared_libs()
    )
    compiled.capi_func = dsl._lookup_jit_entry(compiled.engine, compiled.function_name)
    compiled.capi_func.restype = ctypes.c_int32


def _call_packed(function: Callable[..., Any], *args: Any) -> None:
    packed = (ctypes.c_void_p * len(args))()
    for index, arg in enumerate(args):
        packed[index] = ctypes.cast(arg, ctypes.c_void_p)
    function(packed)


def _read_launch(
    config: _Config, name: str, params: Any, sizes: dict[str, tuple[int, ...]]
) -> Launch:
    if name not in sizes:
        raise SimError(f"launched kernel {name!r} is not in the PTX")
    cluster = (1, 1, 1)
    programmatic = False
    for index in range(config.nattrs):
        attribute = _Attribute.from_address(
            config.attrs + index * ctypes.sizeof(_Attribute)
        )
        if attribute.id == _ATTRIBUTE_CLUSTER:
            cluster = (attribute.value[0], attribute.value[1], attribute.value[2])
        if attribute.id == _ATTRIBUTE_PROGRAMMATIC:
            programmatic = bool(attribute.value[0])
    data = tuple(
        ctypes.string_at(params[i], size) for i, size in enumerate(sizes[name])
    )
    return Launch(
        name,
        tuple(config.grid),
        tuple(config.block),
        cluster,
        int(config.smem),
        data,
        programmatic,
    )


def regions_of(args: Sequence[Any], outputs: Sequence[Any] = ()) -> list[TensorRegion]:
    """Tensor regions of the torch, DLPack or DSL tensors among ``args``."""
    wanted = {_address(out) for out in outputs}
    regions: dict[int, TensorRegion] = {}
    for index, arg in enumerate([*args, *outputs]):
        region = _region(f"arg{index}", arg)
        if region is None or not region.span_bytes:
            continue
        if region.address in wanted:
            region = TensorRegion(
                f"out{index}" if index >= len(args) else region.name,
                region.address,
                region.shape,
                region.strides,
                region.item_bytes,
                True,
                region.keep_alive,
            )
        old = regions.get(region.address)
        if old is None or region.span_bytes > old.span_bytes or region.output:
            regions[region.address] = region
    return list(regions.values())


def _address(value: Any) -> int | None:
    pointer = getattr(value, "data_ptr", None)
    if callable(pointer):
        return int(pointer())
    return None if pointer is None else int(pointer)


def _region(name: str, value: Any) -> TensorRegion | None:
    import torch

    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu":
            raise BadInput(
                f"{name}: the simulator needs CPU tensors, got {value.device}"
            )
        item = value.element_size()
        strides = tuple(s * item for s in value.stride())
        return TensorRegion(
            name, value.data_ptr(), tuple(value.shape), strides, item, False, value
        )
    address = _address(value)
    if address is None or not hasattr(value, "shape") or not hasattr(value, "stride"):
        return None
    bits = int(value.element_type.width)
    if bits % 8:
        raise BadInput(f"{name}: pass sub-byte tensors as torch tensors in tensors=")
    strides = tuple(int(s) * bits // 8 for s in value.stride)
    shape = tuple(int(n) for n in value.shape)
    return TensorRegion(name, address, shape, strides, bits // 8, False, value)
