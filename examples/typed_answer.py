"""The answer as a typed value: validated, and asked for again if it does not fit."""

import asyncio
from dataclasses import dataclass

from safepoint import Agent
from safepoint.testing import ScriptedModel, call, say


@dataclass
class City:
    name: str
    people: int


async def main() -> None:
    model = ScriptedModel(say("It is Bern."), call("final_answer", name="Bern", people=134_000))
    agent = Agent("atlas", model=model, output=City)
    result = await agent.run("What is the capital of Switzerland?")
    city: City = result.output
    print(city.name, "has", city.people, "people, after", model.calls, "tries")


asyncio.run(main())
