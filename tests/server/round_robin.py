"""Two servers on one storage behind one address: each connection goes to the next of them in turn.

Except those of the page, which a cookie marks: a process knows its own logins only, so a proxy has to be sticky there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

from tests.server.server_process import ServerProcess

_OF_THE_PAGE = (b"Cookie: safepoint_", b"cookie: safepoint_", b"/login", b"/logout")


class RoundRobin:
    """A TCP proxy in a thread of its own. It passes on how a connection ends, too."""

    def __init__(self, ports: Sequence[int], port: int) -> None:
        self._ports, self._sticky = cycle(ports), ports[0]
        self._port = port
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(5)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(5)

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._handle, "127.0.0.1", self._port)
        self._ready.set()
        await self._stopped.wait()
        server.close()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            begin = await reader.read(1 << 16)
            port = self._sticky if any(mark in begin for mark in _OF_THE_PAGE) else next(self._ports)
            there, back = await asyncio.open_connection("127.0.0.1", port)
            back.write(begin)
        except OSError:
            writer.transport.abort()
            return
        both = [
            asyncio.create_task(self._pass_on(reader, back)),
            asyncio.create_task(self._pass_on(there, writer)),
        ]
        try:
            # When the server has ended, so has the connection; a client may end its half and still read.
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not both[1].done():
                await asyncio.wait({both[1]}, timeout=0.5)
        finally:
            for task in both:
                task.cancel()
            writer.close()
            back.close()

    @staticmethod
    async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            if writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()


class ServerPair(ServerProcess):
    """Looks like one server, and is two. What concerns one process only, such as its memory, is not there."""

    def __init__(
        self,
        folder: Path,
        *,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        data: bool = True,
    ) -> None:
        super().__init__(folder, options=options, env=env, data=data)
        self.both = [ServerProcess(folder, options=options, env=env, data=data) for _ in range(2)]
        self._proxy = RoundRobin([server.port for server in self.both], self.port)

    @property
    def each(self) -> Sequence[ServerProcess]:
        return self.both

    def start(self) -> None:
        for server in self.both:
            server.start()
        self._proxy.start()

    def kill(self) -> None:
        for server in self.both:
            server.kill()
        self._proxy.close()
