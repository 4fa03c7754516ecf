"""``tune``: find the fastest schedules of some GEMMs on the GPU at hand."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from torch_cute_backend.arch import arch_spec
from torch_cute_backend.bench import suite
from torch_cute_backend.bench.protocol import ROUNDS
from torch_cute_backend.bench.session import Deadline, Session
from torch_cute_backend.errors import UserError
from torch_cute_backend.tuning import model_shapes, publish, search
from torch_cute_backend.tuning.table import TABLES


def run(args: argparse.Namespace) -> int:
    if args.arch is not None:
        arch_spec(args.arch)
    jobs = _jobs(args)
    if not jobs:
        raise UserError("no GEMM of a kind that can be tuned")
    with Session(cached_only=args.cached_only) as session:
        return tune(args, jobs, session)


def _jobs(args: argparse.Namespace) -> list[search.Job]:
    if args.shapes is not None:
        return search.read_jobs(args.shapes)
    jobs, skipped = model_shapes.of_script(args.from_model)
    for problem in skipped:
        print(f"skipped: {problem}")
    print(f"{args.from_model}: {len(jobs)} GEMMs")
    return jobs


def tune(args: argparse.Namespace, jobs: Sequence[search.Job], session: Session) -> int:
    """Search every job; 0 if each has an answer, 1 if some were not reached."""
    facts = session.environment()
    if "error" in facts:
        raise UserError(facts["error"])
    arch = arch_spec(facts["arch"])
    if args.arch not in (None, arch.name):
        raise UserError(f"--arch {args.arch}: the GPU is {arch.name}")
    table: Path = args.table or TABLES / f"{arch.name}.json"
    deadline = Deadline(args.budget)
    known = suite.known_keys(args.out)
    left = 0
    for i, job in enumerate(jobs):
        listed = search.candidates(job.case, job.accum, arch, args.limit)
        bar = progress(i, len(jobs))
        if search.is_known(known, job.case, job.accum, listed):
            print(f"{bar} {job.describe()}: done before")
            continue
        if deadline.passed:
            left += 1
            continue
        found = search.search(
            session,
            job.case,
            job.accum,
            listed,
            rounds=args.rounds or ROUNDS,
            deadline=deadline,
        )
        search.record(args.out, facts["environment"], found)
        row = search.table_row(found, facts["environment"])
        if row is not None:
            publish.merge_rows(table, arch.name, [row])
        print(f"{bar} {job.describe()}: {suite.summary(found.final)} | {deadline}")
    print(f"{progress(len(jobs) - left, len(jobs))} rows are in {table}")
    if left:
        print(f"out of time: {left} shapes left; run again to go on")
    return 1 if left else 0


def progress(done: int, total: int, width: int = 20) -> str:
    """``[#####---------------]  5/20``"""
    filled = width * done // max(total, 1)
    digits = len(str(total))
    return f"[{'#' * filled}{'-' * (width - filled)}] {done:{digits}}/{total}"
