"""What it costs to start work outside the loop, and how soon it hears of a stop.

A shell is compared with the same shell without a keeper. A process tool is compared with what multiprocessing does:
spawn starts a fresh Python each time, as we do; forkserver forks one that has imported everything already.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, perf_counter, sleep

from bench.sample import Sample
from bench.table import Table, millis
from safepoint import Agent, tool
from safepoint.events import ToolOutputStreamed
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools import mcp_tools, shell
from safepoint.tools.base import BaseTool

ROUNDS = 15
SERVER = """
import sys, time, anyio
from mcp.server.mcpserver import Context, MCPServer
server = MCPServer("bench")

@server.tool()
async def waits(ctx: Context) -> str:
    await ctx.report_progress(1, 2, "begun")
    try:
        await anyio.sleep(3600)
    except anyio.get_cancelled_exc_class():
        open(sys.argv[1], "w").write(str(time.monotonic()))
        raise
    return "never"

server.run("stdio")
"""


@tool(run_in="process", effect="pure")
def nothing() -> str:
    """Do nothing, in a process."""
    return "done"


def do_nothing() -> None:
    """What multiprocessing is given to do."""


async def called(tool: BaseTool, **args: object) -> None:
    result = await Agent("a", model=ScriptedModel(call(tool.name, args), say("done")), tools=[tool]).run("go")
    assert result.ledger[0].state == "finished"


async def a_shell() -> None:
    await called(shell(), command="true")


async def bare_shell() -> None:
    subprocess.run(["/bin/sh", "-c", "true"], check=True, start_new_session=True)  # noqa: ASYNC221  # nothing else runs


async def process_tool() -> None:
    await called(nothing)


def started_by(kind: Callable[..., BaseProcess]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        process = kind(target=do_nothing)
        process.start()
        process.join()

    return run


async def measured(what: Callable[[], Awaitable[None]], rounds: int = ROUNDS) -> Sample:
    await what()
    found: list[float] = []
    for _ in range(rounds):
        began = perf_counter()
        await what()
        found.append(perf_counter() - began)
    return Sample(tuple(sorted(found)))


async def told(folder: Path) -> Sample:
    """From the ask until a tool of an MCP server, over stdio, hears of it."""
    (folder / "server.py").write_text(SERVER)
    found: list[float] = []
    async with mcp_tools([sys.executable, str(folder / "server.py"), str(folder / "told")]) as tools:
        for _ in range(ROUNDS):
            asked = 0.0
            async with Agent("a", model=ScriptedModel(call("waits"), say("done")), tools=tools).start("go") as run:
                async for event in run.events():
                    if isinstance(event, ToolOutputStreamed):
                        asked = monotonic()
                        run.cancel()
            while not ((folder / "told").exists() and (folder / "told").read_text()):
                sleep(0.001)  # noqa: ASYNC251  # nothing else runs
            found.append(float((folder / "told").read_text()) - asked)
            (folder / "told").unlink()
    return Sample(tuple(sorted(found)))


async def measure(table: Table) -> None:
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(["bench.bench_tools"])
    for name, what in (
        ("/bin/sh -c true, without a keeper", bare_shell),
        ("shell(), the same command", a_shell),
        ("multiprocessing, spawn", started_by(multiprocessing.get_context("spawn").Process)),
        ("multiprocessing, forkserver", started_by(forkserver.Process)),
        ('@tool(run_in="process")', process_tool),
    ):
        sample = await measured(what)
        table.add(name, millis(sample.p50), millis(sample.p99))
    with tempfile.TemporaryDirectory() as folder:
        sample = await told(Path(folder))
    table.add("MCP over stdio: ask → the server's tool is told", millis(sample.p50), millis(sample.p99))


def main() -> None:
    table = Table("one call", "p50", "p99")
    asyncio.run(measure(table))
    table.show()


if __name__ == "__main__":
    main()
