"""Safepoint's own tools, called by somebody else's agent: with the ladder, the sweep of processes and the root."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from safepoint.protocols.mcp.direct_tool import APP, agent_of
from safepoint.tools import files, shell
from tests.protocols.mcp.frames import connected
from tests.protocols.mcp.world import MODES, Mode, World, text_of


def workbench(root: Path, *, read_only: bool = False) -> World:
    tools = files(root, read_only=read_only)
    return World({APP: agent_of(tools if read_only else [shell(cwd=root), *tools])})


@pytest.mark.parametrize("mode", MODES)
def test_each_tool_is_listed_with_its_own_schema_and_whether_it_changes_anything(mode: Mode, tmp_path: Path) -> None:
    async def body() -> None:
        async with workbench(tmp_path).client(mode) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"shell", "read_file", "list_files", "write_file"}
        assert "command" in tools["shell"].input_schema["properties"]
        hints = {name: tool.annotations.read_only_hint for name, tool in tools.items() if tool.annotations}
        assert hints == {"shell": False, "read_file": True, "list_files": True, "write_file": False}

    asyncio.run(body())


@pytest.mark.parametrize("mode", MODES)
def test_calls_work_below_the_root_and_leave_no_session_behind(mode: Mode, tmp_path: Path) -> None:
    async def body() -> None:
        world = workbench(tmp_path)
        async with world.client(mode) as client:
            await client.call_tool("write_file", {"path": "a.txt", "text": "hello"})
            read = await client.call_tool("read_file", {"path": "a.txt"})
            said = await client.call_tool("shell", {"command": "cat a.txt"})
            outside = await client.call_tool("read_file", {"path": "../secret"})
            wrong = await client.call_tool("shell", {"comand": "ls"})
        assert "hello" in text_of(read)
        assert "hello" in text_of(said)
        assert outside.is_error
        assert wrong.is_error
        assert "command" in text_of(wrong)
        assert not await world.manager.storage.sessions.states("")

    asyncio.run(body())


def test_read_only_files_have_no_tool_that_writes(tmp_path: Path) -> None:
    async def body() -> None:
        async with workbench(tmp_path, read_only=True).client() as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {"read_file", "list_files"}

    asyncio.run(body())


@pytest.mark.parametrize("mode", MODES)
def test_a_cancelled_command_leaves_no_process_behind_also_not_one_that_it_started(mode: Mode, tmp_path: Path) -> None:
    async def body() -> None:
        world, pipe = workbench(tmp_path), tmp_path / "pids"
        os.mkfifo(pipe)
        async with connected(world.server, mode) as frames:
            # The command tells its own id and that of a process in a session of its own, then waits for ever.
            command = "setsid sleep 1000 & echo $! > pids; exec sleep 1000"
            await frames.call(1, "shell", command=command)
            child = int((await asyncio.to_thread(pipe.read_text)).split()[0])
            os.kill(child, 0)
            await frames.notify("notifications/cancelled", requestId=1, reason="enough")
            (run,) = world.manager.runs.values()
            await run.over.wait()
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
        assert 1 not in frames.answers
        assert [(entry.name, entry.state) for entry in run.run.result.ledger] == [("shell", "cut")]

    asyncio.run(body())
