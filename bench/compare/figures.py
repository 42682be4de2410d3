"""Numbers for the report, from what was measured: medians, percentiles, and who was best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from bench.compare.contestants import FLOOR, OURS
from bench.sample import Sample

Report = dict[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table: a value for each framework that has one. `marks` are shown behind the value."""

    name: str
    unit: str
    values: Mapping[str, float]
    better: Literal["more", "less"]
    marks: Mapping[str, str]

    def best(self) -> str | None:
        """The framework that did best; the floor does not take part."""
        rivals = {name: value for name, value in self.values.items() if name != FLOOR}
        choose = max if self.better == "more" else min
        return choose(rivals, key=lambda name: rivals[name]) if rivals else None

    def lead(self) -> float | None:
        """How many times better ours is than the best peer: below 1 the peer wins."""
        peers = [value for name, value in self.values.items() if name not in (OURS, FLOOR)]
        ours = self.values.get(OURS)
        if not peers or not ours:
            return None
        return ours / max(peers) if self.better == "more" else min(peers) / ours

    def of_floor(self) -> float | None:
        """How many times as much as the floor ours takes."""
        ours, floor = self.values.get(OURS), self.values.get(FLOOR)
        if not ours or not floor:
            return None
        return floor / ours if self.better == "more" else ours / floor


def speed_rows(report: Report) -> list[Row]:
    return [_row(report, "speed", key, "runs/s", "more") for key in _keys(report, "speed")]


def growth_rows(report: Report) -> list[Row]:
    return [_row(report, "growth", key, "ms", "less", name=f"{int(key):,} messages") for key in _keys(report, "growth")]


def stop_rows(report: Report, percent: float) -> list[Row]:
    return [_stop_row(report, key, percent) for key in _keys(report, "stop")]


def totals(report: Report) -> dict[str, int]:
    """Yes answers of each framework that was asked."""
    answers = {name: facts["score"] for name, facts in report["frameworks"].items() if facts["score"]}
    return {name: sum(answer["yes"] for answer in given.values()) for name, given in answers.items()}


def _keys(report: Report, part: str) -> list[str]:
    return list(dict.fromkeys(key for facts in report["frameworks"].values() for key in facts[part]))


def _row(
    report: Report, part: str, key: str, unit: str, better: Literal["more", "less"], *, name: str | None = None
) -> Row:
    scale = 1e3 if unit == "ms" else 1.0
    given = {who: facts[part].get(key) for who, facts in report["frameworks"].items()}
    return Row(name or key, unit, {who: median(values) * scale for who, values in given.items() if values}, better, {})


def _stop_row(report: Report, key: str, percent: float) -> Row:
    values: dict[str, float] = {}
    marks: dict[str, str] = {}
    for who, facts in report["frameworks"].items():
        found = facts["stop"].get(key)
        if found:
            values[who] = Sample(tuple(sorted(stop["seconds"] for stop in found))).percentile(percent) * 1e3
            whole, over = all(stop["valid"] for stop in found), all(stop["ended"] for stop in found)
            marks[who] = "" if whole else "†" if over else "‡"
    return Row(key, "ms", values, "less", marks)
