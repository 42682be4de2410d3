"""`/mcp` of a real server, with the SDK's client in front of it, in both eras."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

from tests.server.server_process import PATIENCE, ServerProcess

Mode = Literal["legacy", "auto"]
MODES: tuple[Mode, ...] = ("legacy", "auto")
ACCEPT = {"accept": "application/json, text/event-stream"}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@asynccontextmanager
async def connected(server: ServerProcess, mode: Mode, key: str | None = None) -> AsyncGenerator[Client]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
        transport = streamable_http_client(f"http://127.0.0.1:{server.port}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text.strip()


def session_of(result: CallToolResult) -> str:
    assert result.structured_content is not None
    return str(result.structured_content["session"])


async def until_did(server: ServerProcess, what: str, times: int = 1) -> None:
    await asyncio.to_thread(server.until_did, what, times)


async def until_ended(server: ServerProcess) -> dict[str, Any]:  # Any: JSON
    """The last run, once it has ended."""
    deadline = time.monotonic() + PATIENCE
    while True:
        runs: list[dict[str, Any]] = (await asyncio.to_thread(server.get, "/runs")).body  # Any: JSON
        newest = max(runs, key=lambda run: float(run["createdAt"]))
        if newest["state"] == "ended":
            return newest
        assert time.monotonic() < deadline, newest
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("mode", MODES)
def test_every_app_of_the_server_is_a_tool_and_its_session_is_one_of_the_servers(
    server: ServerProcess, mode: Mode
) -> None:
    async def body() -> None:
        async with connected(server, mode) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            result = await client.call_tool("worker", {"task": f"note http-{mode}"})
        assert {"worker", "boss", "crew"} <= set(tools)
        assert text_of(result) == "done"
        # What one protocol starts can be read through any other.
        session = server.get(f"/apps/worker/users/user/sessions/{session_of(result)}")
        assert session.status == 200
        assert f"http-{mode}" in json.dumps(session.body)

    asyncio.run(body())


@pytest.mark.parametrize(("mode", "source"), [("legacy", "user"), ("auto", "disconnect")])
def test_a_cancelled_call_is_recorded_and_its_tool_never_ends(server: ServerProcess, mode: Mode, source: str) -> None:
    async def body() -> None:
        before = server.did().count("nap begins")
        ended = server.did().count("nap ends")
        async with connected(server, mode) as client:
            napping = asyncio.create_task(client.call_tool("worker", {"task": "nap 1000"}))
            await until_did(server, "nap begins", before + 1)
            napping.cancel()
            await asyncio.wait([napping])
            run = await until_ended(server)
            after = await client.call_tool("worker", {"task": "say on"})
        assert run["outcome"] == "cancelled"
        assert run["reason"]["source"] == source
        assert text_of(after) == "on"
        assert server.did().count("nap ends") == ended

    asyncio.run(body())


def test_a_run_of_one_client_is_stopped_through_the_servers_own_route(server: ServerProcess) -> None:
    async def body() -> None:
        before = server.did().count("nap begins")
        async with connected(server, "legacy") as client:
            napping = asyncio.create_task(client.call_tool("worker", {"task": "nap 1000"}))
            await until_did(server, "nap begins", before + 1)
            (run,) = server.get("/runs?state=live").body
            assert server.post(f"/runs/{run['runId']}:cancel", {"reason": "house rule"}).status == 200
            result = await napping
        assert result.is_error
        assert "house rule" in text_of(result)

    asyncio.run(body())


def test_a_client_of_the_old_era_that_loses_its_connection_does_not_stop_its_run(server: ServerProcess) -> None:
    before = server.did().count("nap begins")
    session = server.post("/mcp", HELLO, ACCEPT).headers["mcp-session-id"]
    headers = {**ACCEPT, "mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert httpx2.post(f"http://127.0.0.1:{server.port}/mcp", json=ready, headers=headers).status_code == 202
    params = {"name": "worker", "arguments": {"task": "nap 2"}}
    frame = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
    with server.open_stream("POST", "/mcp", frame, headers):
        server.until_did("nap begins", before + 1)
    ends = server.did().count("nap ends")
    server.until_did("nap ends", ends + 1)


def test_two_clients_at_once_are_answered_each_for_itself(server: ServerProcess) -> None:
    async def body() -> None:
        async with connected(server, "legacy") as old, connected(server, "auto") as new:
            calls = [client.call_tool("worker", {"task": f"say {n}"}) for n in range(5) for client in (old, new)]
            results = await asyncio.gather(*calls)
        assert [text_of(each) for each in results] == [str(n) for n in range(5) for _ in range(2)]
        assert len({session_of(each) for each in results}) == 10

    asyncio.run(body())


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"[]",
        b"7",
        b'"x"',
        b"\xff\xfe",
        b'{"jsonrpc":"2.0","id":1}',
        b'{"jsonrpc":"2.0","id":{},"method":"tools/call"}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":7}',
        b"[" * 2000 + b"]" * 2000,
    ],
)
@pytest.mark.parametrize("version", [None, "2025-11-25", "2026-07-28", "1999-01-01"])
def test_a_body_of_the_wrong_shape_is_refused_without_a_trace(
    server: ServerProcess, body: bytes, version: str | None
) -> None:
    headers = ACCEPT if version is None else {**ACCEPT, "mcp-protocol-version": version}
    answer = server.http("POST", "/mcp", body, headers)
    assert 400 <= answer.status < 500, answer
    assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Mapping[str, str]]]:
    """A server with keys, of two users."""
    from safepoint.server.keys import KeyFile

    folder: Path = tmp_path_factory.mktemp("locked")
    (folder / "data").mkdir()
    file = KeyFile(folder / "data" / "keys.json")
    keys = {name: file.add(name, user=name) for name in ("ann", "bob")}
    with ServerProcess(folder) as running:
        yield running, keys


@pytest.mark.parametrize("mode", MODES)
def test_without_a_key_nobody_gets_in_and_a_foreign_session_is_not_found(
    locked: tuple[ServerProcess, Mapping[str, str]], mode: Mode
) -> None:
    server, keys = locked

    async def body() -> None:
        assert server.post("/mcp", HELLO, ACCEPT).status == 401
        async with connected(server, mode, keys["ann"]) as ann:
            session = session_of(await ann.call_tool("worker", {"task": "say mine"}))
        async with connected(server, mode, keys["bob"]) as bob:
            foreign = await bob.call_tool("worker", {"task": "say yours", "session": session})
            unknown = await bob.call_tool("worker", {"task": "say yours", "session": "never-was"})
        assert foreign.is_error
        assert text_of(foreign) == text_of(unknown) == "Session not found. Leave `session` out to begin a new one."

    asyncio.run(body())


def test_a_session_of_the_transport_belongs_to_the_key_that_opened_it(
    locked: tuple[ServerProcess, Mapping[str, str]],
) -> None:
    server, keys = locked
    ann, bob = ({**ACCEPT, "authorization": f"Bearer {keys[name]}"} for name in ("ann", "bob"))
    session = server.post("/mcp", HELLO, ann).headers["mcp-session-id"]
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    stolen = server.post("/mcp", listing, {**bob, "mcp-session-id": session})
    unknown = server.post("/mcp", listing, {**bob, "mcp-session-id": "0" * 32})
    assert (stolen.status, stolen.body) == (unknown.status, unknown.body)
    assert stolen.status == 404
    assert server.http("DELETE", "/mcp", headers={**bob, "mcp-session-id": session}).status == 404
    assert server.post("/mcp", listing, {**ann, "mcp-session-id": session}).status == 200


def test_a_key_that_is_revoked_cuts_a_stream_that_is_open(tmp_path: Path) -> None:
    from safepoint.server.keys import KeyFile

    (tmp_path / "data").mkdir()
    file = KeyFile(tmp_path / "data" / "keys.json")
    secret = file.add("ann", user="ann")
    file.add("bob", user="bob")
    with ServerProcess(tmp_path) as server:
        headers = {**ACCEPT, "authorization": f"Bearer {secret}"}
        session = server.post("/mcp", HELLO, headers).headers["mcp-session-id"]
        with server.open_stream("GET", "/mcp", headers={**headers, "mcp-session-id": session}) as frames:
            file.revoke("ann")
            assert list(frames) == []  # it ends
        assert server.post("/mcp", HELLO, headers).status == 401


def test_a_server_that_ends_tells_waiting_clients_and_does_not_wait_for_idle_ones(tmp_path: Path) -> None:
    async def body(server: ServerProcess) -> CallToolResult | MCPError:
        async with connected(server, "legacy") as client:
            napping = asyncio.create_task(client.call_tool("worker", {"task": "nap 1000"}))
            await until_did(server, "nap begins")
            assert await asyncio.to_thread(server.terminate) == 0
            try:
                return await napping
            except MCPError as error:
                return error

    with ServerProcess(tmp_path, options=["--shutdown-seconds", "0.5"]) as server:
        told = asyncio.run(body(server))
        assert isinstance(told, CallToolResult), told
        assert told.is_error
        assert told.structured_content is not None
        assert told.structured_content["reason"]["source"] == "shutdown"
    assert "Traceback" not in server.log.read_text()
