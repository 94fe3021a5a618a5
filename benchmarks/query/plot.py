"""The plot: a bar from the median to the 99th percentile of each line, on a logarithmic scale."""

import math
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

_LEFT, _WIDTH, _ROW, _TOP = 260, 560, 18, 40
_LOW, _HIGH = 0.1, 20_000.0
_COLOURS = {
    "page": "#1f77b4",
    "empty": "#9467bd",
    "count": "#ff7f0e",
    "count of several": "#bcbd22",
    "aggregate": "#2ca02c",
}
_BARS = (200, 1_000)


def draw_plot(results: Mapping[str, Any]) -> str:
    """Return the SVG."""
    lines = [
        line
        for part in ("look-ups", "matrix", "aggregates", "mix")
        for line in results.get(part, ())
    ]
    height = _TOP + _ROW * len(lines) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 30}" height="{height}"'
        ' font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        *(_scale(ms, height) for ms in (0.1, 1, 10, 100, 1_000, 10_000)),
        *(_limit(ms, height) for ms in _BARS),
        *(_bar(line, _TOP + _ROW * position) for position, line in enumerate(lines)),
        *(_legend(position, kind) for position, kind in enumerate(_COLOURS)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _x(milliseconds: float) -> float:
    share = math.log(max(milliseconds, _LOW) / _LOW) / math.log(_HIGH / _LOW)
    return _LEFT + _WIDTH * min(1.0, share)


def _scale(ms: float, height: int) -> str:
    x = _x(ms)
    return (
        f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{height - 14}" stroke="#ddd"/>'
        f'<text x="{x:.1f}" y="{height - 3}" text-anchor="middle">{ms:g} ms</text>'
    )


def _limit(ms: float, height: int) -> str:
    x = _x(ms)
    dashed = 'stroke="#d62728" stroke-dasharray="4 3"'
    return f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{height - 14}" {dashed}/>'


def _bar(line: Mapping[str, Any], y: int) -> str:
    left, right = _x(line["median"]), _x(line["p99"])
    colour = _COLOURS.get(line["kind"], "#7f7f7f")
    return (
        f'<text x="{_LEFT - 6}" y="{y + 9}" text-anchor="end">{escape(line["name"])}</text>'
        f'<rect x="{left:.1f}" y="{y}" width="{max(right - left, 1):.1f}" height="10"'
        f' fill="{colour}" opacity="0.5"/>'
        f'<circle cx="{left:.1f}" cy="{y + 5}" r="4" fill="{colour}"/>'
    )


def _legend(position: int, kind: str) -> str:
    x = _LEFT + 120 * position
    return (
        f'<circle cx="{x}" cy="16" r="4" fill="{_COLOURS[kind]}"/>'
        f'<text x="{x + 8}" y="20">{kind}</text>'
    )
