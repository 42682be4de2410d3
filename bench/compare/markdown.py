"""The report in Markdown, and its summary for the README."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from bench.compare.contestants import FLOOR, OURS
from bench.compare.figures import Report, Row, growth_rows, speed_rows, stop_rows, totals
from bench.compare.score import NAMES
from bench.compare.stops import LIMIT

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
DAGGERS = (
    "† the messages that the framework hands over have a tool call without a result; some close it in the next run. "
    f"‡ the stop did not come through within {LIMIT:g} seconds, after which the task was cancelled."
)


def report_text(report: Report) -> str:
    """The whole report."""
    parts = [
        "# Side by side",
        f"{_machine(report)} {_versions(report)} How it is measured, and what the questions mean: "
        "[bench/README.md](../README.md).",
        "## Speed\n\nWhole runs per second, one after the other, with a model and tools that cost nothing. Medians.",
        _table(report, speed_rows(report)),
        "![Runs per second](speed.svg)",
        "## Growth\n\nOne more run with one tool after a conversation of so many messages, milliseconds.",
        _table(report, growth_rows(report)),
        "![Milliseconds of a run by the length of its conversation](growth.svg)",
        "## Stop\n\nFrom the framework's own stop until its messages were read and checked, in ms: p50, then p99.",
        _table(report, stop_rows(report, 50)),
        _table(report, stop_rows(report, 99)),
        DAGGERS,
        "![Milliseconds to stop](stop.svg)",
        f"## Stop score\n\nYes answers to {len(NAMES)} questions.",
        _score(report),
        "![Yes answers](score.svg)",
        *_servers(report),
        "## Where a peer wins",
        _wins(report),
        *_absent(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(report: Report) -> str:
    """The table for the README."""
    scores = totals(report)
    shown = [row for row in speed_rows(report) if row.name.endswith("streamed")]
    waits = [row for row in stop_rows(report, 50) if row.name in ("silent stream", "async tool", "three nested")]
    valid = stop_rows(report, 50)
    head = ["", *(f"{row.name.removesuffix(', streamed')}, runs/s" for row in shown)]
    head += [*(f"stop: {row.name}, ms" for row in waits), "histories valid at once", "stop score"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    for name, facts in report["frameworks"].items():
        whole = sum(name in row.values and not row.marks.get(name) for row in valid)
        cells = [_cell(row, name) for row in chain(shown, waits)]
        ends = [f"{whole} of {len(valid)}", f"{scores[name]} of {len(NAMES)}" if name in scores else "–"]
        lines.append(_line([f"{facts['title']} {facts['version']}".strip(), *cells, *ends]))
    lines += [_line([title, *["not installed"] * (len(head) - 1)]) for title in report["absent"]]
    return "\n\n".join(["\n".join(lines), f"Where a peer wins: {_wins_short(report)}. {_machine(report)}"])


def put_summary(readme: Path, text: str) -> None:
    """Between the markers, and nowhere else."""
    whole = readme.read_text()
    before, begin, rest = whole.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{readme.name} has no place for the summary: write {BEGIN} and {END} where it is to stand")
    readme.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def _table(report: Report, rows: Sequence[Row]) -> str:
    if not rows:
        return "Not measured."
    names = list(report["frameworks"])
    titles = [report["frameworks"][name]["title"] for name in names]
    head = ["", *titles, "lead", "of the floor"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    for row in rows:
        ratios = [_times(row.lead()), _times(row.of_floor())]
        lines.append(_line([row.name, *(_cell(row, name) for name in names), *ratios]))
    return "\n".join(lines)


def _cell(row: Row, name: str) -> str:
    if name not in row.values:
        return "–"
    value = row.values[name]
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    text = f"{value:,.{digits}f}{row.marks.get(name, '')}"
    return f"**{text}**" if row.best() == name else text


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f} ×"


def _score(report: Report) -> str:
    names = list(totals(report))
    lines = [
        _line(["", *(report["frameworks"][name]["title"] for name in names)]),
        _line(["---", *[":-:"] * len(names)]),
    ]
    for place, question in enumerate(NAMES, 1):
        answers = (report["frameworks"][name]["score"].get(question, {}).get("yes") for name in names)
        lines.append(_line([f"{place}. {question}", *("yes" if yes else "no" for yes in answers)]))
    lines.append(_line(["**yes**", *(f"**{count}**" for count in totals(report).values())]))
    return "\n".join(lines)


def _servers(report: Report) -> list[str]:
    rows = report.get("servers")
    if not rows:
        return []
    by_work: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = f"{row['path']}, {row['store']}, {row['clients']} client{'s' * (row['clients'] > 1)}"
        by_work.setdefault(name, {})[row["server"]] = row
    head = ["", "Safepoint, requests/s", "ADK, requests/s", "lead", "CPU, ms", "ADK's", "p99, ms", "ADK's"]
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)])]
    for name, servers in by_work.items():
        ours, theirs = servers["Safepoint"], servers["ADK"]
        rates = [f"{ours['rate']:,.0f}", f"{theirs['rate']:,.0f}", _times(ours["rate"] / theirs["rate"])]
        times = [f"{server[key] * 1e3:.2f}" for key in ("cpu", "p99") for server in (ours, theirs)]
        lines.append(_line([name, *rates, *times]))
    return ["## Server\n\nSafepoint's beside Google ADK's, each with an instant model.", "\n".join(lines)]


def _wins(report: Report) -> str:
    found = [f"- {win}" for win in _losses(report, _told)]
    return "\n".join(found) if found else "Nowhere in this measurement."


def _wins_short(report: Report) -> str:
    found = _losses(report, lambda row, title, _ratio: f"{row.name} ({title})")
    return ", ".join(found) if found else "nowhere in this measurement"


def _told(row: Row, title: str, ratio: float) -> str:
    return f"{row.name}: {title} is {1 / ratio:.2f} × as good as Safepoint"


def _losses(report: Report, tell: Callable[[Row, str, float], str]) -> list[str]:
    rows = [*speed_rows(report), *growth_rows(report)]
    for percent in 50, 99:
        rows += [
            Row(f"stop, {row.name}, p{percent}", row.unit, row.values, row.better, row.marks)
            for row in stop_rows(report, percent)
        ]
    found: list[str] = []
    for row in rows:
        best, ratio = row.best(), row.lead()
        if best is not None and best != OURS and ratio is not None:
            found.append(tell(row, report["frameworks"][best]["title"], ratio))
    for question in NAMES:
        given = {name: facts["score"].get(question, {}).get("yes") for name, facts in report["frameworks"].items()}
        if given.get(OURS) is False:
            winners = [report["frameworks"][name]["title"] for name, yes in given.items() if yes and name != FLOOR]
            found += [f"{question}: {title} answers yes, Safepoint no" for title in winners]
    return found


def _absent(report: Report) -> list[str]:
    lines = [f"- {title} could not be installed: {why}" for title, why in report["absent"].items()]
    lines += [f"- {miss['framework']}, {miss['what']}: {miss['why']}" for miss in report["missing"]]
    return ["## Not measured", "\n".join(lines)] if lines else []


def _machine(report: Report) -> str:
    facts = report["machine"]
    load = f"{facts['loadBefore'][0]:.1f} before"
    if "loadAfter" in facts:
        load += f", {facts['loadAfter'][0]:.1f} after"
    size = (
        "" if report.get("size") == "full" else f" A {report.get('size')} run: too short for numbers to be relied on."
    )
    return f"Python {facts['python']}, {facts['system']}, {facts['cores']} cores, load {load}.{size}"


def _versions(report: Report) -> str:
    entries = [
        f"{facts['title']} {facts['version']} (stopped by {facts['stoppedBy']})".replace("  ", " ")
        for facts in report["frameworks"].values()
    ]
    return "; ".join(entries) + "."


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
