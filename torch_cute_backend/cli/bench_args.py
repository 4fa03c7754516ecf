"""Arguments of ``bench`` and ``tune``; their commands import the heavy parts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

SUITES = (
    *("headline", "fp8-rowwise-decode", "fp8-rowwise", "bf16", "random"),
    *("grouped", "host", "pick-time", "report"),
)
"""Suites of GEMM shapes, suites of their own, and the report over all results."""


def add_bench(commands: Any, positive: Callable[[str], int]) -> None:
    """Add the subcommand to argparse's ``commands``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench", help="measure a suite on this GPU, or write the report"
    )
    parser.add_argument(
        "suite", choices=SUITES, metavar="SUITE", help=", ".join(SUITES)
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="jsonl file to append to (default: benchmarks/results/SUITE.jsonl); of "
        "report: the folder to write (default: benchmarks/report)",
    )
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FOLDER",
        default=Path("benchmarks/results"),
        help="report only: jsonl files to read",
    )
    parser.add_argument("--shapes", metavar="MxNxK,...", help="instead of the suite's")
    parser.add_argument("--rounds", type=positive, help="replays of each provider")
    parser.add_argument("--budget", type=float, metavar="SECONDS")
    parser.add_argument(
        "--providers",
        metavar="NAME,...",
        help="torch_cute_backend, aten, inductor, t_read, vllm, quack, quack_untuned, "
        "deep_gemm, helion, or "
        "NAME=FILE.py for your own",
    )
    parser.add_argument(
        "--schedules",
        default="table",
        metavar="WHICH",
        help="of ours: table (what the look-up takes), top:N, or all",
    )
    parser.add_argument(
        "--table", type=Path, metavar="FILE", help="also time this table's schedules"
    )
    cache = parser.add_mutually_exclusive_group()
    cache.add_argument(
        "--cold", action="store_true", help="weights not in L2 (default)"
    )
    cache.add_argument("--warm", action="store_true", help="weights in L2")
    cache.add_argument("--both", action="store_true")
    cache.add_argument(
        "--pdl",
        action="store_true",
        help="not in L2, our kernels as programmatic dependents of one another",
    )
    parser.add_argument(
        "--again", action="store_true", help="also what FILE holds already"
    )
    parser.add_argument(
        "--cached-only", action="store_true", help="leave out uncompiled kernels"
    )


def add_tune(commands: Any, positive: Callable[[str], int]) -> None:
    """Add the subcommand to argparse's ``commands``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tune", help="find the fastest schedules on this GPU, as table rows"
    )
    shapes = parser.add_mutually_exclusive_group(required=True)
    shapes.add_argument(
        "--shapes", type=Path, metavar="FILE", help="lines of KIND MxNxK [exact]"
    )
    shapes.add_argument(
        "--from-model",
        type=Path,
        metavar="SCRIPT",
        help="a script that compiles and runs a model; its GEMMs are tuned",
    )
    parser.add_argument("--arch", help="must be the GPU's (default)")
    parser.add_argument("--budget", type=float, metavar="SECONDS")
    parser.add_argument("--limit", type=positive, help="candidates of a shape")
    parser.add_argument("--rounds", type=positive, help="replays of each finalist")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("tune.jsonl"),
        metavar="FILE",
        help="every measurement; a run goes on where FILE ends",
    )
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="table to write rows into (default: the one in use for the arch)",
    )
    parser.add_argument(
        "--cached-only", action="store_true", help="leave out uncompiled kernels"
    )
