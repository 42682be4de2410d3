"""A plain function runs in a thread; it stops where it checks for a stop."""

import asyncio
import time

from safepoint import Agent, ToolContext, tool
from safepoint.testing import ScriptedModel, call


@tool(effect="pure")
def count_primes(below: int, ctx: ToolContext) -> int:
    """Count prime numbers in the slowest way."""
    found = 0
    for number in range(2, below):
        ctx.check()  # leaves the function right here once the call is to stop
        found += all(number % divisor for divisor in range(2, number))
        time.sleep(0.001)
    return found


async def main() -> None:
    agent = Agent("mathematician", model=ScriptedModel(call("count_primes", below=10**9)), tools=[count_primes])
    async with agent.start("How many primes are there?") as run:
        await asyncio.sleep(0.1)
        asked = time.monotonic()
        outcome = await run.cancel().wait()
        print(f"{outcome} in {(time.monotonic() - asked) * 1000:.1f} ms")
    print("the call was:", run.result.ledger[0].state)
    print("threads left behind:", list(run.result.orphans))


asyncio.run(main())
