"""A stop closes the connection to the model: the server of this example sees that its client has left.

The server speaks OpenAI's chat completions, as llama.cpp, Ollama and vLLM do: put the address of a real one here.
"""

import asyncio
import json

from safepoint import Agent

left = asyncio.Event()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Say one word after the other until the client leaves."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    said = 0
    try:
        while True:
            said += 1
            event = {"choices": [{"index": 0, "delta": {"content": f"word{said} "}}]}
            writer.write(f"data: {json.dumps(event)}\n\n".encode())
            await writer.drain()
            await asyncio.sleep(0.02)
    except ConnectionError:
        print(f"server: the client left after {said} words, so I stop computing")
    writer.close()
    left.set()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    agent = Agent("writer", model=f"http://127.0.0.1:{port}/v1#demo")
    async with agent.start("Never stop.") as run:
        async for word in run.text():
            if "word5 " in word:
                run.cancel(reason="enough")
    print("client:", run.result.stop_reason, repr(run.result.text))
    print("client:", run.result.usage)
    await left.wait()
    server.close()


asyncio.run(main())
