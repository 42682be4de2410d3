"""Watch everything a run does, from its start to its one terminal event."""

import asyncio

from safepoint import Agent, tool
from safepoint.events import CancelRequested, RunEnded, TextStreamed, ToolCallEnded, ToolCallStarted
from safepoint.testing import ScriptedModel, call, say


@tool(effect="pure")
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"sun in {city}"


async def main() -> None:
    story = say("The sun is shining, the birds are singing, and it will go on like this all day.", pieces=20)
    agent = Agent("forecast", model=ScriptedModel(call("weather", city="Rome"), story), tools=[weather])
    heard = ""
    async with agent.start("How is the weather?") as run:
        async for event in run.events():
            match event:
                case ToolCallStarted(call=wish):
                    print(event.seq, "tool started:", wish.name, dict(wish.args))
                case ToolCallEnded(entry=entry):
                    print(event.seq, "tool ended:", entry.state, "-", entry.content)
                case TextStreamed(text=text):
                    heard += text
                    print(event.seq, "text:", text)
                    if "singing" in heard:
                        run.cancel(reason="I have heard enough")
                case CancelRequested(ask=ask):
                    print(event.seq, "asked:", ask.reason.text)
                case RunEnded(stop_reason=why):
                    print(event.seq, "ended:", why)
                case _:
                    print(event.seq, type(event).__name__)


asyncio.run(main())
