"""Drive the child process: one case at a time, surviving what its kernels do.

In: a case and the entries to time. Out: a timing or a reason for every entry. A child
that dies or hangs is replaced, the entry that did it is named, and the others are set
up again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_cute_backend.bench.cases import Case, Shape
from torch_cute_backend.bench.protocol import ROUNDS, Timing
from torch_cute_backend.errors import CompileError, CuteBackendError
from torch_cute_backend.runtime.pool import WorkerProcess
from torch_cute_backend.schedule import GemmSchedule

CHILD = "torch_cute_backend.bench.child"
START_TIMEOUT_S = 90.0
"""Import of torch, CUDA context, input sets, reference."""
ADD_TIMEOUT_S = 25.0
"""Load, one launch, reference comparison, capture: below a second unless it hangs."""
MAX_LOSSES = 8
"""Children lost to crashes and hangs before a session stops starting new ones."""
COMPILE_TIMEOUT_S = 600.0
"""Entries that compile: torch.compile with max-autotune, peers that tune themselves."""
TIME_TIMEOUT_S = 120.0
SLOW = ("inductor", "quack", "quack_untuned", "deep_gemm", "vllm", "helion")


@dataclass(frozen=True)
class Entry:
    """One thing to time.

    Attributes:
        provider: see ``providers.provider``.
        accum: ``"fast"`` or ``"exact"``.
        schedule: ours only.
        source: where the schedule is from (``"pretuned-exact"``, ``"model"``, ...).
        chosen: ours only: it is what ``tuning.choose`` takes.
    """

    provider: str
    accum: str = "fast"
    schedule: GemmSchedule | None = None
    source: str | None = None
    chosen: bool = False

    @property
    def label(self) -> str:
        """Provider's name in results; a person's own is ``NAME=FILE``."""
        return self.provider.split("=", 1)[0]

    @property
    def name(self) -> str:
        """Unique within a case."""
        parts = [self.label, self.accum]
        if self.schedule is not None:
            parts.append(json.dumps(self.schedule.to_json(), sort_keys=True))
        return "|".join(parts)

    def describe(self) -> str:
        tile = "" if self.schedule is None else f" {self.schedule.describe()}"
        return f"{self.label}{tile}" + ("" if self.accum == "fast" else " exact")


@dataclass
class Outcome:
    """What came of a case's entries."""

    timings: dict[Entry, Timing] = field(default_factory=dict)
    kernels: dict[Entry, str | None] = field(default_factory=dict)
    failures: dict[Entry, str] = field(default_factory=dict)


class ChildError(CuteBackendError):
    """The child died or hung."""


class Session:
    """One child process and the case that it holds. Use as a context manager."""

    def __init__(self, child: str = CHILD, *, cached_only: bool = False) -> None:
        self._module = child
        self._cached_only = cached_only
        self._child: WorkerProcess | None = None
        self._opened: tuple[Case, bool] | None = None
        self._added: dict[Entry, str | None] = {}
        self._losses = 0

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
        self._child = None
        self._opened = None
        self._added = {}

    def environment(self) -> dict[str, Any]:
        """Facts for result rows (GPU, driver, versions, commit, date) and the arch."""
        return self._call({"op": "environment"}, START_TIMEOUT_S)

    def measure(
        self,
        case: Case,
        entries: Sequence[Entry],
        *,
        cold: bool = True,
        rounds: int = ROUNDS,
    ) -> Outcome:
        """Check and time ``entries`` of a case together."""
        outcome = Outcome()
        self.add(case, entries, cold, outcome)
        alive = [e for e in entries if e not in outcome.failures]
        self.time(alive, rounds, outcome)
        return outcome

    def add(
        self, case: Case, entries: Iterable[Entry], cold: bool, outcome: Outcome
    ) -> None:
        """Set up entries of a case; those that fail are in ``outcome.failures``."""
        for entry in entries:
            try:
                self._reopen(case, cold, outcome)
                reply = self._add(entry)
            except ChildError as error:
                outcome.failures[entry] = str(error)
                continue
            if "error" in reply:
                outcome.failures[entry] = reply["error"]
                continue
            self._added[entry] = reply["kernel"]
            outcome.kernels[entry] = reply["kernel"]

    def time(self, entries: Sequence[Entry], rounds: int, outcome: Outcome) -> None:
        """Time entries that are set up, in turns."""
        if not entries:
            return
        request = {"op": "time", "names": [e.name for e in entries], "rounds": rounds}
        try:
            reply = self._call(request, TIME_TIMEOUT_S)
        except ChildError as error:
            reply = {"error": f"while timed with {len(entries)} others: {error}"}
        if "error" in reply:
            for entry in entries:
                outcome.failures[entry] = reply["error"]
            return
        for entry in entries:
            outcome.timings[entry] = Timing(*reply["us"][entry.name])

    def sweep(
        self,
        kind: str,
        accum: str,
        schedule: GemmSchedule,
        shapes: Sequence[Shape],
        num_ctas: int | None = None,
        timeout_s: float = ADD_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Exact products of small integers for all shapes: ``kernel``, ``right``,
        ``wrong``, or ``error``."""
        request = {
            "op": "sweep",
            "kind": kind,
            "accum": accum,
            "schedule": schedule.to_json(),
            "shapes": list(shapes),
            "num_ctas": num_ctas,
            "cached_only": self._cached_only,
        }
        try:
            return self._call(request, timeout_s)
        except ChildError as error:
            return {"error": str(error)}

    def _reopen(self, case: Case, cold: bool, outcome: Outcome) -> None:
        """Open the case unless it is; after a crash also set its entries up again."""
        if self._opened == (case, cold) and self._alive():
            return
        lost = list(self._added) if self._opened == (case, cold) else []
        self._added = {}
        request = {
            "op": "open",
            "suite": case.suite,
            "kind": case.kind,
            "shape": list(case.shape),
            "cold": cold,
        }
        reply = self._call(request, START_TIMEOUT_S)
        if "error" in reply:
            raise ChildError(reply["error"])
        self._opened = (case, cold)
        for entry in lost:
            again = self._add(entry)
            if "error" in again:
                outcome.failures[entry] = again["error"]
            else:
                self._added[entry] = again["kernel"]

    def _add(self, entry: Entry) -> dict[str, Any]:
        request = {
            "op": "add",
            "name": entry.name,
            "provider": entry.provider,
            "accum": entry.accum,
            "schedule": None if entry.schedule is None else entry.schedule.to_json(),
            "cached_only": self._cached_only,
        }
        slow = entry.label in SLOW or "=" in entry.provider
        return self._call(request, COMPILE_TIMEOUT_S if slow else ADD_TIMEOUT_S)

    def _alive(self) -> bool:
        return self._child is not None and self._child.alive()

    def _call(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        if self._losses >= MAX_LOSSES:
            raise ChildError(f"not tried: {self._losses} processes were lost already")
        if self._child is None or not self._child.alive():
            self._child = WorkerProcess(self._module, gpu=True)
        try:
            return self._child.call(request, timeout_s)
        except CompileError as error:
            self._child.kill()
            self._losses += 1
            raise ChildError(f"the process that ran it was lost: {error}") from error


class Deadline:
    """A budget of wall time. ``Deadline(None)`` never passes."""

    def __init__(self, seconds: float | None) -> None:
        self._started = time.monotonic()
        self._seconds = seconds

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    @property
    def passed(self) -> bool:
        return self._seconds is not None and self.elapsed >= self._seconds

    @property
    def left(self) -> float | None:
        return None if self._seconds is None else max(0.0, self._seconds - self.elapsed)

    def __str__(self) -> str:
        total = "" if self._seconds is None else f"/{self._seconds:.0f}"
        return f"{self.elapsed:.0f}{total} s"
