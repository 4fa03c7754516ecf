"""Are the look-up's four candidates enough? Judged on random shapes that no table has.

    python benchmarks/pick_quality.py --prepare kernels --pack kernels.tar.xz   # no GPU
    python benchmarks/pick_quality.py --out random.jsonl --kernels kernels.tar.xz

For each shape all candidates and every schedule of the model's space that it does not
hold hopeless are timed in turns, then the candidates and the best of all again, longer.
"Exhaustive" means that space: ``model.tiles`` of the arch (wgmma: 42 tiles by 4 cluster
shapes, one k width and L2 hint each as the shape has it), about 75 schedules a shape,
55 of them not hopeless, and 200 kernels a kind in all. Even shapes are FP8 rowwise, odd
ones bf16. Rows are those of the ``random`` suite, a run goes on where ``--out`` ends,
and ``bench report`` reads them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import measure_all
import precompile

from torch_cute_backend import config
from torch_cute_backend.arch import ArchSpec, arch_spec
from torch_cute_backend.bench import manifest, quality, results, suite
from torch_cute_backend.bench.cases import RANDOM, Case, random_shapes
from torch_cute_backend.bench.manifest import Kind, Listed, Manifest
from torch_cute_backend.bench.session import Deadline, Session
from torch_cute_backend.build import build_kernel
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Accum
from torch_cute_backend.runtime.cache import KernelCache, cache_key
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status
from torch_cute_backend.tuning import lookup, model, search

KINDS = ("fp8", "bf16")


def cases(count: int) -> list[Case]:
    """``count`` random shapes, the kinds in turns."""
    shapes = random_shapes(count)
    return [Case(RANDOM, KINDS[i % 2], shape) for i, shape in enumerate(shapes)]


def chosen(case: Case, arch: ArchSpec) -> list[GemmSchedule]:
    """What ``torch.compile`` would be offered."""
    return [c.schedule for c in lookup.candidates(case.problem(), arch)]


def space(case: Case, arch: ArchSpec) -> list[GemmSchedule]:
    """Everything to time for a shape, the candidates first."""
    scored = model.scored(case.problem(), arch)
    limit = search.HOPELESS * scored[0][0] if scored else 0.0
    hopeful = [schedule for seconds, schedule in scored if seconds <= limit]
    return list(dict.fromkeys([*chosen(case, arch), *hopeful]))


def passing(
    case: Case, arch: ArchSpec, listed: Manifest, schedules: Sequence[GemmSchedule]
) -> Iterator[GemmSchedule]:
    """Those that a user could get: a kernel that fails the build gate is no choice."""
    for schedule in schedules:
        found = listed.find(arch.name, case.problem(), schedule)
        if found is None or not found.gate:
            yield schedule


def prepare(args: argparse.Namespace, arch: ArchSpec) -> int:
    """Compile every kernel that the shapes need into a cache, and pack it."""
    cache = KernelCache(args.prepare)
    slots = {}
    for case in cases(args.shapes):
        for schedule in space(case, arch):
            slot = (arch.name, Kind.of(case.problem()), schedule)
            if slot not in slots:
                built = build_kernel(case.problem(), schedule, arch)
                if not isinstance(built, Status):
                    slots[slot] = built.source
    keys = {slot: cache_key(source) for slot, source in slots.items()}
    missing = {
        keys[slot]: source
        for slot, source in slots.items()
        if cache.load(keys[slot]) is None
    }
    print(f"{len(set(keys.values()))} kernels, {len(missing)} to compile", flush=True)
    failed = precompile.compile_missing(missing, cache, args.workers, args.budget)
    entries = {e.key: Listed(e.key, e.name, e.gate.reasons) for e in cache.entries()}
    rows = [(slot, entries[key]) for slot, key in keys.items() if key in entries]
    manifest.write(args.prepare, rows)
    if args.pack is not None:
        precompile.pack(cache, args.pack)
    print(f"{len(rows)} kernels listed, {failed} failed")
    return 0


def measure(args: argparse.Namespace, session: Session) -> int:
    """Time every shape; returns how many were timed in this run."""
    facts = session.environment()
    if "error" in facts:
        raise UserError(facts["error"])
    arch, deadline = arch_spec(facts["arch"]), Deadline(args.budget)
    listed = manifest.read(config.get().cache_dir)
    known, timed = suite.known_keys(args.out), 0
    todo = cases(args.shapes)
    for i, case in enumerate(todo):
        schedules = list(passing(case, arch, listed, space(case, arch)))
        if search.is_known(known, case, Accum.FAST, schedules):
            continue
        if deadline.passed:
            print("out of time; run again to go on")
            break
        found = search.search(
            session,
            case,
            Accum.FAST,
            schedules,
            deadline=deadline,
            always=chosen(case, arch),
        )
        if len(found.brief.timings) + len(found.brief.failures) < len(schedules):
            print("out of time in the middle of a shape; run again to go on")
            break
        search.record(args.out, facts["environment"], found)
        timed += 1
        print(
            f"[{i + 1}/{len(todo)}] {case.describe()}: {len(found.brief.timings)} of "
            f"{len(schedules)} timed, {suite.summary(found.final)} | {deadline}",
            flush=True,
        )
    return timed


def say_quality(out: Path) -> None:
    losses = quality.of_candidates(results.read(out))
    if losses:
        close = sum(loss <= quality.CLOSE for loss in losses)
        print(
            f"{len(losses)} shapes: candidates within {quality.CLOSE:g}x of the best "
            f"on {close} ({100 * close / len(losses):.0f}%); worst {max(losses):.2f}x"
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("random.jsonl"))
    parser.add_argument("--shapes", type=int, default=100)
    parser.add_argument("--budget", type=float, help="seconds")
    parser.add_argument("--kernels", type=Path, help="archive that --pack wrote")
    parser.add_argument("--compile", action="store_true", help="what is not in it")
    parser.add_argument("--prepare", type=Path, metavar="CACHE", help="compile only")
    parser.add_argument("--pack", type=Path, help="of --prepare: also write a .tar.xz")
    parser.add_argument("--arch", default="sm_90a", help="of --prepare")
    parser.add_argument("--workers", type=int, default=2, help="of --prepare")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.prepare is not None:
        return prepare(args, arch_spec(args.arch))
    with tempfile.TemporaryDirectory() as folder:
        if args.kernels is not None:
            measure_all.unpack(args.kernels, Path(folder))
            config.update(cache_dir=Path(folder))
        with Session(cached_only=not args.compile) as session:
            measure(args, session)
    say_quality(args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
