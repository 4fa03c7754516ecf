"""The report's plots: speed-up bars, a roofline, seconds to the first result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from torch_cute_backend.bench import svg
from torch_cute_backend.bench.compare import Comparison, Row
from torch_cute_backend.bench.results import OURS

PROTOCOLS = ("cold", "warm", "pdl-cold")
"""Each has its own lines and plots."""
DRAM_BYTES = 4.3e12
PEAK_FLOPS = {"float8_e4m3fn": 1.45e15, "bfloat16": 0.79e15}
"""Ceilings measured on an H200: device copy, and the best large product."""
NAMES = {OURS: "ours", "aten": "ATen", "inductor": "torch.compile", "t_read": "read"}
_T = TypeVar("_T")


def make_plots(lines: Sequence[Comparison], rows: Sequence[Row]) -> dict[str, str]:
    """File name to SVG text; a plot without data is left out."""
    plots: dict[str, str] = {}
    gemms = [c for c in lines if c.key.protocol in PROTOCOLS]
    for suite, protocol in unique((c.key.suite, c.key.protocol) for c in gemms):
        some = [
            c
            for c in gemms
            if (c.key.suite, c.key.protocol) == (suite, protocol) and c.ours
        ]
        if some:
            name = f"speedup-{suite}-{protocol}.svg"
            plots[name] = _speedups(f"{suite}, {protocol}", some)
    cold = [c for c in gemms if c.key.protocol == "cold" and c.ours]
    if cold:
        plots["roofline.svg"] = _roofline(cold)
    first = _first_results(rows)
    if first is not None:
        plots["first-result.svg"] = first
    return plots


def _speedups(title: str, lines: Sequence[Comparison]) -> str:
    peers = unique(p for c in lines for p in c.peers)
    groups = [
        svg.Bar(shape_text(c), tuple(c.speedup(peer) for peer in peers)) for c in lines
    ]
    names = [f"over {display(peer)}" for peer in peers]
    return svg.bars(f"Speed-up of ours: {title}", groups, names, "x", 1.0)


def _roofline(lines: Sequence[Comparison]) -> str:
    def points(kind: str, who: str) -> tuple[tuple[float, float, str], ...]:
        found = []
        for c in lines:
            row = c.ours if who == OURS else c.peers.get(who)
            if row is None or c.key.dtype != kind or c.key.accum == "exact":
                continue
            rate = c.key.flops / row["us"] / 1e6
            found.append((c.key.flops / c.key.bytes, rate, shape_text(c)))
        return tuple(dict.fromkeys(found))

    series = [
        svg.Points(f"{display(who)} {short(kind)}", points(kind, who))
        for kind in PEAK_FLOPS
        for who in (OURS, "aten")
    ]
    ceilings = [
        svg.Ceiling(f"{short(kind)} {peak / 1e12:.0f}", DRAM_BYTES / 1e12, peak / 1e12)
        for kind, peak in PEAK_FLOPS.items()
    ]
    return svg.scatter(
        "Cold: achieved TFLOP/s under the measured ceilings (4.3 TB/s)",
        [s for s in series if s.points],
        ceilings,
        "FLOP per byte that must move",
        "TFLOP/s",
    )


def _first_results(rows: Sequence[Row]) -> str | None:
    found: dict[str, dict[tuple[str, str], float]] = {}
    for r in rows:
        if r["suite"] == "pick-time" and r["protocol"].startswith("first-call"):
            shape = "x".join(str(r["shape"][x]) for x in "mnk")
            place = (r["provider"], r["protocol"].removeprefix("first-call-"))
            found.setdefault(shape, {})[place] = r["us"] / 1e6
    if not found:
        return None
    series = unique(p for times in found.values() for p in times)
    groups = [
        svg.Bar(shape, tuple(times.get(p) for p in series))
        for shape, times in found.items()
    ]
    names = [f"{display(provider)}, {state}" for provider, state in series]
    return svg.bars("Seconds to the first result", groups, names, " s")


def unique(values: Iterable[_T]) -> list[_T]:
    return list(dict.fromkeys(values))


def display(provider: str) -> str:
    return NAMES.get(provider, provider.replace(OURS, "ours"))


def short(dtype: str) -> str:
    return {"float8_e4m3fn": "fp8", "bfloat16": "bf16", "float16": "fp16"}.get(
        dtype, dtype
    )


def shape_text(c: Comparison) -> str:
    exact = " exact" if c.key.accum == "exact" else ""
    groups = ""
    if c.key.grouping != "none":
        groups = f"{c.key.groups} {c.key.sizes} {c.key.grouping}: "
    return groups + "x".join(map(str, c.key.shape)) + exact
