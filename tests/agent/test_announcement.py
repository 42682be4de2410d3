"""An ask is announced before anything that it brings about."""

from __future__ import annotations

import asyncio

from safepoint import Agent, tool
from safepoint.agent.events import CancelRequested, RungReached
from safepoint.testing import ScriptedModel, call, stall


@tool
async def wait() -> None:
    """Wait for ever."""
    await asyncio.get_running_loop().create_future()


def test_the_ask_comes_before_the_rungs_that_a_model_call_or_a_tool_climbs_for_it() -> None:
    async def events_of(model: ScriptedModel, until: str) -> list[type[object]]:
        async with Agent("a", model=model, tools=[wait]).start("go") as run:
            async for event in run.events():
                if type(event).__name__ == until:
                    break
            run.cancel()
        return [type(event) for event in run.kept_events() if isinstance(event, CancelRequested | RungReached)]

    assert asyncio.run(events_of(ScriptedModel(stall()), "ModelCallStarted")) == [CancelRequested, RungReached]
    assert asyncio.run(events_of(ScriptedModel(call("wait")), "ToolCallStarted")) == [CancelRequested, RungReached]
