"""Cancel your own agent at every place where it waits, and see what it leaves behind."""

import asyncio

from safepoint import Agent, tool
from safepoint.testing import ScriptedModel, call, check_cancellable, say

free = 2  # the seats in the waiting room


@tool
async def careless() -> str:
    """Take a seat, and forget to give it back when cancelled."""
    global free
    free -= 1
    await asyncio.sleep(1)
    free += 1
    return "seen"


@tool
async def careful() -> str:
    """Take a seat, and always give it back."""
    global free
    free -= 1
    try:
        await asyncio.sleep(1)
    finally:
        free += 1
    return "seen"


async def visit_carelessly() -> None:
    await Agent("patient", model=ScriptedModel(call("careless"), say("Done.")), tools=[careless]).run("Go.")


async def visit_carefully() -> None:
    await Agent("patient", model=ScriptedModel(call("careful"), say("Done.")), tools=[careful]).run("Go.")


def every_seat_came_back() -> None:
    global free
    found, free = free, 2
    assert found == 2, f"{2 - found} seat was lost"


report = check_cancellable(visit_carelessly, oracles=[every_seat_came_back])
print(f"careless: {len(report.failures)} of {report.injections} injected cancels went wrong. The first:")
print(report.failures[0])

report = check_cancellable(visit_carefully, oracles=[every_seat_came_back])
print(f"careful: {len(report.failures)} of {report.injections} injected cancels went wrong.")
report.raise_for_failures()
