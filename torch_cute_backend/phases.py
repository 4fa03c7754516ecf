"""Where the time of picking a kernel goes: named spans, kept and logged.

In: :func:`span` around what takes time. Out: :func:`recorded`, for ``bench pick-time``,
and one line each at INFO on the logger ``torch_cute_backend.phases``
(``TORCH_LOGS=torch_cute_backend`` shows it). Spans may overlap: compilers run beside
the lowering.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

log = logging.getLogger(__name__)

_KEPT = 4096
"""A long-lived process that compiles much keeps its newest spans only."""


@dataclass(frozen=True)
class Phase:
    """One span.

    Attributes:
        name: what was done: ``"compile"``, ``"benchmark"``, ...
        detail: to what: a kernel's name, mostly.
        begin: start, seconds on ``time.perf_counter``'s clock.
        seconds: wall time.
        thread: name of the thread that did it.
    """

    name: str
    detail: str
    begin: float
    seconds: float
    thread: str


_phases: deque[Phase] = deque(maxlen=_KEPT)


@contextmanager
def span(name: str, detail: str = "") -> Iterator[None]:
    """Record the time that the ``with`` block takes, also if it raises."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        record(name, detail, begin)


def record(name: str, detail: str, begin: float) -> None:
    """Record a span that began at ``begin`` (``time.perf_counter``) and ends now."""
    seconds = time.perf_counter() - begin
    thread = threading.current_thread().name
    # Appending to a deque is atomic, so no lock.
    _phases.append(Phase(name, detail, begin, seconds, thread))
    log.info("%s took %.3f s%s", name, seconds, f" ({detail})" if detail else "")


def recorded() -> tuple[Phase, ...]:
    """Every span that ended in this process so far, in order of their ends."""
    return tuple(_phases)


def clear() -> None:
    """Forget everything (tests)."""
    _phases.clear()
