#!/usr/bin/env python3
"""What only a GPU can show, in one command: the open questions first, within a budget.

    python benchmarks/gpu_checklist.py --out out --budget 600   # goes on where it ended
    python benchmarks/gpu_checklist.py --list
    python benchmarks/gpu_checklist.py --out out --only grouped bench

Each step is a script of this repository in a process with a time limit; one that hangs
costs its limit, not the rest. What a step wrote lies in ``--out``: its rows
(``*.jsonl``), its ``STEP.log``, and a line of ``checklist.jsonl`` with how it ended.
Steps that passed are not run again, those that ran out of time are; those that do not
fit into what is left of the budget are put off, and said to be. Needs the CuTe DSL or
kernels compiled before (README.md here).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORKERS = {"TORCH_CUTE_BACKEND_COMPILE_WORKERS": str(min(12, os.cpu_count() or 2))}


@dataclass(frozen=True)
class Step:
    """One process.

    Attributes:
        name: also its log's.
        command: arguments behind ``python``; ``{out}`` is the output folder.
        settles: the question it answers.
        seconds: what it is expected to take; it is put off if less is left.
        limit_s: when it is killed.
        environ: more environment variables.
    """

    name: str
    command: str
    settles: str
    seconds: int
    limit_s: int
    environ: dict[str, str] = field(default_factory=dict)


def _grouped(group: str, seconds: int, settles: str) -> Step:
    return Step(
        f"grouped_{group}",
        f"test/gpu/grouped_cases.py {group}",
        settles,
        seconds,
        3 * seconds,
        {"TORCH_CUTE_BACKEND_COUNT_LAUNCHES": "1"},
    )


def _inductor(group: str, environ: dict[str, str]) -> Step:
    """Cases of one group alone: the test beside them would run all of its group."""
    return Step(
        f"inductor_grouped_{group}",
        f"test/gpu/inductor_cases.py {group} grouped_*",
        "grouped GEMMs through torch.compile",
        120,
        420,
        {"TORCH_CUTE_BACKEND_COUNT_LAUNCHES": "1", **environ, **WORKERS},
    )


UNFINISHED = "out of time"
"""What a script says that kept to its budget and left something to the next run."""
STEPS = (
    Step(
        "ptx_vs_gpu",
        "test/gpu/ptx_vs_gpu.py --out {out}/ptx_vs_gpu.jsonl",
        "six float faults of the simulator, fixed since they were found",
        15,
        60,
    ),
    Step(
        "tensor_maps",
        "benchmarks/tensor_maps.py --driver --out {out}/tensor_maps.driver.jsonl",
        "the descriptors of all kernels of now",
        15,
        60,
    ),
    Step(
        "grouped_compile",
        "test/gpu/grouped_cases.py compile",
        "fills the kernel cache for the grouped steps",
        60,
        300,
        WORKERS,
    ),
    _grouped("exact", 60, "kinds, schedules and patterns of groups; died once"),
    _grouped("frames", 20, "what lies around the tensors is kept; died once"),
    _grouped("graphs", 20, "offsets rewritten between replays; died once"),
    _grouped("guard_pages", 20, "no access beyond mapped memory"),
    _grouped("guard_control", 10, "that such an access would be seen"),
    _grouped("forms", 60, "inline, kept, omitted to the bit; pingpong not run since"),
    _grouped("soak_pingpong_kept", 20, "a thousand launches of grouped pingpong"),
    _grouped("random", 30, "random sizes and offsets within a bound"),
    _grouped("bad_offsets", 15, "what the operators do, or an error"),
    Step(
        "dependent_launch",
        "-m pytest -q test/gpu/test_dependent_launch_gpu.py",
        "programmatic dependent launches; one test mended, not run since",
        40,
        120,
    ),
    _inductor("compete", {"TORCHINDUCTOR_AUTOTUNE_CHOICE_NAME_REGEX": "^torch_cute"}),
    _inductor("decide", {}),
    Step(
        "bench_grouped",
        "-m torch_cute_backend bench grouped --out {out}/grouped.jsonl"
        " --providers torch_cute_backend,aten,inductor --budget 280",
        "1.1x of ATen and Triton at DeepGEMM's grouped shapes",
        200,
        300,
    ),
    Step(
        "variants_grouped",
        "benchmarks/try_variants.py --list benchmarks/variants/grouped2.jsonl",
        "grouped pingpong beside the schedules that were chosen",
        120,
        300,
    ),
    Step(
        "loop_omission_compile",
        "benchmarks/loop_omission_gpu.py --compile",
        "fills the kernel cache for the next step",
        60,
        300,
        WORKERS,
    ),
    Step(
        "loop_omission",
        "benchmarks/loop_omission_gpu.py --out {out}",
        "µs of inline, kept and omitted, warm and cold; goes on where it was cut",
        200,
        500,
    ),
    Step(
        "low_tiles",
        "-m torch_cute_backend bench fp8-rowwise-decode --again"
        " --out {out}/decode.jsonl --providers torch_cute_backend,aten,t_read"
        " --budget 220",
        "low tiles since the rows below them are cleared faster",
        150,
        260,
    ),
    Step(
        "variants_widths",
        "benchmarks/try_variants.py --list benchmarks/variants/hopper3.jsonl",
        "widths that fill a round, low tiles for one row, exact pingpong",
        120,
        300,
    ),
    Step(
        "variants",
        "benchmarks/try_variants.py",
        "schedules that were built and simulated, not timed",
        120,
        300,
    ),
    Step(
        "pick_quality",
        "benchmarks/pick_quality.py --out {out}/random.jsonl --compile --budget 280",
        "candidates within 3 % of the best on 90 of 100 random shapes",
        200,
        300,
    ),
    Step(
        "bench_pdl",
        "-m torch_cute_backend bench headline --pdl --out {out}/headline.jsonl",
        "decode shapes with dependent launches between graph nodes",
        60,
        200,
    ),
    Step(
        "pick_time",
        "-m torch_cute_backend bench pick-time --out {out}/pick-time.jsonl"
        " --budget 280",
        "first result in 8 s: lighter compiler processes, one kernel where settled",
        150,
        300,
    ),
    Step(
        "bench_host",
        "-m torch_cute_backend bench host --out {out}/host.jsonl",
        "host time of a launch over a bare one",
        30,
        120,
    ),
    Step(
        "situations",
        "-m pytest -q test/gpu/test_situations_gpu.py",
        "aliases, streams, threads, replays; never seen to finish",
        120,
        400,
    ),
    Step(
        "scaled_mm",
        "-m pytest -q test/gpu/test_scaled_mm_gpu.py",
        "the whole matrix of scaled_mm again",
        150,
        400,
    ),
)


def main(arguments: Sequence[str] | None = None, steps: Sequence[Step] = STEPS) -> int:
    args = _arguments(arguments)
    chosen = [s for s in steps if not args.only or any(w in s.name for w in args.only)]
    if args.list:
        for step in chosen:
            print(f"{step.name:18}{step.seconds:5} s  {step.settles}")
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + args.budget
    failed = []
    for step in chosen:
        if step.name in passed(args.out):
            continue
        left = deadline - time.monotonic()
        if left < step.seconds:
            print(f"{step.name}: put off, {left:.0f} s left", flush=True)
            continue
        outcome, seconds = run(step, args.out, min(step.limit_s, left))
        print(f"{step.name}: {outcome} in {seconds:.0f} s", flush=True)
        record(step, outcome, seconds, args.out)
        if outcome != "passed":
            failed.append(step.name)
    print(json.dumps({"failed": failed, "passed": sorted(passed(args.out))}))
    return 1 if failed else 0


def run(step: Step, out: Path, limit_s: float) -> tuple[str, float]:
    """How a step ended, ``"passed"`` or what was wrong, and its seconds."""
    folder = out.resolve()
    command = [sys.executable, *shlex.split(step.command.format(out=folder))]
    found = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environ = {
        **os.environ,
        **step.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, found)),
        "TORCH_CUTE_BACKEND_GPU_RESULTS": str(folder / "gpu_tests.jsonl"),
        "PYTHONUNBUFFERED": "1",
    }
    start = time.monotonic()
    with (out / f"{step.name}.log").open("w") as log:
        # Its own process group: a test's child that hangs ends with the test.
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environ,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            code = None
    seconds = time.monotonic() - start
    if code is None:
        return f"killed after {limit_s:.0f} s", seconds
    if code:
        return f"exit status {code}", seconds
    said = (out / f"{step.name}.log").read_text(encoding="utf-8", errors="replace")
    return (UNFINISHED if UNFINISHED in said else "passed"), seconds


def record(step: Step, outcome: str, seconds: float, out: Path) -> None:
    row = {**asdict(step), "outcome": outcome, "took_s": round(seconds, 1)}
    with (out / "checklist.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def passed(out: Path) -> set[str]:
    """Names of steps that need not run again."""
    path = out / "checklist.jsonl"
    if not path.exists():
        return set()
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {row["name"] for row in rows if row["outcome"] == "passed"}


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("checklist"))
    parser.add_argument("--budget", type=float, default=600, help="seconds in all")
    parser.add_argument("--only", nargs="*", help="parts of step names")
    parser.add_argument("--list", action="store_true", help="say what would run")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
