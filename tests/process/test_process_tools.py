"""A tool in a process of its own: found by name, given plain data, stopped whatever it does, and truthful about it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from safepoint import Agent, Ladder, Run, SafePoint, ToolContext, tool
from safepoint.agent.events import RungReached
from safepoint.errors import ToolDefinitionError
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools.base import BaseTool
from safepoint.tools.process import ProcessTarget, check_platform
from safepoint.tools.process_call import pickled_arguments
from tests.process import process_tools
from tests.process.process_tools import Point
from tests.process.test_process_trees import until
from tests.program import run_program

QUICK = Ladder(term=0.3)


def agent(*calls: object, tools: list[BaseTool]) -> Agent:
    return Agent("a", model=ScriptedModel(list(calls), say("done")), tools=tools, ladder=QUICK)  # type: ignore[arg-type]  # calls of one reply


def test_it_runs_in_another_process_that_leads_its_own_session_and_returns_what_a_thread_would() -> None:
    wish = call("describe", point={"x": 1, "y": 2}, names=["a", "ü"])
    result = asyncio.run(agent(wish, tools=[process_tools.describe]).run("go"))
    told = json.loads(result.ledger[0].content or "")
    assert (told["x"], told["names"], told["is_leader"]) == (1, ["a", "ü"], True)
    assert told["pid"] != os.getpid()
    assert process_tools.describe(Point(1, 2), [])["pid"] == os.getpid()  # called directly, it is the plain function


ENDS = {
    "returns": ("finished", "returns", None),
    "raises": ("failed", None, "ProcessFailed: ValueError: no such row"),
    "retries": ("failed", None, "Please try again: the date must be in the future"),
    "sys.exit": ("failed", None, "ProcessFailed: SystemExit: 2"),
    "os._exit": ("failed", None, "the process that ran it ended with exit code 3 before the function had returned"),
    "SIGSEGV": ("failed", None, "the process that ran it was killed by SIGSEGV before the function had returned"),
    "SIGKILL": ("failed", None, "was killed by SIGKILL (perhaps it was out of memory) before"),
}


def test_however_the_process_ends_the_run_goes_on_and_the_ledger_says_how() -> None:
    calls = [call("ends", how=how) for how in ENDS]
    result = asyncio.run(agent(*calls, tools=[process_tools.ends]).run("go"))
    assert (result.stop_reason, result.text) == ("end_turn", "done")
    for entry, (how, (state, content, error)) in zip(result.ledger, ENDS.items(), strict=True):
        assert (how, entry.state, entry.content) == (how, state, content)
        assert (error or "") in (entry.error or ""), how


@pytest.mark.parametrize("first", ["parent", "child"])
@pytest.mark.parametrize("does", ["returns", "raises", "retries", "exits", "writes everywhere", "forks in C"])
def test_a_forked_child_changes_nothing_in_the_answer_whatever_it_does(does: str, first: str) -> None:
    wish = call("forks", what_the_child_does=does, first=first)
    (entry,) = asyncio.run(agent(wish, tools=[process_tools.forks]).run("go")).ledger
    assert (entry.state, entry.content, entry.error) == ("finished", "the parent's", None)


def stopped(tool: BaseTool, folder: Path, at: SafePoint = SafePoint.NOW) -> tuple[Run[None], float]:
    """Stop it once it has said that it runs; the run, and how long that took."""

    async def main() -> tuple[Run[None], float]:
        async with agent(call(tool.name, folder=str(folder)), tools=[tool]).start("go") as run:
            await until((folder / "ready").exists, "the process was to start")
            asked = time.monotonic()
            await run.cancel(at).wait()
            return run, time.monotonic() - asked

    return asyncio.run(main())


def rungs(run: Run[None]) -> list[str]:
    return [event.rung for event in run.kept_events() if isinstance(event, RungReached)]


def test_code_that_never_yields_is_stopped_by_now(tmp_path: Path) -> None:
    run, seconds = stopped(process_tools.holds_the_gil, tmp_path)
    assert (run.result.ledger[0].state, run.result.orphans) == ("cut", ())
    assert rungs(run) == ["term", "kill"]
    assert seconds < 2  # 0.3 for TERM; the rest is room for a busy machine


def test_force_kills_it_at_once(tmp_path: Path) -> None:
    run, _ = stopped(process_tools.cleans_up, tmp_path, SafePoint.FORCE)
    assert (run.result.ledger[0].state, rungs(run)) == ("cut", ["kill"])
    assert not (tmp_path / "cleaned").exists()


def test_term_runs_its_finally_blocks(tmp_path: Path) -> None:
    run, _ = stopped(process_tools.cleans_up, tmp_path)
    assert (run.result.ledger[0].state, run.result.ledger[0].error, rungs(run)) == ("cut", None, ["term"])
    assert (tmp_path / "cleaned").exists()


def test_one_that_catches_the_stop_and_returns_a_value_has_finished(tmp_path: Path) -> None:
    run, _ = stopped(process_tools.gives_what_it_has, tmp_path)
    assert (run.result.ledger[0].state, run.result.ledger[0].content) == ("finished", "half, because of StopTool")


# -- what is refused ---------------------------------------------------------------------------------------------------


def takes_context(ctx: ToolContext) -> str:
    """Ask for what is not there."""
    return ""


async def waits() -> str:
    """Belong to a loop."""
    return ""


def plain() -> str:
    """Nothing wrong with it."""
    return ""


def test_a_function_that_no_other_process_could_find_or_call_is_refused_when_it_is_defined() -> None:
    def inside() -> str:
        """Defined in a function."""
        return ""

    with pytest.raises(ToolDefinitionError, match=r"defined inside another function.*move it to the top"):
        tool(run_in="process")(inside)
    with pytest.raises(ToolDefinitionError, match="a process has no ToolContext; take that parameter out"):
        tool(run_in="process")(takes_context)
    with pytest.raises(ToolDefinitionError, match="needs a plain function"):
        tool(run_in="process", name="bound")(partial(plain))
    with pytest.raises(ValueError, match=r"run_in='process' does not fit waits\(\), which is an async function"):
        tool(run_in="process")(waits)


def test_a_function_that_was_typed_in_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "typed.py"
    program.write_text(
        "import subprocess, sys\n"
        "text = '''\n"
        "from safepoint import tool\n"
        "try:\n"
        '    @tool(run_in="process")\n'
        '    def f() -> str: return ""\n'
        "except TypeError as error:\n"
        "    print(error)\n"
        "'''\n"
        "print(subprocess.run([sys.executable, '-c', text], capture_output=True, text=True).stdout)\n"
    )
    assert "is typed in here and not in a file" in run_program(program, tmp_path)


def test_windows_is_refused_with_what_to_write() -> None:
    check_platform("linux")
    check_platform("darwin")
    with pytest.raises(ToolDefinitionError, match="which Windows lacks: write run_in='thread'"):
        check_platform("win32")


def test_a_name_is_found_again_also_inside_a_class() -> None:
    assert ProcessTarget(__name__, "plain").find() is plain
    assert ProcessTarget("threading", "Thread.join").find() is threading.Thread.join


def test_an_argument_that_cannot_be_sent_is_a_failed_call_that_names_it() -> None:
    with pytest.raises(TypeError, match=r"the argument 'lock', of type lock, can't be sent to another process"):
        pickled_arguments({"number": 1, "lock": threading.Lock()})


GUARDED = '''
import asyncio
from safepoint import Agent, tool
from safepoint.testing import ScriptedModel, call, say

@tool(run_in="process", effect="pure")
def add(a: int, b: int) -> int:
    """Add."""
    return a + b

def main():
    result = asyncio.run(Agent("a", model=ScriptedModel(call("add", a=1, b=2), say("done")), tools=[add]).run("go"))
    print(result.ledger[0].state, result.ledger[0].content, result.ledger[0].error)

'''


def test_a_function_of_the_program_itself_is_found_and_the_program_does_not_run_again(tmp_path: Path) -> None:
    program = tmp_path / "guarded.py"
    program.write_text(GUARDED + "if __name__ == '__main__':\n    main()\n")
    assert run_program(program, tmp_path) == "finished 3 None\n"


def test_a_program_without_a_guard_is_told_to_write_one_and_starts_no_chain_of_processes(tmp_path: Path) -> None:
    program = tmp_path / "unguarded.py"
    program.write_text(GUARDED + "main()\n")
    printed = run_program(program, tmp_path)
    assert "write `if __name__ == '__main__':` around what starts your program" in printed
