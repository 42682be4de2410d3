"""What `POST /run` costs, counted and not timed: turns of the loop, tasks, calls of Python functions, SQL statements.

The numbers are ceilings, a little above what was counted when they were written. Raise one only with a reason: they are
independent of how busy the machine is, so a test that fails here has found more work.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from fastapi import FastAPI

from safepoint import Agent
from safepoint.server import create_app
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.protocol import Storage
from safepoint.storage.sqlite.storage import SqliteStorage
from tests.agent.test_costs import CountingLoop, Instant, nothing

_BODY = json.dumps(
    {"appName": "a", "userId": "u", "sessionId": "s", "newMessage": {"role": "user", "parts": [{"text": "hi"}]}}
).encode()


class Traced(SqliteStorage):
    """Keeps the statements that its writer executes."""

    def __init__(self, path: Path) -> None:
        self.statements: list[str] = []
        super().__init__(path)

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        connection.set_trace_callback(self.statements.append)
        return connection


@dataclass
class Cost:
    turns: int
    tasks: int
    calls: int


async def post(app: FastAPI, path: str, body: bytes = b"") -> int:
    """The status. No client and no socket: what they cost is not the server's."""
    received, statuses = False, list[int]()

    async def receive() -> MutableMapping[str, Any]:  # Any: as ASGI has it
        nonlocal received
        if received:
            await asyncio.get_running_loop().create_future()
        received = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:  # Any: as ASGI has it
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    headers.append((b"content-length", str(len(body)).encode()))
    where = {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    scope = {"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "headers": headers, **where}
    await app({**scope, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}, receive, send)
    return statuses[0]


async def cost_of_a_run(app: FastAPI) -> Cost:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CountingLoop)
    cost = Cost(-loop.turns, 0, 0)

    def count(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            cost.calls += 1
            cost.tasks += frame.f_code.co_name in ("_keep", "create_task")

    sys.setprofile(count)
    try:
        status = await post(app, "/run", _BODY)
    finally:
        sys.setprofile(None)
    cost.turns += loop.turns
    assert status == 200
    return cost


def fewest(storage: Storage, *, tools: int = 0) -> Cost:
    """Of several tries with caches filled: the watchdog's ping makes the loop turn too."""

    async def main() -> Cost:
        app = create_app({"a": Agent("a", model=Instant(tools), tools=[nothing])}, storage=storage)
        async with app.router.lifespan_context(app):
            assert await post(app, "/apps/a/users/u/sessions/s") == 200
            found = [await cost_of_a_run(app) for _ in range(12)][4:]
        return Cost(*(min(getattr(each, name) for each in found) for name in ("turns", "tasks", "calls")))

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        return runner.run(main())


@pytest.mark.parametrize(("tools", "turns", "tasks", "calls"), [(0, 15, 9, 1400), (1, 28, 12, 2300)])
def test_a_run_on_sqlite_stays_this_cheap(tmp_path: Path, tools: int, turns: int, tasks: int, calls: int) -> None:
    cost = fewest(SqliteStorage(tmp_path / "a.db"), tools=tools)
    assert (cost.turns <= turns, cost.tasks <= tasks, cost.calls <= calls) == (True, True, True), cost


@pytest.mark.parametrize(("tools", "turns", "tasks", "calls"), [(0, 8, 9, 1300), (1, 9, 12, 2000)])
def test_a_run_in_memory_stays_this_cheap(tools: int, turns: int, tasks: int, calls: int) -> None:
    cost = fewest(MemoryStorage(), tools=tools)
    assert (cost.turns <= turns, cost.tasks <= tasks, cost.calls <= calls) == (True, True, True), cost


def test_a_plain_run_executes_a_few_statements_in_two_transactions(tmp_path: Path) -> None:
    storage = Traced(tmp_path / "a.db")

    async def main() -> tuple[int, list[str]]:
        app = create_app({"a": Agent("a", model=Instant())}, storage=storage)
        async with app.router.lifespan_context(app):
            assert await post(app, "/apps/a/users/u/sessions/s") == 200
            assert await post(app, "/run", _BODY) == 200
            before = storage.transactions
            storage.statements.clear()
            assert await post(app, "/run", _BODY) == 200
            return storage.transactions - before, [*storage.statements]

    transactions, statements = asyncio.run(main())
    assert transactions == 2
    assert len(statements) <= 24, "\n".join(statements)
    # The row of a session is read once and written once in each of them.
    assert sum(each.startswith("SELECT state") for each in statements) == 2
    assert sum(each.startswith("UPDATE sessions") for each in statements) == 2
    # The end of a record leaves its indexes by age and by session as they are.
    (end,) = [each for each in statements if each.startswith("UPDATE run_records")]
    assert "created_at" not in end
    assert "session =" not in end
