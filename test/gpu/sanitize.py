"""Launch every Hopper kernel of ``kernel_cases`` once, for NVIDIA's compute-sanitizer.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck \
        --report-api-errors no --error-exitcode 9 \
        python test/gpu/sanitize.py --kernels kernels.tar.xz
    compute-sanitizer --tool racecheck ... ; compute-sanitizer --tool synccheck ...

Two CTAs (or clusters) run several tiles each, with tails in m, n and k and more k tiles
than stages, so that every barrier changes phase; the grid stays small because racecheck
is slow. Kernels come compiled, from ``benchmarks/sim_vs_gpu.py --pack``. One JSON line
a kernel: was the result exact, was the padding between rows left alone. No other kernel
runs on the GPU: data and references are made on the CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from case_runs import HOPPER, padding_kept, require_cached, run_on_gpu, runs
from kernel_cases import Case
from measure_all import unpack

from torch_cute_backend import config
from torch_cute_backend.build import KernelBuild
from torch_cute_backend.errors import UserError
from torch_cute_backend.sim import gemm_case

APPROXIMATE = 1e-5
"""Bound, relative to the largest value, where the epilogue has a transcendental."""


def main() -> int:
    args = _arguments()
    cases = [c for c in HOPPER if not args.only or any(w in str(c) for w in args.only)]
    cases = cases[args.first :][: args.count]
    if not torch.cuda.is_available():
        raise UserError("no GPU")
    with tempfile.TemporaryDirectory() as folder:
        if args.kernels is not None:
            unpack(args.kernels, Path(folder))
            config.update(cache_dir=Path(folder))
        builds = [case.build() for case in cases]
        require_cached(builds, args.compile)
        deadline = time.monotonic() + args.budget
        good = 0
        for index, (case, build) in enumerate(zip(cases, builds, strict=True)):
            if time.monotonic() > deadline:
                print(json.dumps({"out_of_time": len(cases) - index}), flush=True)
                break
            good += launch(case, build)
    print(json.dumps({"good": good, "of": len(cases)}), flush=True)
    return 0 if good == len(cases) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=Path, help="archive of sim_vs_gpu.py --pack")
    parser.add_argument("--compile", action="store_true", help="compile what it lacks")
    parser.add_argument("--only", nargs="*", help="parts of case names")
    parser.add_argument("--first", type=int, default=0, help="skip so many kernels")
    parser.add_argument("--count", type=int, help="so many kernels at most")
    parser.add_argument("--budget", type=float, default=500.0, help="seconds in all")
    return parser.parse_args()


def launch(case: Case, build: KernelBuild) -> bool:
    """Run a case and print its line; a hang is the case named last on stderr."""
    run = runs(build)[0]
    operands = gemm_case.make(build, *run.sizes, num_ctas=run.num_ctas)
    started = time.monotonic()
    print(f"{case} {run}", file=sys.stderr, flush=True)
    run_on_gpu(build, operands, run.num_ctas)
    approximate = "erf" in str(case.problem.epilogue)
    worst = operands.worst()
    good = worst < APPROXIMATE if approximate else operands.exact()
    kept = padding_kept(operands)
    row = {
        "kernel": build.source.name,
        "case": case.name,
        **vars(run),
        "exact": operands.exact(),
        "worst": worst,
        "padding_kept": kept,
        "good": good and kept,
        "seconds": round(time.monotonic() - started, 3),
    }
    print(json.dumps(row), flush=True)
    return bool(row["good"])


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except UserError as error:
        print(f"sanitize: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
