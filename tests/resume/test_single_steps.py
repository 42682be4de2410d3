"""Asking again before each resume takes a run one step further each time, and loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from safepoint import (
    Agent,
    BaseAgent,
    Checkpoint,
    Handoff,
    Loop,
    Parallel,
    RunResult,
    SafePoint,
    Sequential,
    check_history,
    tool,
)
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import call, say
from tests.injection.parts import StepModel
from tests.virtual import virtual

ATS = {
    "AFTER_TOOL": SafePoint.AFTER_TOOL,
    "AFTER_TOOLS": SafePoint.AFTER_TOOLS,
    "AFTER_MODEL": SafePoint.AFTER_MODEL,
}
log: list[str] = []


@tool
async def act(x: str) -> str:
    """Do something."""
    log.append(x)
    return f"did {x}"


def worker(name: str, *batches: tuple[str, ...], limit: int | None = None) -> Agent:
    """Makes these calls, batch by batch, and then answers."""
    replies = [[call("act", x=f"{name}{x}") for x in batch] for batch in batches]
    model = StepModel(*replies, say(f"{name} is done"))
    return Agent(name, model=model, tools=[act], max_parallel_tools=limit)


def boss() -> Agent:
    helper = worker("helper", ("1",), ("2",))
    calls = [call("act", x="before")], [call("helper", input="go")], [call("act", x="after")]
    return Agent("boss", model=StepModel(*calls, say("boss is done")), tools=[act, helper.as_tool()])


def handing_over() -> Handoff[None, str]:
    desk = Agent("desk", model=StepModel(call("act", x="desk"), call("transfer_to_expert")), tools=[act])
    # Its steps go on where those of the desk have ended.
    model = StepModel(say("never"), say("never"), call("act", x="expert"), say("expert is done"))
    return Handoff("help", desk, to={desk: [Agent("expert", model=model, tools=[act])]})


SHAPES: dict[str, Callable[[], BaseAgent[None, Any]]] = {  # Any: an agent of any output type
    "one call after another": lambda: worker("w", ("1",), ("2",), ("3",)),
    "several calls at once": lambda: worker("w", ("1", "2"), ("3",)),
    "several calls, one by one": lambda: worker("w", ("1", "2", "3"), ("4",), limit=1),
    "a sub-agent": boss,
    "a sequence": lambda: Sequential("s", worker("a", ("1",), ("2",))).then(worker("b", ("1",), ("2",))),
    "side by side": lambda: Parallel("p", [worker("a", ("1",), ("2",)), worker("b", ("1",), ("2",))]),
    "a loop": lambda: Loop("l", worker("a", ("1",), ("2",)), max_rounds=2),
    "a hand-over": handing_over,
}


async def stepped(
    agent: BaseAgent[None, Any], at: SafePoint, session: Session | None, *, recursive: bool
) -> tuple[RunResult[Any], list[list[str]]]:  # Any: as above
    """Ask before every start, until the run ends by itself; and what was done in each step."""
    steps: list[list[str]] = []
    checkpoint: Checkpoint | None = None
    while len(steps) < 40:
        before = len(log)
        prompt = "go" if checkpoint is None else None
        run = agent.start(prompt, checkpoint=checkpoint, session=session)
        receipt = run.cancel(at, recursive=recursive)
        async with run:
            pass
        steps.append(log[before:])
        check_history(run.result.messages)
        if run.result.checkpoint is None:
            assert await receipt.wait() == "finished_first"
            return run.result, steps
        assert run.result.stop_reason == "cancelled"
        assert (receipt.outcome, receipt.contributed) == ("stopped", True)
        checkpoint = Checkpoint.from_bytes(run.result.checkpoint.to_bytes())
    raise AssertionError(f"it does not come to an end: {steps}")


@virtual
@pytest.mark.parametrize("recursive", [True, False])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("name", ATS)
@pytest.mark.parametrize("shape", SHAPES)
async def test_asking_before_each_resume_takes_the_run_one_step_further(
    shape: str, name: str, stored: bool, recursive: bool
) -> None:
    log.clear()
    whole = await SHAPES[shape]().run("go")
    expected = sorted(log)
    log.clear()
    session = await Session.create(MemoryStore(), "s") if stored else None
    result, _ = await stepped(SHAPES[shape](), ATS[name], session, recursive=recursive)
    assert result.text == whole.text
    assert sorted(log) == expected, "every call was made, and once"


@virtual
@pytest.mark.parametrize("at", [SafePoint.AFTER_TOOL, SafePoint.AFTER_TOOLS])
async def test_each_step_makes_one_call(at: SafePoint) -> None:
    log.clear()
    _, steps = await stepped(SHAPES["one call after another"](), at, None, recursive=False)
    assert steps == [["w1"], ["w2"], ["w3"], []], "and the last one the answer"


@virtual
async def test_after_tool_stops_after_each_call_of_a_batch_and_after_tools_after_all() -> None:
    for at, expected in (
        (SafePoint.AFTER_TOOL, [["w1"], ["w2"], ["w3"], ["w4"], []]),
        (SafePoint.AFTER_TOOLS, [["w1", "w2", "w3"], ["w4"], []]),
        (SafePoint.AFTER_MODEL, [[], ["w1", "w2", "w3"], ["w4"]]),
    ):
        log.clear()
        _, steps = await stepped(SHAPES["several calls, one by one"](), at, None, recursive=False)
        assert steps == expected


@virtual
async def test_a_sub_agent_is_stepped_through_if_the_ask_is_recursive_and_is_one_step_if_it_is_not() -> None:
    for recursive, expected in (
        (True, [["before"], ["helper1"], ["helper2"], [], ["after"], []]),
        (False, [["before"], ["helper1", "helper2"], ["after"], []]),
    ):
        log.clear()
        _, steps = await stepped(boss(), SafePoint.AFTER_TOOLS, None, recursive=recursive)
        assert steps == expected


@virtual
async def test_the_children_of_a_composite_are_stepped_through() -> None:
    log.clear()
    _, steps = await stepped(SHAPES["a sequence"](), SafePoint.AFTER_TOOLS, None, recursive=True)
    assert [step for step in steps if step] == [["a1"], ["a2"], ["b1"], ["b2"]]


@virtual
@pytest.mark.parametrize("at", [SafePoint.BEFORE_EFFECT, SafePoint.ANY])
async def test_an_ask_before_an_effect_holds_it_back_in_a_resumed_run_too(at: SafePoint) -> None:
    log.clear()
    agent = worker("w", ("1",))
    async with agent.start("go") as run:
        run.cancel(SafePoint.AFTER_MODEL)
    again = agent.start(checkpoint=run.result.checkpoint)
    again.cancel(at)
    async with again:
        pass
    assert again.result.stop_reason == "cancelled"
    assert log == []


@virtual
async def test_now_still_stops_a_resumed_run_where_it_stands() -> None:
    log.clear()
    agent = worker("w", ("1",), ("2",))
    async with agent.start("go") as run:
        run.cancel(SafePoint.AFTER_TOOLS)
    again = agent.start(checkpoint=run.result.checkpoint)
    again.cancel(SafePoint.NOW)
    async with again:
        pass
    assert again.result.stop_reason == "cancelled"
    assert log == ["w1"]
