"""A lean HTTP client over bare sockets, so that what is measured is the server and not its client.

One connection for each client, kept open; a request is bytes made beforehand, and a response is whole when its length
has come, or its last chunk.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from bench.sample import Sample

_TICKS = os.sysconf("SC_CLK_TCK")


def request(method: str, path: str, body: object = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


class Connection(asyncio.Protocol):
    """One client. `ask(…)` sends and waits for the whole response; `until(…)` for a piece of it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: asyncio.Future[None] | None = None
        self._enough: Callable[[bytearray], bool] = is_whole

    @staticmethod
    async def open(port: int) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._waiting is not None and not self._waiting.done() and self._enough(self._buffer):
            self._waiting.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError(f"closed after {bytes(self._buffer)!r}"))

    async def ask(self, sent: bytes) -> bytes:
        self.send(sent)
        return await self.until(is_whole)

    def send(self, sent: bytes) -> None:
        assert self._transport is not None
        self._buffer.clear()
        self._transport.write(sent)

    async def until(self, enough: Callable[[bytearray], bool]) -> bytes:
        if not enough(self._buffer):
            self._enough, self._waiting = enough, asyncio.get_running_loop().create_future()
            await self._waiting
        return bytes(self._buffer)

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


def is_whole(response: bytearray) -> bool:
    end = response.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = response[:end].lower()
    length = head.find(b"content-length:")
    if length < 0:
        return response.endswith(b"0\r\n\r\n")
    return len(response) >= end + 4 + int(head[length + 15 :].split(b"\r\n", 1)[0])


@dataclass(frozen=True, slots=True)
class Load:
    """What one round of requests took. `cpu`: the server's seconds for each request."""

    rate: float
    cpu: float
    latency: Sample


async def load(port: int, pid: int, requests: Sequence[bytes], clients: int, *, strict: bool = True) -> Load:
    """Send them all, by so many clients at once. `strict`: an answer that is no success ends it."""
    connections = [await Connection.open(port) for _ in range(clients)]
    left = iter(requests)
    took: list[float] = []

    async def client(connection: Connection) -> None:
        for sent in left:
            began = perf_counter()
            answer = await connection.ask(sent)
            took.append(perf_counter() - began)
            if strict and (b" 200 " not in answer[:16] or b'"errorCode"' in answer):
                raise AssertionError(answer[:2000])

    busy, began = cpu_of(pid), perf_counter()
    async with asyncio.TaskGroup() as group:
        for connection in connections:
            group.create_task(client(connection))
    wall, busy = perf_counter() - began, cpu_of(pid) - busy
    for connection in connections:
        connection.close()
    return Load(len(requests) / wall, busy / len(requests), Sample(tuple(sorted(took))))


def cpu_of(pid: int) -> float:
    """Seconds that the process has used, in steps of a tick."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
