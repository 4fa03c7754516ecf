#!/usr/bin/env python3
"""What omitting the shared loop saves, counted in the PTX simulator; no GPU needed.

    python benchmarks/loop_omission_counts.py [--out benchmarks/results]

Runs FP8 rowwise kernels of both archs, dense and grouped along M, in their three forms
on 1, 4 and 16 tiles per CTA, checks that the numbers are exact and that all forms agree
bit for bit, and writes counts per role to ``loop_omission.jsonl``, a table to
``loop_omission.md`` and a plot to ``loop_omission.svg``. Grouped ones run without a
tile too, all groups empty; a dense grid is no larger than its tiles.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from torch_cute_backend.arch import SM90, SM100, ArchSpec
from torch_cute_backend.bench.cases import problem_of
from torch_cute_backend.bench.svg import Bar, bars
from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.cli.simulate_cmd import role_of_warp
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.sim import gemm_case, grouped_case
from torch_cute_backend.sim.child import SimChild
from torch_cute_backend.sim.report import SimReport

FORMS = ("inline", "keep", "auto")
NAMES = {"inline": "inline", "keep": "kept", "auto": "omitted"}
TILES = {"dense": (1, 4, 16), "grouped": (0, 1, 4, 16)}
CTAS = 2
TILE, K, GROUPS = 64, 1024, 4
SCHEDULES: dict[ArchSpec, GemmSchedule] = {
    SM90: GemmSchedule(TILE, TILE, 256, 6, epi_n=64),
    SM100: GemmSchedule(TILE, TILE, 128, 12, acc_stages=2, epi_n=64),
}


@dataclass(frozen=True)
class Count:
    """One role's counts in one form."""

    kernel: str
    arch: str
    tiles_per_cta: int
    form: str
    role: str
    instructions: int
    barriers: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    with SimChild() as child:
        counts = [c for arch in SCHEDULES for c in measure(child, arch)]
    lines = "".join(json.dumps(vars(c)) + "\n" for c in counts)
    (args.out / "loop_omission.jsonl").write_text(lines)
    (args.out / "loop_omission.md").write_text(table(counts))
    (args.out / "loop_omission.svg").write_text(plot(counts))
    return 0


def measure(child: SimChild, arch: ArchSpec) -> Iterator[Count]:
    """Every tile count and form of one arch."""
    for kernel, tiles in [(k, t) for k, counts in TILES.items() for t in counts]:
        outputs = []
        for form in FORMS:
            built, operands = launch(kernel, arch, form, tiles)
            report = child.simulate(
                built.source,
                operands.tensors,
                num_ctas=CTAS,
                roles=role_of_warp(built),
            )
            if not (operands.exact() and clean(report, operands)):
                raise UserError(
                    f"{kernel} {arch.name} {form}, {tiles} tiles: {report.summary()}"
                )
            outputs.append(next(iter(operands.outputs.values())).view(torch.uint8))
            for role in built.after.roles:
                found = report.counts[role.name]
                yield Count(
                    kernel,
                    arch.name,
                    tiles,
                    NAMES[form],
                    role.name,
                    found["instructions"],
                    found.get("bar.sync", 0),
                )
        if not all(torch.equal(outputs[0], o) for o in outputs[1:]):
            raise UserError(f"{kernel} {arch.name}, {tiles} tiles: the forms disagree")


def launch(
    kernel: str, arch: ArchSpec, form: str, tiles: int
) -> tuple[KernelBuild, gemm_case.Operands]:
    """A kernel and operands that give each of ``CTAS`` CTAs this many tiles."""
    rows = TILE * CTAS * tiles
    if kernel == "dense":
        built = build(arch, form, problem_of("fp8", (TILE, rows, K)))
        return built, gemm_case.make(built, TILE, rows, K)
    problem = problem_of(f"fp8-grouped-m-g{GROUPS}", (max(rows, TILE), TILE, K))
    built = build(arch, form, problem, scheduler="grouped_static")
    each = max(rows // GROUPS, TILE)
    ends = [min(each * (group + 1), rows) for group in range(GROUPS)]
    return built, grouped_case.make(built, problem, ends)


def clean(report: SimReport, operands: gemm_case.Operands) -> bool:
    """No finding but that rows of no group were not written."""
    missing = getattr(operands, "untouched", 0)
    found = [(f.kind, f.message.split()[0]) for f in report.findings]
    return found == ([("missing_write", str(missing))] if missing else [])


def build(
    arch: ArchSpec, form: str, problem: GemmProblem, **fields: str
) -> KernelBuild:
    schedule = replace(SCHEDULES[arch], shared_loop=form, **fields)
    built = build_kernel(problem, schedule, arch)
    if not isinstance(built, KernelBuild):
        raise UserError(f"{arch.name} {form}: {built}")
    return built


def table(counts: list[Count]) -> str:
    """Markdown: instructions and CTA-or-named barriers by role, all warps together."""
    head = (
        "# What omitting the shared loop saves\n\n"
        f"FP8 rowwise, tiles of {TILE}x{TILE}, K = {K}, {CTAS} CTAs, in the PTX "
        "simulator: executed PTX instructions over all warps of a role, and `bar.sync` "
        f"in brackets. Grouped: along M, {GROUPS} groups. Not machine instructions, "
        "and not time. All forms agree bit for bit.\n\n"
        "| kernel | arch | tiles per CTA | role | inline | kept | omitted |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    rows = []
    for key in dict.fromkeys(
        (c.kernel, c.arch, c.tiles_per_cta, c.role) for c in counts
    ):
        cells = {
            c.form: f"{c.instructions} ({c.barriers})"
            for c in counts
            if (c.kernel, c.arch, c.tiles_per_cta, c.role) == key
        }
        names = " | ".join(str(x) for x in key)
        rows.append(
            f"| {names} | " + " | ".join(cells[f] for f in NAMES.values()) + " |"
        )
    return head + "\n".join(rows) + "\n\n![barriers](loop_omission.svg)\n"


def plot(counts: list[Count]) -> str:
    """Barrier instructions a CTA, over all roles."""
    groups = []
    keys = dict.fromkeys((c.kernel, c.arch, c.tiles_per_cta) for c in counts)
    for kernel, arch, tiles in keys:
        values = tuple(
            sum(
                c.barriers
                for c in counts
                if (c.kernel, c.arch, c.tiles_per_cta) == (kernel, arch, tiles)
                and c.form == form
            )
            / CTAS
            for form in NAMES.values()
        )
        groups.append(Bar(f"{kernel} {arch}, {tiles} tile(s) per CTA", values))
    title = "bar.sync executed per CTA (all warps), by form"
    return bars(title, groups, tuple(NAMES.values()), "")


if __name__ == "__main__":
    sys.exit(main())
