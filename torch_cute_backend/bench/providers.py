"""Who computes it: ours with a given schedule, and the peers, as lists of calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.bench.cases import Inputs
from torch_cute_backend.bench.protocol import Call
from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Accum, GemmProblem
from torch_cute_backend.runtime.launch import load_kernel
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status


def build(problem: GemmProblem, schedule: GemmSchedule, arch: ArchSpec) -> KernelBuild:
    """``build_kernel``, with "cannot" as a ``UserError``."""
    result = build_kernel(problem, schedule, arch)
    if isinstance(result, Status):
        raise UserError(f"{schedule.describe()}: {result}")
    return result


def ours(
    problem: GemmProblem, schedule: GemmSchedule, arch: ArchSpec, sets: Sequence[Inputs]
) -> list[Call]:
    """One launch of our kernel per input set."""
    kernel = load_kernel(build(problem, schedule, arch).source)
    sms = torch.cuda.get_device_properties(sets[0].a.device).multi_processor_count

    def call(x: Inputs) -> Call:
        scales = () if x.scale_a is None else (x.scale_a, x.scale_b)
        return lambda: kernel(x.a, x.b, x.out, *scales, sms)

    return [call(x) for x in sets]


def aten(problem: GemmProblem, sets: Sequence[Inputs]) -> list[Call]:
    """``torch._scaled_mm`` rowwise, or ``torch.mm``."""
    fast = problem.accum is Accum.FAST

    def scaled(x: Inputs) -> Call:
        if x.scale_a is None or x.scale_b is None:
            raise UserError("FP8 inputs come with scales")
        sa, sb = x.scale_a[:, None], x.scale_b[None, :]
        b = x.b.t()
        return lambda: torch._scaled_mm(
            x.a,
            b,
            scale_a=sa,
            scale_b=sb,
            out_dtype=torch.bfloat16,
            use_fast_accum=fast,
            out=x.out,
        )

    def plain(x: Inputs) -> Call:
        b = x.b.t()
        return lambda: torch.mm(x.a, b, out=x.out)

    return [scaled(x) if problem.a_dtype.is_fp8 else plain(x) for x in sets]


def inductor(problem: GemmProblem, sets: Sequence[Inputs]) -> list[Call]:
    """torch.compile's own max-autotune choice, without this package's."""
    import torch_cute_backend

    torch_cute_backend.disable()
    torch._dynamo.reset()
    fast = problem.accum is Accum.FAST

    def scaled(
        a: torch.Tensor, b: torch.Tensor, sa: torch.Tensor, sb: torch.Tensor
    ) -> torch.Tensor:
        return torch._scaled_mm(
            a,
            b.t(),
            scale_a=sa[:, None],
            scale_b=sb[None, :],
            out_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )

    def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b.t()

    fp8 = problem.a_dtype.is_fp8
    compiled = torch.compile(
        scaled if fp8 else plain, mode="max-autotune-no-cudagraphs", dynamic=False
    )

    def call(x: Inputs) -> Call:
        args = (x.a, x.b, x.scale_a, x.scale_b) if fp8 else (x.a, x.b)
        return lambda: compiled(*args)

    return [call(x) for x in sets]


def reference(problem: GemmProblem, x: Inputs) -> torch.Tensor:
    """fp32 result of one input set, (M, N), before the output's rounding."""
    result = x.a.float() @ x.b.float().t()
    if x.scale_a is not None and x.scale_b is not None:
        result = result * x.scale_a[:, None] * x.scale_b[None, :]
    return result
