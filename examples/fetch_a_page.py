"""Fetch pages from public addresses and from those you allow; a redirect to any other address is refused."""

import asyncio

from safepoint import Agent
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools import fetch


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A small server: one page, and one redirect."""
    request = await reader.readuntil(b"\r\n\r\n")
    if request.startswith(b"GET /page "):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nhello")
    else:
        writer.write(b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n")
    await writer.drain()
    writer.close()


async def main() -> None:
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        urls = [f"http://127.0.0.1:{port}/page", f"http://127.0.0.1:{port}/elsewhere", "http://10.0.0.1/"]
        model = ScriptedModel([call("fetch", url=url) for url in urls], say("Seen."))
        result = await Agent("reader", model=model, tools=[fetch(allow=["127.0.0.1"])]).run("Look.")
    for entry in result.ledger:
        print(entry.args["url"], "→", entry.state, repr(entry.content or entry.error))


asyncio.run(main())
