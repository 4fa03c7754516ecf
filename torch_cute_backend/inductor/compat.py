"""Every difference between torch 2.11, 2.12, 2.13 and 2.14 that this folder meets.

The rest of :mod:`torch_cute_backend.inductor` asks here instead of testing versions.
Versions are named at each function; nothing is guessed for versions not named.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable, Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._inductor import config
from torch._inductor.async_compile import CompiledTritonKernels
from torch._inductor.codecache import LambdaFuture
from torch._inductor.virtualized import V

from torch_cute_backend.runtime import toolchain
from torch_cute_backend.status import Status


def supported() -> Status:
    """Is the installed torch one that this module was checked against?"""
    return toolchain.torch_supported(torch.__version__) & Status.check(
        (torch.version.hip is None, "torch is built for ROCm"),
    )


def hint(expr: sympy.Expr | int) -> int:
    """The size that ``expr`` had when the graph was traced.

    ``optimization_hint`` exists in all four versions; ``size_hint`` is gone in 2.14.
    """
    return int(V.graph.sizevars.optimization_hint(expr, fallback=64))


def is_unbacked(expr: sympy.Expr | int) -> bool:
    """Does ``expr`` hold a symbol that has no value before run time?"""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(expr))


def is_dynamic(expr: sympy.Expr | int) -> bool:
    """Is ``expr`` anything but a number?"""
    return bool(sympy.sympify(expr).free_symbols)


def known_equal(left: sympy.Expr | int, right: sympy.Expr | int) -> bool:
    """Equal for every size that the graph may be called with?"""
    return bool(V.graph.sizevars.statically_known_equals(left, right))


def known_positive(expr: sympy.Expr | int) -> bool:
    """At least 1 for every size that the graph may be called with?"""
    return bool(V.graph.sizevars.statically_known_geq(sympy.sympify(expr), 1))


def known_at_least(left: sympy.Expr | int, right: sympy.Expr | int) -> bool:
    """``left >= right`` for every size that the graph may be called with?"""
    return bool(V.graph.sizevars.statically_known_geq(sympy.sympify(left), right))


def known_multiple(expr: sympy.Expr | int, of: int) -> bool:
    """A multiple of ``of`` for every size that the graph may be called with?"""
    return of == 1 or bool(
        V.graph.sizevars.statically_known_multiple_of(sympy.sympify(expr), of)
    )


def max_autotune_is_on() -> bool:
    """``mode="max-autotune"`` or one of the two options it sets."""
    return bool(config.max_autotune or config.max_autotune_gemm)


BACKEND_NAME = "TORCH_CUTE"
"""Our name in ``max_autotune_gemm_backends``. torch 2.11 to 2.14 use ATEN, TRITON,
CUTLASS, CK, CKTILE, CPP, CUTEDSL and NVGEMM; "CUTE" was torch's own before 2.11."""

_DEFAULT_BACKENDS = ("ATEN", "TRITON", "CPP")
"""Default of ``max_autotune_gemm_backends`` in all four versions."""


def asked_for() -> Status:
    """Does ``max_autotune_gemm_backends`` leave room for us?

    An untouched list does, so that importing the package is enough. A list that a
    person or a test has chosen means what it says: it must hold ``TORCH_CUTE``.
    """
    names = _backends()
    return Status.check(
        (
            names == _DEFAULT_BACKENDS
            or BACKEND_NAME in names
            or simulated_arch() is not None,
            f"max_autotune_gemm_backends={','.join(names)!r} does not name "
            f"{BACKEND_NAME}",
        )
    )


def _backends() -> tuple[str, ...]:
    chosen = config.max_autotune_gemm_backends.upper()
    return tuple(name.strip() for name in chosen.split(","))


SIMULATOR_PREFIX = "TORCH_CUTE_SIM:"
"""In ``max_autotune_gemm_backends``, before the name of an arch: GEMMs on CPU tensors
run in the simulator. Such a setting holds for one graph, for its backward graph too,
and is in the keys of Inductor's caches."""


def simulated_arch() -> str | None:
    """Name of the arch that the graph's CPU tensors are to be served by, if any."""
    for name in _backends():
        if name.startswith(SIMULATOR_PREFIX):
            return name.removeprefix(SIMULATOR_PREFIX).lower()
    return None


def may_be_unaligned(name: str) -> bool:
    """May a buffer come without the alignment that Inductor gives its own?

    It says so of every input of a CPU graph; the simulator's launcher copies those
    that are, as Inductor's wrapper does for GPUs.
    """
    return simulated_arch() is None and name in V.graph.unaligned_buffers


def exports_cpp() -> bool:
    """Is the graph to run without Python (cpp_wrapper, AOTInductor)?"""
    return bool(V.graph.cpp_wrapper or V.graph.aot_mode or V.aot_compilation is True)


def benchmarks_elsewhere() -> Status:
    """Modes in which Inductor times choices in a way that ours do not take part in.

    Subprocess and pipelined autotuning pickle each choice's request; with
    ``multi_kernel_hints`` one buffer holds kernels of several kinds.
    """
    pipelined = getattr(config, "pipeline_max_autotune_gemm", False)
    return Status.check(
        (not config.autotune_in_subproc, "autotune_in_subproc is on"),
        (not pipelined, "pipeline_max_autotune_gemm is on"),
        (not config.multi_kernel_hints, "multi_kernel_hints is set"),
    )


def tries_only_fastest() -> bool:
    """Does Inductor try one choice alone with an epilogue fused, as by default?"""
    return int(config.max_epilogue_benchmarked_choices) == 1


def in_subgraph() -> bool:
    """Is the graph being lowered nested in another one (cond, invoke_subgraph, ...)?"""
    return getattr(V.graph, "parent", None) is not None


def mark_compiled(source: str) -> None:
    """Keep ``source`` from torch's Triton compile workers, which import only torch.

    ``Scheduler.compile_kernel`` submits every fused trial to them while their pool is
    up (2.11 to 2.13; 2.14 leaves modules without ``triton_`` alone). An entry in
    ``CompiledTritonKernels`` stops that, and must carry a finished, real ``Future``:
    ``Scheduler._evaluate_pending_template_fusions`` waits on it in all four versions.
    """
    done: concurrent.futures.Future[None] = concurrent.futures.Future()
    done.set_result(None)
    CompiledTritonKernels.save(source, LambdaFuture(lambda: None, future=done))


def shape_text(sizes: Iterable[sympy.Expr | int]) -> str:
    """Sizes or strides as text of the generated wrapper, ``(64, s0)``."""
    return str(V.graph.wrapper_code.codegen_python_shape_tuple(tuple(sizes)))


def define_kernel(name: str, expression: str, comment: str) -> None:
    """``name = expression`` at module level of the generated wrapper."""
    V.graph.wrapper_code.define_kernel(name, expression, comment, gpu=False)


def kernel_comment(nodes: Sequence[Any]) -> str:
    """The lines by which Inductor says which FX nodes a kernel comes from."""
    from torch._inductor.utils import get_kernel_metadata

    origins, detailed = get_kernel_metadata(nodes, V.graph.wrapper_code)
    return f"{origins}\n{detailed}"


def fused_name(nodes: Sequence[Any]) -> str:
    """``fused_mm_relu``: Inductor's own naming of fused nodes."""
    from torch._inductor.utils import get_fused_kernel_name

    style = config.triton.descriptive_names
    return str(get_fused_kernel_name(nodes, style)) if style else "fused"
