"""Set how the model answers, and how long it may be silent."""

import asyncio

from safepoint import Agent, ModelSettings, RunFailed
from safepoint.testing import ScriptedModel, say, stall


async def main() -> None:
    settings = ModelSettings(
        temperature=0.2,
        max_tokens=200,
        tool_choice="none",
        stop=("THE END",),
        timeout_first_token=0.05,  # kept by Safepoint, for every model
        timeout_idle=0.05,
        extra={"seed": 7},  # goes to the provider as it is
    )
    model = ScriptedModel(stall(), [say("Let me think"), stall()])
    agent = Agent("thinker", model=model, settings=settings, retries=1)
    try:
        await agent.run("Well?")
    except RunFailed as failed:
        print(failed.result.text, "…", failed.result.error)
    print(model.requests[0].settings.temperature)


asyncio.run(main())
