"""Stop runs that leave orphans of every kind, and end the program. The argument says how a run is waited for."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from safepoint import Agent, CancelToken, Ladder, tool
from safepoint.agent.model import Chunk, Finish, ModelRequest, TextDelta
from safepoint.testing import ScriptedModel, call
from safepoint.tools.base import BaseTool
from tests.process.programs.telling import tell, tell_result

LONG = 30.0
LADDER = Ladder(task=0.2, thread=0.1)
ready = threading.Event()


@tool
def blocked_thread() -> str:
    ready.set()
    time.sleep(LONG)
    return "late"


@tool
def spinning_thread() -> str:
    ready.set()
    number, began = 0, time.monotonic()
    while time.monotonic() - began < LONG:
        number += 1
    return "late"


@tool
async def swallows_cancellation() -> str:
    while True:
        ready.set()
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            continue


@tool
async def swallows_everything() -> str:
    while True:
        ready.set()
        try:
            await asyncio.sleep(LONG)
        except BaseException:
            continue


async def _stubborn_numbers() -> AsyncIterator[int]:
    number = 0
    while True:
        ready.set()
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            continue
        number += 1
        yield number


@tool
async def swallows_in_a_generator() -> str:
    async for _ in _stubborn_numbers():
        pass
    return "late"


class StubbornModel:
    """It swallows cancellation in its stream, as a client that retries by itself does."""

    name = "stubborn_model"

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[AsyncIterator[Chunk]]:
        yield self._chunks()

    async def _chunks(self) -> AsyncIterator[Chunk]:
        yield TextDelta("Once")
        async for _ in _stubborn_numbers():
            pass
        yield Finish("end_turn")


TOOLS: list[BaseTool] = [
    blocked_thread,
    spinning_thread,
    swallows_cancellation,
    swallows_everything,
    swallows_in_a_generator,
]


def main(how: str) -> None:
    for model in (ScriptedModel([call(each.name) for each in TOOLS]), StubbornModel()):
        agent = Agent("parent", model=model, tools=TOOLS, ladder=LADDER)
        token = CancelToken()
        stopper = threading.Thread(target=stop, args=(token,))
        stopper.start()
        match how:
            case "run_sync":
                result = agent.run_sync("go", token=token)
            case _:
                result = asyncio.run(agent.run("go", token=token))
        stopper.join()
        ready.clear()
        tell_result("BACK", result)
    tell("BYE")


def stop(token: CancelToken) -> None:
    ready.wait()
    time.sleep(0.1)  # so that all of them are where they want to be
    token.cancel(reason="enough")


main(sys.argv[1])
