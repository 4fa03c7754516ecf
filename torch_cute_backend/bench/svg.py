"""Three kinds of plot as SVG text, byte-identical for equal data, no dependency.

Horizontal bars (speed-ups, seconds) and a log-log scatter with ceilings (roofline).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLORS = (
    *("#0b6e4f", "#c44536", "#2b6cb0", "#b7791f", "#6b46c1", "#4a5568"),
    *("#d53f8c", "#319795"),
)
"""Ours first; dark enough for white paper."""
_FONT = 'font-family="Helvetica, Arial, sans-serif" font-size="12"'


@dataclass(frozen=True)
class Bar:
    """One group: its label and a value for each series; None leaves a gap."""

    label: str
    values: tuple[float | None, ...]


def bars(
    title: str,
    groups: Sequence[Bar],
    series: Sequence[str],
    unit: str,
    reference: float | None = None,
) -> str:
    """Horizontal bars, grouped; ``reference`` draws a line (1.0 for speed-ups)."""
    left, width, thick = 190, 760, 13
    pitch = thick * len(series) + 9
    top = 34 + 18 * (len(series) > 1)
    height = top + pitch * len(groups) + 30
    known = [v for g in groups for v in g.values if v is not None]
    largest = max([*known, reference or 0.0, 1e-9]) * 1.08
    scale = (width - left - 70) / largest
    out = _open(width, height, title)
    if len(series) > 1:
        out += _legend(series, left, 40)
    for i, group in enumerate(groups):
        y = top + i * pitch
        middle = y + thick * len(series) / 2 + 4
        out.append(_text(left - 8, middle, group.label, "end"))
        for j, value in enumerate(group.values):
            if value is None:
                continue
            at = y + j * thick
            out.append(
                f'<rect x="{left}" y="{at:.1f}" width="{value * scale:.1f}" '
                f'height="{thick - 2}" fill="{COLORS[j % len(COLORS)]}"/>'
            )
            out.append(_text(left + value * scale + 4, at + 10, f"{value:.2f}{unit}"))
    if reference is not None:
        x = left + reference * scale
        bottom = top + pitch * len(groups)
        out.append(
            f'<line x1="{x:.1f}" y1="{top - 4}" x2="{x:.1f}" y2="{bottom}" '
            'stroke="#1a202c" stroke-dasharray="4 3"/>'
        )
    return _close(out)


@dataclass(frozen=True)
class Points:
    """One series of a scatter: x, y and a label for each point."""

    name: str
    points: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True)
class Ceiling:
    """``min(slope * x, flat)``: bandwidth and compute limits of one kind of GEMM."""

    name: str
    slope: float
    flat: float


def scatter(
    title: str,
    series: Sequence[Points],
    ceilings: Sequence[Ceiling],
    x_name: str,
    y_name: str,
) -> str:
    """Log-log points under their ceilings."""
    axes = _Axes.around(
        [(x, y) for s in series for x, y, _ in s.points],
        [c.flat for c in ceilings],
    )
    out = _open(axes.width, axes.height, title)
    out += axes.grid(x_name, y_name)
    for i, ceiling in enumerate(ceilings):
        color = COLORS[(5 + i) % len(COLORS)]
        knee = ceiling.flat / ceiling.slope
        corners = [
            (axes.x_low, ceiling.slope * axes.x_low),
            (knee, ceiling.flat),
            (axes.x_high, ceiling.flat),
        ]
        path = " ".join(f"{axes.x(a):.1f},{axes.y(b):.1f}" for a, b in corners)
        out.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" '
            'stroke-width="1.5"/>'
        )
        at = axes.x(axes.x_high) - 4
        out.append(_text(at, axes.y(ceiling.flat) - 5, ceiling.name, "end", color))
    for i, one in enumerate(series):
        for x, y, label in one.points:
            out.append(
                f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="4" '
                f'fill="{COLORS[i % len(COLORS)]}" fill-opacity="0.8">'
                f"<title>{escape(f'{one.name} {label}')}</title></circle>"
            )
    out += _legend([s.name for s in series], axes.left, 40)
    return _close(out)


@dataclass(frozen=True)
class _Axes:
    """Log-log axes from a power of ten to another."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    left: int = 70
    top: int = 56
    width: int = 760
    height: int = 470

    @classmethod
    def around(
        cls, points: Sequence[tuple[float, float]], heights: Sequence[float]
    ) -> _Axes:
        xs = [x for x, _ in points] or [1.0]
        ys = [y for _, y in points] + list(heights) or [1.0]
        return cls(_down(min(xs)), _up(max(xs)), _down(min(ys)), _up(max(ys)))

    def x(self, value: float) -> float:
        share = math.log(value / self.x_low) / math.log(self.x_high / self.x_low)
        return self.left + share * (self.width - self.left - 30)

    def y(self, value: float) -> float:
        share = math.log(value / self.y_low) / math.log(self.y_high / self.y_low)
        bottom = self.height - 46
        return bottom - share * (bottom - self.top)

    def grid(self, x_name: str, y_name: str) -> list[str]:
        out: list[str] = []
        left, right = self.x(self.x_low), self.x(self.x_high)
        bottom, top = self.y(self.y_low), self.y(self.y_high)
        for value in _decades(self.x_low, self.x_high):
            x = self.x(value)
            out.append(_line(x, bottom, x, top))
            out.append(_text(x, bottom + 16, f"{value:g}", "middle"))
        for value in _decades(self.y_low, self.y_high):
            y = self.y(value)
            out.append(_line(left, y, right, y))
            out.append(_text(left - 6, y + 4, f"{value:g}", "end"))
        out.append(_text((left + right) / 2, bottom + 34, x_name, "middle"))
        middle = (bottom + top) / 2
        out.append(
            f'<text x="18" y="{middle:.1f}" text-anchor="middle" {_FONT} '
            f'transform="rotate(-90 18 {middle:.1f})">{escape(y_name)}</text>'
        )
        return out


def _down(value: float) -> float:
    return float(10.0 ** math.floor(math.log10(value)))


def _up(value: float) -> float:
    """A power of ten above ``value``, and so above :func:`_down` of it."""
    return float(10.0 ** (math.floor(math.log10(value)) + 1))


def _decades(low: float, high: float) -> list[float]:
    count = round(math.log10(high / low))
    return [low * 10.0**i for i in range(count + 1)]


def _open(width: int, height: int, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" {_FONT} font-weight="bold">{escape(title)}</text>',
    ]


def _legend(names: Sequence[str], x: float, y: float) -> list[str]:
    out = []
    for i, name in enumerate(names):
        color = COLORS[i % len(COLORS)]
        out.append(
            f'<rect x="{x:.1f}" y="{y - 9}" width="10" height="10" fill="{color}"/>'
        )
        out.append(_text(x + 14, y, name))
        x += 30 + 7 * len(name)
    return out


def _text(
    x: float, y: float, text: str, anchor: str = "start", color: str = "#1a202c"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" '
        f"{_FONT}>{escape(text)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        'stroke="#cbd5e0"/>'
    )


def _close(out: list[str]) -> str:
    return "\n".join([*out, "</svg>"]) + "\n"
