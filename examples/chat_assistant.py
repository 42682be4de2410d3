"""A chat assistant: you type while an answer streams, `!` interrupts it, SIGTERM saves, and a restart continues.

`python chat_assistant.py FOLDER` reads lines from its standard input; without a folder it talks to itself.
"""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from safepoint import Agent, SafePoint, TurnLoop
from safepoint.errors import SessionExists
from safepoint.events import Event, TextStreamed
from safepoint.models import Chunk, Finish, ModelRequest, TextDelta
from safepoint.sessions import Session, SqliteStore
from safepoint.turns import Plan, PlanContext, SqliteTurnStore, Turn


class Echo:
    """Stands for a provider: it repeats what was said, slowly."""

    name = "echo"

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        yield self.words(request.messages[-1].text)

    async def words(self, text: str) -> AsyncIterator[Chunk]:
        for word in ("You", "said:", *text.split()):
            yield TextDelta(f"{word} ")
            await asyncio.sleep(0.03)
        yield Finish("end_turn")


async def show(turn: Turn[str], events: AsyncIterator[Event]) -> None:
    async for event in events:
        if isinstance(event, TextStreamed):
            print(event.text, end="", flush=True)
    print("[cut]" if turn.preempted or turn.stopped else "", flush=True)


async def listen(loop: TurnLoop[str], lines: AsyncIterator[str]) -> None:
    async for line in lines:
        receipt = loop.push(line.removeprefix("!"), interrupt=line.startswith("!"))
        print(f"[{(await receipt.saved()).state}] {line}", flush=True)  # saved: it outlives this process
    loop.stop(idle_for=0.1)  # no more lines: answer what waits, then end


async def chat(folder: Path, lines: AsyncIterator[str]) -> list[str]:
    """Talk until the lines or the process end; what the user has said so far."""
    sessions, loops = SqliteStore(folder / "chat.db"), SqliteTurnStore(folder / "chat.db")
    try:
        session = await Session.create(sessions, "chat")
    except SessionExists:
        session = await Session.load(sessions, "chat")

    def plan(ctx: PlanContext[str], items: Sequence[str]) -> Plan[str]:
        return Plan(items[0], items[:1], session=session, keep_rest=True)

    loop = TurnLoop(Agent("assistant", model=Echo()), plan=plan, on_events=show, store=loops, checkpoint_id="chat")
    handle = asyncio.get_running_loop().add_signal_handler
    handle(signal.SIGTERM, lambda: loop.stop(SafePoint.ANY, within=0.05, cause="SIGTERM"))
    async with loop:
        listening = asyncio.create_task(listen(loop, lines))
        exit = await loop.wait()
        listening.cancel()
    print(f"[{exit.reason}] cut: {exit.interrupted}, waiting: {exit.unhandled}", flush=True)
    await loops.aclose()
    await sessions.aclose()
    return [message.text for message in session.messages if message.role == "user"]


async def standard_input() -> AsyncIterator[str]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        yield line.decode().strip()


async def typed(*lines: str) -> AsyncIterator[str]:
    for line in lines:
        yield line
        await asyncio.sleep(0.1)
    if lines:
        os.kill(os.getpid(), signal.SIGTERM)  # the deploy comes


if len(sys.argv) > 1:
    asyncio.run(chat(Path(sys.argv[1]), standard_input()))
else:
    lines = ("Tell me a long story about ships and the sea.", "!Stop. What time is it?", "And a short one.", "Bye.")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(chat(Path(folder), typed(*lines)))
        said = asyncio.run(chat(Path(folder), typed()))  # another process, which goes on
    assert said == [line.removeprefix("!") for line in lines]
