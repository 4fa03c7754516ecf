"""``explain``: which kernel a GEMM gets, where its schedule is from, what became of its
shared loop and why. No GPU, nothing is compiled."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from torch_cute_backend.build import KernelBuild
from torch_cute_backend.cli.problem import Plan, plan, problem_to_json
from torch_cute_backend.ir.printer import print_program
from torch_cute_backend.passes.remarks import Omission
from torch_cute_backend.tuning.table import TableRow


def run(args: argparse.Namespace) -> int:
    planned = plan(args)
    if args.json:
        report = {**to_json(planned), **_texts(planned, args)}
        json.dump(report, sys.stdout, indent=2)
        print()
        return 0
    print(to_text(planned))
    for text in _texts(planned, args).values():
        print("\n" + text, end="")
    return 0


def _texts(planned: Plan, args: argparse.Namespace) -> dict[str, str]:
    """The program and the source, as far as they were asked for and there are any."""
    texts: dict[str, str] = {}
    if isinstance(planned.result, KernelBuild):
        if args.print_ir:
            texts["ir"] = print_program(getattr(planned.result, args.print_ir))
        if args.source:
            texts["source"] = planned.result.source.text
    return texts


def to_json(planned: Plan) -> dict[str, Any]:
    """Everything that :func:`to_text` says.

    ``unsupported`` lists why no kernel fits, ``not_offered_here`` why Inductor would
    not be offered one in this environment; both are empty if all is well.
    """
    schedule = planned.schedule
    report: dict[str, Any] = {
        "problem": problem_to_json(planned.problem),
        "arch": planned.arch.name,
        "schedule": None if schedule is None else schedule.to_json(),
        "schedule_source": planned.source,
        "table_row": None if planned.row is None else planned.row.name,
        "provenance": None if planned.row is None else dict(planned.row.provenance),
        "loop_omission": None,
        "kernel": None,
        "source_sha256": None,
        "unsupported": [],
        "not_offered_here": list(not_offered_here()),
    }
    if isinstance(planned.result, KernelBuild):
        report["loop_omission"] = omission_to_json(planned.result.omission)
        report["kernel"] = planned.result.source.name
        report["source_sha256"] = planned.result.source.sha256
    else:
        report["unsupported"] = list(planned.result.reasons)
    return report


def not_offered_here() -> tuple[str, ...]:
    """What in this environment keeps our kernels away from Inductor."""
    from torch_cute_backend.cli.doctor_cmd import environment_checks

    return tuple(
        reason for _, status, _ in environment_checks() for reason in status.reasons
    )


def omission_to_json(omission: Omission) -> dict[str, Any]:
    return {
        "decision": omission.decision,
        "rule": omission.rule,
        "remarks": [
            {
                "applied": remark.applied,
                "rule": remark.rule,
                "statement": remark.statement,
                "message": remark.message,
            }
            for remark in omission.remarks
        ],
    }


def to_text(planned: Plan) -> str:
    """The report for people."""
    lines = [f"problem:      {planned.problem.describe()}"]
    lines.append(f"arch:         {planned.arch.name}")
    lines += [f"not offered:  {reason}" for reason in not_offered_here()]
    if planned.schedule is not None:
        lines.append(f"schedule:     {describe_schedule(planned)}")
    if planned.row is not None:
        lines.append(f"tuned:        {_tuned(planned.row)}")
    if not isinstance(planned.result, KernelBuild):
        reasons = planned.result.reasons
        return "\n".join([*lines, *(f"no kernel:    {reason}" for reason in reasons)])
    built = planned.result
    lines += omission_lines(built.omission)
    lines.append(f"kernel:       {built.source.name}")
    lines.append(f"source:       sha256 {built.source.sha256}")
    lines.append(f"hardware:     {_validation(built)}")
    return "\n".join(lines)


def describe_schedule(planned: Plan) -> str:
    schedule = planned.schedule
    if schedule is None:
        return "none"
    where = planned.source or "unknown"
    if planned.row is not None:
        where += f" row {planned.row.name}"
    return f"{schedule.describe()}, {schedule.scheduler}, {schedule.raster} ({where})"


def _tuned(row: TableRow) -> str:
    """Where a table row is from."""
    facts = dict(row.provenance)
    if facts["kind"] != "measured":
        return f"{facts.get('source', 'ranked first by the cost model')}, not measured"
    return (
        f"{facts['us']} us on {facts['gpu']} ({facts['margin']:+.0%} over the best "
        f"peer), {facts['date']}, commit {facts['commit']}, CuTe DSL {facts['dsl']}"
    )


def omission_lines(omission: Omission) -> list[str]:
    """The decision on the shared loop, then a line for each remark."""
    rule = f" (rule {omission.rule})" if omission.rule else ""
    lines = [f"shared loop:  {omission.decision}{rule}"]
    lines += [f"              {remark}" for remark in omission.remarks]
    return lines


def _validation(built: KernelBuild) -> str:
    from torch_cute_backend.runtime import validated

    kernels = validated.KernelClass.of(built.problem, built.schedule, built.arch)
    return f"{kernels}: {validated.describe(kernels)}"
