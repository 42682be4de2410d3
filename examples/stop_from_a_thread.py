"""Stop an agent from another thread while its model is in the middle of a sentence."""

import asyncio
import threading

from safepoint import Agent
from safepoint.testing import ScriptedModel, say, stall

speaking = threading.Event()


def press_stop(agent: Agent) -> None:
    speaking.wait()
    receipt = agent.cancel(reason="the user pressed stop")
    print("the thread asked, and the outcome is:", receipt.wait_sync())


async def main() -> None:
    model = ScriptedModel([say("Once upon a time"), stall(on_reached=speaking.set)], say("... there lived a queen."))
    agent = Agent("teller", model=model)
    presser = threading.Thread(target=press_stop, args=(agent,))
    presser.start()

    result = await agent.run("Tell me a story.")
    presser.join()
    print(result.stop_reason, "after:", result.text)

    # The conversation is valid as it stands: hand it to the next run.
    again = await agent.run("Go on.", history=result.messages)
    print(again.stop_reason, "after:", again.text)


asyncio.run(main())
