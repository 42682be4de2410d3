"""Charts as SVG, written by hand: bars and lines on a logarithmic scale need no plotting library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from bench.compare.contestants import FLOOR, OURS
from bench.compare.figures import Report, Row, growth_rows, speed_rows, stop_rows, totals
from bench.compare.score import NAMES

WIDTH, LABEL, BAR, GAP = 860, 150, 14, 4
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.title{font-size:15px;font-weight:600}.value{fill:#555}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.value{fill:#aaa}}"
)
_COLOURS = ("#3b6fb6", "#c9822b", "#5a9e6f", "#8b6bb1", "#b5544d", "#6f8a94")


@dataclass(frozen=True, slots=True)
class Scale:
    """Logarithmic, from a power of ten at or below the least value to one at or above the greatest."""

    low: int
    high: int

    @staticmethod
    def over(values: Iterable[float]) -> Scale:
        kept = [value for value in values if value > 0] or [1.0]
        low = math.floor(math.log10(min(kept)))
        return Scale(low, max(low + 1, math.ceil(math.log10(max(kept)))))

    def share(self, value: float) -> float:
        """Where the value lies, from 0 to 1."""
        if value <= 0:
            return 0.0
        return (math.log10(value) - self.low) / (self.high - self.low)


def bars(title: str, rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """A group of bars for each row, a bar for each framework."""
    scale = Scale.over(value for row in rows for value in row.values.values())
    room = WIDTH - LABEL - 90
    drawn: list[str] = []
    y = 34
    for row in rows:
        drawn.append(_text(8, y + 12, f"{row.name} ({row.unit})", "title"))
        y += 22
        for name, value in row.values.items():
            length = max(2.0, scale.share(value) * room)
            drawn.append(_text(LABEL - 6, y + 11, titles[name], anchor="end"))
            drawn.append(
                f'<rect x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{_colour(name, titles)}"/>'
            )
            drawn.append(_text(LABEL + length + 6, y + 11, f"{value:,.3g}{row.marks.get(name, '')}", "value"))
            y += BAR + GAP
        y += 12
    return _page(title, y, drawn)


def lines(title: str, rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """A line for each framework over the rows, which are steps of one size."""
    scale = Scale.over(value for row in rows for value in row.values.values())
    top, bottom, left, right = 50, 380, 70, WIDTH - 160
    step = (right - left) / max(1, len(rows) - 1)
    drawn = [_text(left + place * step, bottom + 20, row.name, anchor="middle") for place, row in enumerate(rows)]
    for power in range(scale.low, scale.high + 1):
        y = bottom - scale.share(10.0**power) * (bottom - top)
        drawn.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8884"/>')
        drawn.append(_text(left - 8, y + 4, f"{10.0**power:,g} ms", "value", anchor="end"))
    for name, shown in titles.items():
        points = [
            (left + place * step, bottom - scale.share(row.values[name]) * (bottom - top))
            for place, row in enumerate(rows)
            if name in row.values
        ]
        if points:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            colour = _colour(name, titles)
            drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            drawn.append(_text(points[-1][0] + 8, points[-1][1] + 4, shown))
    return _page(title, bottom + 40, drawn)


def draw(report: Report) -> dict[str, str]:
    """Every chart, by the name of its file."""
    titles = {name: facts["title"] for name, facts in report["frameworks"].items()}
    scores = {name: float(count) for name, count in totals(report).items()}
    score = Row("yes answers", f"of {len(NAMES)}", scores, "more", {})
    return {
        "speed.svg": bars("Runs per second; more is better; logarithmic", speed_rows(report), titles),
        "growth.svg": lines("One more run, by the length of the conversation", growth_rows(report), titles),
        "stop.svg": bars("Time to stop, p50; less is better; logarithmic", stop_rows(report, 50), titles),
        "score.svg": bars("Stop score", [score], titles),
    }


def _colour(name: str, titles: Mapping[str, str]) -> str:
    if name == OURS:
        return "#d1495b"
    if name == FLOOR:
        return "#9aa0a6"
    peers = [each for each in titles if each not in (OURS, FLOOR)]
    return _COLOURS[peers.index(name) % len(_COLOURS)]


def _text(x: float, y: float, words: str, kind: str = "", *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def _page(title: str, height: float, drawn: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
    inside = [f"<title>{escape(title)}</title>", f"<style>{_STYLE}</style>", _text(8, 20, title, "title"), *drawn]
    return "\n".join([head, *inside, "</svg>"]) + "\n"
