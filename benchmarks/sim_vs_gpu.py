"""Are simulator and GPU bit for bit the same? Hopper kernels of ours, on integer data.

    python benchmarks/sim_vs_gpu.py --pack kernels.tar.xz          # no GPU needed
    python benchmarks/sim_vs_gpu.py --simulate                     # no GPU needed
    python benchmarks/sim_vs_gpu.py --gpu --kernels kernels.tar.xz

Every sm_90a kernel of ``test/kernel_cases.py`` runs at several sizes (tails in m, n and
k, more tiles than CTAs, K shorter and longer than the pipeline). Both halves make their
data from the same hash, so what is compared is the digest of each output's bytes,
padding between rows included. ``--simulate`` writes ``results/sim_vs_gpu.sim.jsonl``;
``--gpu`` writes ``results/sim_vs_gpu.gpu.jsonl``, compares, and fails on a difference.

Rows with ``data: fractions`` round in every sum, which a tensor core does in another
order and, for FP8, with fewer bits: there the largest error over the largest value of
the reference is reported, and bits are not compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "test"))

import precompile
from case_runs import HOPPER, Run, require_cached, run_on_gpu, runs, span_of
from kernel_cases import Case
from measure_all import unpack

from torch_cute_backend import config
from torch_cute_backend.bench import manifest, results
from torch_cute_backend.build import KernelBuild
from torch_cute_backend.errors import UserError
from torch_cute_backend.runtime.cache import KernelCache, cache_key
from torch_cute_backend.sim import gemm_case
from torch_cute_backend.sim.child import SimChild

RESULTS = Path(__file__).parent / "results"
SEED = 2026
KEY = ("case", "label", "data", "m", "n", "k", "num_ctas", "seed")
"""What names a row; both halves must have the same ones."""

Runner = Callable[[KernelBuild, gemm_case.Operands, Run], dict[str, Any]]


def main() -> int:
    args = _arguments()
    cases = [c for c in HOPPER if not args.only or any(w in str(c) for w in args.only)]
    if args.pack is not None:
        pack(args.pack)
    if args.simulate:
        with SimChild() as child:
            write(args.sim, cases, simulator(child))
    if args.gpu:
        return on_gpu(args, cases)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pack", type=Path, help="compile all kernels into a .tar.xz")
    parser.add_argument("--simulate", action="store_true", help="the simulator's half")
    parser.add_argument("--gpu", action="store_true", help="the GPU's half; compares")
    parser.add_argument("--kernels", type=Path, help="archive of --pack")
    parser.add_argument("--compile", action="store_true", help="compile what it lacks")
    parser.add_argument("--only", nargs="*", help="parts of case names")
    parser.add_argument("--sim", type=Path, default=RESULTS / "sim_vs_gpu.sim.jsonl")
    parser.add_argument("--out", type=Path, default=RESULTS / "sim_vs_gpu.gpu.jsonl")
    args = parser.parse_args()
    if not (args.pack or args.simulate or args.gpu):
        parser.error("one of --pack, --simulate and --gpu")
    return args


def pack(target: Path) -> None:
    """Compile every kernel and write them as one archive.

    Raises:
        UserError: a kernel does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        cache = KernelCache(Path(folder))
        sources = {cache_key(s): s for s in (case.build().source for case in HOPPER)}
        if precompile.compile_missing(sources, cache, workers=2, budget=None):
            raise UserError("not all kernels compiled")
        manifest.write(cache.root, [])
        precompile.pack(cache, target)
    print(f"{target}: {target.stat().st_size / 2**20:.1f} MiB")


def jobs(build: KernelBuild) -> Iterator[tuple[Run, bool]]:
    """Every run on integers, the first one also on fractions."""
    for run in runs(build):
        yield run, False
    yield runs(build)[0], True


def write(path: Path, cases: list[Case], runner: Runner) -> list[dict[str, Any]]:
    """Run all jobs; a row is written as soon as it is there."""
    rows = []
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for case in cases:
            build = case.build()
            for run, fractions in jobs(build):
                rows.append(row_of(case, build, run, fractions, runner))
                file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
                print(json.dumps(rows[-1]), flush=True)
    return rows


def row_of(
    case: Case, build: KernelBuild, run: Run, fractions: bool, runner: Runner
) -> dict[str, Any]:
    """Run one job; digests of the outputs and their error against fp32."""
    operands = gemm_case.make(
        build, *run.sizes, seed=SEED, fractions=fractions, num_ctas=run.num_ctas
    )
    started = time.monotonic()
    facts = runner(build, operands, run)
    return {
        "case": case.name,
        "kernel": build.source.name,
        "source_sha256": build.source.sha256,
        **vars(run),
        "seed": SEED,
        "data": "fractions" if fractions else "integers",
        "inputs": digest([t for t in operands.tensors if not is_output(t, operands)]),
        "outputs": {name: digest([out]) for name, out in operands.outputs.items()},
        "exact": operands.exact(),
        "worst": operands.worst(),
        **facts,
        "seconds": round(time.monotonic() - started, 3),
    }


def is_output(tensor: torch.Tensor, operands: gemm_case.Operands) -> bool:
    return any(tensor is out for out in operands.outputs.values())


def digest(tensors: list[torch.Tensor]) -> str:
    """Of all bytes from each tensor's first to its last element."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(span_of(tensor).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def simulator(child: SimChild) -> Runner:
    def run_one(
        build: KernelBuild, operands: gemm_case.Operands, run: Run
    ) -> dict[str, Any]:
        report = child.simulate(
            build.source, operands.tensors, num_ctas=run.num_ctas, mode="lazy"
        )
        return {
            "on": "simulator",
            "findings": len(report.findings),
            "tiles_written_once": report.tiles_written_once,
        }

    return run_one


def on_gpu(args: argparse.Namespace, cases: list[Case]) -> int:
    """The GPU's half: 0 if every row agrees with the simulator's."""
    if not torch.cuda.is_available():
        raise UserError("no GPU")
    simulated = read(args.sim)
    where = {"on": torch.cuda.get_device_name(), **vars(results.environment())}

    def run_one(
        build: KernelBuild, operands: gemm_case.Operands, run: Run
    ) -> dict[str, Any]:
        run_on_gpu(build, operands, run.num_ctas)
        return where

    with tempfile.TemporaryDirectory() as folder:
        if args.kernels is not None:
            unpack(args.kernels, Path(folder))
            config.update(cache_dir=Path(folder))
        require_cached([case.build() for case in cases], args.compile)
        measured = write(args.out, cases, run_one)
    wanted = {case.name for case in cases}
    verdict = compare([r for r in simulated if r["case"] in wanted], measured)
    print(json.dumps(verdict, indent=1))
    return 1 if verdict["different"] else 0


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a results file.

    Raises:
        UserError: there is none.
    """
    if not path.exists():
        raise UserError(f"{path} is missing: run --simulate first")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def compare(
    simulated: list[dict[str, Any]], measured: list[dict[str, Any]]
) -> dict[str, Any]:
    """Both halves row by row: how many kernels and rows are bit-identical on integers,
    every difference in words, and the errors of both on fractions.
    """
    left = {tuple(row[k] for k in KEY): row for row in simulated}
    right = {tuple(row[k] for k in KEY): row for row in measured}
    different = [f"{k}: only on one side" for k in sorted(left.keys() ^ right.keys())]
    same: list[dict[str, Any]] = []
    fractions: list[dict[str, Any]] = []
    for key in sorted(left.keys() & right.keys()):
        sim, gpu = left[key], right[key]
        unequal = [
            field
            for field in ("source_sha256", "inputs", "outputs")
            if sim[field] != gpu[field]
        ]
        if sim["data"] == "fractions":
            fractions.append(
                {
                    "case": sim["case"],
                    "identical": not unequal,
                    "simulator": sim["worst"],
                    "gpu": gpu["worst"],
                }
            )
            unequal = [field for field in unequal if field != "outputs"]
        elif not unequal:
            same.append(sim)
        if unequal:
            different.append(f"{key}: {', '.join(unequal)}")
    return {
        "kernels_identical": len({r["source_sha256"] for r in same}),
        "rows_identical": len(same),
        "different": different,
        "fractions": fractions,
    }


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except UserError as error:
        print(f"sim_vs_gpu: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
