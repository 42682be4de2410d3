"""Every public way into Safepoint, cancelled wherever it waits, in every moment, by us and by the caller."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import safepoint
from safepoint.testing import CALLER, OWN, Report, Site, check_cancellable, never_reached
from tests.injection.entries import ENTRIES, SHELF, WITHOUT_A_CALLER
from tests.injection.turned import BOOKS

REPORTS: dict[str, Report] = {}

ROOT = Path(safepoint.__file__).parent
COVERED = [ROOT / part for part in ("_core", "agent", "tools", "sessions", "turns")]

# A real file, or a new Python, under every injection takes minutes: such entries are left to the long proofs.
LONG = sorted(name for name in ENTRIES if name.endswith(("_in_sqlite", "_in_a_process")))
ORDINARY = sorted(set(ENTRIES) - set(LONG))


def cancel_everywhere(name: str) -> None:
    kinds = [OWN] if name in WITHOUT_A_CALLER else [OWN, CALLER]
    report = REPORTS[name] = check_cancellable(ENTRIES[name], oracles=[SHELF.is_sound, BOOKS.balance], kinds=kinds)
    assert report.failures == [], "\n".join(map(str, report.failures[:3]))
    assert report.injections > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ORDINARY)
def test_an_entry_can_be_cancelled_wherever_it_waits(name: str) -> None:
    cancel_everywhere(name)


@pytest.mark.proof
@pytest.mark.parametrize("name", LONG)
def test_an_entry_that_takes_long_can_be_cancelled_wherever_it_waits(name: str) -> None:
    cancel_everywhere(name)


def test_the_table_says_which_awaits_were_never_waited_in(record_property: Callable[[str, object], None]) -> None:
    missed = never_reached(COVERED, REPORTS.values())
    record_property("table", table(REPORTS, missed))
    assert all(report.failures == [] for report in REPORTS.values())


def table(reports: dict[str, Report], missed: list[Site]) -> str:
    lines = [f"{'entry':44} {'points':>7} {'injections':>11} {'distinct':>9} {'failures':>9}"]
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
