"""Compile the kernels of benchmark suites ahead of time; no GPU needed.

    python benchmarks/precompile.py --suites fp8-rowwise-decode,bf16 --top 8 \
        --cache kernels --pack kernels.tar.xz

Fills a kernel cache that a machine with a GPU loads without compiling, also under
another Python version. Kernels are generic in their sizes, so many shapes share one.
``--pack`` also writes the cache as one archive, for ``--kernels`` of ``measure_all.py``
and ``try_variants.py``. What is most promising for its shape is compiled first, so a
``--budget`` leaves out the rest.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, as_completed
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from torch_cute_backend.arch import ArchSpec, arch_spec
from torch_cute_backend.bench import manifest
from torch_cute_backend.bench.cases import LISTED, Case, parse_shapes, suite
from torch_cute_backend.bench.manifest import Kind, Listed, Slot
from torch_cute_backend.build import build_kernel
from torch_cute_backend.codegen.source import KernelSource
from torch_cute_backend.errors import CuteBackendError, UserError
from torch_cute_backend.problem import Accum
from torch_cute_backend.runtime.cache import CacheEntry, KernelCache, cache_key
from torch_cute_backend.runtime.pool import CompilePool
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status
from torch_cute_backend.tuning import heuristics, search

DEFAULT_SUITES = ",".join(LISTED)


def main() -> int:
    args = _arguments()
    arch = arch_spec(args.arch)
    cache = KernelCache(args.cache)
    slots = dict(_sources(args, arch))
    sources = {cache_key(source): source for source in slots.values()}
    missing = {k: s for k, s in sources.items() if cache.load(k) is None}
    print(f"{len(sources)} kernels, {len(missing)} to compile", flush=True)
    failed = compile_missing(missing, cache, args.workers, args.budget)
    if args.prune:
        _prune(cache, set(sources))
    listed = {e.key: Listed(e.key, e.name, e.gate.reasons) for e in cache.entries()}
    keys = ((slot, cache_key(source)) for slot, source in slots.items())
    manifest.write(
        args.cache, [(slot, listed[key]) for slot, key in keys if key in listed]
    )
    size = sum(e.size_bytes for e in cache.entries())
    print(f"{args.cache}: {size / 2**20:.1f} MiB, {failed} kernels failed")
    if args.pack is not None:
        pack(cache, args.pack)
        print(f"{args.pack}: {args.pack.stat().st_size / 2**20:.1f} MiB")
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--suites", default=DEFAULT_SUITES, help="A,B:N,...: of B only N candidates"
    )
    parser.add_argument("--lists", help="also these lists of try_variants.py, A,B,...")
    parser.add_argument("--shapes", help="MxNxK,... instead of the suites' own")
    parser.add_argument("--top", type=int, default=8, help="candidates of a shape")
    parser.add_argument("--exact-top", type=int, default=2, help="with exact FP8 sums")
    parser.add_argument(
        "--heuristics", type=int, default=0, help="also so many of NVIDIA's package"
    )
    parser.add_argument(
        "--pdl", action="store_true", help="also the first candidate as a dependent"
    )
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--pack", type=Path, help="also write this .tar.xz")
    parser.add_argument("--prune", action="store_true", help="delete other entries")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--budget", type=float, help="seconds to compile for")
    return parser.parse_args()


def _cases(args: argparse.Namespace) -> Iterator[tuple[Case, int]]:
    """Each case, and how many candidates of it at most."""
    shapes = parse_shapes(args.shapes) if args.shapes else None
    for entry in args.suites.split(","):
        name, _, limit = entry.partition(":")
        for case in suite(name).cases(shapes):
            yield case, int(limit) if limit else args.top


Wanted = tuple[Case, Accum, GemmSchedule]


def _sources(
    args: argparse.Namespace, arch: ArchSpec
) -> Iterator[tuple[Slot, KernelSource]]:
    """Every kernel that the suites and lists may want, the most promising first."""
    seen: set[Slot] = set()
    for case, accum, schedule in _wanted(args, arch):
        problem = case.problem(accum)
        slot = (arch.name, Kind.of(problem), schedule)
        if slot in seen:
            continue
        seen.add(slot)
        built = build_kernel(problem, schedule, arch)
        if isinstance(built, Status):
            print(f"{case.describe()} {schedule.describe()}: {built}")
            continue
        yield slot, built.source


def _wanted(args: argparse.Namespace, arch: ArchSpec) -> Iterator[Wanted]:
    """First every shape's first candidate, then the lists, then second ones, ..."""
    ranked = [
        [(case, accum, s) for s in _schedules(args, arch, case, accum, top)]
        for case, top in _cases(args)
        for accum in (Accum if case.is_fp8 else [Accum.FAST])
    ]
    for rank, row in enumerate(zip_longest(*ranked)):
        yield from (wanted for wanted in row if wanted is not None)
        if rank == 0 and args.lists:
            yield from _listed(args.lists)


def _listed(names: str) -> Iterator[Wanted]:
    from try_variants import read_lines

    for name in names.split(","):
        for line in read_lines(Path(name)):
            for schedule in line.variants.values():
                yield line.case, line.accum, schedule


def _schedules(
    args: argparse.Namespace, arch: ArchSpec, case: Case, accum: Accum, top: int
) -> list[GemmSchedule]:
    """A shape's candidates, best first."""
    limit = top if accum is Accum.FAST else min(top, args.exact_top)
    others: list[GemmSchedule] = []
    if args.heuristics:
        problem = case.problem(accum)
        others = heuristics.candidates(problem, arch, args.heuristics)
    listed = search.candidates(case, accum, arch, limit)
    # ``bench --pdl`` times what the look-up takes, launched as a dependent.
    dependent = [replace(s, launch="dependent") for s in listed[:1] if args.pdl]
    return list(dict.fromkeys([*listed, *others, *dependent]))


def compile_missing(
    missing: dict[str, KernelSource],
    cache: KernelCache,
    workers: int,
    budget: float | None,
) -> int:
    """Compile all into ``cache``; returns how many failed."""
    started = time.monotonic()
    pool = CompilePool(workers=workers, cache=cache)
    jobs: dict[Future[CacheEntry], str] = {
        pool.submit(source, gate=False): source.name for source in missing.values()
    }
    failed = 0
    try:
        for i, job in enumerate(as_completed(jobs, timeout=budget), 1):
            error = job.exception()
            if isinstance(error, CuteBackendError):
                failed += 1
                print(f"FAILED {str(error).splitlines()[0]}", flush=True)
                continue
            entry = job.result()
            note = "" if entry.gate else f"  {entry.gate}"
            elapsed = time.monotonic() - started
            print(
                f"[{i}/{len(jobs)} {elapsed:.0f} s] {entry.name}: "
                f"{entry.resources.registers} registers{note}",
                flush=True,
            )
    except TimeoutError:
        left = sum(not job.done() for job in jobs)
        print(f"out of time; {left} kernels left for the next run")
    finally:
        pool.close()
    return failed


def _prune(cache: KernelCache, wanted: set[str]) -> None:
    for entry in list(cache.entries()):
        if entry.key not in wanted:
            shutil.rmtree(entry.folder)


def pack(cache: KernelCache, target: Path) -> None:
    """The cache's entries as one archive, written whole or not at all.

    Raises:
        UserError: another process pruned the cache meanwhile.
    """
    draft = target.with_suffix(f".{os.getpid()}.tmp")
    try:
        with tarfile.open(draft, "w:xz") as archive:
            for entry in cache.entries():
                archive.add(entry.folder, f"entries/{entry.key}")
            archive.add(cache.root / manifest.FILE, manifest.FILE)
        draft.replace(target)
    except FileNotFoundError as error:
        raise UserError(f"{cache.root} changed while it was packed: {error}") from error
    finally:
        draft.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except UserError as error:
        print(f"precompile: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
