"""Are the numbers right? Asked of every provider before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from torch_cute_backend.bench import groups
from torch_cute_backend.bench.cases import Inputs, Shape
from torch_cute_backend.bench.protocol import Call
from torch_cute_backend.problem import Accum, GemmProblem, Major

OUTPUT_ROUNDING = 2.0**-8
"""bf16 rounds by at most half of it."""
SLACK = {"half": 1e-2, "exact": 1e-2, "fast": 6e-2}
"""Accumulation error, in units of the output's root mean square. FP8's fast
accumulation keeps about 14 bits and truncates, which adds up over a long K."""


def reference(problem: GemmProblem, x: Inputs) -> torch.Tensor:
    """fp32 result of one input set, as its output, before that is rounded."""
    if problem.is_grouped:
        return groups.reference(problem, x)
    result = x.a.float() @ x.b.float().t()
    if x.scales:
        scale_a, scale_b = x.scales
        result = result * scale_a[:, None] * scale_b[None, :]
    return result


def slack(problem: GemmProblem) -> float:
    if not problem.a_dtype.is_fp8:
        return SLACK["half"]
    return SLACK["exact" if problem.accum is Accum.EXACT else "fast"]


def wrong_elements(
    problem: GemmProblem, got: torch.Tensor, want: torch.Tensor
) -> tuple[int, float]:
    """How many elements of ``got`` are off, and the largest error (inf for NaN)."""
    error = (got.float() - want).abs()
    bound = want.abs() * OUTPUT_ROUNDING + slack(problem) * _rms(want)
    largest = float(error.nan_to_num(float("inf")).max())
    return int((~(error <= bound)).sum()), largest


def check(
    problem: GemmProblem, x: Inputs, call: Call, want: torch.Tensor, name: str
) -> None:
    """Run once on a poisoned output and compare with ``want``.

    Raises:
        ValueError: elements are wrong; the message counts them.
    """
    x.out.fill_(float("nan"))
    result = call()
    got = result if isinstance(result, torch.Tensor) else x.out
    count, largest = wrong_elements(problem, got, want)
    if count:
        raise ValueError(
            f"{name} on {problem.describe()}: {count} of {want.numel()} elements are "
            f"wrong, largest error {largest:.4g} against values of about "
            f"{float(_rms(want)):.4g}"
        )


def _rms(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean().sqrt()


RunOne = Callable[..., object]
"""``run(a, b, out, *scales, *tail)`` with b as (N, K)."""


def sweep_exact(
    problem: GemmProblem, shapes: Sequence[Shape], run: RunOne, device: str = "cuda"
) -> tuple[int, list[str]]:
    """Small integers, whose sums are exact in every accumulator: equality, element by
    element, for every shape.

    Returns:
        Shapes that were right, and a line for each that was not.
    """
    wrong: list[str] = []
    generator = torch.Generator(device=device).manual_seed(1)
    if problem.is_grouped:
        return _sweep_groups(problem, shapes, run, generator)
    for m, n, k in shapes:
        a, b = _integers(m, k, generator), _integers(n, k, generator)
        want = a @ b.t()
        scales: tuple[torch.Tensor, ...] = ()
        if problem.scaling != "none":
            rowwise = problem.scaling == "rowwise"
            counts = (m, n) if rowwise else (1, 1)
            scales = (_powers(counts[0], generator), _powers(counts[1], generator))
            want = want * scales[0][:, None] * scales[1][None, :]
        kind = getattr(torch, problem.a_dtype.name)
        out_kind = getattr(torch, problem.out_dtype.name)
        if problem.b_major is Major.MN:
            b = b.t().contiguous().t()
        out = torch.full((m, n), float("nan"), dtype=out_kind, device=device)
        run(a.to(kind), b.to(kind), out, *scales)
        bad = int((out != want.to(out_kind)).sum())
        if bad:
            wrong.append(f"{m}x{n}x{k}: {bad} of {m * n} elements")
    return len(shapes) - len(wrong), wrong


def _sweep_groups(
    problem: GemmProblem,
    shapes: Sequence[Shape],
    run: RunOne,
    generator: torch.Generator,
) -> tuple[int, list[str]]:
    """As :func:`sweep_exact`, with groups of odd sizes, the first of them empty, and a
    rest that is in no group and must stay NaN."""
    wrong: list[str] = []
    known = 0
    for m, n, k in shapes:
        sized = replace(problem, m=m, n=n, k=k)
        if not sized.validate():
            continue
        known += 1
        total = {"m": m, "n": n, "k": k}.get(problem.grouping.value, 0)
        ends = [total * i // (problem.groups + 1) for i in range(problem.groups)]
        x = groups.exact(sized, ends, generator)
        want = groups.reference(sized, x).to(x.out.dtype)
        run(x.a, x.b, x.out, *x.scales, *x.tail)
        same = (x.out == want) | (x.out.isnan() & want.isnan())
        bad = int((~same).sum())
        if bad:
            wrong.append(f"{m}x{n}x{k}: {bad} of {want.numel()} elements")
    return known - len(wrong), wrong


def _integers(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """fp32, from -2 to 2; from -1 to 1 where K is long, so that partial sums stay
    below the 13 bits that FP8's fast accumulation is sure to keep."""
    limit = 1 if columns > 4096 else 2
    return torch.randint(
        -limit,
        limit + 1,
        (rows, columns),
        generator=generator,
        device=generator.device,
        dtype=torch.float32,
    )


def _powers(count: int, generator: torch.Generator) -> torch.Tensor:
    exponent = torch.randint(
        -1, 2, (count,), generator=generator, device=generator.device
    )
    return torch.exp2(exponent.float())
