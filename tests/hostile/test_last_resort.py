"""A run ends even if its own task does not survive, so that nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from safepoint import Agent, RunFailed, SafePoint, check_history
from safepoint._core.ladder import Manner
from safepoint.agent.model import ToolSpec
from safepoint.errors import StoreError
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, say
from safepoint.testing.clock import run_virtual
from safepoint.tools.base import BaseTool
from safepoint.tools.context import ToolContext
from safepoint.tools.options import ToolOptions
from tests.hostile.visit import LADDER, World, check_one_terminal_event, nap


class Trap(BaseTool):
    """A third party's tool that can be put into an agent, and breaks when it is looked at again."""

    spec = ToolSpec("trap", "Do not touch.", {"type": "object"})
    options = ToolOptions()
    looks = 0

    def __getattribute__(self, name: str) -> Any:  # Any: as in object
        if name == "ladder":
            self.looks += 1
            if self.looks > 1:
                raise ZeroDivisionError("touched")
        return super().__getattribute__(name)

    @property
    def manner(self) -> Manner:
        return Manner()

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: as in BaseTool
        return {}

    async def body(self, context: ToolContext[Any], args: dict[str, Any]) -> object:  # Any: as in BaseTool
        return None


def breaking(model: ScriptedModel) -> Agent[World]:
    return Agent("breaking", model=model, tools=[nap, Trap()], ladder=LADDER)


def test_a_run_whose_task_breaks_fails_with_a_valid_history_and_leaves_no_task() -> None:
    async def scenario() -> None:
        agent = breaking(ScriptedModel([call("nap"), call("trap")], say("fine")))
        with pytest.raises(RunFailed, match="touched") as failed:
            await agent.run("go", deps=World())
        check_history(failed.value.result.messages)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert agent.cancel().receipts == (), "it counts as live"

    run_virtual(scenario)


def test_a_receipt_of_a_run_whose_task_breaks_returns() -> None:
    async def scenario() -> None:
        run = breaking(ScriptedModel([call("nap"), call("trap")])).start("go", deps=World())
        async with run:
            receipt = run.cancel(SafePoint.AFTER_TOOLS)
            assert await receipt.wait() == "finished_first"
        assert run.result.stop_reason == "error"
        check_one_terminal_event(run)

    run_virtual(scenario)


def test_a_sub_agent_whose_task_breaks_does_not_hold_its_parent() -> None:
    async def scenario() -> None:
        sub = breaking(ScriptedModel([call("nap"), call("trap")]))
        model = ScriptedModel(call("breaking", input="go"), say("fine"))
        before = asyncio.get_running_loop().time()
        parent: Agent[World] = Agent("parent", model=model, tools=[sub.as_tool()], ladder=LADDER)
        result = await parent.run("go", deps=World())
        assert (result.stop_reason, result.text) == ("end_turn", "fine")
        assert [entry.state for entry in result.ledger] == ["failed"]
        assert asyncio.get_running_loop().time() == before

    run_virtual(scenario)


def test_a_run_cancelled_before_its_first_step_is_stopped_and_recorded() -> None:
    async def scenario() -> None:
        model = ScriptedModel(say("fine"))
        agent = Agent("unborn", model=model)
        session = await Session.create(MemoryStore())
        before = asyncio.all_tasks()
        run = agent.start("go", session=session)
        async with run:
            for task in asyncio.all_tasks() - before:
                task.cancel()
        assert run.result.stop_reason == "cancelled"
        assert model.calls == 0
        check_history(run.result.messages)
        check_one_terminal_event(run)
        assert isinstance(run.result.save_error, StoreError), "its session has heard nothing of it"
        assert session.messages == ()
        assert (await agent.run("again", session=session)).text == "fine"
        assert (
            await Agent("next", model=ScriptedModel(say("fine"))).run("go", history=run.result.messages)
        ).text == "fine"

    run_virtual(scenario)
