"""Every public way into Safepoint, cancelled wherever it waits, in every moment, by us and by the caller.

`make test` injects into a sample that changes daily, `make test-everywhere` everywhere, and shows that no await is
left. `make proof` adds the entries that take long.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import safepoint
from safepoint.testing import CALLER, OWN, Report, Site, check_cancellable, never_reached
from safepoint.testing.injections import Injection
from tests.injection.entries import ENTRIES, SHELF, WITHOUT_A_CALLER
from tests.injection.sampling import SHARE, sample
from tests.injection.turned import BOOKS

REPORTS: dict[str, Report] = {}
PARTS = ["_core", "agent", "tools", "compose", "sessions", "storage", "turns"]

ROOT = Path(safepoint.__file__).parent

# Awaits, by how their line begins, that nothing can be injected into here, each with the reason.
CANNOT_WAIT = {
    "async with asyncio.timeout(": "a time-out waits for nothing, neither when it is entered nor when it is left",
    "async with storage.changes(topic=TOPIC": "a subscription is entered and left at once",
    "async with silence.limit:": "that is a time-out, too",
    "outcome = await self.runner.perform(partial(_asked,": "a plan is a plain function: it is over in its first step",
    "await run.join()  # on a loop of our own": "that loop is real, and not the injector's; tests/process press Ctrl-C",
    "await self._run.join()  # on a loop": "likewise, in a thread of its own",
    "await left.wait()  # until then": "likewise",
    "return await anext(reader, None)": "likewise",
    "await self._over.wait()  # they are killed": "the ladder kills a family before it ever cancels the wait for it",
    "return await answer": "a real look-up, in a thread that the virtual clock does not see",
    "return await network.connect_tcp(": "a real network",
}
# This needs a new Python for each run: the long proofs reach it.
IN_LONG_ENTRIES = {"process_call.py": "ended = await tree.wait()"}

# What works on a real file, and is waited for there only.
FILES = ("storage/sqlite/storage.py", "storage/sqlite/reader.py", "storage/sqlite/writer.py", "turns/sqlite.py")

# Waits for a real database: tests/storage/postgres/test_cancellation.py injects there.
POSTGRES = "storage/postgres/"

# A real file, or a new Python, under every injection takes minutes: such entries are left to the long proofs.
LONG = sorted(name for name in ENTRIES if name.endswith(("_in_sqlite", "_in_a_process")))
ORDINARY = sorted(set(ENTRIES) - set(LONG))


def kinds_for(name: str) -> list[Injection]:
    return [OWN] if name in WITHOUT_A_CALLER else [OWN, CALLER]


def cancel(name: str, kinds: list[Injection]) -> Report:
    report = check_cancellable(ENTRIES[name], oracles=[SHELF.is_sound, BOOKS.balance], kinds=kinds)
    assert report.failures == [], "\n".join(map(str, report.failures[:3]))
    return report


def cancel_everywhere(name: str) -> None:
    REPORTS[name] = cancel(name, kinds_for(name))
    assert REPORTS[name].injections > 0


@pytest.mark.parametrize("name", ORDINARY)
def test_an_entry_can_be_cancelled_where_it_waits_today(name: str) -> None:
    assert cancel(name, sample(kinds_for(name), name)).points


def test_a_sample_is_a_share_of_the_points_and_the_same_for_the_same_seed() -> None:
    whole = cancel(ORDINARY[0], kinds_for(ORDINARY[0])).points * 100
    drawn = [[kind.fits(point) for point in whole] for _ in range(2) for kind in sample([OWN], "an entry")]
    assert drawn[0] == drawn[1]
    assert 0.8 * SHARE < sum(drawn[0]) / len(whole) < 1.2 * SHARE


@pytest.mark.everywhere
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ORDINARY)
def test_an_entry_can_be_cancelled_wherever_it_waits(name: str) -> None:
    cancel_everywhere(name)


@pytest.mark.proof
@pytest.mark.parametrize("name", LONG)
def test_an_entry_that_takes_long_can_be_cancelled_wherever_it_waits(name: str) -> None:
    cancel_everywhere(name)


@pytest.mark.everywhere
def test_every_await_that_needs_no_real_file_was_waited_in(
    record_property: Callable[[str, object], None],
) -> None:
    record_property(
        "table", table(REPORTS, holes(["_core", "agent", "tools", "sessions", "storage", "compose", "turns"]))
    )
    assert all(report.failures == [] for report in REPORTS.values())
    if not set(ORDINARY) <= set(REPORTS):
        pytest.skip("only some of the entries were run")
    left = holes(PARTS)
    left = [site for site in left if not site.file.endswith(FILES) and POSTGRES not in site.file]
    assert [site for site in left if not is_left_to_long_entries(site)] == []


@pytest.mark.proof
def test_the_entries_that_take_long_reach_what_the_others_leave_out() -> None:
    if not set(LONG) <= set(REPORTS):
        pytest.skip("only some of the entries were run")
    assert holes(list(FILES)) == []
    assert [site for site in holes(["tools"]) if is_left_to_long_entries(site)] == []


def holes(parts: list[str]) -> list[Site]:
    """The awaits that no run was ever suspended in, though it could have been."""
    missed = never_reached([ROOT / part for part in parts], REPORTS.values())
    return [site for site in missed if not any(source_of(site).startswith(line) for line in CANNOT_WAIT)]


def is_left_to_long_entries(site: Site) -> bool:
    return IN_LONG_ENTRIES.get(Path(site.file).name) == source_of(site)


def source_of(site: Site) -> str:
    return Path(site.file).read_text().splitlines()[site.line - 1].strip()


def test_what_cannot_wait_is_in_the_source() -> None:
    lines = {line.strip() for part in ROOT.rglob("*.py") for line in part.read_text().splitlines()}
    assert [
        start
        for start in (*CANNOT_WAIT, *IN_LONG_ENTRIES.values())
        if not any(line.startswith(start) for line in lines)
    ] == []


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
