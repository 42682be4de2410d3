"""Ask a person before each model call, from a hook; the run pauses, and is resumed with the answer."""

import asyncio
from typing import Any

from safepoint import Agent, Hooks, Run
from safepoint.models import ModelRequest
from safepoint.testing import ScriptedModel, say


class Frugal(Hooks):
    async def before_model(self, run: Run[Any, Any], request: ModelRequest) -> None:
        if await self.ctx.interrupt(f"Send {len(request.messages)} message to {run.agent.name}?") != "yes":
            run.cancel(reason="a person said no")


async def main() -> None:
    agent = Agent("writer", model=ScriptedModel(say("Hello."), repeat=True), hooks=[Frugal()])
    for answer in ("yes", "no"):
        paused = await agent.run("Say hello.")
        assert paused.checkpoint is not None
        [question] = paused.questions
        print(question.payload, answer)
        result = await agent.resume(paused.checkpoint, answers={question.id: answer})
        print(result.stop_reason, result.text)


asyncio.run(main())
