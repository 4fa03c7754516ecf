"""Find the fastest schedule of a GEMM on the GPU at hand, and write table rows.

Candidates are timed in a child process (``bench.session``): a kernel that crashes or
hangs costs its own entry only. All are timed briefly, the best are timed again beside
ATen, and the winner becomes a table row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_cute_backend.arch import ArchSpec
from torch_cute_backend.bench import suite
from torch_cute_backend.bench.cases import Case, Shape, parse_shapes
from torch_cute_backend.bench.protocol import ROUNDS, Timing
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.bench.session import Deadline, Entry, Outcome, Session
from torch_cute_backend.errors import UserError
from torch_cute_backend.problem import Accum
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import lookup, model, publish
from torch_cute_backend.tuning.proposals import proposals
from torch_cute_backend.tuning.table import RowKey, TableRow

SUITE = "tune"
BRIEF_ROUNDS = 3
FINALISTS = 6
VARIED = 8
"""How many of the most promising are also tried with other rasters and L2 hints."""
HOPELESS = 3.0
"""Candidates that the model holds this many times slower than its best are left out."""


@dataclass(frozen=True)
class Job:
    """One GEMM to tune."""

    case: Case
    accum: Accum

    @classmethod
    def of(cls, kind: str, shape: Shape, accum: str = Accum.FAST.value) -> Job:
        """Raises ``UserError`` for an unknown kind or a shape that no kernel takes."""
        case = Case(SUITE, kind, shape)
        job = cls(case, Accum(accum))
        status = case.problem(job.accum).validate()
        if not status:
            raise UserError(f"{case.describe()}: {status}")
        return job

    def describe(self) -> str:
        exact = " exact" if self.accum is Accum.EXACT else ""
        return self.case.describe() + exact


def read_jobs(path: Path) -> list[Job]:
    """Lines of ``KIND MxNxK [exact]``; ``#`` starts a comment.

    Raises:
        UserError: no such file, or a malformed line, which is named.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error}") from error
    jobs: list[Job] = []
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) not in (2, 3) or words[2:] not in ([], ["fast"], ["exact"]):
            raise UserError(f"{path}:{number}: expected KIND MxNxK [exact]")
        try:
            shapes = parse_shapes(words[1])
            jobs += [Job.of(words[0], shape, *words[2:]) for shape in shapes]
        except UserError as error:
            raise UserError(f"{path}:{number}: {error}") from error
    return list(dict.fromkeys(jobs))


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
    case: Case,
    accum: Accum,
    arch: ArchSpec,
    limit: int | None = None,
    others: Iterable[GemmSchedule] = (),
) -> list[GemmSchedule]:
    """What to try: the look-up's choices, then the model's list, tiles made for the
    shape and what else there is, most promising first.

    Args:
        limit: at most so many.
        others: schedules from elsewhere; those that do not fit are left out.
    """
    problem = case.problem(accum)
    listed = [c.schedule for c in lookup.candidates(problem, arch)]
    scored = model.scored(problem, arch)
    scored += [
        (model.seconds(problem, s, arch), s)
        for s in (*proposals(problem, arch), *others)
        if s.validate(problem, arch)
    ]
    scored.sort(key=lambda pair: pair[0])
    fastest = scored[0][0] if scored else 0.0
    hopeful = [s for t, s in scored if t <= HOPELESS * fastest]
    for schedule in dict.fromkeys([*listed, *hopeful[:VARIED]]):
        listed += [schedule, *model.variants(problem, schedule, arch)]
    return list(dict.fromkeys([*listed, *hopeful]))[:limit]


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
    always: Sequence[GemmSchedule] = (),
) -> Found:
    """Time ``schedules`` briefly, then the best of them, ``peers`` and those of
    ``always`` together.

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
    finalists += [e for e in order[FINALISTS:] if e.schedule in always]
    others = [Entry(name, accum.value) for name in peers]
    session.add(case, others, cold, final)
    final.kernels.update({e: brief.kernels[e] for e in finalists})
    session.time(
        [*finalists, *(e for e in others if e in final.kernels)], rounds, final
    )
    return Found(case, accum, brief, final)


PROTOCOL = "cold"
BRIEF = "brief-cold"
"""Protocol of rows that were timed in few rounds only."""


def record(out: Path, environment: dict[str, Any], found: Found) -> None:
    """Append everything that was measured to a results file, suite ``tune``.

    Finalists appear twice: as timed briefly among all candidates, and with the peers.
    """
    suite.record(out, environment, found.case, found.final, PROTOCOL)
    suite.record(out, environment, found.case, found.brief, BRIEF)


def is_known(
    known: set[str], case: Case, accum: Accum, schedules: Sequence[GemmSchedule]
) -> bool:
    """Does a results file hold all of these already? See ``suite.known_keys``."""
    entries = [Entry(OURS, accum.value, s) for s in schedules]
    return all(suite.entry_key(case, e, BRIEF) in known for e in entries)


def table_row(found: Found, environment: dict[str, Any]) -> TableRow | None:
    """The winner as a table row; None if ours or no peer could be timed."""
    if not found.ranking or found.best_peer is None:
        return None
    (entry, timing), (peer, peer_timing) = found.ranking[0], found.best_peer
    if entry.schedule is None:
        return None
    key = RowKey.of(found.case.problem(found.accum))
    best = (peer.label, peer_timing.us)
    return publish.measured_row(key, entry.schedule, timing, best, environment)
