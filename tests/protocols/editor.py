"""An editor: the Python SDK's own client, which keeps every frame and holds it to the SDK's schema."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import acp
from acp import schema
from acp.connection import StreamDirection, StreamEvent

from safepoint import Agent
from safepoint.protocols.acp.agent import AcpAgent, serve
from safepoint.protocols.acp.rpc import LONGEST_FRAME, RpcConnection
from safepoint.serving.apps import Catalog
from safepoint.serving.config import ServingConfig
from safepoint.serving.principal import Principal
from safepoint.serving.run_manager import RunManager
from safepoint.sessions.dispatch import IfBusy
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.protocol import Storage

PATIENCE = 30.0
ROOT = Path(__file__).parents[2]
APP = "tests.protocols.editor_app:agent"

Frame = dict[str, Any]  # Any: JSON
RESULTS: dict[str, Any] = {  # Any: classes of models
    "initialize": schema.InitializeResponse,
    "session/new": schema.NewSessionResponse,
    "session/load": schema.LoadSessionResponse,
    "session/list": schema.ListSessionsResponse,
    "session/resume": schema.ResumeSessionResponse,
    "session/close": schema.CloseSessionResponse,
    "session/prompt": schema.PromptResponse,
}
Allowed = schema.AllowedOutcome | schema.DeniedOutcome


class Editor:
    """What the client sees. `frames`: what the agent has sent, in order. `permit`: answers permission requests."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.agent: Any = None  # Any: the SDK's connection
        self.permit: Callable[[], Awaitable[Allowed]] | None = None
        self.asked: list[schema.RequestPermissionRequest] = []
        self._methods: dict[Any, str] = {}  # Any: ids
        self._changed = asyncio.Event()

    # -- as the SDK calls it

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:  # Any: as the SDK has it
        """The frames are kept by `observe`."""

    async def request_permission(
        self, session_id: str, tool_call: Any, options: Any, **_: Any
    ) -> schema.RequestPermissionResponse:
        self.asked.append(schema.RequestPermissionRequest(session_id=session_id, tool_call=tool_call, options=options))
        self._changed.set()
        assert self.permit is not None
        return schema.RequestPermissionResponse(outcome=await self.permit())

    def on_connect(self, conn: object) -> None: ...

    # -- for tests

    def observe(self, event: StreamEvent) -> None:
        frame = event.message
        if event.direction is StreamDirection.OUTGOING:
            if "method" in frame and "id" in frame:
                self._methods[frame["id"]] = frame["method"]
            return
        self.frames.append(frame)
        self._changed.set()

    def check_frames(self) -> None:
        """Every frame of the agent is one that the protocol has."""
        for frame in self.frames:
            assert frame["jsonrpc"] == "2.0"
            match frame:
                case {"method": "session/update", "params": params}:
                    schema.SessionNotification.model_validate(params)
                case {"method": "session/request_permission", "params": params, "id": _}:
                    schema.RequestPermissionRequest.model_validate(params)
                case {"method": "$/cancel_request", "params": params}:
                    schema.CancelRequestNotification.model_validate(params)
                case {"id": _, "error": error}:
                    schema.Error.model_validate(error)
                case {"id": id, "result": result}:
                    RESULTS[self._methods[id]].model_validate(result)
                case _:
                    raise AssertionError(f"no frame of the protocol: {frame}")

    async def until(self, found: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not found():
                self._changed.clear()
                await self._changed.wait()

    @property
    def updates(self) -> list[Frame]:
        return [each["params"]["update"] for each in self.frames if each.get("method") == "session/update"]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(each["content"]["text"] for each in self.updates if each["sessionUpdate"] == kind)

    def statuses(self) -> list[str]:
        """Of calls, as they were shown."""
        return [each["status"] for each in self.updates if each["sessionUpdate"].startswith("tool_call")]

    def last_words_of_a_call(self) -> str:
        update = [each for each in self.updates if each["sessionUpdate"] == "tool_call_update"][-1]
        return "".join(each["content"]["text"] for each in update["content"])

    async def open(self, cwd: str = "/project") -> str:
        await self.agent.initialize(1)
        session: str = (await self.agent.new_session(cwd, mcp_servers=[])).session_id
        return session

    async def prompt(self, session: str, text: str) -> schema.PromptResponse:
        async with asyncio.timeout(PATIENCE):
            found: schema.PromptResponse = await self.agent.prompt(session_id=session, prompt=[acp.text_block(text)])
        return found

    def begin(self, session: str, text: str) -> asyncio.Task[schema.PromptResponse]:
        return asyncio.create_task(self.prompt(session, text))

    def has_seen(self, words: str) -> Callable[[], bool]:
        """For `until`: in any update."""
        return lambda: words in str(self.updates)

    def nothing_follows_the_answer(self) -> bool:
        """Is the last frame an answer?"""
        return "method" not in self.frames[-1]


def facts_of(answer: schema.PromptResponse) -> Frame:
    """What is Safepoint's own in an answer."""
    assert answer.field_meta is not None
    found: Frame = answer.field_meta["safepoint"]
    return found


@asynccontextmanager
async def in_process(
    agent: Agent[Any, Any], *, storage: Storage | None = None, if_busy: IfBusy = "interrupt", user: str = "editor"
) -> AsyncGenerator[tuple[Editor, RunManager]]:
    """The SDK's client and our side of the protocol, over a real pair of sockets."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours, limit=LONGEST_FRAME)
    manager = RunManager(Catalog.of({"app": agent}), storage or MemoryStorage(), ServingConfig())
    rpc = RpcConnection(reader, writer)
    served = AcpAgent(manager, "app", Principal("editor", user=user), rpc, if_busy=if_busy)
    serving = asyncio.create_task(serve(served, rpc, asyncio.Event()))
    editor = Editor()
    their_reader, their_writer = await asyncio.open_connection(sock=theirs)
    editor.agent = acp.connect_to_agent(
        cast("Any", editor),  # Any: of the SDK's client only what our agent calls
        their_writer,
        their_reader,
        use_unstable_protocol=True,
        observers=[editor.observe],
    )
    try:
        yield editor, manager
        editor.check_frames()
    finally:
        their_writer.close()
        await editor.agent.close()
        async with asyncio.timeout(PATIENCE):
            await serving


@asynccontextmanager
async def spawned(folder: Path, *options: str) -> AsyncGenerator[tuple[Editor, asyncio.subprocess.Process]]:
    """`safepoint acp` in a process of its own, as an editor starts it."""
    editor = Editor()
    store = f"sqlite:{folder / 'editor.db'}"
    async with acp.spawn_agent_process(
        cast("Any", editor),  # Any: as above
        sys.executable,
        *("-m", "safepoint", "acp", APP, "--store", store, *options),
        env=dict(os.environ),
        cwd=ROOT,
        transport_kwargs={"limit": LONGEST_FRAME},
        use_unstable_protocol=True,
        observers=[editor.observe],
    ) as (connection, process):
        editor.agent = connection
        yield editor, process
        editor.check_frames()
