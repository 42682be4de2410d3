"""Ask for a safe point, but not for ever: when the time is up, the request becomes NOW."""

import asyncio

from safepoint import Agent, SafePoint, tool
from safepoint.testing import ScriptedModel, call

started = asyncio.Event()


@tool(effect="idempotent")
async def download(name: str) -> str:
    """Download a very large file."""
    started.set()
    await asyncio.sleep(3600)
    return name


async def main() -> None:
    agent = Agent("fetcher", model=ScriptedModel(call("download", name="everything.tar")), tools=[download])
    async with agent.start("Fetch it.") as run:
        await started.wait()
        receipt = run.cancel(SafePoint.AFTER_TOOLS, within=0.2, reason="going home")
        print("outcome:", await receipt.wait())
    stop = run.result.cancellation
    assert stop is not None
    print("timed out:", stop.timed_out)
    print("the call was:", run.result.ledger[0].state)


asyncio.run(main())
