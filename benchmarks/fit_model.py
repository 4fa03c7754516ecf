"""Refit the cost model's rates from measurements, and say how well it ranks.

    python benchmarks/fit_model.py [--results DIR] [--arch sm_90a] [--write]

Rows of ours with a schedule, cold, are what it learns from: tuning writes many for each
shape. It minimises the squared error of the log of time, schedules near a shape's best
counting most, over the logs of the rates. A rate stays between physical limits: without
them one takes up what the model lacks, as an FP8 rate above the tensor cores' peak did
for rounds of large clusters that the model did not count. Ranking is judged by whether
the first four of the model hold one within 3% of the best measured, also on shapes that
the fit has not seen (``--folds``). ``--write`` puts the rates into ``tuning/rates.py``.
"""

from __future__ import annotations

import argparse
import math
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from torch_cute_backend.arch import ArchSpec, arch_spec
from torch_cute_backend.bench import compare
from torch_cute_backend.bench.cases import KINDS, problem_of
from torch_cute_backend.bench.quality import GPUS
from torch_cute_backend.bench.results import OURS
from torch_cute_backend.errors import TableError, UserError
from torch_cute_backend.problem import Accum, GemmProblem
from torch_cute_backend.schedule import GemmSchedule
from torch_cute_backend.tuning import model, rates
from torch_cute_backend.tuning.rates import RATES, Rates

RESULTS = Path(__file__).parent / "fit_data"
"""Rows of searches, which are no results to report."""
COLD = ("cold", "brief-cold")
FITTED = tuple(f.name for f in fields(Rates) if f.name != "source")
PRIOR = 0.05
"""Weight of staying near the old rates, for those that the data say little about."""
LIMITS = {"softness": (2.0, 16.0), "narrow_n": (8.0, 128.0), "exact_factor": (1.0, 2.0)}
_CLOCK = 1.98e9
PHYSICAL = {
    "sm_90a": {
        "fp8_flops": (1.0e15, 1.98e15),
        "half_flops": (5.0e14, 9.9e14),
        "dram_bytes": (3.5e12, 4.8e12),
        "l2_bytes": (4.0e12, 132 * 64 * _CLOCK),
        "sm_bytes": (3.0e10, 128 * _CLOCK),
        "latency_s": (4.0e-7, 3.0e-6),
        "start_s": (1.0e-6, 4.0e-6),
    }
}
"""By arch. H200: data sheet (dense peaks, 4.8 TB/s); boost clock 1.98 GHz; an SM reads
64 bytes a clock from L2 and fills 128 of shared memory; a load from DRAM takes 0.4 us
when nothing else runs; an empty kernel takes over 1 us."""
LARGE_CLUSTER = 4
"""From this size on, how many run at once differs from chip to chip."""
CLOSE = 1.03
FIRST = 4


@dataclass(frozen=True)
class Sample:
    """One measured schedule."""

    problem: GemmProblem
    schedule: GemmSchedule
    us: float


@dataclass(frozen=True)
class Shape:
    """All measured schedules of one GEMM."""

    name: str
    samples: tuple[Sample, ...]

    @property
    def best_us(self) -> float:
        return min(s.us for s in self.samples)


def read_shapes(folder: Path, arch: str, least: int = 2) -> list[Shape]:
    """Measured GEMMs of ``arch`` with at least so many schedules.

    A schedule that was measured several times has its smallest time.
    """
    found: dict[GemmProblem, dict[GemmSchedule, float]] = {}
    for row in compare.load(folder):
        sample = _sample(row, arch)
        if sample is not None and not _overfull(sample, arch):
            times = found.setdefault(sample.problem, {})
            known = times.get(sample.schedule, math.inf)
            times[sample.schedule] = min(sample.us, known)
    return [
        Shape(p.describe(), tuple(Sample(p, s, us) for s, us in times.items()))
        for p, times in found.items()
        if len(times) >= least
    ]


def _overfull(sample: Sample, arch: str) -> bool:
    """Were there more large clusters than run at once? How many do is not known of the
    GPU that was measured, and the first searches launched one too many."""
    s, p = sample.schedule, sample.problem
    rows = math.ceil(p.m / (s.tile_m * s.cluster_m))
    clusters = rows * math.ceil(p.n / (s.tile_n * s.cluster_n))
    slots = arch_spec(arch).cluster_slots(s.cluster_size)
    return s.cluster_size >= LARGE_CLUSTER and clusters > slots


def _sample(row: dict[str, Any], arch: str) -> Sample | None:
    here = next((a for gpu, a in GPUS.items() if gpu in row["gpu"]), None)
    if here != arch or row["provider"] != OURS or row.get("protocol") not in COLD:
        return None
    if not row.get("schedule"):
        return None
    kind = _kind(row)
    if kind is None:
        return None
    try:
        schedule = GemmSchedule.from_json(row["schedule"])
    except TableError:
        return None
    shape = (row["shape"]["m"], row["shape"]["n"], row["shape"]["k"])
    accum = Accum.EXACT if row["accum"] == "exact" else Accum.FAST
    return Sample(problem_of(kind, shape, accum), schedule, float(row["us"]))


def _kind(row: dict[str, Any]) -> str | None:
    wanted = (row["dtype"], row["scaling"], row.get("b_major", "k"))
    for name, kind in KINDS.items():
        if (kind.dtype.name, kind.scaling, kind.b_major.value) == wanted:
            return name
    return None


# --- fit


def fit(shapes: Sequence[Shape], arch: ArchSpec, start: Rates) -> Rates:
    """The rates that explain ``shapes`` best; near ``start`` where nothing tells."""
    samples = [s for shape in shapes for s in shape.samples]
    if not samples:
        raise UserError("nothing to fit: no cold rows of ours with a schedule")
    log_us = np.array([math.log(s.us) for s in samples])
    weights = np.array(
        [shape.best_us / s.us for shape in shapes for s in shape.samples]
    )
    low, high = limits(arch.name)
    origin = np.clip(np.log([getattr(start, name) for name in FITTED]), low, high)

    def residuals(x: np.ndarray) -> np.ndarray:
        trial = to_rates(x, start)
        times = [
            model.estimate(s.problem, s.schedule, arch, trial).total for s in samples
        ]
        errors = weights * (np.log(np.array(times) * 1e6) - log_us)
        pull = PRIOR * math.sqrt(len(samples) / len(FITTED)) * (x - origin)
        return np.concatenate([errors, pull])

    return to_rates(least_squares(residuals, origin, low, high), start)


def limits(arch: str) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest logs of the fitted fields."""
    known = LIMITS | PHYSICAL.get(arch, {})
    pairs = [known.get(name, (1e-15, math.inf)) for name in FITTED]
    return np.log([low for low, _ in pairs]), np.log([high for _, high in pairs])


def to_rates(x: np.ndarray, like: Rates) -> Rates:
    """Logs of the fitted fields to rates."""
    values = dict(zip(FITTED, map(float, np.exp(x)), strict=True))
    return replace(like, **values)


def least_squares(
    function: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    low: np.ndarray | float = -math.inf,
    high: np.ndarray | float = math.inf,
    steps: int = 40,
) -> np.ndarray:
    """Levenberg-Marquardt with a numerical Jacobian, within limits: what is at one and
    would leave it takes no part in a step."""
    x, damping = start.copy(), 1e-2
    r = function(x)
    for _ in range(steps):
        jacobian = np.stack(
            [(function(x + h) - r) / 1e-4 for h in 1e-4 * np.eye(len(x))], axis=1
        )
        normal = jacobian.T @ jacobian
        gradient = jacobian.T @ r
        held = ((x <= low) & (gradient > 0)) | ((x >= high) & (gradient < 0))
        free = np.flatnonzero(~held)
        for _ in range(8):
            scaled = normal + damping * (
                np.diag(np.diag(normal)) + 1e-9 * np.eye(len(x))
            )
            step = np.zeros(len(x))
            step[free] = np.linalg.solve(scaled[np.ix_(free, free)], gradient[free])
            trial = np.clip(x - step, low, high)
            new = function(trial)
            if new @ new < r @ r:
                break
            damping *= 4.0
        else:
            return x
        gain = 1.0 - (new @ new) / (r @ r)
        x, r, damping = trial, new, damping / 3.0
        if gain < 1e-5:
            break
    return x


# --- judge


@dataclass(frozen=True)
class Quality:
    """How well a ranking finds the best of what was measured.

    Attributes:
        shapes: shapes with more schedules than are taken.
        first: share of them whose first candidates hold one within 3% of the best.
        loss_one, loss_first: mean of (time of the first candidate, or of the best of
            the first ones) over the best, less 1.
        error: root mean square of the log of estimate over time; nan if none is given.
    """

    shapes: int
    first: float
    loss_one: float
    loss_first: float
    error: float

    def __str__(self) -> str:
        return (
            f"{self.shapes} shapes: first {FIRST} within 3% of the best on "
            f"{100 * self.first:.0f}%; mean loss {100 * self.loss_first:.1f}% (of the "
            f"very first {100 * self.loss_one:.1f}%); rms error of log time "
            f"{self.error:.3f}"
        )


def judge(
    shapes: Sequence[Shape], order: Callable[[Shape], Sequence[Sample]]
) -> Quality:
    """Judge a ranking of each shape's samples, best first (it may leave some out)."""
    one, first = [], []
    for shape in shapes:
        ranked = list(order(shape))
        if len(shape.samples) <= FIRST:
            continue
        times = [s.us / shape.best_us for s in ranked[:FIRST]] or [math.inf]
        one.append(times[0])
        first.append(min(times))
    if not one:
        return Quality(0, math.nan, math.nan, math.nan, math.nan)
    close = [t <= CLOSE for t in first]
    mean_one, mean_first = float(np.mean(one)) - 1, float(np.mean(first)) - 1
    return Quality(len(one), float(np.mean(close)), mean_one, mean_first, math.nan)


def by_model(arch: ArchSpec, r: Rates) -> Callable[[Shape], list[Sample]]:
    def order(shape: Shape) -> list[Sample]:
        def seconds(s: Sample) -> float:
            return model.estimate(s.problem, s.schedule, arch, r).total

        return sorted(shape.samples, key=seconds)

    return order


def judge_model(shapes: Sequence[Shape], arch: ArchSpec, r: Rates) -> Quality:
    errors = [
        math.log(model.estimate(s.problem, s.schedule, arch, r).total * 1e6 / s.us)
        for shape in shapes
        for s in shape.samples
    ]
    found = judge(shapes, by_model(arch, r))
    return replace(found, error=float(np.sqrt(np.mean(np.square(errors)))))


def cross_validate(
    shapes: Sequence[Shape], arch: ArchSpec, start: Rates, folds: int
) -> Quality:
    """Fit on all folds but one, rank the one left out; all shapes together."""
    orders: dict[str, list[Sample]] = {}
    for fold in range(folds):
        unseen = [s for s in shapes if zlib.crc32(s.name.encode()) % folds == fold]
        seen = [s for s in shapes if s not in unseen]
        if unseen and seen:
            order = by_model(arch, fit(seen, arch, start))
            orders |= {s.name: order(s) for s in unseen}
    judged = [s for s in shapes if s.name in orders]
    return judge(judged, lambda s: orders[s.name])


# --- write


def rates_text(found: dict[str, Rates]) -> str:
    """The table of ``tuning/rates.py``."""
    lines = ["RATES: dict[str, Rates] = {"]
    for arch, r in found.items():
        lines.append(f'    "{arch}": Rates(')
        lines += [f"        {k}={_literal(v)}," for k, v in asdict(r).items()]
        lines.append("    ),")
    return "\n".join([*lines, "}"])


def _literal(value: object) -> str:
    """As ``ruff format`` leaves it."""
    if not isinstance(value, float):
        return '"' + str(value).replace('"', "'") + '"'
    text = f"{value:.3g}".replace("e+", "e")
    return text if "." in text or "e" in text else f"{value:.1f}"


def write_rates(path: Path, found: dict[str, Rates]) -> None:
    """Replace what stands between the marks."""
    begin, end = (
        "# --- rates: written by benchmarks/fit_model.py\n",
        "# --- rates: end\n",
    )
    text = path.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(text):
        raise UserError(f"{path} has lost its marks")
    block = begin + rates_text(found) + "\n" + end
    path.write_text(pattern.sub(lambda _: block, text), encoding="utf-8")


def source_text(folder: Path, arch: str, shapes: Sequence[Shape], q: Quality) -> str:
    rows = [
        r
        for r in compare.load(folder)
        if r["provider"] == OURS
        and any(g in r["gpu"] and a == arch for g, a in GPUS.items())
    ]
    gpu = rows[-1]["gpu"] if rows else "?"
    dates = sorted({r["date"] for r in rows})
    count = sum(len(s.samples) for s in shapes)
    return f"fitted: {gpu}, {dates[-1]}, {count} runs; log error {q.error:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    arch = arch_spec(args.arch)
    shapes = read_shapes(args.results, arch.name)
    count = sum(len(s.samples) for s in shapes)
    print(f"{len(shapes)} GEMMs, {count} measured schedules")
    start = RATES[arch.name]
    print(f"as it is:     {judge_model(shapes, arch, start)}")
    found = fit(shapes, arch, start)
    quality = judge_model(shapes, arch, found)
    print(f"fitted:       {quality}")
    print(f"unseen folds: {cross_validate(shapes, arch, start, args.folds)}")
    for name in FITTED:
        print(
            f"  {name:14} {getattr(start, name):10.4g} -> {getattr(found, name):10.4g}"
        )
    if args.write:
        source = source_text(args.results, arch.name, shapes, quality)
        path = Path(rates.__file__)
        write_rates(path, {**RATES, arch.name: replace(found, source=source)})
        print(f"{path} written")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
