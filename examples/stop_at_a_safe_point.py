"""Stop after the tool calls that are under way: nothing is cut, and no further model call is made."""

import asyncio

from safepoint import Agent, SafePoint, tool
from safepoint.testing import ScriptedModel, call, say

started = asyncio.Event()


@tool
async def send_invoice(customer: str) -> str:
    """Send an invoice."""
    print("sending to", customer)
    started.set()
    await asyncio.sleep(0.1)
    print("sent to", customer)
    return f"invoice for {customer} sent"


async def main() -> None:
    model = ScriptedModel([call("send_invoice", customer="Ann"), call("send_invoice", customer="Bob")], say("Done."))
    agent = Agent("clerk", model=model, tools=[send_invoice])
    async with agent.start("Send the invoices.") as run:
        await started.wait()
        receipt = run.cancel(SafePoint.AFTER_TOOLS, reason="closing time")
        print("asked; nothing has stopped yet")
        print("outcome:", await receipt.wait())
    print("ledger:", [(entry.args["customer"], str(entry.state)) for entry in run.result.ledger])
    print("model calls:", model.calls)


asyncio.run(main())
