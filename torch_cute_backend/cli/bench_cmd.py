"""``bench``: measure a suite on the GPU at hand, or write the report."""

from __future__ import annotations

import argparse
from pathlib import Path

from torch_cute_backend.bench import host, pick_time, suite
from torch_cute_backend.bench.cases import parse_shapes
from torch_cute_backend.bench.cases import suite as gemm_suite
from torch_cute_backend.bench.protocol import ROUNDS
from torch_cute_backend.bench.session import Session
from torch_cute_backend.errors import UserError


def run(args: argparse.Namespace) -> int:
    if args.suite == "report":
        from torch_cute_backend.bench import report

        return report.write(args.results, args.out or Path("benchmarks/report"))
    _require_gpu()
    out = args.out or Path("benchmarks/results") / f"{args.suite}.jsonl"
    shapes = parse_shapes(args.shapes) if args.shapes else None
    if args.suite == "host":
        for shape in shapes or (host.SHAPE,):
            host.run(out, shape=shape)
    elif args.suite == "pick-time":
        pick_time.run(_pick_time_options(args, out))
    else:
        with Session(cached_only=args.cached_only) as session:
            suite.run(gemm_suite(args.suite), _options(args, out), session)
    print(f"rows are in {out}")
    return 0


def _pick_time_options(args: argparse.Namespace, out: Path) -> pick_time.Options:
    known = [way.provider for way in pick_time.WAYS]
    ways = args.providers.split(",") if args.providers else known
    unknown = sorted(set(ways) - set(known))
    if unknown:
        raise UserError(
            f"unknown way(s) to pick: {', '.join(unknown)}; known: {', '.join(known)}"
        )
    shapes = parse_shapes(args.shapes) if args.shapes else pick_time.SHAPES
    return pick_time.Options(out, args.budget, shapes, ways=tuple(ways))


def _options(args: argparse.Namespace, out: Path) -> suite.Options:
    protocols = ("cold", "warm") if args.both else ("warm",) if args.warm else ("cold",)
    if args.pdl:
        protocols = (suite.PDL,)
    providers = suite.DEFAULT_PROVIDERS
    if args.providers:
        providers = tuple(args.providers.split(","))
    return suite.Options(
        out=out,
        providers=providers,
        schedules=args.schedules,
        protocols=protocols,
        shapes=parse_shapes(args.shapes) if args.shapes else None,
        rounds=args.rounds or ROUNDS,
        budget_s=args.budget,
        again=args.again,
        cached_only=args.cached_only,
        table=args.table,
    )


def _require_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise UserError("bench needs an NVIDIA GPU; torch sees none")
