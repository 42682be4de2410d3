"""A storage that is slow, or hangs: an editor that stops a turn has its answer all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from safepoint import Agent, Ladder
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.operations import AcceptRun, MoveRun, Statement
from tests.protocols.editor import facts_of, in_process
from tests.protocols.editor_app import Obedient

agent = Agent("patient", model=Obedient(), ladder=Ladder(cap=0.5))


class Held(MemoryStorage):
    """A unit of work with a statement of that kind is written when `go` is set."""

    def __init__(self, kind: type[Statement[Any]]) -> None:  # Any: of every result
        super().__init__()
        self.sent, self.go = asyncio.Event(), asyncio.Event()
        self._kind = kind

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: as above
        """Cancellation: not written."""
        if any(isinstance(each, self._kind) for each in statements):
            self.sent.set()
            await self.go.wait()
        return await super().commit(*statements)


@pytest.mark.parametrize("goes_on", [True, False], ids=["slow", "hangs"])
def test_a_cancel_while_the_message_is_stored_stops_its_run(goes_on: bool) -> None:
    async def main() -> None:
        storage = Held(AcceptRun)
        async with in_process(agent, storage=storage) as (editor, manager):
            session = await editor.open()
            turn = editor.begin(session, "silence")
            await storage.sent.wait()
            await editor.agent.cancel(session)
            await editor.agent.list_sessions()  # the cancel was read
            if goes_on:
                storage.go.set()
            assert (await turn).stop_reason == "cancelled"
            assert "I begin" not in editor.text()
            storage.go.set()
            for managed in manager.live():
                await managed.over.wait()
            assert (await editor.prompt(session, "say hi")).stop_reason == "end_turn"

    asyncio.run(main())


def test_an_end_that_cannot_be_stored_does_not_hold_the_answer() -> None:
    async def main() -> None:
        storage = Held(MoveRun)
        async with in_process(agent, storage=storage) as (editor, manager):
            session = await editor.open()
            turn = editor.begin(session, "silence")
            await editor.until(editor.has_seen("I begin"))
            await editor.agent.cancel(session)
            answer = await turn
            assert answer.stop_reason == "cancelled"
            assert facts_of(answer)["recorded"] is False
            storage.go.set()
            for managed in manager.live():
                await managed.over.wait()

    asyncio.run(main())
