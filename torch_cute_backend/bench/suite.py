"""Run a suite of GEMM shapes: entries, measurement, result rows, progress.

Rows are appended to the output file as they come. A case whose entries are all there
already, measured or failed, is skipped, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch_cute_backend.arch import ArchSpec, arch_spec
from torch_cute_backend.bench import results
from torch_cute_backend.bench.cases import Case, Shape, Suite
from torch_cute_backend.bench.protocol import ROUNDS, Timing
from torch_cute_backend.bench.session import Deadline, Entry, Outcome, Session
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Accum, Grouping, Major
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import lookup, model
from torch_cute_backend.tuning.table import RowKey, TableRow, load_table

PDL = "pdl-cold"
"""As ``cold``, with our kernels launched as dependents of the one before them: in a
graph each may start while its predecessor drains. Peers run as they are."""
PROTOCOLS = ("cold", "warm", PDL)
"""CUDA graphs over rotating input sets, or over one; see ``protocol``."""
SIZES = {False: "equal", True: "skewed"}
"""Of groups, by whether they are skewed."""
DEFAULT_PROVIDERS = (results.OURS, "aten", "t_read")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How to run a suite.

    Attributes:
        out: jsonl file to append to.
        providers: names, see ``providers.provider``.
        schedules: ``"table"`` (what ``tuning.choose`` takes), ``"top:N"`` (the first N
            candidates of the look-up) or ``"all"`` (the model's whole list).
        table: a table file whose row for the shape is timed too, as source "tuned".
        protocols: of :data:`PROTOCOLS`.
        shapes: instead of the suite's own.
        again: also cases that are in ``out`` already.
        cached_only: leave out kernels that would have to be compiled.
    """

    out: Path
    providers: tuple[str, ...] = DEFAULT_PROVIDERS
    schedules: str = "table"
    protocols: tuple[str, ...] = ("cold",)
    shapes: tuple[Shape, ...] | None = None
    rounds: int = ROUNDS
    budget_s: float | None = None
    again: bool = False
    cached_only: bool = False
    table: Path | None = None


def schedules_for(
    case: Case,
    accum: Accum,
    arch: ArchSpec,
    which: str,
    rows: Sequence[TableRow] = (),
) -> list[tuple[GemmSchedule, str, bool]]:
    """Schedules to time with their sources; True marks what ``choose`` takes.

    Raises:
        UserError: ``which`` is none of the three forms.
    """
    problem = case.problem(accum)
    kind, _, number = which.partition(":")
    if kind not in ("table", "top", "all") or (kind == "top") != number.isdigit():
        raise UserError(f"--schedules {which!r}: expected table, top:N or all")
    limit = int(number) if kind == "top" else 1
    choices = lookup.candidates(problem, arch, limit)
    found = [(c.schedule, c.source, i == 0) for i, c in enumerate(choices)]
    if kind == "all":
        known = {schedule for schedule, _, _ in found}
        listed = [s for s in model.tiles(problem, arch) if s not in known]
        found += [(s, "model", False) for s in listed]
    key = RowKey.of(problem)
    tuned = [row.schedule for row in rows if row.key == key]
    known = {schedule for schedule, _, _ in found}
    return found + [(s, "tuned", False) for s in tuned if s not in known]


def entries_for(
    suite: Suite,
    case: Case,
    arch: ArchSpec,
    options: Options,
    protocol: str = "cold",
) -> list[Entry]:
    """Everything to time together for one shape."""
    launch = "dependent" if protocol == PDL else "plain"
    rows = load_table(options.table) if options.table else ()
    accums = [Accum.FAST]
    if case.is_fp8 and suite.exact:
        accums.append(Accum.EXACT)
    entries: list[Entry] = []
    for name in options.providers:
        if name == results.OURS:
            entries += [
                Entry(
                    name,
                    accum.value,
                    replace(schedule, launch=launch),
                    source,
                    chosen,
                )
                for accum in accums
                for schedule, source, chosen in schedules_for(
                    case, accum, arch, options.schedules, rows
                )
            ]
        elif name == "aten" and case.is_fp8:
            entries += [Entry(name, a.value) for a in Accum]
        else:
            entries.append(Entry(name))
    return entries


def result_row(
    environment: dict[str, Any],
    case: Case,
    entry: Entry,
    timing: Timing,
    kernel: str | None,
    protocol: str,
) -> dict[str, Any]:
    """The jsonl row of one entry."""
    problem = case.problem()
    m, n, k = case.shape
    size = {"m": m, "n": n, "k": k}
    extra: dict[str, Any] = {}
    if problem.a_major is not Major.K:
        extra["a_major"] = problem.a_major.value
    if problem.b_major is not Major.K:
        extra["b_major"] = problem.b_major.value
    if problem.is_grouped:
        size["groups"] = problem.groups
        extra["grouping"] = problem.grouping.value
        extra["sizes"] = SIZES[case.is_skewed]
    if kernel is not None:
        extra["kernel"] = kernel
    if entry.schedule is not None:
        extra["schedule"] = entry.schedule.to_json()
        extra["source"] = entry.source
        extra["chosen"] = entry.chosen
    return results.row(
        results.Environment(**environment),
        case.suite,
        size,
        problem.a_dtype.name,
        problem.scaling,
        entry.accum if case.is_fp8 else "fp32",
        entry.label,
        timing,
        protocol,
        **extra,
    )


def entry_key(case: Case, entry: Entry, protocol: str) -> str:
    """Identifies a measurement across runs; equal to :func:`row_key` of its row."""
    schedule = None if entry.schedule is None else entry.schedule.to_json()
    accum = entry.accum if case.is_fp8 else "fp32"
    problem = case.problem()
    what = (
        problem.a_dtype.name,
        problem.scaling,
        problem.a_major.value,
        problem.b_major.value,
        problem.grouping.value,
        problem.groups,
        SIZES[case.is_skewed],
    )
    shape = list(case.shape)
    return _key(case.suite, shape, what, accum, entry.label, schedule, protocol)


def row_key(row: dict[str, Any]) -> str:
    shape = [row["shape"].get(x) for x in ("m", "n", "k")]
    return _key(
        row["suite"],
        shape,
        (
            row["dtype"],
            row["scaling"],
            row.get("a_major", Major.K.value),
            row.get("b_major", Major.K.value),
            row.get("grouping", Grouping.NONE.value),
            row["shape"].get("groups", 1),
            row.get("sizes", SIZES[False]),
        ),
        row["accum"],
        row["provider"],
        row.get("schedule"),
        row["protocol"],
    )


def _key(*parts: Any) -> str:
    return json.dumps(parts, sort_keys=True)


def failures_path(out: Path) -> Path:
    """Where entries that could not be measured are noted, beside the results."""
    return out.with_suffix(".failures.jsonl")


def known_keys(out: Path) -> set[str]:
    """Measurements and failures that ``out`` holds already."""
    return {
        row_key(row) for path in (out, failures_path(out)) for row in results.read(path)
    }


def run(suite: Suite, options: Options, session: Session, say: Say = print) -> int:
    """Measure a suite; returns how many rows were written.

    Raises:
        UserError: there is no supported GPU, or an option is malformed.
    """
    facts = session.environment()
    if "error" in facts:
        raise UserError(facts["error"])
    arch = arch_spec(facts["arch"])
    deadline = Deadline(options.budget_s)
    known = set() if options.again else known_keys(options.out)
    jobs = [(c, p) for c in suite.cases(options.shapes) for p in options.protocols]
    written = 0
    for i, (case, protocol) in enumerate(jobs):
        head = f"[{i + 1:3}/{len(jobs)}] {suite.name} {case.describe()} {protocol}"
        entries = entries_for(suite, case, arch, options, protocol)
        keys = [entry_key(case, e, protocol) for e in entries]
        if all(key in known for key in keys):
            say(f"{head}: done before")
            continue
        if deadline.passed:
            say(f"{head}: out of time; run again to go on")
            break
        outcome = session.measure(
            case, entries, cold=protocol != "warm", rounds=options.rounds
        )
        written += record(options.out, facts["environment"], case, outcome, protocol)
        say(f"{head}: {summary(outcome)} | {deadline}")
    return written


def record(
    out: Path,
    environment: dict[str, Any],
    case: Case,
    outcome: Outcome,
    protocol: str,
) -> int:
    """Append an outcome's rows; returns how many."""
    rows = [
        result_row(environment, case, e, t, outcome.kernels.get(e), protocol)
        for e, t in outcome.timings.items()
    ]
    results.append(out, rows)
    nothing = Timing(0.0, 0.0, 0.0)
    failed = []
    for entry, error in outcome.failures.items():
        row = result_row(environment, case, entry, nothing, None, protocol)
        for field in ("us", "us_min", "us_max"):
            del row[field]
        failed.append({**row, "error": error})
    if failed:
        results.append(failures_path(out), failed)
    return len(rows)


def summary(outcome: Outcome) -> str:
    """One line: each provider's best, ours against the best peer, failures."""
    best: dict[str, tuple[float, Entry]] = {}
    for entry, timing in outcome.timings.items():
        label = entry.label + ("" if entry.accum == "fast" else "-exact")
        if label not in best or timing.us < best[label][0]:
            best[label] = (timing.us, entry)
    parts = [f"{label} {us:.2f}{_tile(entry)}" for label, (us, entry) in best.items()]
    peers = [
        us
        for label, (us, _) in best.items()
        if not label.startswith((results.OURS, "t_read")) and "exact" not in label
    ]
    if results.OURS in best and peers:
        parts.append(f"= {min(peers) / best[results.OURS][0]:.2f}x best peer")
    for error in _distinct(outcome.failures.values()):
        parts.append(f"FAILED {error}")
    return ", ".join(parts) or "nothing measured"


def _tile(entry: Entry) -> str:
    return "" if entry.schedule is None else f" ({entry.schedule.describe()})"


def _distinct(errors: Iterable[str], limit: int = 3) -> Sequence[str]:
    unique = list(dict.fromkeys(e.strip().splitlines()[-1][:160] for e in errors if e))
    rest = len(unique) - limit
    return unique[:limit] + ([f"and {rest} more"] if rest > 0 else [])
