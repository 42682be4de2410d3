"""Hold a run at a safe point while a person has a look, then let the very same run go on."""

import asyncio

from safepoint import Agent, SafePoint, ToolContext, tool
from safepoint.events import HoldEnded, HoldStarted
from safepoint.testing import ScriptedModel, call, say


@tool(effect="idempotent")
async def import_rows(ctx: ToolContext, batches: int) -> str:
    """Import rows, in batches of a hundred."""
    rows = 0
    for batch in range(batches):
        await asyncio.sleep(0.01)
        rows += 100
        await ctx.safe_point("batch", save=batch + 1)
    return f"{rows} rows imported"


async def main() -> None:
    model = ScriptedModel(call("import_rows", batches=3), say("All rows are in."))
    agent = Agent("importer", model=model, tools=[import_rows])
    async with agent.start("Import the rows.") as run:
        receipt = run.hold(SafePoint.named("batch"), within=60, reason="the disk is nearly full")
        print("hold:", await receipt.wait())
        for held in run.held:
            print(f"{held.path.split(':')[0]} waits at {held.place}: {held.reason.text}")
        print("same run, still running:", not run.ended)
        run.resume()
        result = await run.wait()
    print("hold:", receipt.state)
    print([type(event).__name__ for event in run.kept_events() if isinstance(event, HoldStarted | HoldEnded)])
    print(result.stop_reason, "with:", result.ledger[0].content)


asyncio.run(main())
