"""Line charts on logarithmic axes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 360, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 24, 30, 40
COLOURS = ("#0b6fb8", "#c2410c", "#15803d", "#7c3aed")

Points = Sequence[tuple[float, float]]


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _chart(title: str, x_label: str, y_label: str, series: Mapping[str, Points], at: tuple[int, int]) -> list[str]:
    every = [p for points in series.values() for p in points]
    (x0, x1), (y0, y1) = _decades([x for x, _ in every]), _decades([y for _, y in every])
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        u, v = (math.log10(x) - x0) / (x1 - x0), (math.log10(y) - y0) / (y1 - y0)
        return LEFT + inner_w * u, TOP + inner_h * (1 - v)

    parts = [
        f'<g transform="translate({at[0]},{at[1]})">',
        f'<text x="{LEFT}" y="16" class="title">{escape(title)}</text>',
    ]
    for decade in range(x0, x1 + 1):
        x, _ = place(10.0**decade, 10.0**y0)
        parts.append(f'<path d="M{x:.1f} {TOP}V{TOP + inner_h}" class="grid"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP + inner_h + 14}" text-anchor="middle">{10.0**decade:g}</text>')
    for decade in range(y0, y1 + 1):
        _, y = place(10.0**x0, 10.0**decade)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{10.0**decade:g}</text>')
    parts.append(f'<text x="{LEFT + inner_w / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(
        f'<text transform="translate(12,{TOP + inner_h / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'
    )
    for k, (name, points) in enumerate(series.items()):
        colour = COLOURS[k % len(COLOURS)]
        spots = [place(x, y) for x, y in points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in spots]
        parts.append(f'<text x="{LEFT + 8}" y="{TOP + 14 + 13 * k}" style="fill:{colour}">{escape(name)}</text>')
    return [*parts, "</g>"]


def charts(drawn: Sequence[tuple[str, str, str, Mapping[str, Points]]], columns: int = 2) -> str:
    """An SVG of charts (title, label of x, label of y, series by name), in rows of `columns`."""
    rows = math.ceil(len(drawn) / columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * WIDTH} {rows * HEIGHT}" '
        f'width="{columns * WIDTH}" height="{rows * HEIGHT}">',
        "<style>text{font:11px sans-serif;fill:#333}.title{font-weight:bold}.grid{stroke:#ddd;stroke-width:.5}</style>",
        f'<rect width="{columns * WIDTH}" height="{rows * HEIGHT}" fill="#fff"/>',
    ]
    for k, chart in enumerate(drawn):
        parts += _chart(*chart, (k % columns * WIDTH, k // columns * HEIGHT))
    return "\n".join([*parts, "</svg>"]) + "\n"
