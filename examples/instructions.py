"""Instructions as a text, and as a function that makes them anew for each model call."""

import asyncio
from dataclasses import dataclass
from typing import Any

from safepoint import Agent, Run
from safepoint.testing import ScriptedModel, say


@dataclass
class Guest:
    name: str
    language: str


async def for_this_guest(run: Run[Guest, Any]) -> str:
    await asyncio.sleep(0)  # it may be async: NOW cuts it where it waits
    return f"Speak {run.deps.language}. The guest is called {run.deps.name}."


async def main() -> None:
    model = ScriptedModel(say("Hello!"), say("Salut, Zoé !"))
    print((await Agent("host", model=model, instructions="Be brief.").run("Hi.")).text)
    print("told:", model.requests[-1].instructions)

    agent = Agent[Guest]("host", model=model, instructions=for_this_guest)
    print((await agent.run("Hi.", deps=Guest("Zoé", "French"))).text)
    print("told:", model.requests[-1].instructions)


asyncio.run(main())
