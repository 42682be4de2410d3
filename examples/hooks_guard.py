"""Hooks that guard the tools: one call is denied, one is answered without running, one runs with other arguments."""

import asyncio
from typing import Any

from safepoint import Agent, Deny, Hooks, Replace, Run, ToolCall, tool
from safepoint.testing import ScriptedModel, call, say


@tool(effect="irreversible")
async def transfer(amount: int, to: str) -> str:
    """Transfer money."""
    return f"{amount} sent to {to}"


class Guard(Hooks):
    def before_tool(self, run: Run[Any, Any], call: ToolCall) -> Deny | Replace | None:
        if call.args["to"] == "stranger":
            return Deny("we do not know this account")
        if call.args["amount"] == 0:
            return Replace(result="there was nothing to send")
        if call.args["amount"] > 100:
            return Replace(args={**call.args, "amount": 100})
        return None


async def main() -> None:
    wishes = [
        call("transfer", amount=50, to="stranger"),
        call("transfer", amount=0, to="Ann"),
        call("transfer", amount=5000, to="Bob"),
    ]
    agent = Agent("banker", model=ScriptedModel(wishes, say("Done.")), tools=[transfer], hooks=[Guard()])
    result = await agent.run("Send the money.")
    for entry in result.ledger:
        print(f"{entry.state}: {entry.content or entry.error}")


asyncio.run(main())
