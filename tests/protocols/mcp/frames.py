"""A client that writes frames itself, for what the SDK's client never sends, and to see that nothing is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.server.lowlevel import Server
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    jsonrpc_message_adapter,
)

from tests.protocols.mcp.world import Mode

ENVELOPE: dict[str, Any] = {  # Any: JSON
    PROTOCOL_VERSION_META_KEY: "2026-07-28",
    CLIENT_CAPABILITIES_META_KEY: {},
}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "frames", "version": "1"}}


class Frames:
    """`answers`: what came back, by the ids of the requests; `seen`: all frames in order."""

    def __init__(self, mode: Mode, send: Any) -> None:  # Any: a stream of the SDK
        self.mode = mode
        self.seen: list[dict[str, Any]] = []  # Any: JSON
        self._send = send
        self._news = asyncio.Event()

    async def request(self, id: int | str, method: str, **params: Any) -> None:  # Any: JSON
        if self.mode == "auto":
            params["_meta"] = {**ENVELOPE, **params.get("_meta", {})}
        await self._frame({"jsonrpc": "2.0", "id": id, "method": method, "params": params})

    async def notify(self, method: str, **params: Any) -> None:  # Any: JSON
        await self._frame({"jsonrpc": "2.0", "method": method, "params": params})

    async def call(self, id: int | str, tool: str, **arguments: Any) -> None:  # Any: JSON
        await self.request(id, "tools/call", name=tool, arguments=arguments)

    async def answer(self, id: int | str) -> dict[str, Any]:  # Any: JSON
        while (found := self.answers.get(id)) is None:
            self._news.clear()
            await self._news.wait()
        return found

    @property
    def answers(self) -> dict[int | str, dict[str, Any]]:  # Any: JSON
        return {frame["id"]: frame for frame in self.seen if "id" in frame and "method" not in frame}

    async def _frame(self, frame: dict[str, Any]) -> None:  # Any: JSON
        await self._send.send(SessionMessage(jsonrpc_message_adapter.validate_python(frame)))

    def took(self, frame: dict[str, Any]) -> None:  # Any: JSON
        self.seen.append(frame)
        self._news.set()


@asynccontextmanager
async def connected(server: Server[Any], mode: Mode) -> AsyncGenerator[Frames]:  # Any: its lifespan
    """Leaving the block closes the connection; it returns when the server has ended it."""
    async with create_client_server_memory_streams() as ((read, write), (server_read, server_write)):
        frames = Frames(mode, write)

        async def serve() -> None:
            await server.run(server_read, server_write, server.create_initialization_options())

        async def listen() -> None:
            async for message in read:
                assert isinstance(message, SessionMessage)
                frames.took(message.message.model_dump(mode="json", by_alias=True, exclude_none=True))

        async with anyio.create_task_group() as group:
            group.start_soon(serve)
            group.start_soon(listen)
            if mode == "legacy":
                await frames.request("hello", "initialize", **HELLO)
                await frames.answer("hello")
                await frames.notify("notifications/initialized")
            yield frames
            await write.aclose()
