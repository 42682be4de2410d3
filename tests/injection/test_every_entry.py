"""Every public way into Safepoint, cancelled wherever it waits, in every moment, by us and by the caller."""

from __future__ import annotations

from pathlib import Path

import pytest

import safepoint
from safepoint.testing import Report, check_cancellable
from safepoint.testing.sites import Site, never_reached
from tests.injection.entries import ENTRIES, SHELF

REPORTS: dict[str, Report] = {}

ROOT = Path(safepoint.__file__).parent
COVERED = [ROOT / part for part in ("_core", "agent", "tools", "sessions")]

# Awaits that no scenario can be suspended in, each with its reason. The list may only shrink.
NEVER_WAIT: dict[str, str] = {}


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_an_entry_can_be_cancelled_wherever_it_waits(name: str) -> None:
    report = REPORTS[name] = check_cancellable(ENTRIES[name], oracles=[SHELF.is_sound])
    assert report.failures == [], "\n".join(map(str, report.failures[:3]))
    assert report.injections > 0


def test_every_await_of_the_runtime_was_waited_in(capsys: pytest.CaptureFixture[str]) -> None:
    if set(REPORTS) != set(ENTRIES):
        pytest.skip("only part of the entries were run")
    missed = never_reached(COVERED, REPORTS.values())
    with capsys.disabled():
        print(table(REPORTS, missed))
    assert sorted(map(str, missed)) == sorted(NEVER_WAIT)


def table(reports: dict[str, Report], missed: list[Site]) -> str:
    lines = [f"\n{'entry':44} {'points':>7} {'injections':>11} {'distinct':>9} {'failures':>9}"]
    for name, report in sorted(reports.items()):
        row = (len(report.points), report.injections, report.distinct, len(report.failures))
        lines.append(f"{name:44} {row[0]:7} {row[1]:11} {row[2]:9} {row[3]:9}")
    total = (
        sum(len(report.points) for report in reports.values()),
        sum(report.injections for report in reports.values()),
        sum(report.distinct for report in reports.values()),
        sum(len(report.failures) for report in reports.values()),
    )
    lines.append(f"{'all':44} {total[0]:7} {total[1]:11} {total[2]:9} {total[3]:9}")
    lines += [f"never reached: {site}" for site in missed] or ["never reached: none"]
    return "\n".join(lines)
