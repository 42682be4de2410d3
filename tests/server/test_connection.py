"""One connection below the app."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from safepoint.server.config import Limits
from safepoint.server.connection import Connection, wire_options
from safepoint.server.serving import listen


async def _nothing(scope: object, receive: object, send: object) -> None:
    raise NotImplementedError


def test_no_answer_waits_for_the_acknowledgement_of_its_beginning() -> None:
    async def accept() -> int:
        config = uvicorn.Config(_nothing, log_config=None, **wire_options(Limits()))
        config.load()
        made: list[Connection] = []
        come = asyncio.Event()

        class Seen(Connection):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
                super().connection_made(transport)
                made.append(self)
                come.set()

        def make() -> Seen:
            return Seen(config=config, server_state=ServerState(), app_state=dict[str, Any]())  # Any: as uvicorn has it

        listener = listen("127.0.0.1", 0)
        server = await asyncio.get_running_loop().create_server(make, sock=listener)
        _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
        await come.wait()
        taken: socket.socket = made[0].transport.get_extra_info("socket")
        waits = taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        return waits

    assert asyncio.run(accept()) == 1
