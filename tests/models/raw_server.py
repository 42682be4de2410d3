"""Small servers that say exactly these bytes over a real socket, and then close, reset or fall silent."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

Say: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RawServer:
    """Plays one act per connection, the last one again and again; keeps what it was sent."""

    acts: list[Say]
    port: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # Any: JSON
    heads: list[str] = field(default_factory=list[str])
    bodies: list[bytes] = field(default_factory=list[bytes])
    open: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.idle.clear()
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            self.open -= 1
            if not self.open:
                self.idle.set()
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = (int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:"))
        length = next(lengths, 0)
        body = await reader.readexactly(length)
        act = self.acts[min(len(self.requests), len(self.acts) - 1)]
        self.heads.append(head)
        self.bodies.append(body)
        self.requests.append(json.loads(body or b"{}"))
        await act(reader, writer)


@asynccontextmanager
async def raw_server(*acts: Say) -> AsyncGenerator[RawServer]:
    state = RawServer(list(acts))
    state.idle.set()
    server = await asyncio.start_server(state._serve, "127.0.0.1", 0)  # pyright: ignore[reportPrivateUsage]  # its own
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()


def say(data: bytes) -> Say:
    """These bytes, and then the connection is closed."""

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return act


def fall_silent(data: bytes = b"", reached: asyncio.Event | None = None) -> Say:
    """These bytes, and then nothing for as long as the other side stays."""

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if reached is not None:
            reached.set()
        await reader.read()

    return act


def reset(data: bytes) -> Say:
    """These bytes, and then the connection is reset."""

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        writer.transport.abort()

    return act


def answer(status: int, body: object, **headers: str) -> bytes:
    """A whole answer in JSON."""
    content = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} x", "content-type: application/json", f"content-length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode() + content


def stream(events: Iterable[object], *, chunked: bool) -> bytes:
    """A stream of events as they go over the wire. A pair is an event with a name; a str goes as it is."""
    frames = [_frame(event) for event in events]
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
    if not chunked:
        return head.encode() + b"\r\n" + b"".join(frames)
    pieces = [f"{len(frame):x}\r\n".encode() + frame + b"\r\n" for frame in frames]
    return head.encode() + b"transfer-encoding: chunked\r\n\r\n" + b"".join(pieces) + b"0\r\n\r\n"


def _frame(event: object) -> bytes:
    match event:
        case str():
            return f"data: {event}\n\n".encode()
        case tuple():
            name, body = cast("tuple[str, object]", event)
            return f"event: {name}\ndata: {json.dumps(body)}\n\n".encode()
        case _:
            return f"data: {json.dumps(event)}\n\n".encode()
