"""Rounds of one agent: how they end, how many there are, and what each one is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from safepoint import Agent, Branch, Checkpoint, Loop, Parallel, SafePoint, Sequential, StopReason, loop_done
from safepoint.testing import ScriptedModel, call, say, stall
from tests.compose.world import A_SECOND
from tests.virtual import virtual


def scripted(name: str, *replies: Any, **options: Any) -> Agent[None, str]:  # Any: as Agent takes them
    return Agent(name, model=ScriptedModel(*replies), **options)


@virtual
async def test_it_ends_when_the_answer_will_do() -> None:
    loop = Loop(
        "improve",
        scripted("writer", say("bad"), say("good"), say("never")),
        until=lambda draft: draft.output == "good",
        again=lambda draft: f"{draft.prompt}, not {draft.output} (round {draft.number})",
        max_rounds=5,
    )
    result = await loop.run("write")
    assert (result.output, len(result.children)) == ("good", 2)
    assert [child.path for child in result.children] == ["improve/writer#1", "improve/writer#2"]
    assert result.children[1].result.messages[0].text == "write, not bad (round 1)"


@virtual
async def test_it_ends_when_the_agent_says_that_it_is_done() -> None:
    writer = scripted("writer", say("one"), call("loop_done"), say("two"), tools=[loop_done])
    result = await Loop("improve", writer, max_rounds=5).run("write")
    assert (result.output, len(result.children)) == ("two", 2)


@virtual
async def test_an_agent_inside_the_round_says_it_as_well_but_not_one_inside_a_loop_of_its_own() -> None:
    critic = scripted("critic", call("loop_done"), say("fine"), tools=[loop_done])
    outer = Loop("outer", Sequential("round", scripted("writer", say("text"))).then(critic), max_rounds=3)
    assert len((await outer.run("write")).children) == 1
    says_so = scripted("a", call("loop_done"), say("x"), call("loop_done"), say("y"), tools=[loop_done])
    nested = Loop("outer", Loop("inner", says_so, max_rounds=5), max_rounds=2)
    result = await nested.run("write")
    assert [len(child.result.children) for child in result.children] == [1, 1]


@virtual
async def test_after_the_last_round_it_ends_without_an_output_unless_that_is_what_was_wanted() -> None:
    writer = scripted("writer", say("one"), say("two"))
    result = await Loop("improve", writer, until=lambda _: False, max_rounds=2).run("write")
    assert (result.stop_reason, result.text, len(result.children)) == (StopReason.MAX_STEPS, "two", 2)
    writer = scripted("writer", say("one"), say("two"))
    result = await Loop("twice", writer, max_rounds=2).run("write")
    assert (result.stop_reason, result.output) == (StopReason.END_TURN, "two")


@virtual
async def test_a_resumed_loop_keeps_its_round() -> None:
    model = ScriptedModel(say("one"), stall(), say("two"), say("three"))
    loop = Loop("improve", Agent("writer", model=model), max_rounds=3)
    async with loop.start("write") as run:
        await asyncio.sleep(A_SECOND)
        run.cancel()
    assert run.result.checkpoint is not None
    result = await loop.resume(Checkpoint.from_bytes(run.result.checkpoint.to_bytes()))
    assert [child.result.text for child in result.children] == ["one", "two", "three"]
    model.check_used()


@virtual
async def test_every_boundary_of_every_round_is_a_safe_point_and_it_can_be_resumed_again_and_again() -> None:
    loop = Loop("improve", scripted("writer", *[say(str(n)) for n in range(4)]), max_rounds=4)
    run = loop.start("write")
    run.cancel(SafePoint.named("whatever"))
    async with run:
        pass
    for rounds in (1, 2, 3):
        assert len(run.result.children) == rounds
        assert run.result.checkpoint is not None
        run = loop.start(checkpoint=run.result.checkpoint)
        run.cancel(SafePoint.BEFORE_EFFECT)
        async with run:
            pass
    assert run.result.output == "3"


def test_options_are_honoured_or_refused() -> None:
    one = scripted("one")
    with pytest.raises(ValueError, match="max_rounds=0"):
        Loop("l", one, max_rounds=0)


@pytest.mark.parametrize("wrong", ["done", 5, asyncio.sleep])
def test_functions_that_can_not_answer_at_once_are_refused(wrong: Any) -> None:  # Any: wrong ones
    """A coroutine is always true: the loop would end after its first round."""
    one, words = scripted("a", say("x")), r"=.* is not a plain function: write a `def` or a lambda that does not await"
    made: dict[str, Callable[[], object]] = {
        "until": lambda: Loop("l", one, max_rounds=2, until=wrong),
        "again": lambda: Loop("l", one, max_rounds=2, again=wrong),
        "combine": lambda: Sequential("s", one).then(one, combine=wrong),
        "input": lambda: Sequential("s", one).then(one, input=wrong),
        "join": lambda: Parallel("p", [one], join=wrong),
    }
    for option, make in made.items():
        with pytest.raises(ValueError, match=f"^{option}{words}"):
            make()
    for with_input in (lambda: Sequential("s", one, input=wrong), lambda: Parallel("p", [Branch(one, input=wrong)])):
        with pytest.raises(ValueError, match=f"^input{words}"):
            with_input()
