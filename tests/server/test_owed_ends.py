"""A store that does not take the end of a run in time owes it, and the history is whole as soon as it answers again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from safepoint import Agent, check_history, tool
from safepoint.agent.journal import Ended
from safepoint.server.apps import Catalog
from safepoint.server.config import ServerConfig
from safepoint.server.host import Host
from safepoint.server.hosted import HostedRun
from safepoint.server.ids import SessionKey
from safepoint.server.principal import LOCAL
from safepoint.server.requests import RunRequest
from safepoint.sessions import MemoryStore
from safepoint.sessions.records import MemoryRunBook
from safepoint.sessions.shelf import MemoryShelf
from safepoint.sessions.store import Change
from safepoint.testing import ScriptedModel, call, say
from tests.server.server_process import message
from tests.virtual import virtual

KEY = SessionKey("worker", "ann", "s")


class HangsAtTheEnd(MemoryStore):
    """Never answers the first write of an end."""

    hung = False

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        if not self.hung and any(isinstance(change, Ended) for change in changes):
            self.hung = True
            await asyncio.get_running_loop().create_future()
        await super().append(session_id, epoch, changes)


@tool
async def look() -> str:
    """Look."""
    return "seen"


@virtual
async def test_the_end_that_a_store_did_not_take_is_written_when_it_answers_again() -> None:
    store = HangsAtTheEnd()
    agent = Agent("worker", model=ScriptedModel(call("look"), say("done")), tools=[look])
    host = Host(Catalog.of({"worker": agent}), store, MemoryRunBook(), MemoryShelf(), ServerConfig())
    await host.create(KEY, None)
    hosted = await host.submit(LOCAL, KEY, RunRequest.model_validate(message("s", "go")))
    assert isinstance(hosted, HostedRun)
    assert hosted.task is not None
    await hosted.task
    assert store.hung
    stored = await store.load(KEY.stored_as)
    assert (stored.runs[-1].ended, stored.runs[-1].stop_reason) == (True, "end_turn")
    assert stored.messages[-1].text == "done"
    check_history(stored.messages)
