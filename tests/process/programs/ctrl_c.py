"""Wait for something that takes half a minute, and see what Ctrl-C does. The arguments say for what, and in what."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from types import FrameType

from safepoint import Agent, Hooks, tool
from safepoint._core.asks import Ask
from safepoint.agent.hooks import AnyRun
from safepoint.agent.sync_streamed import SyncStreamed
from safepoint.errors import CtrlC
from safepoint.events import RunEnded
from safepoint.testing import ScriptedModel, call, say, stall
from safepoint.tools.base import BaseTool
from tests.process.programs.telling import tell, tell_result

LONG = 30.0
NEXT = SyncStreamed.__next__.__code__  # where a stream waits for its next event


def ready(waited: float = 0.2) -> None:
    """Tell READY, and of a stream only once it waits for an event: between two events Ctrl-C is the program's own."""
    if "stream_sync" not in sys.argv:
        tell("READY")
        return
    main = threading.main_thread().ident
    assert main is not None

    def wait_for_the_reader() -> None:
        place: FrameType | None = None
        since = time.monotonic()
        while time.monotonic() - since < waited:
            frame = sys._current_frames().get(main)  # pyright: ignore[reportPrivateUsage]  # documented, despite its name
            while frame is not None and frame.f_code is not NEXT:
                frame = frame.f_back
            if frame is None or frame is not place:
                place, since = frame, time.monotonic()
            time.sleep(waited / 20)
        tell("READY")

    threading.Thread(target=wait_for_the_reader, daemon=True).start()


@tool
async def task() -> str:
    ready()
    await asyncio.sleep(LONG)
    return "late"


@tool
def thread() -> str:
    ready()
    time.sleep(LONG)
    return "late"


@tool(on_cancel="finish", grace=8)
async def finish() -> str:
    ready()
    await asyncio.sleep(LONG)
    return "late"


@tool
async def busy() -> str:
    ready()
    began = time.monotonic()
    while time.monotonic() - began < LONG:
        pass
    return "late"


@tool
async def in_executor() -> str:
    ready()
    await asyncio.to_thread(time.sleep, 3)
    return "late"


async def _swallow() -> None:
    while True:
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            continue


@tool
async def leaves_a_stubborn_task() -> str:
    leftovers.append(asyncio.create_task(_swallow()))
    await asyncio.sleep(0)
    ready()
    await asyncio.sleep(LONG)
    return "late"


leftovers: list[asyncio.Task[None]] = []


class Listening(Hooks):
    def on_cancel_requested(self, run: AnyRun, ask: Ask) -> None:
        tell("ASKED")


def wait(agent: Agent, way: str) -> None:
    if way == "run_sync":
        agent.run_sync("go")
        return
    with agent.stream_sync("go") as events:
        for event in events:
            if isinstance(event, RunEnded):
                tell("LAST")


def main(what: str, way: str = "run_sync") -> None:
    tools: list[BaseTool] = [task, thread, finish, busy, in_executor, leaves_a_stubborn_task]
    silent = stall(on_reached=ready)
    model = ScriptedModel([say("Once"), silent] if what == "model" else call(what), say("fine"))
    agent = Agent("patient", model=model, tools=tools, hooks=[Listening()])
    try:
        wait(agent, way)
    except KeyboardInterrupt as stopped:
        if not isinstance(stopped, CtrlC):
            tell("INTERRUPTED")
            raise
        restored = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        tell_result("BACK", stopped.result, restored=restored)
        again = agent.run_sync("again", history=stopped.result.messages)
        tell_result("AGAIN", again)
    else:
        tell("NOT_STOPPED")


main(*sys.argv[1:])
