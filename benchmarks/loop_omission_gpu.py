#!/usr/bin/env python3
"""What omitting the shared loop saves in time, on a GPU.

    python benchmarks/loop_omission_gpu.py --out benchmarks/results
    python benchmarks/loop_omission_gpu.py --compile                  (no GPU needed)
    python benchmarks/loop_omission_gpu.py --pack kernels.tar.xz      (no GPU needed)
    python benchmarks/loop_omission_gpu.py --kernels kernels.tar.xz --out results

Times the forms of a kernel (inline, kept, omitted) side by side, with weights in L2 and
not: at 1, 4 and 16 tiles per CTA, on pretuned FP8 shapes with the schedules that the
tables hold, and on grouped GEMMs with both schedulers. Each kernel's numbers are
checked first, and all forms must agree bit for bit. Each case runs in a child process
with a time limit. Rows are appended to ``loop_omission_gpu.jsonl``; a table of all rows
there goes to ``loop_omission_gpu.md`` after each case. A case whose rows of this commit
are there is not measured again: a run that was cut short goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from measure_all import unpack
from precompile import pack

from torch_cute_backend import config
from torch_cute_backend.arch import ArchSpec, arch_spec
from torch_cute_backend.bench import check, manifest, protocol, results
from torch_cute_backend.bench.cases import (
    HEADLINE,
    Inputs,
    Shape,
    bytes_per_set,
    make_inputs,
    problem_of,
)
from torch_cute_backend.build import KernelBuild, build_kernel
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.runtime import device, launch
from torch_cute_backend.runtime.cache import KernelCache
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import lookup

FILE = "loop_omission_gpu"
TIMEOUT_S = 150
ROUNDS = 40
TILES = (1, 4, 16)
PROTOCOLS = ("warm", "cold")
FORMS: dict[str, dict[str, str]] = {
    "inline": {"shared_loop": "inline"},
    "kept": {"shared_loop": "keep"},
    "omitted": {"shared_loop": "auto"},
}
RANK3_FORMS: dict[str, dict[str, str]] = {
    "inline": {"shared_loop": "inline"},
    "kept": {"shared_loop": "auto"},
    "omitted": {"shared_loop": "auto", "dead_loads": "drop"},
}
"""The check keeps the loop of rank-3 kernels until their dead loads are dropped."""


@dataclass(frozen=True)
class Case:
    """One GEMM and the schedule that is printed in all forms.

    ``columns`` of tiles across the output are this many for each SM, if not 0.
    """

    name: str
    kind: str
    shape: Shape
    schedule: GemmSchedule | None = None
    tiles_per_cta: int = 0

    def sized(self, sms: int) -> GemmProblem:
        m, n, k = self.shape
        if self.tiles_per_cta and self.schedule is not None:
            n = self.schedule.tile_n * self.tiles_per_cta * sms
        return problem_of(self.kind, (m, n, k))


_SMALL = GemmSchedule(64, 64, 128, 8, epi_n=64)
_LARGE = GemmSchedule(128, 128, 128, 6, epi_n=64, epi_stages=2, math_warpgroups=2)
_RANK3 = GemmSchedule(128, 128, 64, 5, epi_n=64, epi_stages=2, math_warpgroups=2)
_RANK3 = replace(_RANK3, scheduler="rank3_rhs")


def cases() -> dict[str, Case]:
    found: list[Case] = []
    for label, schedule in (("64x64", _SMALL), ("128x128", _LARGE)):
        for k in (256, 1024):
            for tiles in TILES:
                shape = (schedule.tile_m, 0, k)
                name = f"{label}_k{k}_{tiles}"
                found.append(Case(name, "fp8", shape, schedule, tiles))
    for m, n, k in HEADLINE:
        found.append(Case(f"pretuned_{m}x{n}x{k}", "fp8", (m, n, k)))
    for groups, m, n, k in ((8, 1024, 4096, 4096), (32, 64, 4096, 2048)):
        for dtype in ("bf16", "fp8"):
            kind, shape = f"{dtype}-grouped-m-g{groups}", (groups * m, n, k)
            found.append(Case(f"{dtype}_static_g{groups}", kind, shape))
        kind = f"bf16-grouped-m-g{groups}"
        found.append(Case(f"bf16_rank3_g{groups}", kind, (groups * m, n, k), _RANK3))
    return {case.name: case for case in found}


def builds(case: Case, arch: ArchSpec) -> dict[str, KernelBuild]:
    """The kernel in each form.

    Raises:
        UserError: a form cannot be built, or is not what its name says.
    """
    problem = case.sized(arch.default_sms)
    schedule = case.schedule
    if schedule is None:
        choice = lookup.choose(problem, arch)
        if not isinstance(choice, lookup.ScheduleChoice):
            raise UserError(f"{case.name}: {choice}")
        # Pingpong has no inline form: its warpgroups take tiles in turn by design.
        schedule = replace(choice.schedule, math="cooperative")
    rank3 = schedule.scheduler == "rank3_rhs"
    found = {}
    for form, changes in (RANK3_FORMS if rank3 else FORMS).items():
        changed = replace(schedule, **changes)  # type: ignore[arg-type]
        built = build_kernel(problem, changed, arch)
        if not isinstance(built, KernelBuild):
            raise UserError(f"{case.name} {form}: {built}")
        if (built.omission.decision == "omitted") != (form == "omitted"):
            raise UserError(f"{case.name} {form}: {built.omission.decision}")
        found[form] = built
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--kernels", type=Path, help="archive that --pack wrote")
    parser.add_argument("--pack", type=Path, help="compile, write an archive, end")
    parser.add_argument("--compile", action="store_true", help="fill the cache, end")
    parser.add_argument("--arch", default="sm_90a", help="of --pack and --compile")
    parser.add_argument("--only", nargs="*", default=[], help="parts of case names")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        measure(cases()[args.case])
        return 0
    chosen = [
        case
        for case in cases().values()
        if not args.only or any(part in case.name for part in args.only)
    ]
    if args.pack is not None or args.compile:
        return compile_all(chosen, arch_spec(args.arch), args.pack)
    path = args.out / f"{FILE}.jsonl"
    known = finished(results.read(path), results.commit())
    todo = [case for case in chosen if case.name not in known]
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        environ = []
        if args.kernels is not None:
            unpack(args.kernels, Path(folder))
            environ = [f"{config.PREFIX}CACHE_DIR={folder}"]
        failed = 0
        for case in todo:
            failed += not run_child(case, environ, args.out)
            text = table(results.read(path))
            (args.out / f"{FILE}.md").write_text(text, encoding="utf-8")
    done = len(chosen) - len(todo)
    print(f"{len(todo)} cases, {failed} failed, {done} known; rows are in {args.out}")
    return 1 if failed else 0


def finished(rows: Sequence[dict[str, Any]], commit: str) -> set[str]:
    """Cases that have a row of ``commit`` for each form and protocol."""
    found: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        if row["commit"] == commit:
            found.setdefault(row["case"], set()).add((row["form"], row["protocol"]))
    every = len(FORMS) * len(PROTOCOLS)
    return {case for case, seen in found.items() if len(seen) == every}


def compile_all(chosen: Sequence[Case], arch: ArchSpec, target: Path | None) -> int:
    """Every form of every case into an archive for ``--kernels``, or into the kernel
    cache: side by side, where a case by itself would wait for three."""
    sources = {
        built.source.sha256: built.source
        for case in chosen
        for built in builds(case, arch).values()
    }
    if target is None:
        launch.load_kernels(list(sources.values()))
        print(f"{len(sources)} kernels")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o700)
        config.update(cache_dir=Path(folder))
        launch.load_kernels(list(sources.values()))
        manifest.write(Path(folder), [])
        pack(KernelCache(Path(folder)), target)
    print(f"{len(sources)} kernels in {target}")
    return 0


def run_child(case: Case, environ: Sequence[str], out: Path) -> bool:
    """Measure a case in a process of its own and append its rows."""
    command = ["env", *environ, sys.executable, __file__, "--case", case.name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        print(json.dumps({"case": case.name, "error": f"over {TIMEOUT_S} s"}))
        return False
    rows = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
    if done.returncode or not rows:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        print(json.dumps({"case": case.name, "error": last}), flush=True)
        return False
    results.append(out / f"{FILE}.jsonl", rows)
    print(summary(rows), flush=True)
    return True


def measure(case: Case) -> None:
    """In the child: check, time and print one row a form and protocol."""
    arch = device.default_arch()
    if arch is None:
        raise UserError("no supported GPU")
    place = torch.device("cuda")
    index = torch.cuda.current_device()
    problem = case.sized(device.sm_count(index))
    kernels = builds(case, arch)
    functions = launch.load_kernels([b.source for b in kernels.values()])
    (cluster,) = {b.schedule.cluster_size for b in kernels.values()}
    ctas = device.resident_ctas(index, cluster)
    environment = results.environment()
    for name in PROTOCOLS:
        count = protocol.input_sets(bytes_per_set(problem), place, name == "cold")
        sets = make_inputs(problem, count)
        calls = {
            form: [_call(function, x, ctas) for x in sets]
            for form, function in zip(kernels, functions, strict=True)
        }
        _check(problem, sets[0], {form: c[0] for form, c in calls.items()})
        timings = protocol.interleaved(calls, ROUNDS)
        for form, timing in timings.items():
            built = kernels[form]
            row = results.row(
                environment,
                "loop-omission",
                {"m": problem.m, "n": problem.n, "k": problem.k},
                problem.a_dtype.name,
                problem.scaling,
                problem.accum.value,
                results.OURS,
                timing,
                name,
                case=case.name,
                form=form,
                groups=problem.groups,
                scheduler=built.schedule.scheduler,
                tiles_per_cta=case.tiles_per_cta,
                schedule=built.schedule.to_json(),
                kernel=built.source.name,
            )
            print(json.dumps(row), flush=True)


def _call(function: Callable[..., Any], x: Inputs, ctas: int) -> Callable[[], object]:
    return lambda: function(x.a, x.b, x.out, *x.scales, *x.tail, ctas)


def _check(
    problem: GemmProblem, x: Inputs, calls: dict[str, Callable[[], object]]
) -> None:
    """Numbers within their bound, and all forms equal bit for bit."""
    want = check.reference(problem, x)
    outputs = []
    for form, call in calls.items():
        check.check(problem, x, call, want, form)
        outputs.append(x.out.view(torch.int16).clone())
    if not all(torch.equal(outputs[0], o) for o in outputs[1:]):
        raise UserError("the forms do not agree bit for bit")


def summary(rows: Sequence[dict[str, Any]]) -> str:
    parts = [f"{r['protocol']} {r['form']} {r['us']:.2f}" for r in rows]
    return f"{rows[0]['case']}: {', '.join(parts)}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: µs of each form, and what omission saves over keeping."""
    head = (
        "# What omitting the shared loop saves in time\n\n"
        "Median µs a launch, by form of the same kernel; forms take turns in one "
        "process. All forms agree bit for bit. The last column is kept less omitted.\n"
        "\n| GPU | case | M, N, K | L2 | inline | kept | omitted | saved |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    lines: dict[tuple[Any, ...], dict[str, float]] = {}
    for r in rows:
        size = ", ".join(str(r["shape"][x]) for x in "mnk")
        key = (r["gpu"], r["case"], size, r["protocol"])
        lines.setdefault(key, {})[r["form"]] = r["us"]
    text = []
    for key, times in lines.items():
        if len(times) < len(FORMS):
            continue
        cells = [f"{times[form]:.2f}" for form in FORMS]
        saved = times["kept"] - times["omitted"]
        percent = 100 * saved / times["kept"]
        cells.append(f"{saved:+.2f} ({percent:+.1f} %)")
        text.append(f"| {' | '.join([*key, *cells])} |")
    return head + "\n".join(text) + "\n"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"loop_omission_gpu: error: {error}", file=sys.stderr)
        sys.exit(2)
