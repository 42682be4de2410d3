"""A chat that you can interrupt by typing: a new line takes the floor at a safe point, or after half a second."""

import asyncio
import threading
from collections.abc import AsyncIterator

from safepoint import Agent, SafePoint, TurnLoop
from safepoint.events import Event, TextStreamed
from safepoint.testing import RuleModel, say, stall
from safepoint.turns import Turn

speaking = threading.Event()
model = RuleModel(
    {"Tell me a long story.": [say("Once upon a time "), stall()]},  # it would go on for ever
    otherwise=say("Four. Shall I go on with the story?"),
)


async def on_events(turn: Turn[str], events: AsyncIterator[Event]) -> None:
    async for event in events:
        if isinstance(event, TextStreamed):
            print(event.text, end="", flush=True)
            speaking.set()
    print(" [interrupted]" if turn.preempted else "")


def type_lines(loop: TurnLoop[str]) -> None:
    """What a keyboard thread does: `for line in sys.stdin: loop.push(line, …)`. Here the lines are typed for you."""
    for line in ("Tell me a long story.", "Wait, what is 2 + 2?"):
        print(f"> {line}")
        loop.push(line, preempt=SafePoint.ANY, within=0.5)
        speaking.wait()
        speaking.clear()
    loop.stop(cause="the keyboard is gone")


async def main() -> None:
    async with TurnLoop(Agent("narrator", model=model), on_events=on_events) as loop:
        threading.Thread(target=type_lines, args=(loop,)).start()
        exit = await loop.wait()
    assert exit.reason == "clean"
    # The second request knows what was said, and that it was stopped.
    assert [message.role for message in model.requests[1].messages] == ["user", "assistant", "user"]


asyncio.run(main())
