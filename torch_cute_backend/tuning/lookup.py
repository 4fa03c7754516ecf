"""Choose a schedule: exact table row, nearest row of the same kind, or the model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch_cute_backend.arch.spec import ArchSpec
from torch_cute_backend.problem import GemmProblem
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.status import Status
from torch_cute_backend.tuning import model
from torch_cute_backend.tuning.fit import refit
from torch_cute_backend.tuning.table import RowKey, TableRow, table

NEAREST_MAX_DISTANCE = 1.5
"""A row further away than this, in octaves of M, N and K, says nothing of a shape."""
CLEAR_MARGIN = 0.05
"""Lead over the best peer: beyond what runs of one GPU model differ by (2 to 3 %)."""


@dataclass(frozen=True)
class ScheduleChoice:
    """A schedule that is valid for its problem, and why it was taken.

    ``source`` is ``"pretuned-exact"``, ``"pretuned-nearest"``, ``"model"`` or
    ``"user"``.
    """

    schedule: GemmSchedule
    source: str
    row: TableRow | None = None

    @property
    def settled(self) -> bool:
        """Is it an exact row as measured, ahead of every peer by :data:`CLEAR_MARGIN`?
        Then timing more of our schedules beside it only costs compiling them."""
        if self.source != "pretuned-exact" or self.row is None:
            return False
        how = dict(self.row.provenance)
        measured = how["kind"] == "measured" and how["margin"] >= CLEAR_MARGIN
        return bool(measured and self.schedule == self.row.schedule)


def choose(problem: GemmProblem, arch: ArchSpec) -> ScheduleChoice | Status:
    """The first of :func:`candidates`, or the reasons why there is none."""
    found = candidates(problem, arch, limit=1)
    if found:
        return found[0]
    status = problem.validate() & arch.check_problem(problem)
    if not status:
        return status
    return Status.no(f"no schedule of {arch.name} fits {problem.describe()}")


def candidates(
    problem: GemmProblem, arch: ArchSpec, limit: int = 4
) -> tuple[ScheduleChoice, ...]:
    """At most ``limit`` different valid schedules, most trusted first."""
    if not problem.validate() & arch.check_problem(problem):
        return ()
    found: list[ScheduleChoice] = []
    for row, exact in _rows(problem, arch):
        schedule = refit(problem, arch, row.schedule)
        source = "pretuned-exact" if exact else "pretuned-nearest"
        if schedule.validate(problem, arch):
            found.append(ScheduleChoice(schedule, source, row))
            break
    for schedule in model.rank(problem, arch, limit):
        if all(schedule != c.schedule for c in found):
            found.append(ScheduleChoice(schedule, "model"))
    return tuple(found[:limit])


def _rows(problem: GemmProblem, arch: ArchSpec) -> list[tuple[TableRow, bool]]:
    """Rows of the problem's kind: the exact one, then by distance."""
    key = RowKey.of(problem)
    near = [
        (_distance(key, row.key), row)
        for row in table(arch.name)
        if row.key.same_kind(key)
    ]
    near.sort(key=lambda pair: (pair[0], pair[1].name))
    return [
        (row, distance == 0.0)
        for distance, row in near
        if distance <= NEAREST_MAX_DISTANCE
    ]


def _distance(a: RowKey, b: RowKey) -> float:
    """Octaves between two shapes. M decides the tile most, K least. Of groups, what
    counts is the size of one; that there are more of them says little."""
    weights = (
        (2.0, a.m / a.groups_along("m"), b.m / b.groups_along("m")),
        (1.0, a.n / a.groups_along("n"), b.n / b.groups_along("n")),
        (0.5, a.k / a.groups_along("k"), b.k / b.groups_along("k")),
        (0.25, a.groups, b.groups),
    )
    return sum(w * abs(math.log2(x) - math.log2(y)) for w, x, y in weights)
