"""Several servers on one PostgreSQL, and what is found in the database when they are done."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from safepoint import check_history
from safepoint.history.parts import ToolResult
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.storage.run_records import RunRecord, RunState
from tests.server.server_process import ServerProcess

APPS = Path(__file__).parent / "apps"
WORKER_APPS = Path(__file__).parents[1] / "server" / "apps"


def worker(folder: Path, url: str, *options: str, apps: Path = APPS, inside: Sequence[str] = ()) -> ServerProcess:
    """Not started yet."""
    command = ("tests.cluster.worker_server",)
    given = ("--store", url, *options)
    env = {"TIME_LOG": str(folder / "times.log")}
    return ServerProcess(folder, apps=apps, data=False, command=command, options=given, inside=inside, env=env)


@dataclass(frozen=True)
class Moment:
    """An effect, or the cut of one: which process did it, and when, by the clock that all processes share."""

    what: str
    pid: int
    at: float


def moments(folder: Path) -> list[Moment]:
    path = folder / "times.log"
    lines = [line.rsplit(" ", 2) for line in path.read_text().splitlines()] if path.exists() else []
    return [Moment(what, int(pid), float(at)) for what, pid, at in lines]


class Workers(ExitStack):
    """`with Workers(folder, url, 3) as workers:`; `all`: the servers, each with a log of its own."""

    def __init__(
        self, folder: Path, url: str, count: int, *options: str, apps: Path = APPS, each: Sequence[Sequence[str]] = ()
    ) -> None:
        super().__init__()
        mine = [*each, *([()] * (count - len(each)))]
        self.all = [worker(folder, url, *options, *more, apps=apps) for more in mine]
        for number, server in enumerate(self.all):
            server.log = folder / f"server{number}.log"

    def __enter__(self) -> Workers:
        super().__enter__()
        for server in self.all:
            self.enter_context(server)
        return self


def records(url: str, app: str = "chain") -> list[RunRecord]:
    async def read() -> list[RunRecord]:
        storage = PostgresStorage(url)
        try:
            found: list[RunRecord] = []
            for session in await storage.sessions.list_ids(f"{app}/"):
                found += await storage.runs.find(session=session)
            return found
        finally:
            await storage.aclose()

    return asyncio.run(read())


def broken_histories(url: str, app: str = "chain") -> list[str]:
    """Sessions whose stored conversation is not valid, with why."""

    async def read() -> list[str]:
        storage, found = PostgresStorage(url), list[str]()
        try:
            for session in await storage.sessions.list_ids(f"{app}/"):
                try:
                    check_history((await storage.sessions.load(session)).messages)
                except Exception as error:
                    found.append(f"{session}: {error}")
        finally:
            await storage.aclose()
        return found

    return asyncio.run(read())


def unknown_calls(url: str, app: str = "chain") -> set[str]:
    """The ids of calls of which the model was told that their outcome is unknown: their worker died with them."""

    async def read() -> set[str]:
        storage, found = PostgresStorage(url), set[str]()
        try:
            for session in await storage.sessions.list_ids(f"{app}/"):
                for message in (await storage.sessions.load(session)).messages:
                    results = (part for part in message.parts if isinstance(part, ToolResult))
                    found |= {part.call_id for part in results if "outcome unknown" in str(part)}
        finally:
            await storage.aclose()
        return found

    return asyncio.run(read())


def repeated(effects: Sequence[str]) -> list[str]:
    return [line for line, count in Counter(effects).items() if count > 1]


def open_runs(url: str) -> list[str]:
    return [record.run_id for record in records(url) if record.state is not RunState.ENDED]


def sql(url: str, statement: str, *given: Any) -> list[tuple[Any, ...]]:  # Any: of every type
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), given or None)
        return cursor.fetchall() if cursor.description is not None else []


def silence_pushes(url: str) -> None:
    """Every NOTIFY of the schema is lost from now on: a function of that name is found first."""
    sql(url, "CREATE FUNCTION safepoint.pg_notify(text, text) RETURNS void LANGUAGE sql AS 'SELECT NULL::void'")
    for name, body in sql(
        url,
        "SELECT p.oid::regprocedure::text, pg_get_functiondef(p.oid) FROM pg_proc p"
        " JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'safepoint'"
        " AND p.prosrc LIKE '%pg_notify%' AND p.proname <> 'pg_notify'",
    ):
        assert "pg_notify" in body, name
        sql(url, body.replace("pg_notify", "safepoint.pg_notify"))
