"""The generated module: header, imports, constants, kernel, host entry point."""

from __future__ import annotations

from collections.abc import Sequence

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.codegen import names
from torch_cute_backend.codegen.emit import Emitter
from torch_cute_backend.codegen.emit_sm90 import Sm90Emitter
from torch_cute_backend.codegen.emit_sm100 import Sm100Emitter
from torch_cute_backend.codegen.host_sm90 import Sm90Host
from torch_cute_backend.codegen.host_sm100 import Sm100Host
from torch_cute_backend.codegen.source import KernelSource, TensorArg
from torch_cute_backend.codegen.writer import Writer
from torch_cute_backend.dtypes import INT32
from torch_cute_backend.epilogue.graph import InputKind
from torch_cute_backend.errors import CodegenError
from torch_cute_backend.ir.program import Program
from torch_cute_backend.problem import GemmProblem, Major
from torch_cute_backend.schedule import GemmSchedule

EMITTERS: dict[str, type[Emitter]] = {
    "wgmma": Sm90Emitter,
    "tcgen05": Sm100Emitter,
}
HOSTS: dict[str, type[Sm90Host]] = {"wgmma": Sm90Host, "tcgen05": Sm100Host}
HEADER_HANG = 10
"""Where the values of the header's ``name: value`` lines start."""
EPILOGUE_SHAPES = {
    InputKind.SCALAR: ("1",),
    InputKind.ROW: ("m",),
    InputKind.COL: ("n",),
    InputKind.FULL: ("m", "n"),
}


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
    """The entry point's tensors in call order: A, B, outputs, epilogue inputs."""
    a, b = problem.a_dtype, problem.b_dtype
    k_major_a, k_major_b = problem.a_major is Major.K, problem.b_major is Major.K
    args = [
        TensorArg("a", a, ("m", "k"), 1 if k_major_a else 0, 16 // a.bytes),
    ]
    for i in range(problem.epilogue.products):
        name = f"b{i or ''}"
        args.append(
            TensorArg(name, b, ("n", "k"), 1 if k_major_b else 0, 16 // b.bytes)
        )
    for i, out in enumerate(problem.epilogue.outputs):
        tma = i == 0 and schedule.store == "tma"
        args.append(
            TensorArg(
                out.name,
                out.dtype,
                ("m", "n"),
                1,
                16 // out.dtype.bytes if tma else 1,
                16 if tma else out.dtype.bytes,
                output=True,
            )
        )
    if schedule.record != "none":
        args.append(TensorArg("walk_end", INT32, ("ctas",), 0, 1, 4, output=True))
    for entry in problem.epilogue.inputs:
        full = entry.kind is InputKind.FULL
        args.append(
            TensorArg(
                entry.name,
                entry.dtype,
                EPILOGUE_SHAPES[entry.kind],
                1 if full else None,
                1,
                entry.dtype.bytes,
            )
        )
    return tuple(args)
