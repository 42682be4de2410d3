"""H6 as an oracle: what a stopped run has said is held against what it says when nobody stops it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from safepoint import Agent, Message, RunResult, tool
from safepoint.agent.live import watch_runs
from safepoint.errors import ModelUnavailable
from safepoint.history.parts import Text
from safepoint.testing import ScriptedModel, call, check_cancellable, fail, pass_time, say
from safepoint.testing.runs import Whole, check_prefix
from tests.virtual import virtual


def user(*texts: str) -> Message:
    return Message("user", tuple(Text(text) for text in texts))


@tool
async def look() -> str:
    """Look."""
    await pass_time(1)
    return "seen"


async def play(seconds: float | None) -> RunResult[str]:
    """Two tool calls and an answer; stopped after that time."""
    model = ScriptedModel(call("look"), call("look"), say("done"))
    async with Agent("looker", model=model, tools=[look]).start("go") as run:
        if seconds is not None:
            if seconds:
                await pass_time(seconds)
            run.cancel()
        return await run.wait()


def problems(result: RunResult[str], whole: RunResult[str]) -> list[str]:
    return check_prefix(result, [], Whole(whole.messages, [], ended=True))


def changed(result: RunResult[str], place: int, message: Message) -> RunResult[str]:
    return replace(result, messages=[*result.messages[:place], message, *result.messages[place + 1 :]])


@virtual
async def test_what_was_said_to_its_end_is_compared_and_the_results_of_the_last_step_are_not() -> None:
    whole, cut = await play(None), await play(1.5)
    assert [message.role for message in cut.messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert problems(cut, whole) == []
    for place in range(4):
        other = replace(cut.messages[place], parts=(Text("never said"),))
        assert problems(changed(cut, place, other), whole) != [], f"message {place} may be anything"
    assert problems(changed(cut, 4, whole.messages[2]), whole) == []


@virtual
async def test_a_run_that_has_said_more_than_the_uncancelled_one_is_found() -> None:
    whole, cut = await play(None), await play(1.5)
    assert problems(cut, replace(whole, messages=whole.messages[:3])) != []
    assert check_prefix(cut, [], Whole(whole.messages[:3], [], ended=False)) == [], "what it would say is not known"
    assert check_prefix(cut, [], Whole([user("else"), *whole.messages[1:3]], [], ended=False)) != []


@virtual
async def test_nobody_compares_a_run_that_was_not_cancelled() -> None:
    whole = await play(None)
    assert problems(changed(whole, 0, user("else")), whole) == []


@pytest.mark.parametrize(
    ("said", "joined", "whole", "whole_joined", "faulty"),
    [
        pytest.param(user("go"), [], user("go", "faster"), [user("faster")], False, id="it came too late"),
        pytest.param(user("go", "a"), [user("a")], user("go", "a", "b"), [user("a"), user("b")], False, id="one did"),
        pytest.param(user("go"), [], user("go", "and this"), [], True, id="nobody added it"),
        pytest.param(user("go"), [], user("go", "and this"), [user("else")], True, id="something else was added"),
        pytest.param(user("go"), [user("a")], user("go", "a"), [user("a")], True, id="it joined and is not there"),
        pytest.param(user("gone"), [], user("go", "a"), [user("a")], True, id="the beginning differs"),
        pytest.param(user("go", "a"), [user("a")], user("go"), [], True, id="it has more"),
    ],
)
@virtual
async def test_only_a_message_that_joined_too_late_may_be_missing_before_the_cut_step(
    said: Message, joined: Sequence[Message], whole: Message, whole_joined: Sequence[Message], faulty: bool
) -> None:
    cut = await play(0)  # before the first reply: the input, and a closing remark
    assert len(cut.messages) == 2
    uncancelled = Whole([whole, *cut.messages[1:]], list(whole_joined), ended=True)
    assert bool(check_prefix(changed(cut, 0, said), list(joined), uncancelled)) is faulty


def test_a_message_that_joins_while_a_refused_call_is_made_again_disturbs_no_comparison() -> None:
    async def scenario() -> None:
        model = ScriptedModel(fail(ModelUnavailable("busy", retry_after=1)), say("done"))
        async with Agent("steered", model=model).start("go") as run:
            await pass_time(0.5)
            run.steer("faster")

    report = check_cancellable(scenario)
    assert report.failures == []
    assert report.injections > 10


@virtual
async def test_who_watches_for_runs_at_the_same_time_sees_all_of_them() -> None:
    with watch_runs() as outer:
        with watch_runs() as inner:
            assert outer == inner == []
        await play(None)
    assert (len(outer), len(inner)) == (1, 0)
