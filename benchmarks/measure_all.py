"""One run on a GPU, within a time budget: correctness, tuning, suites.

    python benchmarks/measure_all.py --out results --kernels kernels.tar.xz --budget 480

Kernels come compiled, from ``precompile.py --pack``; nothing is compiled here unless
``--compile`` is given. Everything is written as it comes, every kernel runs in a child
process, and a phase that runs out of time leaves the rest to the next run with the same
``--out``:

* ``sweep``: exact products of small integers on many shapes, every cached schedule;
* ``tune``: the fastest schedule of every suite's shapes, into ``table.json``;
* ``suites``: ours (the look-up's choice, and the tuned one) beside the peers;
* ``host``: host time of a launch;
* ``pick-time``: time to the first result, in fresh processes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from torch_cute_backend import config
from torch_cute_backend.arch import ArchSpec, arch_spec
from torch_cute_backend.bench import manifest, results, suite
from torch_cute_backend.bench.cases import (
    LISTED,
    RANDOM,
    SUITES,
    Case,
    Shape,
    sweep_kind,
)
from torch_cute_backend.bench.session import Deadline, Session
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Accum
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status
from torch_cute_backend.tuning import publish, search
from torch_cute_backend.tuning.lookup import choose

SHARES = {
    "sweep": 0.15,
    "tune": 0.40,
    "suites": 0.30,
    "host": 0.05,
    "pick-time": 0.10,
}
"""Of the whole budget; what a phase leaves goes to the next."""

FULL_SHAPES: tuple[Shape, ...] = tuple(
    (m, n, k)
    for m in (1, 3, 16, 33, 64, 65, 128, 257, 512)
    for n in (16, 48, 256, 5120)
    for k in (16, 32, 112, 256, 5120, 16384)
)
"""For the schedules that the look-up chooses."""
FEW_SHAPES: tuple[Shape, ...] = (
    *((m, 48, k) for m in (1, 65, 257) for k in (16, 112, 5120)),
    *((m, 5120, k) for m in (3, 64, 512) for k in (32, 256, 5120)),
    (128, 256, 16384),
    (300, 2064, 1040),
    (1024, 5120, 512),
)
"""For every other schedule: ragged tails, one k tile, long K, several tiles a CTA."""


def main() -> int:
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    with (
        (args.out / "measure_all.log").open("a") as log,
        tempfile.TemporaryDirectory() as t,
    ):
        say = _teller(log)
        if args.kernels is not None:
            count = unpack(args.kernels, Path(t))
            config.update(cache_dir=Path(t))
            say(f"{count} kernels from {args.kernels}")
        run(args, say)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--kernels", type=Path, help="archive of precompile.py")
    parser.add_argument("--budget", type=float, default=480.0, help="seconds in all")
    parser.add_argument("--phases", default="sweep,tune,suites,host")
    parser.add_argument("--suites", default=",".join(LISTED))
    parser.add_argument("--protocols", default="cold", help="cold, warm or cold,warm")
    parser.add_argument("--providers", default=",".join(suite.DEFAULT_PROVIDERS))
    parser.add_argument("--limit", type=int, help="candidates of a shape to tune over")
    parser.add_argument(
        "--compile", action="store_true", help="compile what is missing"
    )
    return parser.parse_args()


def _teller(log: TextIO) -> Callable[[str], None]:
    started = time.monotonic()

    def say(text: str) -> None:
        line = f"{time.monotonic() - started:6.1f}s {text}"
        print(line, flush=True)
        log.write(line + "\n")
        log.flush()

    return say


def unpack(archive: Path, folder: Path) -> int:
    """Extract a kernel cache; returns its number of entries."""
    folder.chmod(0o700)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return sum(1 for _ in (folder / "entries").iterdir())


def run(args: argparse.Namespace, say: Callable[[str], None]) -> None:
    phases = {
        "sweep": _sweep,
        "tune": _tune,
        "suites": _suites,
        "host": _host,
        "pick-time": _pick_time,
    }
    wanted = args.phases.split(",")
    unknown = sorted(set(wanted) - set(phases))
    if unknown:
        raise UserError(f"unknown phase(s): {', '.join(unknown)}")
    whole = Deadline(args.budget)
    shares = sum(SHARES[name] for name in wanted)
    reserved = 0.0
    for name in wanted:
        reserved += SHARES[name] / shares * args.budget
        deadline = Deadline(reserved - whole.elapsed)
        say(f"--- {name}: {deadline}")
        with Session(cached_only=not args.compile) as session:
            facts = session.environment()
            if "error" in facts:
                raise UserError(facts["error"])
            phases[name](args, session, facts, deadline, say)
    say(f"--- done, {whole}")


Facts = dict[str, object]
MAX_LOST = 2
"""Crashes or hangs after which kernels with the same cluster shape are left out."""
SWEEP_TIMEOUT_S = 20.0


def _cases(args: argparse.Namespace) -> Iterator[tuple[Case, Accum]]:
    """Shapes to tune: serving and large ones first, then decode."""
    jobs: list[tuple[Case, Accum]] = []
    seen = set()
    for name in args.suites.split(","):
        found = suite_named(name)
        accums = list(Accum) if found.exact else [Accum.FAST]
        for case in found.cases():
            for accum in accums:
                if (case.kind, case.shape, accum) not in seen:
                    seen.add((case.kind, case.shape, accum))
                    jobs.append((case, accum))
    small = [j for j in jobs if j[0].shape[0] < 64]
    yield from (j for j in jobs if j[0].shape[0] >= 64)
    yield from reversed(small)


def suite_named(name: str) -> suite.Suite:
    if name not in SUITES:
        raise UserError(f"unknown suite {name!r}; known: {', '.join(SUITES)}")
    return SUITES[name]


def _sweep(
    args: argparse.Namespace,
    session: Session,
    facts: Facts,
    deadline: Deadline,
    say: Callable[[str], None],
) -> None:
    arch = arch_spec(str(facts["arch"]))
    out = args.out / "sweep.jsonl"
    done = {
        (r["kind"], r["accum"], json.dumps(r["schedule"])) for r in results.read(out)
    }
    wrong = ran = 0
    lost: Counter[tuple[object, ...]] = Counter()
    for kind, accum, schedule, shapes in _to_sweep(args, arch):
        key = (kind, accum.value, json.dumps(schedule.to_json()))
        group = (kind, accum, schedule.cluster_m, schedule.cluster_n)
        if key in done or lost[group] >= MAX_LOST:
            continue
        if deadline.passed:
            say("sweep: out of time; run again to go on")
            break
        # Few CTAs, so that each gets several tiles; then one CTA an SM.
        few = 2 * schedule.cluster_size
        for ctas, some in ((few, shapes[:: max(1, len(shapes) // 6)]), (None, shapes)):
            reply = session.sweep(
                kind, accum.value, schedule, some, ctas, SWEEP_TIMEOUT_S
            )
            bad = reply.get("error") or reply.get("wrong")
            if bad:
                break
        row = {"kind": kind, "accum": accum.value, "schedule": schedule.to_json()}
        results.append(out, [{**row, "shapes": len(shapes), **reply}])
        ran += 1
        if bad:
            wrong += 1
            lost[group] += "error" in reply
            say(f"WRONG {kind} {accum.value} {schedule.describe()}: {str(bad)[:300]}")
    say(f"sweep: {ran} kernels, {wrong} wrong, {deadline}")


def _to_sweep(
    args: argparse.Namespace, arch: ArchSpec
) -> Iterator[tuple[str, Accum, GemmSchedule, tuple[Shape, ...]]]:
    """Chosen schedules with the full list of shapes, then other cached ones."""
    chosen, others = {}, {}
    listed = manifest.read(config.get().cache_dir)
    for case, accum in _cases(args):
        problem = case.problem(accum)
        choice = choose(problem, arch)
        if not isinstance(choice, Status):
            chosen[sweep_kind(case.kind), accum, choice.schedule] = FULL_SHAPES
        for schedule in listed.schedules(arch.name, problem):
            others[sweep_kind(case.kind), accum, schedule] = FEW_SHAPES
    for (kind, accum, schedule), shapes in {**others, **chosen}.items():
        yield kind, accum, schedule, shapes


def _tune(
    args: argparse.Namespace,
    session: Session,
    facts: Facts,
    deadline: Deadline,
    say: Callable[[str], None],
) -> None:
    arch = arch_spec(str(facts["arch"]))
    environment = facts["environment"]
    if not isinstance(environment, dict):
        raise UserError("the child reported no environment")
    out, table = args.out / "tune.jsonl", args.out / "table.json"
    known = suite.known_keys(out)
    right = _right(args.out / "sweep.jsonl")
    cached = manifest.read(config.get().cache_dir)
    for case, accum in _cases(args):
        if case.is_skewed:
            # One row serves groups of any sizes; equal ones stand for them.
            continue
        suite_name = RANDOM if case.suite == RANDOM else search.SUITE
        tuned = Case(suite_name, case.kind, case.shape)
        others = cached.schedules(arch.name, case.problem(accum))
        listed = search.candidates(tuned, accum, arch, None, others)
        if right:
            kind = sweep_kind(case.kind)
            listed = [s for s in listed if (kind, accum.value, s) in right]
        listed = listed[: args.limit]
        if search.is_known(known, tuned, accum, listed):
            continue
        if deadline.passed:
            say("tune: out of time; run again to go on")
            break
        found = search.search(session, tuned, accum, listed, deadline=deadline)
        search.record(out, environment, found)
        row = search.table_row(found, environment)
        # Random shapes judge the candidates; in a table they would be tuned ones.
        if row is not None and suite_name != RANDOM:
            publish.merge_rows(table, arch.name, [row])
        say(
            f"tune {tuned.describe()} {accum.value}: {len(found.brief.timings)} of "
            f"{len(listed)} timed, {suite.summary(found.final)} | {deadline}"
        )


def _right(path: Path) -> set[tuple[str, str, GemmSchedule]]:
    """Schedules that the sweep found right; empty if there was none."""
    return {
        (row["kind"], row["accum"], GemmSchedule.from_json(row["schedule"]))
        for row in results.read(path)
        if not row.get("error") and not row.get("wrong")
    }


def _suites(
    args: argparse.Namespace,
    session: Session,
    facts: Facts,
    deadline: Deadline,
    say: Callable[[str], None],
) -> None:
    _ = facts
    table = args.out / "table.json"
    names = [name for name in args.suites.split(",") if name != RANDOM]
    for name in names:
        options = suite.Options(
            out=args.out / "results.jsonl",
            providers=tuple(args.providers.split(",")),
            protocols=tuple(args.protocols.split(",")),
            cached_only=not args.compile,
            table=table if table.exists() else None,
            budget_s=deadline.left,
        )
        suite.run(suite_named(name), options, session, say)


def _host(
    args: argparse.Namespace,
    session: Session,
    facts: Facts,
    deadline: Deadline,
    say: Callable[[str], None],
) -> None:
    from torch_cute_backend.bench import host

    _ = facts, session, deadline
    host.run(args.out / "results.jsonl", say)


def _pick_time(
    args: argparse.Namespace,
    session: Session,
    facts: Facts,
    deadline: Deadline,
    say: Callable[[str], None],
) -> None:
    from torch_cute_backend.bench import pick_time

    _ = facts
    session.close()
    # Without a compiler, "cold" can only mean that kernels are there already; the rows
    # say so.
    kernels = None if args.compile else config.get().cache_dir
    options = pick_time.Options(
        args.out / "results.jsonl", deadline.left, kernels=kernels
    )
    pick_time.run(options, say)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except UserError as error:
        print(f"measure_all: error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
