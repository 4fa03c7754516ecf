"""``KernelSource`` in, ``CompiledKernel`` out: the CuTe DSL called ahead of time.

Everything is compiled from fake tensors: sizes, strides and pointers are run-time
arguments, and neither a GPU nor its driver is touched. Importing this module does not
import cutlass; compiling does. ``pool`` compiles in child processes, with a time limit.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch_cute_backend.codegen.source import KernelSource, TensorArg
from torch_cute_backend.errors import CompileError
from torch_cute_backend.runtime import cubin, ptxas, toolchain
from torch_cute_backend.status import Status

_LOCK = threading.RLock()
"""The DSL keeps the state of a compilation in module globals."""

_CTAS = 1
"""Placeholder for the CTA count, which is a run-time argument."""

RESERVED_SMEM_BYTES = 1024
"""CUDA's own share of a CTA's shared memory, which cubins count as static (CUDA C++
Programming Guide, compute capability 9.0: 1 KB a block is reserved for system use)."""


@dataclass(frozen=True)
class Resources:
    """What a kernel takes of an SM.

    Attributes:
        registers: a thread, at launch.
        stack_bytes: local memory a thread.
        spill_store_bytes, spill_load_bytes: spill traffic a thread.
        static_smem_bytes: shared memory a CTA known to ptxas.
        dynamic_smem_bytes: shared memory a CTA asked for at launch, None if the host
            code computes it at run time.
        threads: threads of a CTA, None if the host code computes them at run time.
        code_bytes: machine code.
    """

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_smem_bytes: int
    dynamic_smem_bytes: int | None
    threads: int | None
    code_bytes: int

    @property
    def smem_bytes(self) -> int | None:
        """Shared memory a CTA, if known."""
        if self.dynamic_smem_bytes is None:
            return None
        declared = max(0, self.static_smem_bytes - RESERVED_SMEM_BYTES)
        return self.dynamic_smem_bytes + declared

    def to_json(self) -> dict[str, int | None]:
        return asdict(self)

    def describe(self) -> str:
        smem = "unknown" if self.smem_bytes is None else str(self.smem_bytes)
        return (
            f"{self.registers} registers, {smem} B shared memory, "
            f"{self.stack_bytes} B stack, spills {self.spill_store_bytes} B stored, "
            f"{self.spill_load_bytes} B loaded"
        )


@dataclass(frozen=True)
class CompiledKernel:
    """One compiled kernel.

    Attributes:
        source: what it was compiled from.
        symbol: name of the TVM-FFI function in ``object``.
        object: relocatable host object with the entry and the cubin.
        cubin: the cubin alone.
        kernel: the kernel's symbol in the cubin.
        resources: registers, shared memory, spills.
        warnings: ptxas's performance warnings.
        gate: the build gate's verdict, see :meth:`ptxas.PtxasReport.gate`.
        dsl_version, options: what compiled it, and how.
        seconds: wall time.
        ptx: the PTX text, if it was asked for.
    """

    source: KernelSource
    symbol: str
    object: bytes
    cubin: bytes
    kernel: str
    resources: Resources
    warnings: tuple[str, ...]
    gate: Status
    dsl_version: str
    options: str
    seconds: float
    ptx: str | None = None


def import_compiler() -> float:
    """Import what the first compilation in a process would: the seconds it took.

    Raises:
        CompileError: the DSL is missing or not of a supported version.
    """
    toolchain.require_dsl()
    start = time.monotonic()
    for name in ("cutlass.cute.runtime", "cutlass.pipeline", "cutlass.utils"):
        importlib.import_module(name)
    # What ``--enable-tvm-ffi`` needs; the DSL imports it late.
    importlib.import_module("tvm_ffi")
    return time.monotonic() - start


def compile_options(source: KernelSource) -> str:
    """Options given to the DSL; part of the cache key."""
    return f"--enable-tvm-ffi --gpu-arch {source.arch} --remark-filter ptxas"


def symbol_name(source: KernelSource) -> str:
    """Name of the exported function, unique so that two objects cannot clash."""
    return f"{_identifier(source.name)}_{source.sha256[:16]}"


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def compile_kernel(
    source: KernelSource, *, gate: bool = True, ptx: bool = False
) -> CompiledKernel:
    """Compile in this process.

    Args:
        gate: raise if the build gate fails; without it the verdict is only recorded.
        ptx: keep the PTX text.

    Raises:
        CompileError: the DSL or ptxas refused, or the gate failed, in their words.
    """
    version = toolchain.require_dsl()
    start = time.monotonic()
    symbol, options = symbol_name(source), compile_options(source)
    with _workspace(source) as (folder, module), ptxas.StderrCapture() as stderr:
        flags = f" --keep-ptx --dump-dir {shlex.quote(str(folder))}" if ptx else ""
        with _without_locations():
            function = _cute_compile(source, module, options + flags, tvm_ffi=True)
        obj = _export(function, symbol, folder)
        smem, threads = launch_constants(str(function.ir_module))
        text = function.__ptx__
    image = cubin.extract(obj)
    info, report = cubin.read(image), ptxas.parse(stderr.text)
    compiled = CompiledKernel(
        source=source,
        symbol=symbol,
        object=obj,
        cubin=image,
        kernel=info.kernel,
        resources=_resources(info, report, smem, threads),
        warnings=report.warnings,
        gate=report.gate(),
        dsl_version=version,
        options=options,
        seconds=time.monotonic() - start,
        ptx=text,
    )
    if gate and not compiled.gate:
        raise CompileError(f"{source.name} ({source.arch}): {compiled.gate}")
    return compiled


def compile_for_simulation(source: KernelSource) -> tuple[Any, Status]:
    """The DSL's plain compiled function (not TVM-FFI), its PTX in ``__ptx__``, and the
    build gate's verdict.

    It takes CuTe tensors, the CTA count and a stream, as the DSL's own call does. Its
    machine code is made as well, so that the gate knows what :func:`compile_kernel`'s
    would: spills, ignored register hints, serialised wgmma.

    Raises:
        CompileError: the DSL refused, in its words.
    """
    toolchain.require_dsl()
    with _workspace(source) as (folder, module), ptxas.StderrCapture() as stderr:
        dump = shlex.quote(str(folder))
        # Line information lets the simulator's findings name lines of this source.
        options = (
            f"--gpu-arch {source.arch} --keep-ptx --generate-line-info "
            f"--remark-filter ptxas --dump-dir {dump}"
        )
        function = _cute_compile(source, module, options, tvm_ffi=False)
    return function, ptxas.parse(stderr.text).gate()


def _resources(
    info: cubin.CubinInfo,
    report: ptxas.PtxasReport,
    dynamic_smem: int | None,
    threads: int | None,
) -> Resources:
    return Resources(
        registers=info.registers,
        stack_bytes=info.stack_bytes,
        spill_store_bytes=report.spill_store_bytes,
        spill_load_bytes=report.spill_load_bytes,
        static_smem_bytes=info.static_smem_bytes,
        dynamic_smem_bytes=dynamic_smem,
        threads=threads,
        code_bytes=info.code_bytes,
    )


@contextmanager
def _workspace(source: KernelSource) -> Iterator[tuple[Path, ModuleType]]:
    """A scratch folder and the source imported from a file in it, one at a time.

    The DSL reads the text back with ``inspect``, so it must be a real file.
    """
    with (
        _LOCK,
        tempfile.TemporaryDirectory(prefix="torch_cute_backend_") as scratch,
    ):
        path = Path(scratch) / f"{_identifier(source.name)}.py"
        path.write_text(source.text, encoding="utf-8")
        name = f"_torch_cute_backend_kernel_{source.sha256[:16]}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise CompileError(f"cannot import {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            with _dsl_errors(source):
                spec.loader.exec_module(module)
            yield Path(scratch), module
        finally:
            del sys.modules[name]


_LOCATIONS = ("cutlass.base_dsl.dsl", "_set_enable_frame_filtering")
"""The DSL's switch for noting source lines, which it turns on wherever ptxas's remarks
are asked for. It is private: where it is missing, compiling only takes longer."""


@contextmanager
def _without_locations() -> Iterator[None]:
    """Keep the DSL from noting the Python line of each operation: three tenths of a
    compilation, of which nothing reaches the cubin."""
    module = sys.modules.get(_LOCATIONS[0])
    switch = getattr(module, _LOCATIONS[1], None)
    if module is None or switch is None:
        yield
        return
    setattr(module, _LOCATIONS[1], lambda on: switch(False))
    try:
        yield
    finally:
        setattr(module, _LOCATIONS[1], switch)


_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def _dsl_errors(source: KernelSource) -> Iterator[None]:
    """Whatever generated code provokes in the DSL becomes a ``CompileError``."""
    try:
        yield
    except Exception as error:
        # The DSL runs the kernel's text, so any exception class can come out of it.
        words = _ESCAPE.sub("", str(error)).strip()
        kind = type(error).__name__
        raise CompileError(f"{source.name} ({source.arch}): {kind}: {words}") from error


def _cute_compile(
    source: KernelSource, module: ModuleType, options: str, *, tvm_ffi: bool
) -> Any:
    """``cute.compile`` of the entry point on fake arguments."""
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_stream

    entry = getattr(module, source.entry, None)
    if entry is None:
        raise CompileError(f"{source.name}: the text defines no {source.entry}")
    stream = make_fake_stream(use_tvm_ffi_env_stream=tvm_ffi)
    with _dsl_errors(source):
        return cute.compile(
            entry,
            *fake_tensors(source.args),
            cutlass.Int32(_CTAS),
            stream,
            options=options,
        )


def fake_tensors(args: tuple[TensorArg, ...]) -> list[Any]:
    """One fake tensor a parameter; equal symbols share one symbolic size."""
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_tensor

    sizes: dict[str, Any] = {
        name: cute.sym_int(32, divisibility=multiple, symbol=name)
        for name, multiple in extent_multiples(args).items()
    }
    tensors = []
    for arg in args:
        shape = tuple(int(s) if s.isdigit() else sizes[s] for s in arg.shape)
        stride = tuple(
            1 if dim == arg.contiguous else _stride(cute, arg)
            for dim in range(len(arg.shape))
        )
        dtype = getattr(cutlass, arg.dtype.cutlass)
        tensors.append(
            make_fake_tensor(dtype, shape, stride, assumed_align=arg.align_bytes)
        )
    return tensors


def _stride(cute: ModuleType, arg: TensorArg) -> Any:
    # 64 bits: a row pitch times a row index passes 2^31 for large operands.
    return cute.sym_int(64, divisibility=arg.divisibility)


def extent_multiples(args: tuple[TensorArg, ...]) -> dict[str, int]:
    """What each size symbol must be a multiple of, over all parameters."""
    multiples: dict[str, int] = {}
    for arg in args:
        for dim, symbol in enumerate(arg.shape):
            if symbol.isdigit():
                continue
            needed = arg.divisibility if dim == arg.contiguous else 1
            multiples[symbol] = math.lcm(multiples.get(symbol, 1), needed)
    return multiples


def _export(function: Any, symbol: str, folder: Path) -> bytes:
    path = folder / "kernel.o"
    function.export_to_c(str(path), symbol)
    return path.read_bytes()


_LAUNCH = "struct<(array<3 x i32>, array<3 x i32>, i64"
"""The launch configuration: grid, block, bytes of shared memory, ..."""
_FIELD = re.compile(r"(%\w+) = llvm\.getelementptr %\w+\[0, ([\d, ]+)\] : (.*)")
_CONSTANT = re.compile(r"(%\w+) = llvm\.mlir\.constant\((\d+) : i(?:32|64)\)")
_STORE = re.compile(r"llvm\.store (%\w+), (%\w+) :")


def launch_constants(ir_text: str) -> tuple[int | None, int | None]:
    """Dynamic shared memory and threads a CTA, as the host code's launch sets them.

    The host code fills a launch configuration (grid, block, shared memory, ...) field
    by field. Each is None unless it is stored once, from a constant.
    """
    functions = ir_text.split("\n  llvm.func ")
    hosts = [text for text in functions if _LAUNCH in text]
    host = hosts[0] if len(hosts) == 1 else ""
    constants = dict(_CONSTANT.findall(host))
    stores: dict[str, list[str]] = {}
    for value, place in _STORE.findall(host):
        stores.setdefault(place, []).append(value)
    fields: dict[str, list[str]] = {}
    for place, field, kind in _FIELD.findall(host):
        if _LAUNCH in kind:
            fields.setdefault(field, []).extend(stores.get(place, []))

    def stored(field: str) -> int | None:
        values = fields.get(field, [])
        if len(values) != 1 or values[0] not in constants:
            return None
        return int(constants[values[0]])

    block = [stored(f"1, {axis}") for axis in range(3)]
    known = [b for b in block if b is not None]
    return stored("2"), math.prod(known) if len(known) == 3 else None
