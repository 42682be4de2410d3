"""A hook asks a person to approve every irreversible call."""

import asyncio
from typing import Any

from safepoint import Agent, AskFirst, Hooks, Run, ToolCall, tool
from safepoint.testing import ScriptedModel, call, say


@tool(effect="irreversible")
async def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


class Approval(Hooks):
    def before_tool(self, run: Run[Any, Any], call: ToolCall) -> AskFirst | None:
        effect = run.agent.tools[call.name].options.effect
        return AskFirst(f"{call.name} {dict(call.args)}?") if effect == "irreversible" else None


async def main() -> None:
    model = ScriptedModel(call("delete", path="old.txt"), say("Gone."))
    agent = Agent("janitor", model=model, tools=[delete], hooks=[Approval()])
    paused = await agent.run("Clean up.")
    print(paused.questions[0].payload)
    assert paused.checkpoint is not None
    result = await agent.resume(paused.checkpoint, answers={paused.questions[0].id: True})
    print(result.ledger[0].content, "-", result.text)


asyncio.run(main())
