"""Time schedules of one's own beside ATen: does an idea pay?

    python benchmarks/try_variants.py                       # all that is listed
    python benchmarks/try_variants.py --list FILE --only 4096x4096x4096
    python benchmarks/try_variants.py --kernels kernels.tar.xz    # compile nothing

The list holds one JSON object a line: ``kind``, ``shape`` [m, n, k], ``accum``, and
``variants``, a map of labels to schedules. A schedule may be ``{"from": label, ...}``:
another variant of that line with some fields changed. Missing kernels are compiled
first, unless ``--kernels`` names a pack of ``precompile.py --lists``. Each is checked
on exact products of small integers, one that hangs is given up after seconds, and what
is left is timed in turns with ATen (CUDA graphs, cold L2). Rows are printed as JSON
lines; ``ratio`` is time over ATen's of the same accumulation.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_cute_backend import config
from torch_cute_backend.arch import SM90
from torch_cute_backend.bench.cases import Case, Shape
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.bench.session import Deadline, Entry, Outcome, Session
from torch_cute_backend.build import build_kernel
from torch_cute_backend.codegen.source import KernelSource
from torch_cute_backend.errors import CuteBackendError, UserError
from torch_cute_backend.problem import Accum
from torch_cute_backend.runtime.pool import CompilePool
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status

LIST = Path(__file__).parent / "variants" / "hopper.jsonl"
SWEEP_SHAPES: tuple[Shape, ...] = (
    (300, 528, 1040),
    (257, 272, 16),
    (512, 768, 256),
    (1024, 2064, 2048),
)
"""Ragged tails, one k tile, an even and an odd number of them, several tiles a CTA."""
SWEEP_CTAS = 8
"""A multiple of every cluster's size, few enough for several tiles a CTA."""
SWEEP_TIMEOUT_S = 10.0
SUITE = "variants"


@dataclass(frozen=True)
class Line:
    """One shape and the schedules to try on it."""

    case: Case
    accum: Accum
    variants: dict[str, GemmSchedule]

    def describe(self) -> str:
        return f"{self.case.describe()} {self.accum.value}"


def main() -> int:
    args = _arguments()
    lines = [
        line
        for line in read_lines(args.list)
        if args.only is None
        or any(word in line.describe() for word in args.only.split(","))
    ]
    if args.kernels is None:
        _compile(lines, args.workers)
        if not args.compile_only:
            measure(args, lines)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(args.kernels) as packed:
            packed.extractall(folder, filter="data")
        config.update(cache_dir=Path(folder))
        measure(args, lines)
    return 0


def measure(args: argparse.Namespace, lines: list[Line]) -> None:
    """Check and time what is in the kernel cache."""
    deadline = Deadline(args.budget)
    with Session(cached_only=True) as session:
        facts = session.environment()
        if "error" in facts:
            raise UserError(facts["error"])
        print(json.dumps({"environment": facts}), flush=True)
        right = dict(_swept(session, lines)) if args.sweep else {}
        for line in lines:
            if deadline.passed:
                _note(f"out of time before {line.describe()}")
                break
            _time(session, line, right, args.rounds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", type=Path, default=LIST)
    parser.add_argument("--only", help="lines whose name holds one of these, a,b,...")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds to time")
    parser.add_argument("--workers", type=int, default=12, help="compiling processes")
    parser.add_argument("--kernels", type=Path, help="archive of precompile.py")
    parser.add_argument("--no-sweep", dest="sweep", action="store_false")
    parser.add_argument("--compile-only", action="store_true", help="no GPU needed")
    return parser.parse_args()


def read_lines(path: Path) -> list[Line]:
    """Raises ``UserError`` for a line that is not as the module's docstring says."""
    found = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
            case = Case(SUITE, row["kind"], tuple(row["shape"]))
            variants = _resolve(row["variants"])
            found.append(Line(case, Accum(row["accum"]), variants))
        except (ValueError, KeyError, TypeError, CuteBackendError) as error:
            raise UserError(f"{path}:{number}: {error}") from error
    return found


def _resolve(raw: dict[str, dict[str, Any]]) -> dict[str, GemmSchedule]:
    """Fill in the fields that a variant takes from another one, listed before it."""
    full: dict[str, dict[str, Any]] = {}
    for label, fields in raw.items():
        base = full[fields["from"]] if "from" in fields else {}
        own = {k: v for k, v in fields.items() if k != "from"}
        full[label] = {**base, **own}
    return {label: GemmSchedule.from_json(fields) for label, fields in full.items()}


def _sources(lines: list[Line]) -> Iterator[tuple[str, KernelSource]]:
    for line in lines:
        problem = line.case.problem(line.accum)
        for label, schedule in line.variants.items():
            built = build_kernel(problem, schedule, SM90)
            if isinstance(built, Status):
                _note(f"{line.describe()} {label}: {built}")
            else:
                yield built.source.sha256, built.source


def _compile(lines: list[Line], workers: int) -> None:
    sources = dict(_sources(lines))
    started = time.monotonic()
    pool = CompilePool(workers=workers)
    try:
        jobs = {pool.submit(s, gate=False): s.name for s in sources.values()}
        for job in as_completed(jobs):
            error = job.exception()
            if error is not None:
                _note(f"{jobs[job]}: {str(error).splitlines()[0]}")
            elif not job.result().gate:
                _note(f"{jobs[job]}: {job.result().gate}")
    finally:
        pool.close()
    _note(f"{len(sources)} kernels ready in {time.monotonic() - started:.0f} s")


def _swept(session: Session, lines: list[Line]) -> Iterator[tuple[Key, bool]]:
    """Each different kernel on small shapes: does it give exact results?"""
    seen: set[Key] = set()
    for line in lines:
        for label, schedule in line.variants.items():
            key = (line.case.kind, line.accum, schedule)
            if key in seen:
                continue
            seen.add(key)
            reply = session.sweep(
                line.case.kind,
                line.accum.value,
                schedule,
                SWEEP_SHAPES,
                SWEEP_CTAS,
                SWEEP_TIMEOUT_S,
            )
            good = "error" not in reply and not reply.get("wrong")
            if not good:
                _note(f"WRONG {label} {schedule.describe()}: {json.dumps(reply)}")
            yield key, good


Key = tuple[str, Accum, GemmSchedule]


def _time(session: Session, line: Line, right: dict[Key, bool], rounds: int) -> None:
    entries = {
        Entry(OURS, line.accum.value, schedule): label
        for label, schedule in line.variants.items()
        if right.get((line.case.kind, line.accum, schedule), True)
    }
    peers = [Entry("aten", line.accum.value)]
    if line.accum is Accum.EXACT:
        peers.append(Entry("aten", Accum.FAST.value))
    outcome: Outcome = session.measure(line.case, [*entries, *peers], rounds=rounds)
    for entry, why in outcome.failures.items():
        _note(f"{line.describe()} {entries.get(entry, 'aten')}: {why}")
    aten = outcome.timings.get(peers[0])
    for entry, timing in sorted(outcome.timings.items(), key=lambda p: p[1].us):
        row = {
            "shape": list(line.case.shape),
            "kind": line.case.kind,
            "accum": entry.accum,
            "label": entries.get(entry, "aten"),
            "us": round(timing.us, 2),
            "us_min": round(timing.us_min, 2),
            "ratio": round(timing.us / aten.us, 4) if aten else None,
            "schedule": entry.schedule.changed_json() if entry.schedule else None,
        }
        print(json.dumps(row), flush=True)


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
