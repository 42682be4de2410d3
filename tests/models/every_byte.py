"""A provider's stream, cut after every byte: nothing hangs, and whatever was received is a valid conversation.

One server, many connections. Where the answer is to be cut is part of the prompt, so that runs can go on side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from safepoint import Agent, Message, Text, check_history, tool
from safepoint.agent.model import Model, ModelRequest

_PLACE = re.compile(rb"cut at (\d+)\.")
AT_ONCE = 16
LONG = 50.0


@dataclass(frozen=True)
class Wire:
    """How to talk to a provider whose address is given, what it says, and how its payload is checked."""

    model: Callable[[str], Model]
    data: bytes
    text: str
    calls: int
    check: Callable[[ModelRequest], None]


async def cut_everywhere(wire: Wire, step: int) -> tuple[int, int]:
    """Cut after every `step`-th byte; how many replies were whole, and how many were not."""
    places = [*range(0, len(wire.data), step), len(wire.data)]
    async with asyncio.timeout(LONG * (20 if step == 1 else 1)):
        server = await asyncio.start_server(lambda reader, writer: _serve(wire.data, reader, writer), "127.0.0.1", 0)
        try:
            port: int = server.sockets[0].getsockname()[1]
            model, todo = wire.model(f"http://127.0.0.1:{port}"), iter(places)
            async with asyncio.TaskGroup() as group:
                workers = [group.create_task(_work(wire, model, todo)) for _ in range(AT_ONCE)]
        finally:
            server.close()
    outcomes = [outcome for worker in workers for outcome in worker.result()]
    return outcomes.count(True), outcomes.count(False)


async def _serve(data: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:"))
        asked = _PLACE.search(await reader.readexactly(length))
        assert asked is not None
        writer.write(data[: int(asked[1])])
        await writer.drain()
    writer.close()


async def _work(wire: Wire, model: Model, places: Iterable[int]) -> list[bool]:
    return [await _cut(wire, model, place) for place in places]


async def _cut(wire: Wire, model: Model, place: int) -> bool:
    """One run whose first reply is cut there; whether the reply was whole."""
    ran: list[str] = []

    @tool
    async def look(place: str) -> str:
        """Look at a place."""
        ran.append(place)
        return "sunny"

    agent = Agent("a", model=model, tools=[look], retries=0)
    async with agent.start(f"cut at {place}.") as run:
        async for event in run.events():
            if type(event).__name__ == "ModelCallEnded":
                run.cancel()  # one reply is enough: the same would come again
    result = run.result
    check_history(result.messages)
    follow = result.messages if result.messages[-1].role == "tool" else [*result.messages, _GO_ON]
    wire.check(ModelRequest(tuple(follow if follow[-2].role != "user" else result.messages)))
    said = next((message for message in result.messages if message.role == "assistant"), None)
    whole = said is not None and said.text == wire.text and not _is_cut(said) and len(said.tool_calls) == wire.calls
    assert wire.text.startswith(said.text if said is not None else ""), (place, said)
    if not whole:
        assert ran == [], f"a call of a reply that was cut at {place} was run"
        assert said is None or said.tool_calls == (), place
    return whole


_GO_ON = Message("user", (Text("go on"),))


def _is_cut(message: Message) -> bool:
    return any(part.incomplete for part in message.parts if isinstance(part, Text))
