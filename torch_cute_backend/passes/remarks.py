"""What the passes say about their decisions: ``Remark`` and ``Omission``."""

from __future__ import annotations

from dataclasses import dataclass

DECISIONS = ("omitted", "kept", "refused", "not_applicable")
RULES = (
    "single_root",
    "role_local",
    "residual_work",
    "post_loop_use",
    "barrier_order",
    "scheduler",
    "participants",
)
"""Rules of the loop-omission check, in the order in which they are reported."""


@dataclass(frozen=True)
class Remark:
    """One finding. ``applied``: the rewrite was made; otherwise it was missed."""

    applied: bool
    rule: str
    statement: str
    message: str

    def __str__(self) -> str:
        verdict = "APPLIED" if self.applied else "MISSED"
        return f"{verdict} {self.rule}: {self.statement}: {self.message}"


@dataclass(frozen=True)
class Omission:
    """The decision on the shared loop.

    Attributes:
        decision: ``"omitted"``, ``"kept"``, ``"refused"`` (it may neither go nor stay)
            or ``"not_applicable"`` (there is no persistent loop).
        rule: the first rule that failed; None if none did or none was asked.
        remarks: one a residual statement, one a failed rule.
    """

    decision: str
    rule: str | None
    remarks: tuple[Remark, ...] = ()
