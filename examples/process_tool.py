"""A tool in a process of its own: it never yields, and its time-out still stops it."""

import asyncio

from safepoint import Agent, Ladder, tool
from safepoint.testing import ScriptedModel, call, say


@tool(run_in="process", effect="pure", timeout=3, ladder=Ladder(term=0.5))
def add_up(upto: int) -> int:
    """One long call into C: no other Python code can run, not even a signal handler."""
    return sum(range(upto))


async def main() -> None:
    model = ScriptedModel(call("add_up", upto=10**15), say("That takes too long."))
    result = await Agent("adder", model=model, tools=[add_up]).run("Add them all.")
    print(result.ledger[0].state, "and nothing is left:", result.orphans)
    print(result.text)


# The new process imports this file to find the function: what starts the program must not run again there.
if __name__ == "__main__":
    asyncio.run(main())
