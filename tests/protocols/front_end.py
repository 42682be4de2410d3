"""A front end in this process: it posts to the server's ASGI app, reads the stream as it comes, and can leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from fastapi import FastAPI

from safepoint.agent.base import BaseAgent
from safepoint.server import create_app
from safepoint.server.config import ServerConfig
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.run_manager import RunManager
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.protocol import Storage

Json: TypeAlias = dict[str, Any]  # Any: JSON values


class Exchange:
    """One request. `frames`: the `data:` of its stream so far; `text`: everything that came."""

    def __init__(self, app: FastAPI, method: str, target: str, body: object) -> None:
        path, _, query = target.partition("?")
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        headers.append((b"content-length", str(len(data)).encode()))
        self._scope: Json = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
            "client": ("127.0.0.1", 40_000),
            "server": ("localhost", 8000),
            "state": dict[str, Any](),  # Any: as ASGI has it
        }
        self._inbox: asyncio.Queue[Json] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": data, "more_body": False})
        self._news = asyncio.Event()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.text = ""
        self.task = asyncio.create_task(app(self._scope, self._inbox.get, self._send))

    async def _send(self, message: Any) -> None:  # Any: as ASGI has it
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.text += message.get("body", b"").decode()
        self._news.set()

    @property
    def frames(self) -> list[Any]:  # Any: JSON
        datas = [line.removeprefix("data: ") for line in self.text.split("\n") if line.startswith("data: ")]
        return [data if data == "[DONE]" else json.loads(data) for data in datas]

    @property
    def json(self) -> Any:  # Any: JSON
        return json.loads(self.text)

    def types(self) -> list[str]:
        return [frame if isinstance(frame, str) else frame["type"] for frame in self.frames]

    async def until(self, seen: Callable[[list[Any]], bool]) -> None:  # Any: JSON
        """Until the frames so far are as wanted. Cancellation: only the waiting ends."""
        while not seen(self.frames):
            assert not self.task.done(), f"the stream ended before that: {self.text}"
            self._news.clear()
            await self._news.wait()

    async def until_type(self, *types: str) -> None:
        """Cancellation: only the waiting ends."""
        await self.until(lambda _: any(type in self.types() for type in types))

    def leave(self) -> None:
        """Close the connection, as an abort does."""
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def over(self) -> Exchange:
        """Once it is answered whole. Cancellation: only the waiting ends."""
        await self.task
        return self


class FrontEnd:
    """A server with these agents, and its clients."""

    def __init__(
        self,
        agents: Mapping[str, BaseAgent[Any, Any]],  # Any: agents of every kind
        storage: Storage | None = None,
        config: ServerConfig | None = None,
    ) -> None:
        self.app = create_app(agents, storage=storage or MemoryStorage(), config=config)
        self._open: list[Exchange] = []

    @property
    def manager(self) -> RunManager:
        found: RunManager = self.app.state.manager
        return found

    @property
    def run(self) -> ManagedRun:
        """The only one there was."""
        (found,) = self.manager.runs.values()
        return found

    def open(self, path: str, body: object = None, method: str = "POST") -> Exchange:
        exchange = Exchange(self.app, method, path, body)
        self._open.append(exchange)
        return exchange

    async def ask(self, path: str, body: object = None, method: str = "POST") -> Exchange:
        """A request and its whole answer. Cancellation: the request goes on."""
        return await self.open(path, body, method).over()

    async def close(self) -> None:
        """Every client leaves; every run ends. Cancellation: not all of that."""
        for exchange in self._open:
            exchange.leave()
        for managed in list(self.manager.runs.values()):
            await managed.over.wait()
        for exchange in self._open:
            await exchange.task


@asynccontextmanager
async def front_end(
    agents: Mapping[str, BaseAgent[Any, Any]],  # Any: as above
    storage: Storage | None = None,
    config: ServerConfig | None = None,
) -> AsyncGenerator[FrontEnd]:
    found = FrontEnd(agents, storage, config)
    try:
        yield found
    finally:
        await found.close()
