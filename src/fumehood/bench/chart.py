"""A picture of the table: one bar for each way to run a small program, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 860, 34, 300, 130, 54
_STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328 }
  .dim { fill: #656d76 } .bar { fill: #8c959f } .ours { fill: #1a7f37 } .grid { stroke: #d0d7de }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .dim { fill: #8d96a0 } .bar { fill: #6e7681 }
    .ours { fill: #3fb950 } .grid { stroke: #30363d }
  }
"""


def draw(rows: Sequence[dict[str, Any]], title: str) -> str:
    """SVG text; `rows` as in the summary: name and p50_ms."""
    height = _TOP + _ROW * len(rows) + 30
    low = 10 ** math.floor(math.log10(min(row["p50_ms"] for row in rows)))
    high = 10 ** math.ceil(math.log10(max(row["p50_ms"] for row in rows)))
    span = math.log10(high / low)

    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log10(value / low) / span

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text x="16" y="26" font-weight="600">{escape(title)}</text>',
    ]
    tick = low
    while tick <= high * 1.001:
        parts.append(f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP - 10}" y2="{height - 26}"/>')
        parts.append(f'<text class="dim" x="{x(tick):.1f}" y="{height - 8}" text-anchor="middle">{tick:g} ms</text>')
        tick *= 10
    for number, row in enumerate(rows):
        y = _TOP + number * _ROW
        kind = "ours" if row["name"].startswith("fumehood") else "bar"
        width = max(2.0, x(row["p50_ms"]) - _LEFT)
        parts.append(f'<text x="{_LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(row["name"])}</text>')
        parts.append(f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_ROW - 12}" rx="3"/>')
        parts.append(f'<text x="{_LEFT + width + 8:.1f}" y="{y + 16}">{row["p50_ms"]:.2f} ms</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"
