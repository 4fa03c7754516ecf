"""``simulate``: run the kernel that would be launched in the PTX simulator; check it.

Operands are small integers and scales powers of two, so every sum is exact: the result
must equal the fp32 reference, whatever the order of accumulation. The exit code is 0
only if it does, nothing was found, and every element was written exactly once.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from torch_cute_backend.build import KernelBuild
from torch_cute_backend.cli.problem import plan, require_build
from torch_cute_backend.errors import UserError
from torch_cute_backend.sim.child import SimChild
from torch_cute_backend.sim.kernels import role_of_warp

COLUMNS = ("instructions", "bar.sync", "shfl", "try_wait", "arrive", "tma", "mma")
"""Counts shown in the text report; ``--json`` has all of them."""


def run(args: argparse.Namespace) -> int:
    if not re.fullmatch(r"eager|lazy|random:\d+", args.mode):
        raise UserError(f"--mode {args.mode!r} is not eager, lazy or random:SEED")
    planned = plan(args)
    build = require_build(planned)
    result = simulate(build, args.mode, args.sms, args.trace)
    if args.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        print(to_text(build, result))
    good = result["exact"] and not result["findings"] and result["tiles_written_once"]
    return 0 if good else 1


def simulate(
    build: KernelBuild, mode: str, sms: int | None, trace: str | None
) -> dict[str, Any]:
    """Simulate ``build`` at its problem's sizes, in a child process.

    Raises:
        SimError: the simulator cannot run the kernel; the message says why.
    """
    from torch_cute_backend.sim import gemm_case

    problem = build.problem
    num_ctas = sms or build.arch.default_sms
    operands = gemm_case.make(build, problem.m, problem.n, problem.k, num_ctas=num_ctas)
    if sys.stderr.isatty():
        print(f"simulating {build.source.name} ...", file=sys.stderr)
    with SimChild() as child:
        report = child.simulate(
            build.source,
            operands.tensors,
            num_ctas=num_ctas,
            mode=mode,
            trace=trace,
            roles=role_of_warp(build),
        )
    absolute, relative = operands.largest_error()
    return {
        "kernel": build.source.name,
        "shared_loop": build.omission.decision,
        "mode": mode,
        "max_abs_err": absolute,
        "max_rel_err": relative,
        "exact": operands.exact(),
        "findings": [str(f) for f in report.findings],
        "notes": [str(f) for f in report.notes],
        "tiles_written_once": report.tiles_written_once,
        "counts": {role: dict(counts) for role, counts in report.counts.items()},
        "grid": list(report.grid),
        "seconds": round(report.seconds, 3),
    }


def to_text(build: KernelBuild, result: Mapping[str, Any]) -> str:
    """What ``--json`` holds, for people."""
    once = "yes" if result["tiles_written_once"] else "NO"
    lines = [
        f"problem:      {build.problem.describe()}",
        f"kernel:       {result['kernel']} ({build.arch.name})",
        f"shared loop:  {result['shared_loop']}",
        f"ran:          grid {tuple(result['grid'])}, {result['mode']}, "
        f"{result['seconds']:.2f} s",
        f"numbers:      {'exact' if result['exact'] else 'WRONG'}, largest error "
        f"{result['max_abs_err']:.3g} ({result['max_rel_err']:.3g} of the largest one)",
        f"written once: {once}",
        f"findings:     {len(result['findings']) or 'none'}",
        *(f"  {finding}" for finding in result["findings"]),
        *(f"  note: {note}" for note in result["notes"]),
        "",
        f"{'role':<10}" + "".join(f"{name:>14}" for name in COLUMNS),
    ]
    for role, counts in result["counts"].items():
        cells = "".join(f"{counts.get(name, 0):>14}" for name in COLUMNS)
        lines.append(f"{role:<10}{cells}")
    return "\n".join(lines)
