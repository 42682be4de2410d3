"""A busy model is tried again; if it stays busy, the next model takes over."""

import asyncio

from safepoint import Agent
from safepoint.errors import ModelUnavailable
from safepoint.events import RetryScheduled
from safepoint.testing import ScriptedModel, fail, say


async def main() -> None:
    busy = ScriptedModel(fail(ModelUnavailable("busy", retry_after=0.01)), repeat=True, name="large")
    agent = Agent("writer", model=busy, fallback=[ScriptedModel(say("At your service."), name="small")], retries=2)
    async with agent.start("Hello?") as run:
        async for event in run.events():
            if isinstance(event, RetryScheduled):
                print("trying again in", event.delay, "s:", event.error)
    print(run.result.text)


asyncio.run(main())
