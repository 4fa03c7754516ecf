"""Time many schedules of one problem on the GPU at hand, checking each one's numbers.

Runs in the calling process; a caller that must survive a bad kernel puts it in a child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.bench import protocol, providers
from torch_cute_backend.bench.cases import Inputs, bytes_per_set, make_inputs
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule

MAX_SETS = 24
"""Enough sets to exceed three L2s of any shape above 8 MB; smaller ones stay warm in
part, for every provider alike."""


@dataclass(frozen=True)
class Measured:
    """One provider's time; ``schedule`` is None for a peer."""

    provider: str
    schedule: GemmSchedule | None
    timing: protocol.Timing


def measure(
    problem: GemmProblem,
    arch: ArchSpec,
    schedules: Sequence[GemmSchedule],
    rounds: int = protocol.ROUNDS,
    cold: bool = True,
) -> list[Measured]:
    """ATen and every schedule, interleaved; fastest first.

    Raises:
        AssertionError-free: a schedule with wrong numbers raises ``ValueError``.
    """
    device = torch.device("cuda")
    count = protocol.input_sets(bytes_per_set(problem), device, cold)
    sets = make_inputs(problem, min(count, MAX_SETS))
    calls = {"aten": providers.aten(problem, sets)}
    named = {f"{i}:{s.describe()}": s for i, s in enumerate(schedules)}
    for name, schedule in named.items():
        calls[name] = providers.ours(problem, schedule, arch, sets)
        check(problem, sets[0], calls[name][0], name)
    timings = protocol.interleaved(calls, rounds)
    rows = [Measured(name, named.get(name), t) for name, t in timings.items()]
    return sorted(rows, key=lambda r: r.timing.us)


def check(problem: GemmProblem, x: Inputs, call: protocol.Call, name: str) -> None:
    """Run once on a poisoned output and compare with the fp32 reference."""
    x.out.fill_(float("nan"))
    call()
    want = providers.reference(problem, x)
    error = (x.out.float() - want).abs()
    # Output rounding (2^-9 of the value) plus the accumulation's own error, which
    # grows with the root of K and, for FP8 on Hopper, with its short accumulator.
    magnitude = want.square().mean().sqrt()
    slack = (6e-2 if problem.a_dtype.is_fp8 else 2e-2) * magnitude
    wrong = ~(error <= want.abs() * 2.0**-8 + slack)
    if bool(wrong.any()):
        raise ValueError(
            f"{name} on {problem.describe()}: {int(wrong.sum())} wrong elements, "
            f"largest error {float(error.nan_to_num(float('inf')).max()):.4g} "
            f"against values of about {float(magnitude):.4g}"
        )
