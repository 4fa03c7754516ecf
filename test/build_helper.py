"""Short ways to problems of every family, and to built kernels."""

from __future__ import annotations

from dataclasses import replace

from torch_cute_backend.arch import ArchSpec
from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.dtypes import BFLOAT16, E4M3, FLOAT16, FLOAT32, DType
from torch_cute_backend.epilogue.graph import (
    EpilogueBuilder,
    EpilogueGraph,
    InputKind,
)
from torch_cute_backend.problem import (
    SCALE_INPUTS,
    Accum,
    GemmProblem,
    Grouping,
    Major,
)
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status
from torch_cute_backend.tuning.table import RowKey

ROW, COL, SCALAR, FULL = (
    InputKind.ROW,
    InputKind.COL,
    InputKind.SCALAR,
    InputKind.FULL,
)


def fp8(
    m: int = 64,
    n: int = 5120,
    k: int = 5120,
    out: DType = BFLOAT16,
    bias: DType | None = None,
    scaling: str = "rowwise",
    **fields: object,
) -> GemmProblem:
    """``scaled_mm`` of e4m3 operands with fp32 scales."""
    kinds = SCALE_INPUTS.get(scaling, (SCALAR, SCALAR))
    problem = GemmProblem(
        op="scaled_mm",
        m=m,
        n=n,
        k=k,
        a_dtype=E4M3,
        b_dtype=E4M3,
        scaling=scaling,
        epilogue=EpilogueGraph.linear(out, *kinds, bias),
    )
    return replace(problem, **fields)


def mm(
    m: int = 512,
    n: int = 4096,
    k: int = 2048,
    dtype: DType = BFLOAT16,
    out: DType | None = None,
    bias: DType | None = None,
    **fields: object,
) -> GemmProblem:
    """``mm``, or ``addmm`` where there is a bias."""
    problem = GemmProblem(
        op="mm" if bias is None else "addmm",
        m=m,
        n=n,
        k=k,
        a_dtype=dtype,
        b_dtype=dtype,
        epilogue=EpilogueGraph.linear(out or dtype, bias=bias),
    )
    return replace(problem, **fields)


def grouped(
    grouping: Grouping = Grouping.M,
    m: int = 1024,
    n: int = 4096,
    k: int = 2048,
    groups: int = 8,
    dtype: DType = BFLOAT16,
    out: DType = BFLOAT16,
    **fields: object,
) -> GemmProblem:
    """``grouped_mm``, or ``scaled_grouped_mm`` of FP8 operands with rowwise scales."""
    scales = (ROW, COL) if dtype.is_fp8 else (None, None)
    problem = GemmProblem(
        op="scaled_grouped_mm" if dtype.is_fp8 else "grouped_mm",
        m=m,
        n=n,
        k=k,
        a_dtype=dtype,
        b_dtype=dtype,
        scaling="rowwise" if dtype.is_fp8 else "none",
        epilogue=EpilogueGraph.linear(out, *scales),
        grouping=grouping,
        groups=groups,
    )
    return replace(problem, **fields)


def problem_of(key: RowKey) -> GemmProblem:
    """A bf16-output problem that a table row of this key is for."""
    majors = {"a_major": Major(key.a_major), "b_major": Major(key.b_major)}
    if key.family in ("bf16", "fp16"):
        dtype = BFLOAT16 if key.family == "bf16" else FLOAT16
        return mm(key.m, key.n, key.k, dtype, accum=Accum(key.accum), **majors)
    scaling = key.family.removeprefix("fp8-")
    accum = Accum(key.accum)
    return fp8(key.m, key.n, key.k, scaling=scaling, accum=accum, **majors)


def gelu_residual(out: DType = BFLOAT16) -> EpilogueGraph:
    """``round(gelu_erf(acc * row * col + bias)) + residual``, and the rounded gelu as a
    second output: loads of all kinds, a constant, a round, two stores."""
    b = EpilogueBuilder()
    x = b.op("mul", b.acc(), b.input("scale_a", ROW, FLOAT32))
    x = b.op("mul", x, b.input("scale_b", COL, FLOAT32))
    x = b.op("add", x, b.input("bias", COL, out))
    inner = b.op("erf", b.op("mul", x, b.const(0.7071067811865476)))
    half = b.op("mul", x, b.const(0.5))
    gelu = b.op("mul", half, b.op("add", inner, b.const(1.0)))
    rounded = b.round(gelu, out)
    b.output(b.op("add", rounded, b.input("residual", FULL, out)), out)
    b.output(gelu, out, "d1")
    return b.graph()


def bias_residual() -> EpilogueGraph:
    """``(acc + bias) / 2 + residual``: exact on small integers, no scales."""
    b = EpilogueBuilder()
    x = b.op("add", b.acc(), b.input("bias", COL, BFLOAT16))
    x = b.op("mul", x, b.const(0.5))
    b.output(b.op("add", x, b.input("residual", FULL, BFLOAT16)), BFLOAT16)
    return b.graph()


def two_roots(
    scale_a: InputKind | None = None,
    scale_b: InputKind | None = None,
    bias: DType | None = None,
) -> EpilogueGraph:
    """``D = A @ B`` and ``D1 = A @ B1``, as the K and V projections of one input."""
    return EpilogueGraph.linear(BFLOAT16, scale_a, scale_b, bias, products=2)


def swiglu() -> EpilogueGraph:
    """``relu(A @ B) * (A @ B1)``: two products, one result. (With relu for silu, small
    integers stay exact.)"""
    b = EpilogueBuilder()
    b.output(b.op("mul", b.op("relu", b.acc()), b.acc(1)), BFLOAT16)
    return b.graph()


def build(problem: GemmProblem, schedule: GemmSchedule, arch: ArchSpec) -> KernelBuild:
    """``build_kernel``, where "cannot" is a failure of the test."""
    result = build_kernel(problem, schedule, arch)
    if isinstance(result, Status):
        raise AssertionError(f"{schedule.describe()} on {arch.name}: {result}")
    return result
