"""Why a GEMM got no kernel of ours: logged once a reason, kept for ``doctor``.

The logger is ``torch_cute_backend``: ``TORCH_LOGS=torch_cute_backend`` shows it (torch
takes any importable module there), as does Python's own logging configuration. Where
kernels are simulated it warns: whoever asks for that wants no other kernel.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import dataclass

from torch_cute_backend.inductor import compat
from torch_cute_backend.status import Status

log = logging.getLogger("torch_cute_backend")

INSTALL = "install"
"""The step at which the whole plugin is refused: its reasons are warnings."""


@dataclass(frozen=True)
class Refusal:
    """A GEMM, the step that refused it, and why.

    Attributes:
        op: the ATen op, for example ``"aten.mm"``.
        step: ``"install"``, ``"lowering"``, ``"compile"``, ``"epilogue"`` or
            ``"benchmark"``.
        reason: one line.
        problem: the GEMM where it was seen first, empty if not known yet.
    """

    op: str
    step: str
    reason: str
    problem: str = ""


_lock = threading.Lock()
_seen: dict[tuple[str, str, str], Refusal] = {}
_simulations: Counter[str] = Counter()


def record(op: str, step: str, status: Status, problem: str = "") -> None:
    """Keep each reason of ``status``; log those that are new in this process."""
    simulating = compat.simulated_arch() is not None
    with _lock:
        _simulations[step] += simulating and not status
    for reason in status.reasons:
        key = (op, step, reason)
        with _lock:
            new = key not in _seen
            if new:
                _seen[key] = Refusal(op, step, reason, problem)
        if new:
            # Whoever imported the package, or simulates a GPU, expects kernels.
            loud = simulating or step == INSTALL
            level = logging.WARNING if loud else logging.INFO
            where = f" [{problem}]" if problem else ""
            log.log(level, "%s: no kernel (%s): %s%s", op, step, reason, where)


def recorded() -> tuple[Refusal, ...]:
    """Everything refused in this process so far, in order of first occurrence."""
    with _lock:
        return tuple(_seen.values())


def not_simulated() -> dict[str, int]:
    """How often each step refused in graphs that are to be simulated: at ``lowering`` a
    GEMM, which runs on the CPU then; at ``epilogue`` a fusion."""
    with _lock:
        return {step: count for step, count in _simulations.items() if count}


def clear() -> None:
    """Forget everything (tests)."""
    with _lock:
        _seen.clear()
        _simulations.clear()
