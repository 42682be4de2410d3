"""What happened in `make cluster`: who ran which run and when, who was killed, and who went on, as an SVG.

`python -m docs.scripts.cluster build/cluster/happened.jsonl build/cluster/happened.svg`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.scripts.figures import WIDTH, Drawing

LEFT, RIGHT, TOP, ROW, GAP = 78.0, 12.0, 46.0, 15.0, 22.0
Fact = dict[str, Any]  # Any: JSON


@dataclass(slots=True)
class Bar:
    """A run in one worker, from its first step to its last; `is_cut`: the worker was killed in a step of it."""

    run: str
    worker: str
    begin: float
    end: float
    is_cut: bool = False
    row: int = 0


def bars(facts: Iterable[Fact]) -> list[Bar]:
    """In the order in which they began."""
    found: dict[tuple[str, str], Bar] = {}
    for fact in facts:
        if "run" in fact:
            bar = found.setdefault((fact["worker"], fact["run"]), Bar(fact["run"], fact["worker"], fact["at"], 0.0))
            bar.end = max(bar.end, fact["at"])
            bar.is_cut = fact["what"] == "begins"
    return sorted(found.values(), key=lambda bar: bar.begin)


def into_rows(found: list[Bar]) -> int:
    """Give each bar the first row of its worker that is free; how many rows that needs."""
    ends: list[float] = []
    for bar in found:
        bar.row = next((row for row, end in enumerate(ends) if end <= bar.begin), len(ends))
        ends[bar.row : bar.row + 1] = [bar.end]
    return len(ends)


def draw(facts: list[Fact]) -> str:
    found, killed = bars(facts), {fact["worker"]: fact["at"] for fact in facts if fact["what"] == "killed"}
    for bar in found:  # a bar that is cut lasts until the kill
        bar.end = killed[bar.worker] if bar.worker in killed and bar.is_cut else bar.end
    first, last = min(bar.begin for bar in found), max(bar.end for bar in found)
    scale = (WIDTH - LEFT - RIGHT) / (last - first)
    workers = sorted({fact["worker"] for fact in facts})
    rows = {worker: into_rows([bar for bar in found if bar.worker == worker]) for worker in workers}
    height = TOP + sum(rows[worker] * ROW + GAP for worker in workers)
    drawing = Drawing("Which worker ran which run, and when", int(height + 20))
    drawing.text(0, 16, "who ran what: a box is a run in a worker", "strong")
    places: dict[tuple[str, str], tuple[float, float, float]] = {}
    y = TOP
    for worker in workers:
        drawing.text(0, y + 11, worker, "strong")
        for bar in (each for each in found if each.worker == worker):
            x, line = LEFT + (bar.begin - first) * scale, y + bar.row * ROW
            width = max((bar.end - bar.begin) * scale, 4)
            drawing.box(x, line, width, ROW - 3, "cutbox" if worker in killed and bar.is_cut else "box")
            drawing.text(x + 4, line + 9.5, bar.run, "mono")
            places[worker, bar.run] = x, line + (ROW - 3) / 2, x + width
        if worker in killed:
            x = LEFT + (killed[worker] - first) * scale
            drawing.add(f'<line x1="{x:g}" y1="{y - 6:g}" x2="{x:g}" y2="{y + rows[worker] * ROW:g}" class="ask"/>')
            drawing.text(x + 6, y + 9, "kill -9", "warn strong")
        y += rows[worker] * ROW + GAP
    for bar in found:
        for later in (each for each in found if each.run == bar.run and each.begin > bar.begin):
            _, y0, x0 = places[bar.worker, bar.run]
            x1, y1, _ = places[later.worker, later.run]
            path = f"M{x0:g} {y0:g} C{x0 + 30:g} {y0:g} {x1 - 30:g} {y1:g} {x1:g} {y1:g}"
            drawing.add(f'<path d="{path}" class="ask" fill="none"/>')
    drawing.text(LEFT, height + 8, "0 s", "soft small")
    drawing.text(WIDTH - RIGHT, height + 8, f"{last - first:.1f} s", "soft small", "end")
    drawing.text(
        WIDTH / 2, height + 8, "dashed: a run goes on in another worker, under its own id", "soft small", "middle"
    )
    return drawing.svg()


def main(source: Path, target: Path) -> None:
    facts = [json.loads(line) for line in source.read_text().splitlines()]
    target.write_text(draw(facts))
    print(f"open {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
