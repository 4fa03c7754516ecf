"""Combine the reports of several launches of one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from .report import SimReport


def merge_reports(reports: Sequence[SimReport]) -> SimReport:
    """One report; counts and seconds add up, findings are joined in order."""
    first = reports[0]
    if len(reports) == 1:
        return first
    counts: dict[str, Counter[str]] = {}
    for report in reports:
        for name, values in report.counts.items():
            counts.setdefault(name, Counter()).update(values)
    return replace(
        first,
        findings=tuple(f for r in reports for f in r.findings),
        notes=tuple(f for r in reports for f in r.notes),
        counts={name: dict(values) for name, values in counts.items()},
        tiles_written_once=reports[-1].tiles_written_once,
        seconds=sum(r.seconds for r in reports),
        launches=len(reports),
        deadlocked=any(r.deadlocked for r in reports),
    )
