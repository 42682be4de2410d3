"""`safepoint mcp` as a process of its own, with the SDK's client in front of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import CallToolResult, TextContent

from safepoint.storage.run_records import RunRecord
from safepoint.storage.sqlite.storage import SqliteStorage
from tests.server.server_process import APPS
from tests.signals import default_signals

PATIENCE = 60.0
MODES: tuple[Literal["legacy", "auto"], ...] = ("legacy", "auto")
Mode = Literal["legacy", "auto"]


class Stdio:
    """The command, its files, and what was recorded when it has gone."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "tools.log"
        self.store = folder / "runs.db"
        self.env = {**os.environ, "TOOL_LOG": str(self.log)}

    def arguments(self, *more: str) -> list[str]:
        return ["-m", "safepoint", "mcp", *(more or (str(APPS / "worker"),)), "--store", f"sqlite:{self.store}"]

    def client(self, mode: Mode, *more: str) -> Client:
        parameters = StdioServerParameters(command=sys.executable, args=self.arguments(*more), env=self.env)
        return Client(stdio_client(parameters), mode=mode, read_timeout_seconds=PATIENCE)

    async def until_did(self, what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not self.log.exists() or what not in self.log.read_text().splitlines():
            assert time.monotonic() < deadline, f"never {what!r}"
            await asyncio.sleep(0.01)

    async def ended(self) -> RunRecord:
        """The one run there was, once its end is stored."""
        storage = SqliteStorage(self.store)
        deadline = time.monotonic() + PATIENCE
        try:
            while True:
                found = await storage.runs.over(prefix="", after=None, limit=10)
                if found:
                    (record,) = found
                    return record
                assert time.monotonic() < deadline, "no run has ended"
                await asyncio.sleep(0.02)
        finally:
            await storage.aclose()


@pytest.fixture
def stdio(tmp_path: Path) -> Stdio:
    return Stdio(tmp_path)


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def reason_of(record: RunRecord) -> Mapping[str, Any]:  # Any: JSON values
    assert record.reason is not None
    return record.reason


@pytest.mark.parametrize("mode", MODES)
def test_a_client_calls_the_agent_and_goes_on_with_its_session(stdio: Stdio, mode: Mode) -> None:
    async def body() -> None:
        async with stdio.client(mode) as client:
            (tool,) = (await client.list_tools()).tools
            first = await client.call_tool("worker", {"task": "note a"})
            assert first.structured_content is not None
            again = await client.call_tool("worker", {"task": "say hi", "session": first.structured_content["session"]})
        assert tool.description is not None
        assert tool.description.startswith("An app that does what the message says")
        assert (text_of(first).strip(), text_of(again).strip()) == ("done", "hi")
        assert stdio.log.read_text().splitlines() == ["note a"]

    asyncio.run(body())


@pytest.mark.parametrize("mode", MODES)
def test_a_cancelled_call_is_recorded_and_the_connection_lives(stdio: Stdio, mode: Mode) -> None:
    async def body() -> None:
        async with stdio.client(mode) as client:
            napping = asyncio.create_task(client.call_tool("worker", {"task": "nap 1000"}))
            await stdio.until_did("nap begins")
            napping.cancel()
            await asyncio.wait([napping])
            record = await stdio.ended()
            after = await client.call_tool("worker", {"task": "say still here"})
        assert record.outcome == "cancelled"
        assert reason_of(record)["source"] == "user"
        assert text_of(after).strip() == "still here"

    asyncio.run(body())


def test_a_client_that_leaves_stops_its_runs_and_the_process_ends_by_itself(stdio: Stdio) -> None:
    process, frames = started(stdio)
    call(frames, "nap 1000")
    asyncio.run(stdio.until_did("nap begins"))
    frames.close()
    assert process.wait(PATIENCE) == 0
    record = asyncio.run(stdio.ended())
    assert (record.outcome, reason_of(record)["source"]) == ("cancelled", "disconnect")
    assert process.stdout is not None
    for line in process.stdout.read().splitlines():
        json.loads(line)  # stdout carries frames only
    process.stdout.close()


def test_sigterm_tells_the_caller_how_its_run_ended_and_leaves(stdio: Stdio) -> None:
    process, frames = started(stdio)
    call(frames, "nap 1000")
    asyncio.run(stdio.until_did("nap begins"))
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    told = [json.loads(line) for line in process.stdout]
    assert process.wait(PATIENCE) == 0
    assert told[-1]["id"] == 2
    assert told[-1]["result"]["isError"]
    assert told[-1]["result"]["structuredContent"]["reason"]["source"] == "shutdown"
    frames.close()
    process.stdout.close()


def test_bad_frames_do_not_end_the_connection(stdio: Stdio) -> None:
    process, frames = started(stdio)
    for bad in ("", "{", "[]", "7", '"x"', '{"jsonrpc": "2.0"}', '{"jsonrpc": "2.0", "id": 9, "method": 4}', "\x00"):
        print(bad, file=frames, flush=True)
    call(frames, "say unharmed")
    assert process.stdout is not None
    answer = next(frame for line in process.stdout if (frame := json.loads(line)).get("id") == 2)
    assert answer["result"]["content"][0]["text"].strip() == "unharmed"
    frames.close()
    assert process.wait(PATIENCE) == 0
    process.stdout.close()


def test_the_shell_of_safepoint_is_there_for_other_agents(stdio: Stdio, tmp_path: Path) -> None:
    async def body() -> None:
        root = tmp_path / "root"
        root.mkdir()
        async with stdio.client("auto", "--tools", "shell,files", "--root", str(root)) as client:
            await client.call_tool("write_file", {"path": "a", "text": "words"})
            said = await client.call_tool("shell", {"command": "pwd; cat a"})
        assert str(root) in text_of(said)
        assert "words" in text_of(said)

    asyncio.run(body())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "nothing to serve"),
        (("nowhere",), "no app in nowhere"),
        ((str(APPS / "worker"), str(APPS / "worker")), "a name of its own"),
        (("--tools", "magic"), "write shell, files or fetch"),
        (("--tools", "shell", "--read-only"), "a shell can write"),
        (("--tools", "fetch", "--root", "/"), "--root and --read-only are for"),
        (("--tools", "files", "--root", "/nowhere"), "write a folder"),
        (("--tools", "files", "--store", "clay:tablet"), "--store"),
    ],
)
def test_what_is_wrong_with_the_command_is_told_in_one_line(arguments: tuple[str, ...], told: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "safepoint", "mcp", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 2, done
    assert told in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def started(stdio: Stdio) -> tuple[subprocess.Popen[str], Any]:  # Any: a text stream
    """The process, after the handshake; frames are written to the second."""
    with default_signals():
        process = subprocess.Popen(
            [sys.executable, *stdio.arguments()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=stdio.env,
            text=True,
        )
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    frame = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    print(json.dumps(frame), file=process.stdin, flush=True)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["id"] == 1
    print('{"jsonrpc": "2.0", "method": "notifications/initialized"}', file=process.stdin, flush=True)
    return process, process.stdin


def call(frames: Any, task: str) -> None:  # Any: a text stream
    params = {"name": "worker", "arguments": {"task": task}}
    print(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}), file=frames, flush=True)
