#!/usr/bin/env python3
"""Write the pretuned tables: ``torch_cute_backend/tuning/tables/<arch>.json``.

Every shape that the benchmarks list gets a row for each kind of GEMM. Its schedule is
the best measured one, if ``benchmarks/results/*.jsonl`` has one; else a published one;
else what the cost model ranks first. A measured row names the GPU, date, commit and
CuTe DSL of its run and its margin over the best other provider of the same run.

    python benchmarks/make_tables.py [--arch sm_90a] [--results DIR] [--check]

``--check`` writes nothing and exits with 1 if a table differs from what is shipped.
Rows stand one a line, with the schedule fields that differ from their defaults.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_cute_backend.arch import ARCHS, ArchSpec
from torch_cute_backend.bench import cases
from torch_cute_backend.bench.compare import FLOOR
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.dtypes import BFLOAT16, E4M3, FLOAT16
from torch_cute_backend.epilogue.graph import EpilogueGraph
from torch_cute_backend.errors import TableError
from torch_cute_backend.problem import SCALE_INPUTS, Accum, GemmProblem, Major
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import model
from torch_cute_backend.tuning.publish import row_name, row_text, table_text
from torch_cute_backend.tuning.table import TABLES, RowKey, TableRow, load_table

RESULTS = Path(__file__).parent / "results"
COLD = "cold"
"""The protocol that rows are ranked by: the weights are not in L2 when a model runs."""
_TIMING = {"provider", "shape", "dtype", "scaling", "accum", "us", "protocol", "gpu"}
GPU_ARCH = {"H200": "sm_90a", "H100": "sm_90a", "B200": "sm_100a"}
"""Part of a GPU's name -> the arch whose table its measurements are for."""


def shapes() -> tuple[cases.Shape, ...]:
    """Decode and serving shapes, M = 512, squares, DeepGEMM's with M 1, 128, 4096."""
    deepgemm = [(1, n, k) for m, n, k in cases.LARGE if m == 128]
    return tuple(dict.fromkeys((*cases.DECODE, *cases.LARGE, *deepgemm)))


def problems(shape: cases.Shape) -> Iterator[GemmProblem]:
    """Every kind of GEMM of one shape that the tables cover."""
    for family in ("fp8-rowwise", "fp8-tensorwise"):
        for accum in Accum:
            yield problem_of(RowKey(family, accum.value, "k", "k", *shape))
    for b_major in Major:
        fast = Accum.FAST.value
        yield problem_of(RowKey("bf16", fast, "k", b_major.value, *shape))


def problem_of(key: RowKey) -> GemmProblem:
    """A problem that the row is for, with bf16 or its operands' output."""
    dtypes = {"fp8": E4M3, "bf16": BFLOAT16, "fp16": FLOAT16}
    dtype, _, scaling = key.family.partition("-")
    operand = dtypes[dtype]
    out = BFLOAT16 if operand.is_fp8 else operand
    return GemmProblem(
        op="scaled_mm" if scaling else "mm",
        m=key.m,
        n=key.n,
        k=key.k,
        a_dtype=operand,
        b_dtype=operand,
        a_major=Major(key.a_major),
        b_major=Major(key.b_major),
        scaling=scaling or "none",
        accum=Accum(key.accum),
        epilogue=EpilogueGraph.linear(out, *SCALE_INPUTS[scaling or "none"]),
    )


# --- where schedules come from


def _published() -> dict[tuple[str, RowKey], tuple[GemmSchedule, dict[str, Any]]]:
    """Settings that others published as their best. (M, N, K) = (64, 5120, 5120) on
    B200: 64x64x128, 12 A/B, 2 accumulator and 2 C stages, epilogue tile 64x64. A tile
    has one subtile then, and so one C stage here: stages rotate within a tile."""
    schedule = GemmSchedule(64, 64, 128, ab_stages=12, acc_stages=2, epi_n=64)
    source = "Helion's pretuned sm_100 scaled_mm"
    return {
        ("sm_100a", RowKey.of(p)): (schedule, {"kind": "published", "source": source})
        for p in problems((64, 5120, 5120))
        if p.scaling == "rowwise"
    }


PUBLISHED = _published()


@dataclass(frozen=True)
class Best:
    """The fastest measured schedule of a shape."""

    schedule: GemmSchedule
    provenance: dict[str, Any]

    @property
    def us(self) -> float:
        return float(self.provenance["us"])


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Timings in every ``*.jsonl``; a malformed line is an error that names it."""
    rows = []
    for path in sorted(folder.glob("*.jsonl")):
        for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise TableError(f"{path.name} line {i}: {error}") from error
            # Suites also record failures, and other things than the time of a GEMM.
            if all(row.get(field) is not None for field in _TIMING):
                rows.append(row)
    return rows


def _arch_of(gpu: str) -> str | None:
    return next((arch for part, arch in GPU_ARCH.items() if part in gpu), None)


def _run(row: dict[str, Any]) -> tuple[Any, ...]:
    """What rows of one run, on the same problem, have in common."""
    shape = row["shape"]
    names = ("suite", "dtype", "scaling", "accum", "protocol", "gpu", "commit", "date")
    return (
        *(row[x] for x in names),
        row.get("b_major", "k"),
        *(shape[x] for x in ("m", "n", "k")),
    )


def _key(row: dict[str, Any]) -> RowKey | None:
    """The table key of a result row; None if no table has such rows."""
    short = {"float8_e4m3fn": "fp8", "fp8": "fp8", "e4m3": "fp8"}
    short |= {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16"}
    family = short.get(row["dtype"])
    if family is None or "groups" in row["shape"]:
        return None
    if row["scaling"] not in (None, "none"):
        family = f"{family}-{row['scaling']}"
    size = row["shape"]
    b_major = row.get("b_major", "k")
    accum = row["accum"] if family.startswith("fp8") else Accum.FAST.value
    return RowKey(family, accum, "k", b_major, size["m"], size["n"], size["k"])


def measured(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, RowKey], Best]:
    """The fastest of our schedules for each arch and key, over all cold runs that had
    another provider to compare with. A run that could not time the look-up's own choice
    (``chosen_timed`` false) does not say what is fastest, and settles nothing."""
    cold = [
        r
        for r in rows
        if str(r.get("protocol", "")).startswith(COLD)
        and r.get("chosen_timed") is not False
    ]
    others: dict[tuple[Any, ...], float] = {}
    for r in cold:
        if r["provider"] not in (OURS, FLOOR):
            others[_run(r)] = min(r["us"], others.get(_run(r), float("inf")))
    best: dict[tuple[str, RowKey], Best] = {}
    for r in cold:
        arch, key = _arch_of(r["gpu"]), _key(r)
        if r["provider"] != OURS or not r.get("schedule") or arch is None:
            continue
        if key is None or _run(r) not in others:
            continue
        found = Best(GemmSchedule.from_json(r["schedule"]), _provenance(r, others))
        if (arch, key) not in best or found.us < best[arch, key].us:
            best[arch, key] = found
    return best


def _provenance(
    row: dict[str, Any], others: dict[tuple[Any, ...], float]
) -> dict[str, Any]:
    margin = others[_run(row)] / row["us"] - 1
    run = {x: row[x] for x in ("gpu", "date", "commit", "dsl", "us")}
    return {"kind": "measured", **run, "margin": round(margin, 3)}


# --- rows


def table_rows(
    arch: ArchSpec, best: dict[tuple[str, RowKey], Best]
) -> Iterator[TableRow]:
    """A row for each shape and kind, in a fixed order, each valid for ``arch``; behind
    them what else was measured."""
    listed = [p for shape in shapes() for p in problems(shape)]
    for problem in listed:
        yield make_row(problem, arch, best)
    keys = {RowKey.of(p) for p in listed}
    more = [key for name, key in best if name == arch.name and key not in keys]
    for key in sorted(more, key=row_name):
        yield make_row(problem_of(key), arch, best)


def make_row(
    problem: GemmProblem, arch: ArchSpec, best: dict[tuple[str, RowKey], Best]
) -> TableRow:
    """Measured before published before the model's; ``TableError`` if not valid."""
    key = RowKey.of(problem)
    if (arch.name, key) in best:
        found = best[arch.name, key]
        schedule, provenance = found.schedule, found.provenance
    elif (arch.name, key) in PUBLISHED:
        schedule, provenance = PUBLISHED[arch.name, key]
    else:
        schedule, provenance = model.rank(problem, arch, 1)[0], {"kind": "model"}
    status = schedule.validate(problem, arch)
    if not status:
        raise TableError(f"{arch.name} {row_name(key)}: {status}")
    return TableRow(row_name(key), key, schedule, tuple(sorted(provenance.items())))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arch", action="append", choices=list(ARCHS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args(argv)
    best = measured(read_results(args.results))
    stale = False
    for arch in (ARCHS[x] for x in args.arch or ARCHS):
        path = TABLES / f"{arch.name}.json"
        text = table_text(arch.name, map(row_text, table_rows(arch, best)))
        if args.check:
            stale |= not path.exists() or path.read_text(encoding="utf-8") != text
            continue
        path.write_text(text, encoding="utf-8")
        kinds = [dict(r.provenance)["kind"] for r in load_table(path)]
        counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
        print(f"{path.name}: {len(kinds)} rows, {counts}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
