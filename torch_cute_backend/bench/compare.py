"""From result rows to comparisons: ours against each peer, shape by shape.

Only rows of one run (GPU, commit, date) are compared with one another; where a shape
was measured in several runs, the last one counts. Pure functions of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_cute_backend.bench import quality, results
from torch_cute_backend.bench.results import OURS

FLOOR = "t_read"
"""The provider that only reads the weight: a floor, no peer."""
NOT_COMPARED = ("tune", "random", "loop-omission", "variants")
"""Suites whose rows are measurements of candidates, not comparisons."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """One table line."""

    gpu: str
    suite: str
    protocol: str
    dtype: str
    scaling: str
    accum: str
    shape: tuple[int, int, int]
    grouping: str = "none"
    groups: int = 1
    sizes: str = "equal"

    @classmethod
    def of(cls, row: Row) -> Key:
        size = row["shape"]
        return cls(
            row["gpu"],
            row["suite"],
            row["protocol"],
            row["dtype"],
            row["scaling"],
            row["accum"],
            (size["m"], size["n"], size["k"]),
            row.get("grouping", "none"),
            size.get("groups", 1),
            row.get("sizes", "equal"),
        )

    @property
    def label(self) -> str:
        """Sizes, and groups if there are any."""
        text = ", ".join(map(str, self.shape))
        if self.grouping == "none":
            return text
        skew = "" if self.sizes == "equal" else f" {self.sizes}"
        return f"{text}; {self.groups}{skew} groups of {self.grouping.upper()}"

    @property
    def one(self) -> tuple[float, float, float]:
        """M, N and K of a group of average size."""
        m, n, k = (
            size / self.groups if self.grouping == name else float(size)
            for name, size in zip("mnk", self.shape, strict=True)
        )
        return m, n, k

    @property
    def weight_bytes(self) -> int:
        _, n, k = self.one
        return int(self.groups * n * k) * width_of(self.dtype)

    @property
    def flops(self) -> float:
        m, n, k = self.one
        return 2.0 * self.groups * m * n * k

    @property
    def bytes(self) -> int:
        """Read and written at least once; outputs are 16 bits wide."""
        m, n, k = self.one
        one = (m + n) * k * width_of(self.dtype) + m * n * 2
        return int(self.groups * one)


def width_of(dtype: str) -> int:
    return 1 if dtype.startswith("float8") else 2


@dataclass
class Comparison:
    """All providers' rows of one line.

    Attributes:
        ours: what the look-up chose, or the fastest of ours if no row is marked.
        best_ours: the fastest schedule of ours that was timed.
        peers: provider to row.
        floor: the read-only kernel's row.
    """

    key: Key
    ours: Row | None = None
    best_ours: Row | None = None
    peers: dict[str, Row] = field(default_factory=dict)
    floor: Row | None = None

    @property
    def best_peer(self) -> Row | None:
        return min(self.peers.values(), key=lambda r: r["us"], default=None)

    def speedup(self, peer: str | None = None) -> float | None:
        """A peer's time over ours, the best one's by default; None if not measured."""
        row = self.best_peer if peer is None else self.peers.get(peer)
        if row is None or self.ours is None:
            return None
        return float(row["us"] / self.ours["us"])

    @property
    def over_floor(self) -> float | None:
        if self.floor is None or self.ours is None:
            return None
        return float(self.ours["us"] / self.floor["us"])


def load(folder: Path) -> list[Row]:
    """Result rows of every ``*.jsonl`` of a folder, failures left out."""
    rows: list[Row] = []
    for path in sorted(folder.glob("*.jsonl")):
        if not path.name.endswith(".failures.jsonl"):
            rows += [r for r in results.read(path) if is_result(r)]
    return rows


def is_result(row: Row) -> bool:
    """Has it what every comparison needs? Other files may lie in the same folder."""
    fields = ("suite", "shape", "dtype", "scaling", "accum", "provider", "us", "gpu")
    return all(f in row for f in fields) and {"m", "n", "k"} <= set(row["shape"])


def compare(rows: Iterable[Row]) -> list[Comparison]:
    """A comparison for each line, in order of first occurrence."""
    lines: dict[Key, list[Row]] = {}
    for row in rows:
        if row["suite"] not in NOT_COMPARED:
            lines.setdefault(Key.of(row), []).append(row)
    return [_comparison(key, _last_run(found)) for key, found in lines.items()]


def _last_run(rows: Sequence[Row]) -> list[Row]:
    """Rows of the run that the latest row belongs to."""

    def run(row: Row) -> tuple[str, str]:
        return str(row.get("date")), str(row.get("commit"))

    latest = max(str(r.get("date")) for r in rows)
    last = next(run(r) for r in reversed(rows) if str(r.get("date")) == latest)
    return [r for r in rows if run(r) == last]


def _comparison(key: Key, rows: Sequence[Row]) -> Comparison:
    result = Comparison(key)
    ours = [r for r in rows if r["provider"] == OURS]
    marked = [r for r in ours if r.get("chosen")]
    result.best_ours = min(ours, key=lambda r: r["us"], default=None)
    # Measured twice in a run: the later row counts.
    result.ours = marked[-1] if marked else result.best_ours
    for row in rows:
        if row["provider"] == FLOOR:
            result.floor = row
        elif row["provider"] != OURS:
            result.peers[row["provider"]] = row
    return result


def geometric_mean(values: Iterable[float]) -> float | None:
    """None for no values."""
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


@dataclass(frozen=True)
class Summary:
    """Ratios over several shapes: geometric mean, worst, and how many shapes."""

    mean: float | None
    worst: float | None
    count: int


def summarize(values: Iterable[float | None]) -> Summary:
    known = [v for v in values if v is not None]
    return Summary(geometric_mean(known), min(known, default=None), len(known))


@dataclass(frozen=True)
class Goal:
    """Something to reach, and what the rows say.

    Attributes:
        reached: None where nothing was measured.
        figure: text of what was measured.
    """

    name: str
    reached: bool | None
    figure: str


Pick = Callable[[Comparison], bool]


def goals(lines: Sequence[Comparison], rows: Sequence[Row]) -> list[Goal]:
    """The project's speed goals against cold measurements."""
    measured = [c for c in lines if c.key.protocol == "cold" and c.ours is not None]
    cold = [c for c in measured if c.key.grouping == "none"]
    grouped = [c for c in measured if c.key.grouping != "none"]
    fp8 = [c for c in cold if c.key.dtype.startswith("float8")]
    fast = [c for c in fp8 if c.key.accum == "fast"]
    small = [c for c in fast if c.key.shape[0] <= 64]
    large = [c for c in fast if c.key.shape[0] >= 512]
    half = [c for c in cold if c.key.dtype == "bfloat16"]
    return [
        _ratio("FP8 rowwise, M <= 64: best peer", small, None, 1.15, 0.98),
        _ratio("FP8 rowwise, M <= 64: ATen", small, "aten", 1.7, None),
        *_floor_goals(small),
        _ratio("FP8 rowwise, M >= 512: best peer", large, None, 1.0, 0.98),
        _exact_goal(fp8),
        _ratio("bf16: cuBLAS", half, "aten", 1.05, 0.98),
        _ratio("Grouped: best of ATen and torch.compile", grouped, None, 1.1, 0.95),
        *_pick_goals(rows),
        _candidates_goal(rows),
        _host_goal(rows),
    ]


def _ratio(
    name: str,
    lines: Sequence[Comparison],
    peer: str | None,
    mean: float,
    worst: float | None,
) -> Goal:
    """Speed-up in geometric mean at least ``mean``, on every shape ``worst``."""
    found = summarize(c.speedup(peer) for c in lines)
    wanted = f"{name}: at least {mean:g}x in geometric mean"
    if worst is not None:
        wanted += f", {worst:g}x on every shape"
    if found.mean is None or found.worst is None:
        return Goal(wanted, None, "not measured")
    reached = found.mean >= mean and (worst is None or found.worst >= worst)
    figure = f"{found.mean:.2f}x, worst {found.worst:.2f}x, {found.count} shapes"
    return Goal(wanted, reached, figure)


_FLOORS = ((100e6, math.inf, 1.15), (20e6, 100e6, 1.25), (8e6, 20e6, 1.4))
"""Weight bytes from, to; at most so many times the read-only kernel."""


def _floor_goals(lines: Sequence[Comparison]) -> list[Goal]:
    found = []
    for low, high, limit in _FLOORS:
        some = [
            c.over_floor
            for c in lines
            if low <= c.key.weight_bytes < high and c.over_floor is not None
        ]
        size = f"over {low / 1e6:.0f} MB"
        if high < math.inf:
            size = f"of {low / 1e6:.0f} to {high / 1e6:.0f} MB"
        name = f"FP8 rowwise, M <= 64, weight {size}: at most {limit:g} t_read"
        if not some:
            found.append(Goal(name, None, "not measured"))
            continue
        figure = f"worst {max(some):.2f}, {len(some)} shapes"
        found.append(Goal(name, max(some) <= limit, figure))
    return found


def _exact_goal(lines: Sequence[Comparison]) -> Goal:
    name = "FP8, M >= 512: exact accumulation at most 1.05x fast"
    times: dict[tuple[Any, ...], dict[str, float]] = {}
    for c in lines:
        if c.key.shape[0] >= 512 and c.ours is not None:
            place = (c.key.gpu, c.key.suite, c.key.shape)
            times.setdefault(place, {})[c.key.accum] = c.ours["us"]
    ratios = [t["exact"] / t["fast"] for t in times.values() if len(t) == 2]
    if not ratios:
        return Goal(name, None, "not measured")
    worst = max(ratios)
    return Goal(name, worst <= 1.05, f"worst {worst:.2f}x, {len(ratios)} shapes")


def _seconds(rows: Sequence[Row], provider: str, protocol: str) -> dict[str, float]:
    """First-call seconds by shape; the last row counts."""
    return {
        str(r["shape"]): r["us"] / 1e6
        for r in rows
        if (r["suite"], r["provider"], r["protocol"])
        == ("pick-time", provider, protocol)
    }


def _pick_goals(rows: Sequence[Row]) -> list[Goal]:
    cold, warm = "first-call-cold", "first-call-warm"
    ours = _seconds(rows, OURS, cold)
    both = _seconds(rows, f"stock+{OURS}", cold)
    stock = _seconds(rows, "stock", cold)
    made = [
        _limit("first result, ours and ATen's choices: at most 8 s", ours, 8.0),
        _limit("added to a stock run: at most 3 s", _minus(both, stock), 3.0),
    ]
    warm_extra = _minus(_seconds(rows, OURS, warm), _seconds(rows, "stock", warm))
    return [*made, _limit("warm start over stock's: at most 0.5 s", warm_extra, 0.5)]


def _minus(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
    return {shape: a[shape] - b[shape] for shape in a if shape in b}


def _limit(name: str, values: dict[str, float], limit: float) -> Goal:
    if not values:
        return Goal(name, None, "not measured")
    worst = max(values.values())
    return Goal(name, worst <= limit, f"at most {worst:.1f} s, {len(values)} shapes")


def _candidates_goal(rows: Sequence[Row]) -> Goal:
    found = quality.of_candidates(rows)
    name = (
        f"the look-up's candidates within {quality.CLOSE:g}x of the best of a search "
        "on 90% of random shapes"
    )
    if not found:
        return Goal(name, None, "not measured")
    share = sum(loss <= quality.CLOSE for loss in found) / len(found)
    mean = geometric_mean(found) or 0.0
    figure = f"{100 * share:.0f}% of {len(found)} shapes, mean {mean:.3f}x"
    return Goal(name, share >= 0.9, figure)


def _host_goal(rows: Sequence[Row]) -> Goal:
    name = "host: launch over a bare cuLaunchKernelEx at most 1.5 µs, no allocation"
    host = {r["provider"]: r for r in rows if r["suite"] == "host"}
    ours, bare = host.get(OURS), host.get("cuLaunchKernelEx")
    if ours is None or bare is None:
        return Goal(name, None, "not measured")
    over = ours["us"] - bare["us"]
    allocations = ours["allocations"]
    figure = f"{over:.2f} µs, {allocations} allocations"
    return Goal(name, over <= 1.5 and allocations == 0, figure)
