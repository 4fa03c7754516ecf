"""The golden self-test: one small GEMM whose every output element is known exactly.

Run as a module it is the child process of ``validated``: one JSON request a line in,
one JSON verdict a line out. Small integers make the sums exact in every accumulator, so
the comparison is for equality; the output is poisoned first; few CTAs get several tiles
each, because that is where a wrong barrier hangs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch_cute_backend.arch import arch_spec
from torch_cute_backend.dtypes import BFLOAT16
from torch_cute_backend.epilogue.graph import EpilogueGraph, InputKind
from torch_cute_backend.errors import CompileError, CuteBackendError
from torch_cute_backend.problem import (
    SCALE_BLOCK,
    SCALE_INPUTS,
    GemmProblem,
    Grouping,
    Major,
)
from torch_cute_backend.runtime import block_scales, selftest_grouped
from torch_cute_backend.runtime.pool import shared_pool
from torch_cute_backend.runtime.worker import private_stdout
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status

if TYPE_CHECKING:
    import torch

    from torch_cute_backend.build import KernelBuild

_SEED = 20240229


def test_problem(request: dict[str, Any]) -> tuple[GemmProblem, GemmSchedule]:
    """A problem of the request's kind: several tiles each way, ragged M and N."""
    schedule = GemmSchedule.from_json(request["schedule"])
    kind = GemmProblem.from_json(request["problem"])
    scale_a, scale_b = SCALE_INPUTS[kind.scaling]
    rows = schedule.tile_m * schedule.cluster_m * schedule.cta_group
    cols = schedule.tile_n * schedule.cluster_n
    step = 16 // min(kind.a_dtype.bytes, BFLOAT16.bytes)
    tail = SCALE_BLOCK if kind.block_scaled else step
    problem = replace(
        kind,
        # M is no contiguous extent unless A is M-major, so low tiles get a tail too.
        m=3 * rows - (step if kind.a_major is Major.MN else 1),
        n=3 * cols - step,
        k=schedule.tile_k * (schedule.ab_stages + 1) + tail,
        epilogue=EpilogueGraph.linear(BFLOAT16, scale_a, scale_b),
        out_aligned=True,
        grouping=Grouping.NONE,
        groups=1,
    )
    if kind.is_grouped:
        problem = selftest_grouped.with_groups(problem, schedule, kind.grouping)
    return problem, schedule


def build(request: dict[str, Any]) -> KernelBuild:
    """The kernel under test; ``CompileError`` if it cannot be built."""
    from torch_cute_backend.build import build_kernel

    problem, schedule = test_problem(request)
    result = build_kernel(problem, schedule, arch_spec(request["arch"]))
    if isinstance(result, Status):
        raise CompileError(f"cannot build the self-test: {result}")
    return result


def prepare(request: dict[str, Any]) -> None:
    """Compile the kernel under test into the cache."""
    shared_pool().submit(build(request).source, gate=False).result()


def operands(
    problem: GemmProblem, place: torch.device | str
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Operands and scales (in call order), and the exact (M, N) result in bf16."""
    import torch

    generator = torch.Generator().manual_seed(_SEED)

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(-2, 3, shape, generator=generator).float()

    a, b = integers(problem.m, problem.k), integers(problem.k, problem.n)
    exact = a @ b
    scales = []
    if problem.block_scaled:
        sizes = (problem.m, problem.n)
        tiles = [block_scales.drawn(rows, problem.k, generator) for rows in sizes]
        exact = block_scales.product(a, b.T, *tiles)
        scales += [t.to(place) for t in tiles]
    for entry in problem.epilogue.inputs:
        size = {"row": problem.m, "col": problem.n}.get(entry.kind.value, 1)
        scale = 2.0 ** torch.randint(-1, 2, (size,), generator=generator).float()
        exact = exact * (scale[:, None] if entry.kind is InputKind.ROW else scale)
        scales.append(scale.to(place))
    a_type, b_type = (
        getattr(torch, d.name) for d in (problem.a_dtype, problem.b_dtype)
    )
    a = _major(a, problem.a_major, Major.K).to(a_type)
    b = _major(b, problem.b_major, Major.MN).to(b_type)
    return [a.to(place), b.to(place), *scales], exact.to(torch.bfloat16).to(place)


def _major(matrix: torch.Tensor, major: Major, row_major: Major) -> torch.Tensor:
    """Lay ``matrix`` out so that ``major`` has stride 1."""
    return matrix if major is row_major else matrix.t().contiguous().t()


def check(
    built: KernelBuild,
    place: torch.device | str,
    run: Callable[..., Any],
    ctas: tuple[int | None, ...],
) -> str | None:
    """Run the kernel for each CTA limit; what is wrong, or None.

    Args:
        run: as :func:`gemm.run`, or :func:`grouped.run` for a grouped kernel.
        ctas: limits on the number of CTAs; None is one an SM.
    """
    import torch

    options: dict[str, Any] = {}
    if built.problem.is_grouped:
        made = selftest_grouped.operands(built.problem, built.schedule, place)
        tensors, exact = [made.a, made.b, *made.inputs], made.exact
        options["offsets"] = made.offsets
    else:
        tensors, exact = operands(built.problem, place)
    for limit in ctas:
        out = torch.full_like(exact, float("nan"))
        run(built, *tensors, out=[out], num_ctas=limit, **options)
        # What is in no group is NaN before and after.
        wrong = int((~((out == exact) | (out.isnan() & exact.isnan()))).sum())
        if wrong:
            return f"{wrong} of {out.numel()} elements are wrong with {limit} CTAs"
    return None


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """Run one request on its GPU."""
    import torch

    from torch_cute_backend.runtime import gemm, grouped

    try:
        built = build(request)
        run = grouped.run if built.problem.is_grouped else gemm.run
        place = torch.device("cuda", request["device"])
        few = 2 * built.schedule.cluster_size * built.schedule.cta_group
        problem = check(built, place, run, (few, None))
        torch.cuda.synchronize(place)
    except (CuteBackendError, RuntimeError) as error:
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}
    return {"ok": problem is None, "error": problem}


def main() -> None:
    replies = private_stdout()
    for line in sys.stdin:
        replies.write(json.dumps(handle(json.loads(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
