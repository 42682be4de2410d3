"""Typed answers: what fits is taken, what does not is told, and nothing half-received ever becomes an output."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, Field

from safepoint import Agent, Checkpoint, RunFailed, SafePoint, check_history
from safepoint.agent.model import CallDelta, Finish, TextDelta
from safepoint.errors import NoOutput
from safepoint.testing import ScriptedModel, call, say, stall
from safepoint.testing.models import raw
from tests.virtual import virtual


@dataclass
class Point:
    x: int
    y: int


class City(BaseModel):
    name: str
    people: int = Field(alias="population")


CASES: list[tuple[Any, dict[str, Any], Any]] = [  # Any: types and their values
    (Point, {"x": 1, "y": 2}, Point(1, 2)),
    (City, {"name": "Ulm", "population": 3}, City(name="Ulm", population=3)),
    (list[Point], {"value": [{"x": 1, "y": 2}]}, [Point(1, 2)]),
    (int, {"value": 7}, 7),
    (int | Point, {"value": {"x": 1, "y": 2}}, Point(1, 2)),
    (Point | None, {"value": None}, None),
    (dict[str, int], {"a": 1}, {"a": 1}),
]


@pytest.mark.parametrize(("output", "args", "value"), CASES, ids=[str(case[0]) for case in CASES])
def test_what_the_model_passes_to_the_answer_tool_is_the_typed_output(
    output: Any, args: dict[str, Any], value: object
) -> None:
    @virtual
    async def body() -> None:
        agent: Agent[None, Any] = Agent("a", model=ScriptedModel(call("final_answer", args)), output=output)
        result = await agent.run("go")
        check_history(result.messages)
        assert (result.stop_reason, result.output) == ("end_turn", value)

    body()


@virtual
async def test_a_text_that_fits_counts_as_well() -> None:
    assert (await Agent("a", model=ScriptedModel(say('{"x": 1, "y": 2}')), output=Point).run("go")).output == Point(
        1, 2
    )
    assert (await Agent("a", model=ScriptedModel(say("42")), output=int).run("go")).output == 42


@virtual
async def test_an_answer_that_does_not_fit_is_told_and_may_be_tried_again() -> None:
    model = ScriptedModel(say("about two"), call("final_answer", x=1), call("final_answer", x=1, y=2))
    result = await Agent("a", model=model, output=Point).run("go")
    assert result.output == Point(1, 2)
    check_history(result.messages)
    told = model.requests[1].messages[-1].text
    assert "does not fit" in told
    assert "final_answer" in told


@pytest.mark.parametrize("by_tool", [False, True])
def test_a_model_that_never_fits_fails_the_run_and_can_be_continued(by_tool: bool) -> None:
    @virtual
    async def body() -> None:
        wrong = call("final_answer", x=1) if by_tool else say("no idea")
        model = ScriptedModel(wrong, wrong, wrong, call("final_answer", x=1, y=2), wrong)
        agent = Agent("a", model=model, output=Point)
        with pytest.raises(RunFailed, match="3 tries") as failed:
            await agent.run("go")
        result = failed.value.result
        check_history(result.messages)
        assert model.calls == 3
        with pytest.raises(NoOutput):
            _ = result.output
        again = await agent.resume(Checkpoint.from_bytes(result.checkpoint.to_bytes()))
        assert again.output == Point(1, 2)

    body()


@virtual
async def test_half_received_output_is_never_taken() -> None:
    reached = asyncio.Event()
    half = raw(CallDelta(0, "c", "final_answer", '{"x": 1, "y": 2}'))
    async with Agent("a", model=ScriptedModel([half, stall(reached.set)]), output=Point).start("go") as run:
        await reached.wait()
        run.cancel()
    with pytest.raises(NoOutput, match="'cancelled'"):
        _ = run.result.output
    cut_off = raw(TextDelta('{"x": 1, "y": 2}'), Finish("max_tokens"))
    result = await Agent("a", model=ScriptedModel(cut_off), output=Point).run("go")
    with pytest.raises(NoOutput, match="'max_tokens'"):
        _ = result.output


@virtual
async def test_an_answer_that_was_complete_when_the_run_was_stopped_is_the_output_of_the_one_that_continues() -> None:
    agent = Agent("a", model=ScriptedModel(call("final_answer", x=1, y=2)), output=Point)
    async with agent.start("go") as run:
        run.cancel(SafePoint.AFTER_MODEL)
    assert run.result.checkpoint is not None
    assert (await agent.resume(run.result.checkpoint)).output == Point(1, 2)


@virtual
async def test_a_large_answer_is_taken_whole() -> None:
    numbers = list(range(60_000))
    agent = Agent("a", model=ScriptedModel(call("final_answer", value=numbers)), output=list[int])
    assert (await agent.run("go")).output == numbers


def test_the_types_follow_the_output() -> None:
    """Checked by pyright and mypy; here it only has to run."""

    async def typed() -> tuple[int, str]:
        point: Point = (await Agent("a", model=ScriptedModel(say("x")), output=Point).run("go")).output
        text: str = (await Agent("a", model=ScriptedModel(say("x"))).run("go")).output
        return point.x, text

    assert inspect.iscoroutinefunction(typed)
