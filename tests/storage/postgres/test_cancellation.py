"""Callers of a PostgreSQL storage are cancelled wherever they wait: what was begun happens whole, in its turn."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import safepoint
from safepoint import Agent, tool
from safepoint.history.check import check_history
from safepoint.sessions.session import Session
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.storage.run_records import RunState
from safepoint.testing import CALLER, OWN, Report, RuleModel, call, check_cancellable, never_reached, say
from safepoint.testing.conformance.storage_maker import record
from tests.injection.test_every_entry import source_of
from tests.storage.postgres.postgres_server import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(600)]

# These wait on the caller's loop; everything else waits on that of the storage's thread, which nobody can cancel.
ON_THE_CALLERS_LOOP = {
    "results = await asyncio.shield(job.future)",
    "return await reply.future",
    "await asyncio.shield(reply.future)",
    "await reply.future",
    "await self._pushed.on_thread(",
}
Body = Callable[[PostgresStorage, str], Awaitable[None]]


@tool
async def look() -> str:
    """Look."""
    return "dust"


async def runs_in_a_session(storage: PostgresStorage, id: str) -> None:
    session = await Session.create(storage, id)
    model = RuleModel({"go": call("look")}, otherwise=say("done"))
    await Agent("worker", model=model, tools=[look]).run("go", session=session)
    await Session.load(storage, id)


async def waits_for_a_change(storage: PostgresStorage, id: str) -> None:
    await storage.sessions.create(id, {})
    await storage.runs.accept(record(storage, id, id), since=0)
    async with storage.changes(run=id, worker=storage.worker) as rounds:
        await anext(rounds)
        ending = asyncio.ensure_future(storage.runs.move(id, RunState.ENDED, epoch=0))
        try:
            async for _ in rounds:
                found = await storage.runs.get(id)
                if found is None or found.ended:
                    break
        finally:
            await asyncio.wait({ending})


def cancel_everywhere(url: str, body: Body) -> Report:
    used: list[str] = []

    async def scenario() -> None:
        storage, id = PostgresStorage(url, lease=300.0), uuid.uuid4().hex
        used.append(id)
        try:
            await body(storage, id)
        finally:
            await storage.aclose()

    def is_sound() -> None:
        ids = used.copy()
        used.clear()
        asyncio.run(all_sound(ids))

    async def all_sound(ids: list[str]) -> None:
        storage = PostgresStorage(url)
        known = await storage.sessions.list_ids()
        for id in set(ids) & set(known):
            session = await Session.load(storage, id)
            check_history(session.messages)
            assert all(run.ended for run in session.runs), "a run was left open"
            await storage.sessions.claim(id, "next")
        await storage.aclose()

    scenario.__qualname__ = body.__qualname__
    return check_cancellable(scenario, oracles=[is_sound], kinds=[OWN, CALLER])


def test_every_wait_for_the_storage_can_be_cancelled(server: PostgresServer, url: str) -> None:
    reports = [cancel_everywhere(url, body) for body in (runs_in_a_session, waits_for_a_change)]
    for report in reports:
        assert report.failures == [], "\n".join(map(str, report.failures[:3]))
    folder = Path(safepoint.__file__).parent / "storage" / "postgres"
    missed = {source_of(site) for site in never_reached([folder], reports)}
    assert missed.isdisjoint(ON_THE_CALLERS_LOOP)
    source = "".join((folder / name).read_text() for name in ("storage.py", "push.py"))
    assert [line for line in ON_THE_CALLERS_LOOP if line not in source] == []
