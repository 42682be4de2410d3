"""A store that does not take the end of a run in time owes it, and the history is whole as soon as it answers again."""

from __future__ import annotations

import asyncio
from typing import Any

from safepoint import Agent, check_history, tool
from safepoint.agent.journal import Ended
from safepoint.server.config import ServerConfig
from safepoint.serving.apps import Catalog
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import LOCAL
from safepoint.serving.run_manager import RunManager
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.operations import AppendChanges, Statement
from safepoint.testing import ScriptedModel, call, say
from tests.server.server_process import submission
from tests.virtual import virtual

KEY = SessionKey("worker", "ann", "s")


def ends(statements: tuple[Statement[Any], ...]) -> bool:  # Any: of every result
    changes = [change for each in statements if isinstance(each, AppendChanges) for change in each.changes]
    return any(isinstance(change, Ended) for change in changes)


class HangsAtTheEnd(MemoryStorage):
    """Never answers the first write of an end."""

    hung = False

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: of every result
        if not self.hung and ends(statements):
            self.hung = True
            await asyncio.get_running_loop().create_future()
        return await super().commit(*statements)


@tool
async def look() -> str:
    """Look."""
    return "seen"


@virtual
async def test_the_end_that_a_store_did_not_take_is_written_when_it_answers_again() -> None:
    store = HangsAtTheEnd()
    agent = Agent("worker", model=ScriptedModel(call("look"), say("done")), tools=[look])
    manager = RunManager(Catalog.of({"worker": agent}), store, ServerConfig())
    await manager.create(KEY, None)
    managed = await manager.submit(LOCAL, KEY, submission("s", "go"))
    assert isinstance(managed, ManagedRun)
    assert managed.task is not None
    await managed.task
    assert store.hung
    stored = await store.sessions.load(KEY.stored_as)
    assert (stored.runs[-1].ended, stored.runs[-1].stop_reason) == (True, "end_turn")
    assert stored.messages[-1].text == "done"
    check_history(stored.messages)
