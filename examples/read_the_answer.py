"""Read the words of an answer as they come, and stop when there are enough."""

import asyncio

from safepoint import Agent
from safepoint.testing import ScriptedModel, say


async def main() -> None:
    model = ScriptedModel(say("Once upon a time there was a lamp that would not go out.", pieces=12))
    async with Agent("teller", model=model).start("Tell me a story.") as run:
        words = 0
        async for text in run.text():
            print(text, end="", flush=True)
            words += len(text.split())
            if words >= 6:
                run.cancel(reason="enough for tonight")
    print(f"\n{run.result.stop_reason}: {run.result.text!r}")


asyncio.run(main())
