"""``demo``: an FP8 MLP block through ``torch.compile``, checked and timed.

Without a GPU the same happens on a simulated one, see :mod:`demo_sim`.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from torch_cute_backend import config, enable
from torch_cute_backend.arch import ARCHS, ArchSpec
from torch_cute_backend.build import KernelBuild
from torch_cute_backend.cli import demo_sim
from torch_cute_backend.cli.demo_gemms import kernels_of, loaded_gemms, refusals
from torch_cute_backend.cli.explain_cmd import omission_lines
from torch_cute_backend.cli.mlp import HIDDEN, INTERMEDIATE, Fp8Mlp
from torch_cute_backend.cli.problem import plan_problem
from torch_cute_backend.runtime import device, launch, validated

_TIMED_CALLS = 50
_QUEUE_CYCLES = 20_000_000
"""GPU cycles to spin while the host enqueues the timed calls (about 10 ms)."""


def run(args: argparse.Namespace) -> int:
    arch = device.default_arch()
    if arch is not None:
        config.update(decide_early=not args.compete)
        return _on_gpu(args.m, args.mode, arch)
    if torch.cuda.is_available():
        name, needed = torch.cuda.get_device_name(), ", ".join(ARCHS)
        print(f"{name} is not one of {needed}.")
    else:
        print("No GPU here.")
    return demo_sim.run(args.m)


def _kernel_class(built: KernelBuild) -> validated.KernelClass:
    return validated.KernelClass.of(built.problem, built.schedule, built.arch)


def _on_gpu(m: int, mode: str, arch: ArchSpec) -> int:
    config.update(count_launches=True)
    enable()
    place = torch.device("cuda", torch.cuda.current_device())
    print(
        f"{torch.cuda.get_device_name(place)} ({arch.name}), torch {torch.__version__}"
    )
    block = Fp8Mlp(place)
    generator = torch.Generator(place).manual_seed(1)
    x = torch.randn(m, HIDDEN, device=place, dtype=torch.bfloat16, generator=generator)
    print(f"FP8 MLP block, {m} tokens, {HIDDEN} -> {INTERMEDIATE} -> {HIDDEN}")
    with torch.no_grad(), loaded_gemms() as gemms:
        compiled = torch.compile(block, mode=mode)
        start = time.monotonic()
        first = [tensor.clone() for tensor in compiled(x)]
        torch.cuda.synchronize()
        print(
            f"torch.compile(mode={mode!r}): first call {time.monotonic() - start:.1f} s"
        )
        right = _report_error(block, compiled, x, first)
        ours = _report_kernels(gemms)
        _report_times(block, compiled, x)
    return 0 if right and ours else 1


def _report_error(
    block: Fp8Mlp, compiled: Any, x: torch.Tensor, first: list[torch.Tensor]
) -> bool:
    """Three calls must be right: with CUDA graphs the second one captures and the
    third one replays. Launches are counted from the second on, without Inductor's own
    timing of the choices."""
    launch.reset_launches()
    calls = {"first": first}
    for name in ("second", "third"):
        calls[name] = [tensor.clone() for tensor in compiled(x)]
    right = True
    print("\nagainst fp32, on each GEMM's own inputs:")
    for call, outputs in calls.items():
        for layer, result in block.check(x, *outputs).items():
            print(f"  {call:6} call, {layer:4} projection {result}")
            right = right and result.right
    return right


def _report_kernels(gemms: list[Any]) -> bool:
    """Which kernels of ours were loaded for which GEMM, and how often they ran."""
    counts = launch.launches()
    for built in kernels_of(gemms):
        _report_kernel(built, counts.get(built.source.name, 0))
    for line in refusals():
        print(f"\n{line}")
    total = sum(counts.values())
    if not total:
        print("\nno kernel of ours ran: Inductor chose ATen or Triton everywhere")
    return total > 0


def _report_kernel(built: KernelBuild, count: int) -> None:
    planned = plan_problem(built.problem, built.arch)
    early = planned.source == "pretuned-exact" and config.get().decide_early
    why = "taken from the pretuned table" if early else "fastest of Inductor's choices"
    print(f"\nran:          {built.problem.describe()}")
    fused = len(built.problem.epilogue.nodes)
    print(f"kernel:       {built.source.name}, {why}")
    print(f"launched:     {count} times in two calls (a captured graph counts once)")
    print(
        f"epilogue:     {fused} nodes, {len(built.problem.epilogue.outputs)} output(s)"
    )
    print(f"schedule:     {built.schedule.describe()} (first choice: {planned.source})")
    print("\n".join(omission_lines(built.omission)))
    entry = launch.load(built.source).entry
    print(f"resources:    {entry.resources.describe()}")
    print(f"hardware:     {validated.describe(_kernel_class(built))}")


def _report_times(block: Fp8Mlp, compiled: Any, x: torch.Tensor) -> None:
    print(f"\ntimes, median of {_TIMED_CALLS} calls:")
    for name, call in (("eager ATen", block), ("torch.compile", compiled)):
        us = _median_us(functools.partial(call, x))
        print(f"  block, {name:14}{us:9.1f} us")


def _median_us(call: Callable[[], object]) -> float:
    """GPU time of a call with its host time hidden behind a queue of earlier calls."""
    cuda: Any = torch.cuda
    for _ in range(3):
        call()
    events = [
        (cuda.Event(enable_timing=True), cuda.Event(enable_timing=True))
        for _ in range(_TIMED_CALLS)
    ]
    cuda._sleep(_QUEUE_CYCLES)
    for begin, end in events:
        begin.record()
        call()
        end.record()
    cuda.synchronize()
    return 1000 * float(statistics.median(b.elapsed_time(e) for b, e in events))
