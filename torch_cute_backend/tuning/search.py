"""Find the fastest schedule of a GEMM on the GPU at hand, and write table rows.

Candidates are timed in a child process (``bench.session``): a kernel that crashes or
hangs costs its own entry only. All are timed briefly, the best are timed again beside
ATen, and the winner becomes a table row with its provenance.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_cute_backend.arch import ArchSpec
from torch_cute_backend.bench.cases import Case
from torch_cute_backend.bench.protocol import ROUNDS, Timing
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.bench.session import Deadline, Entry, Outcome, Session
from torch_cute_backend.problem import Accum
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import lookup, model
from torch_cute_backend.tuning.table import RowKey, TableRow, parse_row

BRIEF_ROUNDS = 3
FINALISTS = 6
HOPELESS = 4.0
"""Candidates that the model holds this many times slower than its best are left out."""


@dataclass(frozen=True)
class Found:
    """Outcome of one search.

    Attributes:
        brief: all candidates, timed in :data:`BRIEF_ROUNDS` rounds.
        final: the best of them and the peers, timed properly.
    """

    case: Case
    accum: Accum
    brief: Outcome
    final: Outcome

    @property
    def ranking(self) -> list[tuple[Entry, Timing]]:
        """Our finalists, fastest first."""
        ours = [(e, t) for e, t in self.final.timings.items() if e.provider == OURS]
        return sorted(ours, key=lambda pair: pair[1].us)

    @property
    def best_peer(self) -> tuple[Entry, Timing] | None:
        peers = [(e, t) for e, t in self.final.timings.items() if e.provider != OURS]
        return min(peers, key=lambda pair: pair[1].us, default=None)


def candidates(
    case: Case, accum: Accum, arch: ArchSpec, limit: int | None = None
) -> list[GemmSchedule]:
    """What to try: the look-up's choices, then the model's list, most promising first.

    Args:
        limit: at most so many.
    """
    problem = case.problem(accum)
    listed = [c.schedule for c in lookup.candidates(problem, arch)]
    scored = model.scored(problem, arch)
    fastest = scored[0][0] if scored else 0.0
    listed += [s for t, s in scored if t <= HOPELESS * fastest and s not in listed]
    return listed[:limit]


def search(
    session: Session,
    case: Case,
    accum: Accum,
    schedules: Sequence[GemmSchedule],
    *,
    peers: Sequence[str] = ("aten",),
    rounds: int = ROUNDS,
    cold: bool = True,
    deadline: Deadline | None = None,
) -> Found:
    """Time ``schedules`` briefly, then the best of them and ``peers`` together.

    Where ``deadline`` passes while candidates are set up, the rest is left out.
    """
    brief, final = Outcome(), Outcome()
    entries = [Entry(OURS, accum.value, s) for s in schedules]
    for entry in entries:
        if deadline is not None and deadline.passed:
            break
        session.add(case, [entry], cold, brief)
    session.time(list(brief.kernels), BRIEF_ROUNDS, brief)
    order = sorted(brief.timings, key=lambda e: brief.timings[e].us)
    finalists = order[:FINALISTS]
    others = [Entry(name, accum.value) for name in peers]
    session.add(case, others, cold, final)
    final.kernels.update({e: brief.kernels[e] for e in finalists})
    session.time(
        [*finalists, *(e for e in others if e in final.kernels)], rounds, final
    )
    return Found(case, accum, brief, final)


def table_row(found: Found, environment: dict[str, Any]) -> TableRow | None:
    """The winner as a table row; None if nothing of ours could be timed.

    ``margin`` is the best peer's time over ours.
    """
    if not found.ranking:
        return None
    entry, timing = found.ranking[0]
    if entry.schedule is None:
        return None
    key = RowKey.of(found.case.problem(found.accum))
    provenance: dict[str, Any] = {
        "kind": "measured",
        "gpu": environment["gpu"],
        "date": environment["date"],
        "commit": environment["commit"],
        "us": round(timing.us, 3),
    }
    if found.best_peer is not None:
        peer, peer_timing = found.best_peer
        provenance["peer"] = peer.label
        provenance["margin"] = round(peer_timing.us / timing.us, 3)
    return TableRow(
        row_name(key), key, entry.schedule, tuple(sorted(provenance.items()))
    )


def row_name(key: RowKey) -> str:
    """``fp8-rowwise_fast_m64_k5120_n5120``; majors only where not both K."""
    majors = key.a_major + key.b_major
    tail = "" if majors == "kk" else f"_{majors}"
    return f"{key.family}_{key.accum}_m{key.m}_k{key.k}_n{key.n}{tail}"


def merge_rows(path: Path, rows: Sequence[TableRow]) -> int:
    """Write ``rows`` into a table, replacing rows of the same key but keeping their
    names. Rows that do not parse are kept as they are. Returns how many rows it has.

    The file is replaced in one step, so a reader never sees half a table.
    """
    content = json.loads(path.read_text()) if path.exists() else {"rows": []}
    new = {row.key: row for row in rows}
    merged: list[dict[str, Any]] = []
    for raw in content["rows"]:
        key = _key_of(raw)
        row = new.pop(key, None) if key is not None else None
        merged.append(raw if row is None else {**row.to_json(), "name": raw["name"]})
    merged += [row.to_json() for row in new.values()]
    content["rows"] = merged
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(format_table(content))
    draft.replace(path)
    return len(merged)


def format_table(content: dict[str, Any]) -> str:
    """JSON with one row a line, so that a diff shows what changed."""
    rest = {k: v for k, v in content.items() if k != "rows"}
    head = "".join(f" {json.dumps(k)}: {json.dumps(v)},\n" for k, v in rest.items())
    rows = ",\n".join(f"  {json.dumps(row)}" for row in content["rows"])
    return f'{{\n{head} "rows": [\n{rows}\n ]\n}}\n'


def _key_of(raw: dict[str, Any]) -> RowKey | None:
    from torch_cute_backend.errors import TableError

    try:
        return parse_row(raw).key
    except TableError:
        return None
