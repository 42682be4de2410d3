"""One token governs many runs: cancel it once, and all of them stop."""

import asyncio

from safepoint import Agent, CancelToken
from safepoint.errors import TokenCancelled
from safepoint.testing import ScriptedModel, say, stall


async def main() -> None:
    token = CancelToken()
    agents = [Agent(name, model=ScriptedModel([say(f"{name} is thinking"), stall()])) for name in ("Ann", "Bob", "Cy")]

    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(agent.run("Think.", token=token)) for agent in agents]
        await asyncio.sleep(0.05)
        receipt = token.cancel(reason="the meeting is over")
        print("outcome:", await receipt.wait(), "in", len(receipt.receipts), "runs")
    for run in runs:
        print(run.result().stop_reason, "after:", run.result().text)

    try:
        await agents[0].run("Think again.", token=token)
    except TokenCancelled as error:
        print("refused:", error)


asyncio.run(main())
