"""What the server's connections are like below HTTP."""

from __future__ import annotations

import asyncio
import socket

from safepoint.server.process import listen


def test_no_answer_waits_for_the_acknowledgement_of_its_beginning() -> None:
    """asyncio sees to that, for a listener that knows that it is TCP."""
    without_delay: asyncio.Queue[int] = asyncio.Queue()

    async def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken: socket.socket = writer.get_extra_info("socket")
        without_delay.put_nowait(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()
        await writer.wait_closed()

    async def accept() -> int:
        listener = listen("127.0.0.1", 0)
        async with await asyncio.start_server(accepted, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            found = await without_delay.get()
            writer.close()
            await writer.wait_closed()
        return found

    assert asyncio.run(accept()) == 1
