"""`check_tool`: a tool that keeps every rule passes, and one that breaks a rule is told which."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from safepoint import Agent, ToolContext, tool
from safepoint.errors import UsageError
from safepoint.testing import ScriptedModel, check_tool, pass_time, run_virtual, say
from safepoint.testing.conformance.rules import Rules
from safepoint.testing.conformance.tool import RULES, ToolCase
from safepoint.tools.base import BaseTool

ARGS = {"place": "attic", "times": 2}

held = 0
tasks: list[asyncio.Task[None]] = []


def permits_came_back() -> None:
    global held
    lost, held = held, 0
    assert lost == 0, f"{lost} permits were lost"


@tool
async def look(place: str, times: int = 1) -> dict[str, int]:
    """Look somewhere."""
    global held
    held += 1
    try:
        for _ in range(times):
            await pass_time(1)
    finally:
        held -= 1
    return {place: times}


def test_a_good_tool_keeps_every_rule() -> None:
    check_tool(lambda: look, ARGS, bad=[{"place": None}], oracles=[permits_came_back])


def test_a_thread_tool_that_looks_whether_it_is_to_stop_keeps_every_rule() -> None:
    @tool
    def dig(place: str, times: int, context: ToolContext) -> str:
        """Dig."""
        for _ in range(times):
            context.check()
        return place

    check_tool(lambda: dig, ARGS)


def test_a_tool_that_finishes_and_one_that_is_undone_keep_every_rule() -> None:
    async def give_back(place: str, times: int) -> None:
        await pass_time(0.1)

    @tool(on_cancel="finish", grace=5)
    async def save(place: str, times: int) -> str:
        """Save."""
        await pass_time(times)
        return place

    @tool(undo=give_back)
    async def take(place: str, times: int) -> str:
        """Take."""
        await pass_time(times)
        return place

    check_tool(lambda: save, ARGS)
    check_tool(lambda: take, ARGS)


def test_an_agent_as_a_tool_keeps_every_rule() -> None:
    check_tool(lambda: Agent("helper", model=ScriptedModel(say("here"), repeat=True)).as_tool(), {"input": "help"})


# -- broken tools, each with the one rule that it breaks -------------------------------------------------------------


def body(act: Callable[[], Coroutine[Any, Any, object]]) -> BaseTool:  # Any: what a coroutine yields
    """A tool that does this, and keeps every other rule as far as it can."""

    async def look(place: str, times: int = 1) -> object:
        """Look somewhere."""
        return await act()

    return tool(look)


def changed(**parts: object) -> BaseTool:
    """The good tool, with another part of it."""
    made = copy(look)
    vars(made).update(parts)
    return made


def nameless() -> BaseTool:
    return changed(spec=replace(look.spec, description=""))


def schema_of_a_list() -> BaseTool:
    return changed(spec=replace(look.spec, parameters={**look.spec.parameters, "type": "array"}))


def helps_itself() -> BaseTool:
    def validate(args: dict[str, Any]) -> dict[str, Any]:  # Any: JSON
        found = look.validate(args)
        args.pop("times", None)
        return found

    return changed(validate=validate)


def takes_anything() -> BaseTool:
    def validate(args: object) -> dict[str, object]:
        return dict(ARGS)

    return changed(validate=validate)


def never_works() -> BaseTool:
    async def act() -> object:
        await pass_time(1)
        raise RuntimeError("out of order")

    return body(act)


def returns_an_object() -> BaseTool:
    async def act() -> object:
        await pass_time(1)
        return object()

    return body(act)


def has_one_seat() -> BaseTool:
    taken = False

    async def act() -> object:
        nonlocal taken
        if taken:
            raise RuntimeError("one at a time")
        taken = True
        try:
            await pass_time(1)
        finally:
            taken = False
        return "seen"

    return body(act)


async def never() -> None:
    await asyncio.get_running_loop().create_future()


def leaves_a_task() -> BaseTool:
    async def act() -> object:
        await pass_time(1)
        tasks.append(asyncio.get_running_loop().create_task(never()))
        return "seen"

    return body(act)


def loses_its_permit() -> BaseTool:
    global held
    held = 0

    async def act() -> object:
        global held
        await pass_time(1)
        held += 1
        return "seen"

    return body(act)


def does_not_stop() -> BaseTool:
    async def act() -> object:
        try:
            await pass_time(1)
        except asyncio.CancelledError:
            while True:
                with suppress(asyncio.CancelledError):
                    await never()
        return "seen"

    return body(act)


def leaves_a_task_when_cut() -> BaseTool:
    async def act() -> object:
        try:
            await pass_time(1)
        except asyncio.CancelledError:
            tasks.append(asyncio.get_running_loop().create_task(never()))
            raise
        return "seen"

    return body(act)


def loses_its_permit_when_cut() -> BaseTool:
    global held
    held = 0

    async def act() -> object:
        global held
        held += 1
        await pass_time(1)
        held -= 1
        return "seen"

    return body(act)


def raises_when_cut() -> BaseTool:
    async def act() -> object:
        try:
            await pass_time(1)
        except asyncio.CancelledError:
            raise RuntimeError("the clean-up failed") from None
        return "seen"

    return body(act)


def cannot_be_undone() -> BaseTool:
    async def put_back(place: str, times: int) -> None:
        raise RuntimeError("it is broken")

    return changed(options=replace(look.options, undo=put_back))


def keeps_its_lock() -> BaseTool:
    lock = asyncio.Lock()

    async def act() -> object:
        await lock.acquire()
        await pass_time(1)
        lock.release()
        return "seen"

    return body(act)


BROKEN: dict[str, Callable[[], BaseTool]] = {
    "a model can be told what it is": nameless,
    "its parameters are a JSON schema of an object": schema_of_a_list,
    "arguments that fit are taken as they are": helps_itself,
    "arguments that do not fit are refused": takes_anything,
    "a call gives a result": never_works,
    "a result can be sent as it is": returns_an_object,
    "it can be called again, and twice at once": has_one_seat,
    "a call leaves nothing running": leaves_a_task,
    "what it takes comes back": loses_its_permit,
    "a cut call stops within its ladder": does_not_stop,
    "a cut call leaves nothing running": leaves_a_task_when_cut,
    "what a cut call took comes back": loses_its_permit_when_cut,
    "the clean-up of a cut call raises nothing": raises_when_cut,
    "a cut call is undone, if there is an undo": cannot_be_undone,
    "it is usable at once after a cut call": keeps_its_lock,
}


def broken_rules(error: pytest.ExceptionInfo[AssertionError]) -> list[str]:
    return re.findall(r"^- (.*?): ", str(error.value), re.MULTILINE)


@pytest.mark.parametrize("rule", BROKEN)
def test_a_tool_that_breaks_one_rule_is_told_that_one(rule: str) -> None:
    global held
    held = 0
    with pytest.raises(AssertionError) as error:
        check_tool(BROKEN[rule], ARGS, oracles=[permits_came_back])
    tasks.clear()
    assert broken_rules(error) == [rule], error.value
    assert "what to do: " in str(error.value)


def test_every_rule_is_broken_by_some_tool() -> None:
    assert [each.name for each in RULES.all] == list(BROKEN)


def test_a_thread_that_does_not_look_is_told() -> None:
    [stops] = [rule for rule in RULES.all if rule.name == "a cut call stops within its ladder"]
    go = threading.Event()

    @tool
    def sit(place: str, times: int) -> str:
        """Sit, longer than a thread that is to stop counts for the virtual clock."""
        go.wait(0.5)
        return place

    with pytest.raises(AssertionError, match="it was abandoned; it stands at"):
        Rules(stops).hold("tool", ToolCase(lambda: sit, ARGS), virtual=True)
    go.set()


def test_a_process_that_is_left_is_told() -> None:
    started: list[subprocess.Popen[bytes]] = []

    @tool
    def launch(place: str, times: int) -> str:
        """Launch."""
        started.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        return place

    with pytest.raises(AssertionError, match="a child process is left") as error:
        check_tool(lambda: launch, ARGS)
    for process in started:
        process.communicate()
    assert "a call leaves nothing running" in broken_rules(error)


def test_arguments_that_were_given_as_bad_have_to_be_refused() -> None:
    with pytest.raises(AssertionError, match="'times': 0} \\(which was given as bad\\) was taken"):
        check_tool(lambda: look, ARGS, bad=[{"place": "attic", "times": 0}])


def test_inside_a_running_loop_it_says_where_to_call_it() -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="call it from a plain function"):
            check_tool(lambda: look, ARGS)

    run_virtual(main)
