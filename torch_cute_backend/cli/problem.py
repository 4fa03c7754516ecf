"""From command-line arguments to a problem, an arch, a schedule and a built kernel."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from typing import Any

from torch_cute_backend.arch import ArchSpec, arch_spec
from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.dtypes import BFLOAT16, DTYPES, E4M3, DType
from torch_cute_backend.epilogue.graph import EpilogueGraph
from torch_cute_backend.errors import TableError, UserError
from torch_cute_backend.problem import (
    GROUPED_OPS,
    SCALE_INPUTS,
    Accum,
    GemmProblem,
    Grouping,
    Major,
)
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status
from torch_cute_backend.tuning.lookup import choose
from torch_cute_backend.tuning.table import TableRow

DEFAULT_ARCH = "sm_100a"
"""Where there is no GPU to ask."""

ALIASES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp8": "float8_e4m3fn",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}
"""Short names of dtypes, for typing."""


@dataclass(frozen=True)
class Plan:
    """What was asked for, and the kernel for it or why there is none.

    ``source`` names where the schedule is from: ``"pretuned-exact"``,
    ``"pretuned-nearest"``, ``"model"`` or ``"user"``; None if there is no schedule.
    """

    problem: GemmProblem
    arch: ArchSpec
    schedule: GemmSchedule | None
    source: str | None
    row: TableRow | None
    result: KernelBuild | Status


def plan(args: argparse.Namespace) -> Plan:
    """Choose a schedule and build the kernel that ``args`` describe.

    Raises:
        UserError: the arguments make no sense together.
    """
    return plan_problem(
        problem_from(args),
        arch_from(args.arch),
        schedule=args.schedule,
        scheduler=args.scheduler,
        shared_loop=args.shared_loop,
    )


def plan_problem(
    problem: GemmProblem,
    arch: ArchSpec,
    *,
    schedule: str | None = None,
    scheduler: str | None = None,
    shared_loop: str | None = None,
) -> Plan:
    """As :func:`plan`, for a problem; ``schedule`` is JSON text."""
    source: str = "user"
    row: TableRow | None = None
    if schedule is not None:
        chosen = _parse_schedule(schedule)
    else:
        choice = choose(problem, arch)
        if isinstance(choice, Status):
            return Plan(problem, arch, None, None, None, choice)
        chosen, source = choice.schedule, choice.source
        row = choice.row
    if scheduler is not None and scheduler != chosen.scheduler:
        chosen, source, row = replace(chosen, scheduler=scheduler), "user", None
    if shared_loop is not None:
        chosen = replace(chosen, shared_loop=shared_loop)
    result = build_kernel(problem, chosen, arch)
    return Plan(problem, arch, chosen, source, row, result)


def require_build(planned: Plan) -> KernelBuild:
    """The kernel; ``UserError`` with the reasons if there is none."""
    if isinstance(planned.result, Status):
        raise UserError(f"no kernel: {planned.result}")
    return planned.result


def problem_from(args: argparse.Namespace) -> GemmProblem:
    """The GEMM that ``args`` describe; ``UserError`` if they contradict each other."""
    scaled = args.op in ("scaled_mm", "scaled_grouped_mm")
    grouping, groups = _groups(args)
    scaling = args.scaling or ("rowwise" if scaled else "none")
    if scaled == (scaling == "none"):
        raise UserError(f"--scaling {scaling} does not go with {args.op}")
    kind = E4M3 if scaled else BFLOAT16
    if args.dtype is not None:
        kind = _dtype(args.dtype)
    out = _dtype(args.out_dtype)
    scale_a, scale_b = SCALE_INPUTS[scaling]
    bias = None
    if args.bias or args.op == "addmm":
        bias = BFLOAT16 if out.is_fp8 else out
    return GemmProblem(
        op=args.op,
        m=args.m,
        n=args.n,
        k=args.k,
        a_dtype=kind,
        b_dtype=kind,
        a_major=Major(args.a_major),
        b_major=Major(args.b_major),
        scaling=scaling,
        accum=Accum(args.accum),
        epilogue=EpilogueGraph.linear(
            out, scale_a, scale_b, bias, products=args.products
        ),
        out_aligned=args.n * out.bytes % 16 == 0,
        grouping=grouping,
        groups=groups,
    )


def _groups(args: argparse.Namespace) -> tuple[Grouping, int]:
    """Grouping and number of groups: of a grouped op, along M unless said otherwise."""
    if args.op not in GROUPED_OPS:
        if args.groups is not None or args.grouping is not None:
            raise UserError(f"{args.op} has no groups")
        return Grouping.NONE, 1
    if args.groups is None:
        raise UserError(f"{args.op} needs --groups")
    return Grouping(args.grouping or Grouping.M.value), args.groups


def arch_from(name: str | None) -> ArchSpec:
    """The named arch, else the GPU's, else :data:`DEFAULT_ARCH`."""
    if name is not None:
        return arch_spec(name)
    from torch_cute_backend.runtime import device

    return device.default_arch() or arch_spec(DEFAULT_ARCH)


def _dtype(name: str) -> DType:
    plain = name.removeprefix("torch.")
    kind = DTYPES.get(ALIASES.get(plain, plain))
    if kind is None:
        known = ", ".join((*DTYPES, *ALIASES))
        raise UserError(f"unknown dtype {name!r}; known: {known}")
    return kind


def _parse_schedule(text: str) -> GemmSchedule:
    try:
        row: Any = json.loads(text)
    except ValueError as error:
        raise UserError(f"--schedule is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise UserError("--schedule is not a JSON object")
    try:
        return GemmSchedule.from_json(row)
    except TableError as error:
        raise UserError(f"--schedule: {error}") from error


def problem_to_json(problem: GemmProblem) -> dict[str, Any]:
    """Every field of a problem, and what a command line says of its epilogue."""
    return {
        **problem.to_json(),
        "out_dtype": problem.out_dtype.name,
        "products": problem.epilogue.products,
    }
