"""Tools of real MCP servers, over stdio and HTTP, in both eras of the protocol: cut, told, usable, killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from safepoint import Agent, File, Image, RunResult, SafePoint, ToolResult, check_history
from safepoint.agent.events import ToolOutputStreamed
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools import McpTool, mcp_tools
from safepoint.tools.mcp_tool import Era
from tests.process.child import PROGRAMS, ROOT
from tests.process.test_process_trees import until

SERVER = str(PROGRAMS / "mcp_server.py")
# On a quiet machine it is 1 to 11 ms; this is room for a busy one.
SOON = 2.0


@contextmanager
def over_http(diary: Path, port: str = "0") -> Generator[tuple[str, int]]:
    """A server on a port of its own; its URL, and its process id."""
    process = subprocess.Popen(
        [sys.executable, SERVER, str(diary), "http", port], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        port = process.stdout.readline().split()[1]
        try:
            yield f"http://127.0.0.1:{port}/mcp", process.pid
        finally:
            process.kill()


@contextmanager
def over_stdio(diary: Path) -> Generator[tuple[list[str], None]]:
    yield [sys.executable, SERVER, str(diary), "stdio"], None


TRANSPORTS: dict[str, Callable[[Path], AbstractContextManager[tuple[str | list[str], int | None]]]] = {
    "stdio": over_stdio,
    "http": over_http,
}


def diary_of(file: Path) -> dict[str, float]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {word: float(at) for word, at in map(str.split, lines)}


def agent(tools: Sequence[McpTool], *calls: object) -> Agent:
    return Agent("a", model=ScriptedModel(*calls, say("done")), tools=tools)  # type: ignore[arg-type]  # replies


async def cut(tools: Sequence[McpTool], at: SafePoint = SafePoint.NOW) -> tuple[RunResult[str], float]:
    """Stop a call that waits, once the server has said that it is half way; the result, and when it was asked."""
    asked = 0.0
    async with agent(tools, call("waits")).start("go") as run:
        async for event in run.events():
            if isinstance(event, ToolOutputStreamed):
                assert event.text == "half way\n"
                asked = time.monotonic()
                run.cancel(at)
    return run.result, asked


async def added(tools: Sequence[McpTool]) -> str | None:
    return (await agent(tools, call("add", a=1, b=2)).run("go")).ledger[0].content


@pytest.mark.parametrize("era", ["auto", "legacy"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_cut_call_is_told_to_the_server_listed_as_remote_and_the_session_stays_usable(
    transport: str, era: Era, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"

    async def main(server: str | Sequence[str]) -> None:
        async with mcp_tools(server, era=era) as tools:
            for at in (SafePoint.NOW, SafePoint.FORCE):
                result, asked = await cut(tools, at)
                entry = result.ledger[0]
                assert (entry.state, entry.remote, result.stop_reason) == ("cut", True, "cancelled")
                assert "It is remote, outcome unknown" in getattr(result.messages[2].parts[0], "content", "")
                await until(lambda: "told" in diary_of(diary), f"the server was to hear of {at}")
                assert diary_of(diary)["told"] - asked < SOON
                diary.unlink()
                assert await added(tools) == "3"

    with TRANSPORTS[transport](diary) as (server, _):
        asyncio.run(main(server))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_server_that_is_killed_in_a_call_is_a_failed_tool_not_a_failed_run(transport: str, tmp_path: Path) -> None:
    diary = tmp_path / "diary"

    async def main(server: str | Sequence[str]) -> tuple[RunResult[str], str | None, str | None]:
        async with mcp_tools(server) as tools:
            pid = int((await agent(tools, call("who")).run("go")).ledger[0].content or "")
            async with agent(tools, call("waits")).start("go") as run:
                await until(lambda: "begun" in diary_of(diary), "the call was to begin")
                os.kill(pid, signal.SIGKILL)
            after = (await agent(tools, call("add", a=1, b=2)).run("go")).ledger[0]
            return run.result, after.content, after.error

    with TRANSPORTS[transport](diary) as (server, _):
        result, content, error = asyncio.run(main(server))
    assert (result.stop_reason, result.text, result.ledger[0].state) == ("end_turn", "done", "failed")
    assert "ended during the call; what came of it is unknown" in (result.ledger[0].error or "")
    if transport == "stdio":
        assert content == "3"  # a server of our own is started again
    else:
        assert "no connection to http://127.0.0.1" in (error or "")


@pytest.mark.parametrize("era", ["auto", "legacy"])
def test_a_server_that_was_started_anew_between_two_calls_is_found_again(era: Era, tmp_path: Path) -> None:
    diary = tmp_path / "diary"

    async def main() -> None:
        with over_http(diary) as (url, _):
            tools = mcp_tools(url, era=era)
            offered = await tools.__aenter__()
            assert await added(offered) == "3"
        try:
            missed = (await agent(offered, call("add", a=1, b=2)).run("go")).ledger[0]
            assert missed.state == "failed"
            gone = (await agent(offered, call("add", a=1, b=2)).run("go")).ledger[0]
            assert "no connection to http://127.0.0.1" in (gone.error or "")
            assert "ExceptionGroup" not in (gone.error or "")
            port = url.split(":")[2].removesuffix("/mcp")
            with over_http(diary, port):
                assert await added(offered) == "3"
            with over_http(diary, port):  # nobody has called in between, so nobody knows yet
                first = (await agent(offered, call("add", a=1, b=2)).run("go")).ledger[0]
                assert first.content == "3" or "this call was not made: try again" in (first.error or "")
                assert await added(offered) == "3"
        finally:
            await tools.__aexit__()

    asyncio.run(main())


@pytest.mark.parametrize("era", ["auto", "legacy"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_cut_read_is_run_again_and_a_cut_deletion_is_not(transport: str, era: Era, tmp_path: Path) -> None:
    diary = tmp_path / "diary"

    async def main(server: str | Sequence[str]) -> None:
        async with mcp_tools(server, era=era) as tools:
            assert {tool.name: tool.options.effect for tool in tools} == {
                **dict.fromkeys(["add", "waits", "shows", "blocks", "who"], "effectful"),
                "reads": "pure",
                "burns": "irreversible",
            }
            model = ScriptedModel([call("reads"), call("burns")], say("done"))
            async with Agent("a", model=model, tools=tools).start("go") as run:
                await until(lambda: {"reading", "burnt"} <= set(diary_of(diary)), "both were to begin")
                run.cancel()
            assert [entry.state for entry in run.result.ledger] == ["cut", "cut"]
            assert run.result.checkpoint is not None
            diary.unlink()
            again = await Agent("a", model=model, tools=tools).resume(run.result.checkpoint)
            assert set(diary_of(diary)) == {"reading"}
            read, burnt = again.ledger
            assert (read.state, read.content, burnt.state) == ("finished", "dear diary", "cut")

    with TRANSPORTS[transport](diary) as (server, _):
        asyncio.run(main(server))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_progress_without_a_message_is_told_in_numbers(transport: str, tmp_path: Path) -> None:
    async def main(server: str | Sequence[str]) -> str:
        told = ""
        async with mcp_tools(server, only=["reads"]) as tools, agent(tools, call("reads")).start("go") as run:
            async for event in run.events():
                if isinstance(event, ToolOutputStreamed):
                    told += event.text
                    if told.count("\n") == 2:
                        run.cancel()
        return told

    with TRANSPORTS[transport](tmp_path / "diary") as (server, _):
        assert asyncio.run(main(server)) == "1 of 4\n3\n"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_pictures_sounds_and_files_of_a_server_are_parts_of_the_result(transport: str, tmp_path: Path) -> None:
    async def main(server: str | Sequence[str]) -> RunResult[str]:
        async with mcp_tools(server) as tools:
            return await agent(tools, call("shows")).run("go")

    with TRANSPORTS[transport](tmp_path / "diary") as (server, _):
        result = asyncio.run(main(server))
    (shown,) = result.messages[2].parts
    assert isinstance(shown, ToolResult)
    assert shown.content.splitlines() == [
        "a picture:",
        "[image 1: image/png, 4 bytes]",
        "[file 2: audio/wav, 4 bytes]",
        "a fine day",
        "[file 3: rose.pdf, application/pdf, 4 bytes]",
        "[image 4: image/jpeg, 3 bytes]",
    ]
    assert shown.parts == (
        Image(b"\x89PNG", "image/png"),
        File(b"RIFF", "audio/wav"),
        File(b"%PDF", "application/pdf", "rose.pdf"),
        Image(b"\xff\xd8\xff", "image/jpeg"),
    )
    check_history(result.messages)


@pytest.mark.parametrize("era", ["auto", "legacy"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_servers_instructions_reach_the_model_unless_they_are_not_wanted(
    transport: str, era: Era, tmp_path: Path
) -> None:
    async def main(server: str | Sequence[str], *, wanted: bool) -> str | None:
        async with mcp_tools(server, era=era, instructions=wanted, only=["who", "add"], prefix="d-") as tools:
            model = ScriptedModel(say("done"))
            await Agent("a", model=model, instructions="Be kind.", tools=tools).run("go")
            return model.requests[0].instructions

    with TRANSPORTS[transport](tmp_path / "diary") as (server, _):
        told = asyncio.run(main(server, wanted=True))
        assert told == "Be kind.\n\nThe server diary says about its tools (d-add, d-who):\nWrite one line a day."
        assert asyncio.run(main(server, wanted=False)) == "Be kind."


def test_a_tool_that_hears_nothing_goes_on_at_the_server_and_the_ledger_claims_nothing_else(
    tmp_path: Path,
) -> None:
    diary = tmp_path / "diary"

    async def main() -> RunResult[str]:
        async with mcp_tools([sys.executable, SERVER, str(diary), "stdio"], only=["blocks"], prefix="diary-") as tools:
            assert [tool.name for tool in tools] == ["diary-blocks"]
            async with agent(tools, call("diary-blocks")).start("go") as run:
                await until(lambda: "blocked" in diary_of(diary), "the call was to begin")
                run.cancel()
            await until(lambda: "went_on" in diary_of(diary), "it was to go on")
            return run.result

    result = asyncio.run(main())
    assert (result.ledger[0].state, result.ledger[0].remote, result.ledger[0].still_running) == ("cut", True, False)


def test_leaving_the_block_ends_a_server_that_was_started_for_it(tmp_path: Path) -> None:
    async def main() -> int:
        async with mcp_tools([sys.executable, SERVER, str(tmp_path / "diary"), "stdio"]) as tools:
            return int((await agent(tools, call("who")).run("go")).ledger[0].content or "")

    pid = asyncio.run(main())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


Refused = tuple[Callable[[], object], str]
REFUSED: dict[str, Refused] = {
    "a command as one text": (
        lambda: mcp_tools("python server.py"),
        r"write a URL, or a command as a list: .*\['python'",
    ),
    "an empty command": (lambda: mcp_tools([]), "the command is empty"),
    "an era that is none": (lambda: mcp_tools(["x"], era="new"), "write 'auto' or 'legacy'"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # that is the point
    "an environment for a URL": (lambda: mcp_tools("http://x", env={"A": "b"}), "is for a server that is started"),
    "a grace above the cap": (lambda: mcp_tools(["x"], grace=60), "above the ladder's cap"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_a_server_is_refused_with_what_to_write(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        make()
