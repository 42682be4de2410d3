"""The protocols as doors to the same agent: each begins a run, stops it by its own means, and tells its last word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import acp

from safepoint import Agent
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.run_manager import RunManager
from tests.protocols.editor import in_process
from tests.protocols.front_end import FrontEnd, Json, front_end
from tests.protocols.mcp.frames import connected
from tests.protocols.mcp.world import World

AnyAgent: TypeAlias = Agent[Any, Any]  # Any: whatever a test scripts
NEVER = "no answer"


@dataclass(frozen=True)
class Door:
    """`begin`: send a message; the word with which its answer ends. `stop`: as this protocol's clients do."""

    manager: RunManager
    begin: Callable[[], Awaitable[object]]
    stop: Callable[[str], Awaitable[None]]

    @property
    def run(self) -> ManagedRun:
        (found,) = self.manager.runs.values()
        return found


@asynccontextmanager
async def ag_ui(agent: AnyAgent) -> AsyncGenerator[Door]:
    async with front_end({"app": agent}) as world:

        async def begin() -> object:
            message = {"id": "m", "role": "user", "content": "go"}
            body = {"threadId": "s", "runId": "r", "messages": [message], "protocolVersion": "1.0"}
            last: Json = (await world.ask("/ag-ui/app", body)).frames[-1]
            return (last["type"], last["code"] if "code" in last else last["outcome"]["type"])

        yield Door(world.manager, begin, _stopper(world, "/ag-ui/app/stop", threadId="s"))


@asynccontextmanager
async def ui_stream(agent: AnyAgent) -> AsyncGenerator[Door]:
    async with front_end({"app": agent}) as world:

        async def begin() -> object:
            message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "go"}]}
            *chunks, done = (await world.ask("/ui/app/chat", {"id": "s", "messages": [message]})).frames
            assert done == "[DONE]"
            types = [chunk["type"] for chunk in chunks]
            assert ("abort" in types) == (chunks[-1].get("finishReason") == "interrupted")
            assert ("tool-approval-request" in types) == (chunks[-1].get("finishReason") == "tool-calls")
            return chunks[-1].get("finishReason", chunks[-1]["type"])

        yield Door(world.manager, begin, _stopper(world, "/ui/app/chat/s/stop"))


@asynccontextmanager
async def adk(agent: AnyAgent) -> AsyncGenerator[Door]:
    async with front_end({"app": agent}) as world:
        session = "/apps/app/users/user/sessions/s"

        async def begin() -> object:
            assert (await world.ask(session)).status == 200
            said = {"role": "user", "parts": [{"text": "go"}]}
            body = {"appName": "app", "userId": "user", "sessionId": "s", "newMessage": said, "streaming": True}
            events: list[Json] = (await world.ask("/run_sse", body)).frames
            codes = [event["errorCode"] for event in events if "errorCode" in event]
            waits = any(event.get("longRunningToolIds") for event in events)
            return codes[-1] if codes else "waits" if waits else "answered"

        yield Door(world.manager, begin, _stopper(world, f"{session}:cancel"))


def _stopper(world: FrontEnd, path: str, **body: str) -> Callable[[str], Awaitable[None]]:
    async def stop(reason: str) -> None:
        answer = await world.ask(path, {**body, "reason": reason})
        assert answer.json["status"] == "cancelled", answer.text

    return stop


@asynccontextmanager
async def mcp(agent: AnyAgent) -> AsyncGenerator[Door]:
    world, stopped = World({"app": agent}), asyncio.Event()
    async with connected(world.server, "legacy") as frames:

        async def begin() -> object:
            await frames.call(1, "app", task="go")
            waits = {asyncio.ensure_future(frames.answer(1)), asyncio.ensure_future(stopped.wait())}
            _, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in left:
                wait.cancel()
            if stopped.is_set():
                await frames.request(2, "tools/list")  # what was to be answered before is answered by then
                await frames.answer(2)
                return NEVER if 1 not in frames.answers else "an answer"
            result = frames.answers[1]["result"]
            return (result.get("isError", False), result["structuredContent"]["stopReason"])

        async def stop(reason: str) -> None:
            await frames.notify("notifications/cancelled", requestId=1, reason=reason)
            await world.run.over.wait()
            stopped.set()

        yield Door(world.manager, begin, stop)


@asynccontextmanager
async def editor(agent: AnyAgent) -> AsyncGenerator[Door]:
    async with in_process(agent, user="user") as (client, manager):
        session = await client.open()

        async def begin() -> object:
            try:
                return (await client.prompt(session, "go")).stop_reason
            except acp.RequestError as error:
                return error.code

        async def stop(reason: str) -> None:
            """The protocol has no place for a reason."""
            await client.agent.cancel(session)
            (run,) = manager.runs.values()
            await run.over.wait()

        yield Door(manager, begin, stop)


DOORS: Mapping[str, Callable[[AnyAgent], AbstractAsyncContextManager[Door]]] = {
    "acp": editor,
    "adk": adk,
    "ag_ui": ag_ui,
    "mcp": mcp,
    "ui_stream": ui_stream,
}
