"""The list of runs, a page at a time: everybody is shown once, to whoever may see them."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from safepoint.cli.demo import demo_agent
from safepoint.cli.main import app
from safepoint.server import Catalog, create_app
from safepoint.server.pagination import PageQuery, parse_cursor
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.run_records import Cursor, RunRecord, RunState
from tests.server.in_process import ThreadServer
from tests.server.server_process import ServerProcess

ENDED = 2_345
HOME = "demo/ann/s"


async def filled() -> MemoryStorage:
    """Two open runs that are older than all others, some at the same moment, and those of somebody else."""
    storage = MemoryStorage()
    book = storage.runs
    for number in range(ENDED):
        home = "demo/bob/s" if number % 5 == 0 else HOME
        at = 100.0 + number // 3
        await book.accept(RunRecord(f"run_{number:04}", home, RunState.ENDED, at, "me|1|born"), since=0.0)
    for number, state in enumerate((RunState.PAUSED, RunState.SUSPENDED)):
        await book.accept(RunRecord(f"run_old{number}", HOME, state, 1.0, "me|1|born"), since=0.0)
    return storage


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    def build(_: Path) -> Any:  # Any: an ASGI app
        return create_app(Catalog.of({"demo": demo_agent()}), storage=asyncio.run(filled()))

    with ThreadServer(tmp_path_factory.mktemp("pages"), build) as server:
        yield server


def pages(server: ServerProcess, query: str) -> list[list[dict[str, Any]]]:  # Any: JSON
    found: list[list[dict[str, Any]]] = []  # Any: as above
    following: str | None = query
    while following is not None:
        answer = server.get(f"/runs?{following}")
        found.append(answer.body)
        link = re.fullmatch(r'<\?(\S+)>; rel="next"', answer.headers.get("link", ""))
        following = None if link is None else link[1]
    return found


def test_a_page_is_bounded_and_the_next_one_follows_to_the_end(server: ServerProcess) -> None:
    assert [len(page) for page in pages(server, "")[:3]] == [100, 100, 100]
    found = pages(server, "limit=1000")
    assert [len(page) for page in found] == [1000, 1000, ENDED + 2 - 2000]
    runs = [run for page in found for run in page]
    assert {run["runId"] for run in runs} == {f"run_{n:04}" for n in range(ENDED)} | {"run_old0", "run_old1"}
    assert [run["createdAt"] for run in runs] == sorted((run["createdAt"] for run in runs), reverse=True)


def test_what_was_asked_for_holds_for_every_page(server: ServerProcess) -> None:
    found = pages(server, "user=bob&state=ended&limit=100")
    assert [len(page) for page in found] == [100] * 4 + [69]
    assert {run["userId"] for page in found for run in page} == {"bob"}


def test_open_runs_are_found_by_their_states_however_many_are_newer(server: ServerProcess) -> None:
    (runs,) = pages(server, "state=queued&state=live&state=paused&state=suspended")
    assert "run_old0" in {run["runId"] for run in runs}
    (paused,) = pages(server, "state=paused")
    assert [run["runId"] for run in paused] == ["run_old0"]


def test_the_command_line_follows_all_pages(server: ServerProcess) -> None:
    env = {"SAFEPOINT_URL": f"http://127.0.0.1:{server.port}", "SAFEPOINT_KEY": ""}
    every = json.loads(CliRunner().invoke(app, ["ps", "--all", "--json"], env=env).stdout)
    assert len({run["runId"] for run in every}) == len(every) == ENDED + 2
    shown = CliRunner().invoke(app, ["ps"], env=env).stdout
    assert "run_old0" in shown
    assert "run_0" not in shown


def test_pages_are_a_partition_whatever_the_moments_and_the_limit() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        places = {Cursor(chance.choice([1.5, 2.0, 0.1 + 0.2]), f"r{number}") for number in range(chance.randint(0, 12))}
        found = [(place, {"runId": place.run_id, "state": "ended"}) for place in places]
        wanted, seen = PageQuery(limit=chance.randint(1, 5)), list[Cursor]()
        while True:
            runs, following = wanted.page(found)
            seen += [Cursor(run["createdAt"], run["runId"]) for run in runs]
            if following is None:
                break
            assert len(runs) == wanted.limit
            assert following.endswith(f"limit={wanted.limit}&after={seen[-1].created_at!r}%2C{seen[-1].run_id}")
            wanted = PageQuery(limit=wanted.limit, after=parse_cursor(f"{seen[-1].created_at!r},{seen[-1].run_id}"))
        assert seen == sorted(places, reverse=True)
