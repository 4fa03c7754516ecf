"""The generated module: header, imports, constants, kernel, host entry point."""

from __future__ import annotations

from collections.abc import Sequence

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.codegen import names
from torch_cute_backend.codegen.emit import Emitter
from torch_cute_backend.codegen.emit_sm90 import Sm90Emitter
from torch_cute_backend.codegen.emit_sm100 import Sm100Emitter
from torch_cute_backend.codegen.host_grouped import search_function
from torch_cute_backend.codegen.host_sm90 import OFFSETS_NAME, Sm90Host
from torch_cute_backend.codegen.host_sm100 import Sm100Host
from torch_cute_backend.codegen.shapes import (
    SCALE_SYMBOLS,
    Shape,
    shapes_of,
    stacked,
)
from torch_cute_backend.codegen.source import KernelSource, TensorArg
from torch_cute_backend.codegen.writer import Writer
from torch_cute_backend.dtypes import E8M0, INT32, DType
from torch_cute_backend.epilogue.graph import InputKind
from torch_cute_backend.errors import CodegenError
from torch_cute_backend.ir.program import Program
from torch_cute_backend.problem import SCALE_NAMES, GemmProblem, Major, scale_count
from torch_cute_backend.schedule import GemmSchedule

EMITTERS: dict[str, type[Emitter]] = {
    "wgmma": Sm90Emitter,
    "tcgen05": Sm100Emitter,
}
HOSTS: dict[str, type[Sm90Host]] = {"wgmma": Sm90Host, "tcgen05": Sm100Host}
HEADER_HANG = 10
"""Where the values of the header's ``name: value`` lines start."""


def print_module(
    program: Program,
    problem: GemmProblem,
    schedule: GemmSchedule,
    arch: ArchSpec,
    header: Sequence[str],
) -> KernelSource:
    """Print ``program`` as a CuTe DSL module; ``header`` lines become its comment."""
    if arch.mma not in EMITTERS:
        raise CodegenError(f"no emitter for {arch.mma} of {arch.name}")
    host = HOSTS[arch.mma](program, problem, schedule)
    out = Writer()
    for line in header:
        if line:
            out.comment(line, HEADER_HANG)
        else:
            out.line("#")
    out.blank()
    out.lines(*host.imports())
    out.blank()
    for name, value in host.constants():
        out.line(f"{name} = {value}")
    out.line()
    out.line()
    name = names.identifier(program.name)
    search = search_function(program, problem, problem.ragged_align(host.staged))
    if search:
        out.lines(*search.splitlines(), "", "")
    emitter = EMITTERS[arch.mma](problem, schedule, arch)
    _print_kernel(out, name, host, emitter, program)
    out.line()
    out.line()
    host.entry(out, name)
    return KernelSource(
        name=name,
        text=out.text(),
        entry="gemm",
        arch=arch.name,
        args=kernel_args(program, problem, schedule),
    )


def _print_kernel(
    out: Writer, name: str, host: Sm90Host, emitter: Emitter, program: Program
) -> None:
    out.line("@cute.kernel")
    out.line(f"def {name}(")
    with out.indent():
        for parameter, kind in host.parameters():
            out.line(f"{parameter}: {kind},")
    out.line("):")
    with emitter.out.indent():
        host.preamble(emitter.out)
        emitter.kernel_body(program)
    for line in emitter.out.text().splitlines():
        out.line(line)


def kernel_args(
    program: Program, problem: GemmProblem, schedule: GemmSchedule
) -> tuple[TensorArg, ...]:
    """The entry point's tensors in call order: A, B, outputs, block scales, epilogue
    inputs, and the ends of ragged groups."""
    shapes = shapes_of(problem)
    args = [
        _operand("a", problem.a_dtype, shapes.a, problem.a_major),
    ]
    for i in range(problem.epilogue.products):
        name = f"b{i or ''}"
        args.append(_operand(name, problem.b_dtype, shapes.b, problem.b_major))
    for i, out in enumerate(problem.epilogue.outputs):
        tma = i == 0 and schedule.store == "tma"
        args.append(
            TensorArg(
                out.name,
                out.dtype,
                shapes.d,
                len(shapes.d) - 1,
                16 // out.dtype.bytes if tma else 1,
                16 if tma else out.dtype.bytes,
                output=True,
            )
        )
    if schedule.record != "none":
        args.append(TensorArg("walk_end", INT32, ("ctas",), 0, 1, 4, output=True))
    args += _scale_args(problem)
    for entry in problem.epilogue.inputs:
        full = entry.kind is InputKind.FULL
        shape = shapes.of_input(entry.kind)
        args.append(
            TensorArg(
                entry.name,
                entry.dtype,
                shape,
                len(shape) - 1 if full else None,
                1,
                entry.dtype.bytes,
            )
        )
    if problem.has_offsets:
        args.append(TensorArg(OFFSETS_NAME, INT32, ("g",), 0, 1, INT32.bytes))
    return tuple(args)


def _scale_args(problem: GemmProblem) -> list[TensorArg]:
    """MXFP8's scales, as :func:`~problem.scale_count` lays them out."""
    if not problem.block_scaled:
        return []
    tile = scale_count(1, 1)
    shapes = shapes_of(problem)
    found = []
    for name, size, operand in zip(
        SCALE_NAMES, SCALE_SYMBOLS, (shapes.a, shapes.b), strict=True
    ):
        shape = ("g", size) if stacked(operand) else (size,)
        found.append(TensorArg(name, E8M0, shape, len(shape) - 1, tile))
    return found


def _operand(name: str, kind: DType, shape: Shape, major: Major) -> TensorArg:
    """A or B; its last dimension is K, the one before it M or N."""
    contiguous = len(shape) - (1 if major is Major.K else 2)
    return TensorArg(name, kind, shape, contiguous, 16 // kind.bytes)
