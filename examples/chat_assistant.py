"""A chat assistant: you type while an answer streams, `!` interrupts it, SIGTERM saves, and a restart continues.

`python chat_assistant.py FOLDER` reads lines from its standard input; without a folder it shows two such processes.
"""

import asyncio
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from safepoint import Agent, SafePoint, TurnLoop
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


async def listen(loop: TurnLoop[str]) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for typed in reader:
        line = typed.decode().strip()
        receipt = loop.push(line.removeprefix("!"), interrupt=line.startswith("!"))
        print(f"[{(await receipt.saved()).state}] {line}", flush=True)  # saved: it outlives this process
    loop.stop(idle_for=0.1)  # no more lines: answer what waits, then end


async def chat(folder: Path) -> None:
    sessions, loops = SqliteStore(folder / "chat.db"), SqliteTurnStore(folder / "chat.db")
    is_known = "chat" in await sessions.list_ids()
    session = await (Session.load if is_known else Session.create)(sessions, "chat")
    print(f"[{len(session.messages)} messages so far]", flush=True)

    def plan(ctx: PlanContext[str], items: Sequence[str]) -> Plan[str]:
        return Plan(items[0], items[:1], session=session, keep_rest=True)

    loop = TurnLoop(Agent("assistant", model=Echo()), plan=plan, on_events=show, store=loops, checkpoint_id="chat")
    handle = asyncio.get_running_loop().add_signal_handler
    handle(signal.SIGTERM, lambda: loop.stop(SafePoint.ANY, within=0.05, cause="SIGTERM"))
    async with loop:
        listening = asyncio.create_task(listen(loop))
        exit = await loop.wait()
        listening.cancel()
    print(f"[{exit.reason}] cut: {exit.interrupted}, waiting: {exit.unhandled}", flush=True)
    await loops.aclose()
    await sessions.aclose()


if len(sys.argv) > 1:
    asyncio.run(chat(Path(sys.argv[1])))
else:
    with tempfile.TemporaryDirectory() as folder:
        for lines in ("Tell me a long story about ships.\n!Stop. What time is it?\n", "And a short one.\n"):
            subprocess.run([sys.executable, __file__, folder], input=lines, text=True, check=True)
