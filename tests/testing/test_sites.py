"""Which awaits were never seen waiting."""

from __future__ import annotations

import asyncio
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from safepoint.testing import sites
from safepoint.testing.injector import check_cancellable
from safepoint.testing.sites import never_reached
from safepoint.testing.subject import NullSubject

SOURCE = """\
import asyncio, contextlib

async def nap():
    await asyncio.sleep(
        1,
    )

async def naps():
    await nap()
    yield 1

@contextlib.asynccontextmanager
async def resting():
    await nap()
    try:
        yield
    finally:
        await asyncio.sleep(2)

async def unused():
    await nap()
    [one for one in ()]
    async for _ in naps():
        pass
    async with resting():
        pass
    return [
        one
        async for one in naps()
    ]

async def at_once():
    return 3

async def cleans_up():
    try:
        await nap()
    except asyncio.CancelledError:
        await nap()
        raise

async def scenario():
    await cleans_up()
    async for _ in naps():
        pass
    async with (
        resting() as a,
        resting() as b,
    ):
        pass
    await at_once()
    {
        one
        async for one in naps()
    }
"""


@pytest.fixture
def module(tmp_path: Path) -> types.ModuleType:
    path = tmp_path / "sleepy.py"
    path.write_text(SOURCE)
    made = types.ModuleType("sleepy")
    made.__file__ = str(path)
    exec(compile(SOURCE, str(path), "exec"), made.__dict__)
    return made


def lines_with(text: str) -> list[int]:
    return [number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line]


def test_each_await_that_never_waited_is_listed_and_no_other(module: types.ModuleType) -> None:
    unused = lines_with("async def unused")[0]
    scenario: Any = module.__dict__["scenario"]
    report = check_cancellable(scenario, subject=NullSubject())
    assert report.failures == [], report
    assert [(site.line, site.what) for site in never_reached([module], [report])] == [
        (unused + 1, "await"),
        (unused + 3, "async for"),
        (unused + 5, "async with"),
        (unused + 7, "async comprehension"),
        (lines_with("await at_once()")[0], "await"),
    ]


def test_an_await_in_the_clean_up_is_reached_by_an_injection(module: types.ModuleType) -> None:
    scenario: Any = module.__dict__["scenario"]
    in_handler = lines_with("except asyncio.CancelledError")[0] + 1
    assert in_handler not in [
        site.line for site in never_reached([module], [check_cancellable(scenario, subject=NullSubject())])
    ]


def test_sites_are_found_in_files_directories_and_packages(module: types.ModuleType, tmp_path: Path) -> None:
    everything = never_reached([module], [])
    assert len(everything) == len(lines_with("await ")) + len(lines_with("async for")) + len(lines_with("async with"))
    assert never_reached([str(tmp_path)], []) == everything
    assert never_reached([tmp_path / "sleepy.py", tmp_path], []) == everything
    assert str(everything[0]).endswith("sleepy.py:4 await")
    files = {Path(site.file).name for site in never_reached([sys.modules["asyncio"]], [])}
    assert {"queues.py", "locks.py"} <= files
    assert {Path(site.file).name for site in never_reached([asyncio.queues], [])} == {"queues.py"}


@pytest.mark.parametrize("wrong", ["no/such/place", types.ModuleType("nowhere")], ids=["path", "module"])
def test_a_source_that_is_not_there_is_refused(wrong: sites.Source) -> None:
    with pytest.raises(ValueError, match=r"does not exist|has no file"):
        never_reached([wrong], [])
