"""Frames that no client of the protocol's own packages would send: each is refused, and the connection lives."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from acp import schema

from safepoint.protocols.acp.agent import AcpAgent, serve
from safepoint.protocols.acp.rpc import LONGEST_FRAME, RpcConnection
from safepoint.serving.apps import Catalog
from safepoint.serving.config import ServingConfig
from safepoint.serving.principal import Principal
from safepoint.serving.run_manager import RunManager
from safepoint.storage.memory import MemoryStorage
from tests.protocols.editor import PATIENCE
from tests.protocols.editor_app import agent

Frame = dict[str, Any]  # Any: JSON


class Raw:
    """A client that sends bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, line: bytes | Frame) -> None:
        self._writer.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")

    async def receive(self) -> Frame:
        async with asyncio.timeout(PATIENCE):
            frame: Frame = json.loads(await self._reader.readline())
        return frame

    async def ask(self, method: str, params: object, *, id: int | str = 1) -> Frame:
        self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        return await self.receive()

    async def is_alive(self) -> bool:
        found = await self.ask("initialize", {"protocolVersion": 1}, id="alive")
        return (found["id"], found["result"]["protocolVersion"]) == ("alive", 1)


def play(scene: Callable[[Raw], Awaitable[None]]) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        rpc = RpcConnection(*await asyncio.open_connection(sock=ours, limit=LONGEST_FRAME))
        manager = RunManager(Catalog.of({"app": agent}), MemoryStorage(), ServingConfig())
        served = AcpAgent(manager, "app", Principal("editor", user="editor"), rpc)
        serving = asyncio.create_task(serve(served, rpc, asyncio.Event()))
        reader, writer = await asyncio.open_connection(sock=theirs)
        try:
            await scene(Raw(reader, writer))
            assert manager.live() == []
        finally:
            writer.close()
            async with asyncio.timeout(PATIENCE):
                await serving

    asyncio.run(main())


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b"no json", -32700),
        (b"\xff\xfe", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"a\\u0000"}', -32700),
        (b'{"id":NaN,"method":"initialize"}', -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b"7", -32600),
        (b"null", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"initialize"}]', -32600),
        (b"{}", -32600),
        (b'{"id":1}', -32600),
        (b'{"id":1,"method":7}', -32600),
        (b'{"id":{},"method":"initialize"}', -32600),
        (b'{"id":true,"method":"initialize"}', -32600),
        (b'{"id":1,"method":"session/fork","params":{}}', -32601),
        (b'{"id":1,"method":"_own","params":{}}', -32601),
        (b'{"id":1,"method":"session/new"}', -32602),
        (b'{"id":1,"method":"session/new","params":[1]}', -32602),
        (b'{"id":1,"method":"session/new","params":{"cwd":"relative","mcpServers":[]}}', -32602),
        (b'{"id":1,"method":"session/prompt","params":{"sessionId":"x","prompt":[]}}', -32602),
        (b'{"id":1,"method":"session/list","params":{"cursor":"-1"}}', -32602),
        (b'{"id":1,"method":"session/close","params":{"sessionId":"x"}}', -32602),
    ],
)
def test_a_bad_frame_gets_an_error_and_the_connection_lives(line: bytes, code: int) -> None:
    async def scene(raw: Raw) -> None:
        raw.send(line)
        refused = await raw.receive()
        schema.Error.model_validate(refused["error"])
        assert refused["error"]["code"] == code
        assert "Traceback" not in str(refused)
        assert await raw.is_alive()

    play(scene)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"   ",
        b'{"id":99,"result":{}}',
        b'{"id":"none","error":null}',
        b'{"method":"session/cancel"}',
        b'{"method":"session/cancel","params":{"sessionId":7}}',
        b'{"method":"$/cancel_request"}',
        b'{"method":"$/cancel_request","params":{"requestId":{}}}',
        b'{"method":"something/new","params":{}}',
    ],
)
def test_what_has_no_answer_gets_none_and_the_connection_lives(line: bytes) -> None:
    async def scene(raw: Raw) -> None:
        raw.send(line)
        assert await raw.is_alive()

    play(scene)


def test_a_frame_that_is_too_long_is_refused_and_the_connection_lives() -> None:
    async def scene(raw: Raw) -> None:
        raw.send(b'"' + b"x" * (LONGEST_FRAME + 10) + b'"')
        assert (await raw.receive())["error"]["code"] == -32600
        assert await raw.is_alive()

    play(scene)


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ({"name": "gone", "command": "/no/such/program", "args": [], "env": []}, "gone"),
        ({"name": "far", "type": "http", "url": "http://localhost:1/mcp", "headers": []}, "started by a command"),
    ],
)
def test_a_server_of_the_client_that_cannot_be_used_is_named_and_no_session_is_made(server: Frame, why: str) -> None:
    async def scene(raw: Raw) -> None:
        refused = await raw.ask("session/new", {"cwd": "/", "mcpServers": [server]})
        assert refused["error"]["code"] == -32602
        assert repr(server["name"]) in refused["error"]["message"]
        assert why in refused["error"]["message"]
        assert (await raw.ask("session/list", {}))["result"]["sessions"] == []

    play(scene)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "audio", "data": "AA==", "mimeType": "audio/wav"},
        {"type": "image", "data": "?", "mimeType": "image/png"},
    ],
)
def test_a_prompt_that_cannot_be_taken_starts_nothing(block: Frame) -> None:
    async def scene(raw: Raw) -> None:
        session = (await raw.ask("session/new", {"cwd": "/", "mcpServers": []}))["result"]["sessionId"]
        refused = await raw.ask("session/prompt", {"sessionId": session, "prompt": [block]}, id=2)
        assert refused["error"]["code"] == -32602
        found = await raw.ask("session/list", {}, id=3)
        assert "title" not in found["result"]["sessions"][0]

    play(scene)


def test_an_image_a_link_and_a_file_become_parts_of_the_message() -> None:
    async def scene(raw: Raw) -> None:
        session = (await raw.ask("session/new", {"cwd": "/", "mcpServers": []}))["result"]["sessionId"]
        prompt = [
            {"type": "text", "text": "say this"},
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
            {"type": "resource_link", "name": "a.py", "uri": "file:///a.py"},
            {"type": "resource", "resource": {"uri": "file:///b.py", "text": "b = 1"}},
        ]
        raw.send(
            {"jsonrpc": "2.0", "id": 2, "method": "session/prompt", "params": {"sessionId": session, "prompt": prompt}}
        )
        while (await raw.receive()).get("id") != 2:
            pass
        raw.send(
            {
                "jsonrpc": "2.0",
                "id": 3,
                "method": "session/load",
                "params": {"sessionId": session, "cwd": "/", "mcpServers": []},
            }
        )
        said: list[Frame] = []
        while (frame := await raw.receive()).get("id") != 3:
            said.append(frame["params"]["update"])
        blocks = [each["content"] for each in said if each["sessionUpdate"] == "user_message_chunk"]
        assert blocks == [
            {"type": "text", "text": "say this"},
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
            {"type": "text", "text": "[a.py](file:///a.py)"},
            {"type": "text", "text": "file:///b.py:\nb = 1"},
        ]

    play(scene)


def test_frames_with_random_damage_never_end_the_connection() -> None:
    """Every answer is an error of the protocol or a result; none says that something broke inside."""
    methods = ["initialize", "session/new", "session/load", "session/list", "session/resume", "session/close"]
    values: list[Any] = [None, 0, -1, "", "x", [], {}, [None], {"a": 1}, True, "/", 1e308]
    fields = ["protocolVersion", "cwd", "mcpServers", "sessionId", "prompt", "cursor", "_meta", "additionalDirectories"]
    rng = random.Random(20)

    async def scene(raw: Raw) -> None:
        for number in range(400):
            method = rng.choice([*methods, "session/prompt", "session/cancel"])
            params = {rng.choice(fields): rng.choice(values) for _ in range(rng.randrange(4))}
            frame: Frame = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            if rng.random() < 0.1:
                frame["params"] = rng.choice(values)
            line = bytearray(json.dumps(frame).encode())
            if rng.random() < 0.3:
                line[rng.randrange(len(line))] = rng.choice(b'{}[],:"x0')
            raw.send(bytes(line))
        raw.send({"jsonrpc": "2.0", "id": "end", "method": "initialize", "params": {"protocolVersion": 1}})
        while (frame := await raw.receive()).get("id") != "end":
            if "error" in frame:
                assert frame["error"]["code"] in (-32700, -32600, -32601, -32602), frame

    play(scene)
