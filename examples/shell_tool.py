"""A shell: its output streams while it runs, and a stop also ends what it has put in the background."""

import asyncio

from safepoint import Agent
from safepoint.events import ToolOutputStreamed
from safepoint.testing import ScriptedModel, call
from safepoint.tools import shell


async def main() -> None:
    model = ScriptedModel(call("shell", command="echo building; nohup sleep 600 & setsid sleep 600 & sleep 600"))
    async with Agent("builder", model=model, tools=[shell(timeout=60)]).start("build it") as run:
        async for event in run.events():
            if isinstance(event, ToolOutputStreamed):
                print("it says:", event.text.strip())
                run.cancel(reason="wrong branch")
    print(run.result.messages[2].parts[0])


asyncio.run(main())
