"""Runs under a switch: frozen before they begin and in the middle, thawed, and stopped while they wait."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from safepoint import Freeze, SafePoint, Switch
from safepoint.errors import StoreError
from safepoint.storage.audit import AuditEntry
from safepoint.storage.operations import ListFreezes, Query
from safepoint.testing import call, say
from tests.injection.parts import A_MOMENT, A_WHILE, SlowStorage, agent, look, post

T = TypeVar("T")


async def frozen_before_it_begins() -> None:
    switch = Switch()
    switch.freeze("an incident")
    asyncio.get_running_loop().call_later(A_MOMENT, switch.thaw)
    await agent(call("look"), say("done"), tools=[look]).run("go", switch=switch)


async def frozen_in_the_middle() -> None:
    switch, loop = Switch(), asyncio.get_running_loop()
    loop.call_later(A_MOMENT / 2, switch.add, Freeze("an incident"))
    loop.call_later(A_WHILE, switch.thaw)
    await agent([call("look"), call("post")], call("look"), say("done"), tools=[look, post]).run("go", switch=switch)


async def one_tool_of_two_frozen() -> None:
    switch = Switch()
    switch.freeze("post is broken", tool="post")
    asyncio.get_running_loop().call_later(A_WHILE, switch.thaw)
    await agent([call("look"), call("post")], say("done"), tools=[look, post]).run("go", switch=switch)


async def frozen_inside_a_sub_agent() -> None:
    switch = Switch()
    switch.freeze("look is broken", tool="look")
    asyncio.get_running_loop().call_later(A_MOMENT, switch.thaw)
    inner = agent(call("look"), say("seen"), name="inner", tools=[look])
    outer = agent(call("inner", input="look"), say("done"), tools=[inner.as_tool()])
    await outer.run("go", switch=switch)


async def stopped_by_a_freeze_and_resumed() -> None:
    switch = Switch()
    one = agent(call("look"), call("post"), say("done"), tools=[look, post])
    asyncio.get_running_loop().call_later(A_MOMENT / 2, switch.add, Freeze("an incident", stops_at=("any",)))
    result = await one.run("go", switch=switch)
    switch.thaw()
    if result.checkpoint is not None:
        await one.resume(result.checkpoint)


async def frozen_and_cancelled() -> None:
    switch = Switch()
    switch.freeze("an incident", model="steps")
    async with agent(call("look"), say("done"), tools=[look]).start("go", switch=switch) as run:
        run.cancel(SafePoint.AFTER_TOOLS, within=A_MOMENT)


async def frozen_model_thawed() -> None:
    switch = Switch()
    switch.freeze("the provider is down", model="steps")
    asyncio.get_running_loop().call_later(A_WHILE, switch.thaw)
    await agent(call("look"), say("done"), tools=[look]).run("go", switch=switch)


async def waited_for_at_a_gate() -> None:
    switch = Switch()
    switch.freeze("an incident")
    asyncio.get_running_loop().call_later(A_MOMENT, switch.thaw)
    gate = switch.of(app="app")
    await gate.opened(gate.of_run)


class FailsToList(SlowStorage):
    """A storage that takes its time, and cannot list the freezes the second time it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    async def read(self, query: Query[T]) -> T:
        self._count(query)
        return await super().read(query)

    def _count(self, query: object) -> None:
        self._asked += isinstance(query, ListFreezes)
        if self._asked == 2 and isinstance(query, ListFreezes):
            raise StoreError("not now")


async def _thawed_by(storage: SlowStorage) -> None:
    await storage.freezes.add(Freeze("an incident", id="f"))
    async with Switch().follow(storage) as switch:
        async with agent(say("done")).start("go", switch=switch) as run:
            await asyncio.sleep(A_MOMENT)
            await storage.freezes.remove("f")
        assert run.ended


async def frozen_by_a_storage() -> None:
    await _thawed_by(SlowStorage())


async def frozen_by_a_storage_that_fails() -> None:
    await _thawed_by(FailsToList())


async def noted_in_the_audit() -> None:
    storage = SlowStorage()
    await storage.audit.add(AuditEntry(0.0, "local", "freeze"))
    await storage.audit.read()
