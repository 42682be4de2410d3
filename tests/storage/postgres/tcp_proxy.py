"""A TCP proxy that delays, cuts, loses and swallows, on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager

_NOTIFICATION = b"A"  # as PostgreSQL's protocol has it; they come alone


class TcpProxy:
    """`cut_answer_after(n)`: the n-th statement from now on reaches the server, and its answer does not come back.

    Statements are counted by what the client sends: each `Sync` or simple query is one. `silent`: take everything and
    pass nothing on, as a half-open connection does. `deaf`: the same for answers only. `delay`: how many seconds every
    piece of an answer comes later. `refuse`: take no new connections. `doubled`: notifications come twice.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self.statements = 0
        self.lost = 0
        self.silent = False
        self.deaf = False
        self.delay = 0.0
        self.refuse = False
        self.doubled = False
        self._cut_at: int | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopped.wait()
        server.close()
        self._cut_all()

    def cut_answer_after(self, count: int) -> None:
        self._cut_at = self.statements + count

    def cut_all(self) -> None:
        self._loop.call_soon_threadsafe(self._cut_all)

    def _cut_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        both = {writer, back}
        self._writers |= both
        lost = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, back, lost))
                group.create_task(self._backward(there, writer, lost))
        except* OSError:
            pass
        finally:
            self._writers -= both
            for each in both:
                each.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        started = False
        while data := await reader.read(1 << 20):
            if self.silent:
                continue
            if started:  # the first packet is the log-in
                self.statements += 1
                if self._cut_at is not None and self.statements >= self._cut_at:
                    self._cut_at = None
                    self.lost += 1
                    lost.set()
            started = True
            back.write(data)
            await back.drain()
        raise ConnectionResetError

    async def _backward(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        while data := await there.read(1 << 20):
            if self.silent or self.deaf:
                continue
            if self.delay:
                await asyncio.sleep(self.delay)
            if lost.is_set():  # the server has answered, so it has committed
                raise ConnectionResetError
            writer.write(data)
            if self.doubled and data[:1] == _NOTIFICATION:
                writer.write(data)
            await writer.drain()
        raise ConnectionResetError

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(5)

    @contextmanager
    def running(self) -> Generator[TcpProxy]:
        self._thread.start()
        self._ready.wait(5)
        try:
            yield self
        finally:
            self.close()
