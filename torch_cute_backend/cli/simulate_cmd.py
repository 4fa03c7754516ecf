"""``simulate``: run the kernel that would be launched in the PTX simulator; check it.

Operands are small integers and scales powers of two, so every sum is exact: the result
must equal the fp32 reference, whatever the order of accumulation. The exit code is 0
only if it does, nothing was found, and every element was written exactly once; 2 if the
input makes no sense.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_cute_backend.build import KernelBuild
from torch_cute_backend.cli.problem import plan, require_build
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Grouping
from torch_cute_backend.sim.child import SimChild
from torch_cute_backend.sim.kernels import role_of_warp
from torch_cute_backend.sim.parse import parse
from torch_cute_backend.sim.report import BadInput
from torch_cute_backend.sim.simulator import check_target

if TYPE_CHECKING:
    from torch_cute_backend.sim.gemm_case import Operands

COLUMNS = ("instructions", "bar.sync", "shfl", "try_wait", "arrive", "tma", "mma")
"""Counts shown in the text report; ``--json`` has all of them."""
MAX_ELEMENTS = 2**30
"""Of A, B and the output together: more fill the memory and would run for days."""


def run(args: argparse.Namespace) -> int:
    if not re.fullmatch(r"eager|lazy|random:\d+", args.mode):
        raise UserError(f"--mode {args.mode!r} is not eager, lazy or random:SEED")
    planned = plan(args)
    build = require_build(planned)
    ptx = _read_ptx(args.ptx)
    _require_writable(args.trace)
    result = simulate(build, args.mode, args.sms, args.trace, ptx)
    if args.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        print(to_text(build, result))
    good = result["exact"] and not result["findings"] and result["tiles_written_once"]
    return 0 if good else 1


def _read_ptx(path: str | None) -> str | None:
    """PTX text that the simulator knows the target of."""
    if path is None:
        return None
    try:
        text = Path(path).read_text(encoding="utf-8")
        for kernel in parse(text).values():
            check_target(kernel.target)
        return text
    except BadInput as error:
        raise UserError(f"--ptx {path}: {error}") from error
    except OSError as error:
        raise UserError(f"--ptx {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--ptx {path}: not a PTX file (it is not text)") from error


def _require_writable(trace: str | None) -> None:
    """Say so before minutes of simulation, not after."""
    if trace is None:
        return
    try:
        with Path(trace).open("a"):
            pass
    except OSError as error:
        raise UserError(f"--trace {trace}: {error.strerror}") from error


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[int, int], None] | None]:
    """Draws on stderr how many clusters are done; None where nobody watches."""
    if not sys.stderr.isatty():
        yield None
        return

    def draw(done: int, total: int) -> None:
        filled = "#" * (30 * done // total)
        text = f"\rsimulating {name} [{filled:<30}] {done}/{total} clusters"
        print(text, end="", file=sys.stderr, flush=True)

    print(f"simulating {name}: compiling ...", end="", file=sys.stderr, flush=True)
    try:
        yield draw
    finally:
        print(file=sys.stderr)


def simulate(
    build: KernelBuild,
    mode: str,
    sms: int | None,
    trace: str | None,
    ptx: str | None = None,
) -> dict[str, Any]:
    """Simulate ``build`` at its problem's sizes, in a child process.

    ``ptx`` runs in place of what the kernel compiles to.

    Raises:
        BadInput: ``ptx`` is not PTX, for another target, or of another kernel.
        SimError: the simulator cannot run the kernel; the message says why.
    """
    num_ctas = sms or build.arch.default_sms
    operands = _operands(build, num_ctas)
    with SimChild() as child, progress_bar(build.source.name) as bar:
        report = child.simulate(
            build.source,
            operands.tensors,
            num_ctas=num_ctas,
            mode=mode,
            trace=trace,
            roles=role_of_warp(build),
            progress=bar,
            ptx=ptx,
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


def _operands(build: KernelBuild, num_ctas: int) -> Operands:
    """For the problem's own sizes; groups divide a ragged one as evenly as can be."""
    from torch_cute_backend.sim import gemm_case, grouped_case

    p = build.problem
    elements = p.groups * (p.m * p.k + p.n * p.k + p.m * p.n)
    if elements > MAX_ELEMENTS:
        raise UserError(f"{elements} elements are too many to simulate")
    if not p.is_grouped:
        return gemm_case.make(build, p.m, p.n, p.k, num_ctas=num_ctas)
    sizes = {Grouping.M: p.m, Grouping.N: p.n, Grouping.K: p.k}
    total = sizes.get(p.grouping, 0)
    ends = [(g + 1) * total // p.groups for g in range(p.groups)]
    return grouped_case.make(build, p, ends if p.has_offsets else ())


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
