"""Process tables before and after: nothing that a shell or a process tool has started survives its stop."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from safepoint import Agent, Ladder, Run, SafePoint
from safepoint.agent.events import RungReached, ToolOutputStreamed
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools import shell
from safepoint.tools.base import BaseTool
from tests.process.child import Child
from tests.process.process_tools import runs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what detaches itself is found on Linux")

QUICK = Ladder(term=0.3)
PATIENCE = 30.0
GLANCE = 0.02


@dataclass(frozen=True)
class Row:
    """A script, with TIME for a sleep that only this test makes; how many sleeps it starts, and the rungs it takes."""

    script: str
    sleeps: int
    rungs: tuple[str, ...] = ("term",)


STUBBORN = ("term", "kill")
ROWS = {
    "itself": Row("sleep TIME", 1),
    "a child": Row("sleep TIME & wait", 1),
    "children and grandchildren": Row("sh -c 'sleep TIME & sh -c \"sleep TIME; :\" & wait' & sleep TIME & wait", 3),
    "a pipeline": Row("sleep TIME | cat | cat", 1),
    "nohup": Row("nohup sleep TIME >/dev/null 2>&1 & wait", 1),
    "setsid": Row("setsid sleep TIME & wait", 1),
    "setsid that forks": Row("setsid -f sleep TIME; sleep TIME", 2),
    "a double fork": Row("(sleep TIME &) ; sleep TIME", 2),
    "a double fork into a session of its own, with its output closed": Row(
        "(setsid sh -c 'sleep TIME & exit' >&- 2>&- <&- &) ; sleep TIME", 2
    ),
    "a daemon that threw its environment away": Row("(env -i setsid sleep TIME &) ; sleep TIME", 2),
    "a child that ignores TERM": Row("sh -c 'trap \"\" TERM; sleep TIME' & wait", 1, STUBBORN),
    "a shell that ignores TERM": Row("trap '' TERM; sleep TIME; sleep TIME", 1, STUBBORN),
    "a daemon that ignores all it can": Row(
        "setsid -f env -i sh -c 'trap \"\" TERM HUP INT QUIT; sleep TIME'; sleep TIME", 2, STUBBORN
    ),
    "a child that is stopped": Row("sh -c 'kill -STOP $$; sleep TIME' & sleep TIME", 1),
}


def new_token() -> str:
    """A number of seconds that nobody else sleeps for."""
    return f"3600.{uuid.uuid4().int % 10**12}"


def table(token: str) -> list[str]:
    """Every living process whose command line has that word."""
    found: list[str] = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if token in " ".join(words) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {words}")
        except psutil.Error:
            continue
    return found


def sleeps(token: str) -> int:
    return sum("'sleep'" in line.split(",")[0] for line in table(token))


async def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(GLANCE)


def agent(tool: BaseTool, **args: object) -> Agent:
    return Agent("a", model=ScriptedModel(call(tool.name, args), say("done")), tools=[tool], ladder=QUICK)


async def in_the_middle(tool: BaseTool, row: Row, act: Callable[[Run[None]], Awaitable[None]]) -> Run[None]:
    """Start the row's script, look at the process table, do that, and look again."""
    token = new_token()
    script = row.script.replace("TIME", token)
    args = {"command": script} if tool.name == "shell" else {"script": script}
    try:
        async with agent(tool, **args).start("go") as run:
            await until(lambda: sleeps(token) == row.sleeps, f"{row.sleeps} sleeps were to start: {table(token)}")
            await act(run)
        assert table(token) == []
        return run
    finally:
        for line in table(token):
            psutil.Process(int(line.split()[0])).kill()


def rungs(run: Run[None]) -> tuple[str, ...]:
    return tuple(event.rung for event in run.kept_events() if isinstance(event, RungReached))


async def stop(run: Run[None]) -> None:
    run.cancel()


async def force(run: Run[None]) -> None:
    run.cancel(SafePoint.FORCE)


@pytest.mark.parametrize("name", ROWS)
def test_nothing_that_a_shell_starts_survives_the_ladder(name: str) -> None:
    run = asyncio.run(in_the_middle(shell(), ROWS[name], stop))
    assert (run.result.ledger[0].state, run.result.stop_reason) == ("cut", "cancelled")
    assert run.result.orphans == ()
    assert rungs(run) == ROWS[name].rungs


@pytest.mark.parametrize("name", ["children and grandchildren", "a daemon that ignores all it can"])
def test_force_kills_all_of_it_at_once(name: str) -> None:
    run = asyncio.run(in_the_middle(shell(), ROWS[name], force))
    assert (run.result.ledger[0].state, run.result.orphans, rungs(run)) == ("cut", (), ("kill",))


@pytest.mark.parametrize(
    "name", ["setsid that forks", "a daemon that threw its environment away", "a child that ignores TERM"]
)
def test_nothing_that_a_process_tool_starts_survives_the_ladder(name: str) -> None:
    run = asyncio.run(in_the_middle(runs, ROWS[name], stop))
    assert (run.result.ledger[0].state, run.result.orphans) == ("cut", ())
    assert rungs(run) == ROWS[name].rungs


@pytest.mark.parametrize("where", ["", "setsid"])
@pytest.mark.parametrize("act", [stop, force])
def test_what_stops_its_keeper_again_and_again_is_killed_all_the_same(
    where: str, act: Callable[[Run[None]], Awaitable[None]]
) -> None:
    row = Row(f"{where} sh -c 'while :; do kill -STOP $0; done' $PPID & env -i setsid sleep TIME & sleep TIME", 2)
    run = asyncio.run(in_the_middle(shell(), row, act))
    assert (run.result.ledger[0].state, run.result.orphans) == ("cut", ())


def test_what_kills_its_keeper_is_found_by_its_mark_and_the_call_has_failed() -> None:
    token = new_token()
    script = f"echo begun; setsid -f sleep {token}; kill -9 $PPID; sleep {token}"
    result = asyncio.run(agent(shell(), command=script).run("go"))
    assert (result.stop_reason, result.ledger[0].state) == ("end_turn", "failed")
    error = result.ledger[0].error or ""
    assert "the process that kept watch over it was killed; what it had printed: begun" in error
    asyncio.run(until(lambda: table(token) == [], "they were to be gone"))


def test_what_a_killed_program_was_running_is_ended_by_its_keeper() -> None:
    token = new_token()
    with Child("shell_host.py", f"setsid -f sleep {token}; trap '' TERM; sleep {token}") as child:
        child.expect("READY")
        asyncio.run(until(lambda: sleeps(token) == 2, "they were to start"))
        child.signal(signal.SIGKILL)
        child.exit()
        asyncio.run(until(lambda: table(token) == [], "they were to end with their host"))


def test_what_a_command_leaves_running_ends_with_it_and_the_result_says_so() -> None:
    token = new_token()
    script = f"setsid -f sh -c 'trap \"\" TERM; sleep {token}'; nohup sleep {token} >/dev/null 2>&1 & echo started"
    result = asyncio.run(agent(shell(), command=script).run("go"))
    assert result.ledger[0].state == "finished"
    assert (result.ledger[0].content or "").startswith("started\n[it left ")
    assert table(token) == []


def test_what_a_command_leaves_running_is_asked_to_end_before_it_is_killed(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    daemon = f"trap 'touch {asked}; exit' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    script = f'setsid -f sh -c "{daemon}" >/dev/null 2>&1; while ! [ -e {tmp_path}/ready ]; do sleep 0.05; done'
    result = asyncio.run(agent(shell(), command=script).run("go"))
    assert (result.ledger[0].state, asked.exists()) == ("finished", True)


def test_what_a_command_has_printed_before_it_was_cut_is_told() -> None:
    async def main() -> Run[None]:
        async with agent(shell(), command="echo one; echo two >&2; sleep 3600").start("go") as run:
            heard = ""
            async for event in run.events():
                if isinstance(event, ToolOutputStreamed):
                    heard += event.text
                    if heard == "one\ntwo\n":
                        run.cancel(reason="enough")
        return run

    run = asyncio.run(main())
    assert (run.result.ledger[0].state, run.result.ledger[0].content) == ("cut", "one\ntwo\n")
    answer = run.result.messages[2].parts[0]
    assert getattr(answer, "content", None) == (
        'This call was cut while running, outcome unknown. Its output so far: "one two". Reason: "enough".'
    )


def test_a_command_that_takes_too_long_is_cut_and_the_run_goes_on() -> None:
    tool = shell(timeout=0.3, grace=0.2)
    result = asyncio.run(agent(tool, command="echo begun; trap '' TERM; sleep 3600").run("go"))
    assert (result.stop_reason, result.text) == ("end_turn", "done")
    assert (result.ledger[0].state, result.ledger[0].content) == ("cut", "begun\n")


def test_the_callers_own_cancellation_ends_it_all_too() -> None:
    async def main() -> None:
        token = new_token()
        task = asyncio.ensure_future(agent(shell(), command=f"setsid -f sleep {token}; sleep {token}").run("go"))
        await until(lambda: sleeps(token) == 2, "it was to start")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert table(token) == []

    asyncio.run(main())
