"""Argument parsing and dispatch. Everything heavy is imported by the subcommand.

A person's mistake is one line on stderr and exit code 2; a kernel that does not compile
or a check that fails is exit code 1.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from torch_cute_backend.arch import ARCHS
from torch_cute_backend.cli import bench_args
from torch_cute_backend.errors import CacheError, CuteBackendError, UserError
from torch_cute_backend.problem import OPS, SCALINGS, Accum, Grouping, Major
from torch_cute_backend.schedule import CHOICES
from torch_cute_backend.schedulers import SCHEDULERS
from torch_cute_backend.version import __version__

PROGRAM = "torch-cute"
GROUPINGS = tuple(g.value for g in Grouping if g is not Grouping.NONE)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{PROGRAM}: error: {message}", file=sys.stderr)
        raise SystemExit(2)


def _positive(text: str) -> int:
    value = int(text) if text.isdigit() else 0
    if not 0 < value < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive 32-bit integer")
    return value


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(PROGRAM, description="CuTe DSL GEMM kernels for torch.compile")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="compile, run and check an FP8 MLP block")
    demo.add_argument("--m", type=_positive, default=64, help="tokens (default 64)")
    demo.add_argument(
        "--mode",
        choices=("max-autotune", "max-autotune-no-cudagraphs"),
        default="max-autotune",
        help="of torch.compile",
    )
    demo.add_argument(
        "--compete",
        action="store_true",
        help="benchmark against every other choice (about a minute a GEMM) instead of "
        "taking the pretuned kernel at once",
    )

    explain = commands.add_parser("explain", help="which kernel a GEMM gets, and why")
    _add_problem(explain)
    explain.add_argument("--json", action="store_true", help="machine-readable")
    explain.add_argument(
        "--print-ir",
        choices=("before", "after"),
        help="the tile program before or after the loop-omission check",
    )
    explain.add_argument("--source", action="store_true", help="the generated source")

    compile_ = commands.add_parser("compile", help="compile a GEMM's kernel, no GPU")
    _add_problem(compile_)
    compile_.add_argument("--emit", choices=("source", "ptx", "cubin", "sass"))
    compile_.add_argument("-o", "--output", metavar="FILE", help="default: stdout")
    compile_.add_argument(
        "--no-gate", action="store_true", help="accept spills and ptxas warnings"
    )

    simulate = commands.add_parser("simulate", help="run a GEMM's kernel on this CPU")
    _add_problem(simulate)
    simulate.add_argument(
        "--mode",
        default="lazy",
        help="when asynchronous work completes: eager, lazy or random:SEED",
    )
    simulate.add_argument(
        "--sms", type=_positive, help="SMs of the simulated GPU (default: the arch's)"
    )
    simulate.add_argument("--trace", metavar="FILE", help="write a Perfetto trace")
    simulate.add_argument(
        "--ptx",
        metavar="FILE",
        help="run this PTX, edited by hand, with the same launch",
    )
    simulate.add_argument("--json", action="store_true", help="machine-readable")

    doctor = commands.add_parser("doctor", help="versions, GPU, what is on and why")
    doctor.add_argument("--json", action="store_true", help="machine-readable")

    bench_args.add_bench(commands, _positive)
    bench_args.add_tune(commands, _positive)

    cache = commands.add_parser("cache", help="the on-disk cache of kernels")
    cache.add_argument(
        "action", nargs="?", default="list", choices=("list", "clear", "verify")
    )
    return parser


def _add_problem(parser: argparse.ArgumentParser) -> None:
    """Arguments that describe a GEMM and its schedule; see ``cli.problem``."""
    parser.add_argument("op", choices=OPS, metavar="OP", help=", ".join(OPS))
    for size in "mnk":
        parser.add_argument(f"--{size}", type=_positive, required=True)
    parser.add_argument("--dtype", help="of A and B (bfloat16; scaled: float8_e4m3fn)")
    parser.add_argument(
        "--groups",
        type=_positive,
        help="of a grouped op; a ragged size is theirs all",
    )
    parser.add_argument(
        "--grouping",
        choices=GROUPINGS,
        help="the dimension that groups divide (m), or batch: equal ones",
    )
    parser.add_argument("--out-dtype", default="bfloat16")
    parser.add_argument("--scaling", choices=SCALINGS)
    for name, values in (("accum", Accum), ("a-major", Major), ("b-major", Major)):
        known = [v.value for v in values]
        parser.add_argument(f"--{name}", choices=known, default=known[0])
    parser.add_argument("--bias", action="store_true", help="a bias of N elements")
    parser.add_argument(
        "--products",
        type=int,
        choices=(1, 2),
        default=1,
        help="2: A with two Bs in one kernel, as the K and V projections of one input",
    )
    parser.add_argument("--arch", help=f"{', '.join(ARCHS)} (default: the GPU's)")
    parser.add_argument("--scheduler", choices=tuple(SCHEDULERS))
    parser.add_argument("--shared-loop", choices=CHOICES["shared_loop"])
    parser.add_argument("--schedule", metavar="JSON", help="a whole schedule, as JSON")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        args = build_parser().parse_args(argv)
        command = importlib.import_module(f"torch_cute_backend.cli.{args.command}_cmd")
        return int(command.run(args))
    except (UserError, CacheError) as error:
        # A damaged entry is a finding of ``cache verify``; what raises is a folder that
        # its user has to mend.
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2
    except CuteBackendError as error:
        print(f"{PROGRAM}: failed: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader went away (``| head``); a second complaint at exit helps nobody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # A file that the user named, or a full disk: a stack would explain nothing.
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
