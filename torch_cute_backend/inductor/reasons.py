"""Why a GEMM got no kernel of ours: logged once a reason, kept for ``doctor``.

The logger is ``torch_cute_backend``: ``TORCH_LOGS=torch_cute_backend`` shows it (torch
takes any importable module there), as does Python's own logging configuration.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from torch_cute_backend.status import Status

log = logging.getLogger("torch_cute_backend")


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


def record(op: str, step: str, status: Status, problem: str = "") -> None:
    """Keep each reason of ``status``; log those that are new in this process."""
    for reason in status.reasons:
        key = (op, step, reason)
        with _lock:
            new = key not in _seen
            if new:
                _seen[key] = Refusal(op, step, reason, problem)
        if new:
            log.info("%s: no kernel (%s): %s%s", op, step, reason, f" [{problem}]")


def recorded() -> tuple[Refusal, ...]:
    """Everything refused in this process so far, in order of first occurrence."""
    with _lock:
        return tuple(_seen.values())


def clear() -> None:
    """Forget everything (tests)."""
    with _lock:
        _seen.clear()
