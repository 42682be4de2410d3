"""`trim=`: what the model sees of a long conversation, and that nothing else changes by it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safepoint import (
    Agent,
    Hooks,
    Message,
    RunFailed,
    SafePoint,
    Text,
    ToolCall,
    ToolResult,
    check_history,
    keep_last,
    keep_tokens,
    tool,
)
from safepoint.agent.hooks import AnyRun
from safepoint.agent.trim import Trim
from safepoint.errors import HistoryError
from safepoint.history.estimate import estimate_messages
from safepoint.models import ModelRequest
from safepoint.sessions import Session
from safepoint.testing import ScriptedModel, call, pass_time, run_virtual, say
from tests.sessions.stores import both_stores, opened
from tests.virtual import now, virtual


@tool(effect="pure")
async def look(place: str) -> str:
    """Look."""
    return f"nothing in the {place}"


def user(text: str) -> Message:
    return Message("user", (Text(text),))


def answer(text: str) -> Message:
    return Message("assistant", (Text(text),))


def step(id: str) -> list[Message]:
    return [Message("assistant", (ToolCall(id, "look", {}),)), Message("tool", (ToolResult(id, "look", "dust"),))]


TALK = [user("one"), answer("1"), user("two"), *step("a"), answer("2"), user("three"), *step("b"), *step("c")]


def kept(trim: Trim, messages: list[Message]) -> list[Message]:
    shown = trim(messages)
    assert isinstance(shown, list)
    return shown


@pytest.mark.parametrize(
    ("limit", "begins", "length"),
    [
        (1, "three", 3),  # the last step, and what it is about
        (2, "three", 3),
        (3, "three", 3),
        (4, "three", 5),
        (5, "three", 5),
        (6, "three", 5),  # an answer to a question that is not shown is dropped
        (9, "two", 9),
        (10, "two", 9),
        (11, "one", 11),
        (99, "one", 11),
    ],
)
def test_keep_last_keeps_whole_steps_and_begins_with_a_user(limit: int, begins: str, length: int) -> None:
    shown = kept(keep_last(limit), TALK)
    assert (shown[0].text, len(shown)) == (begins, length)
    check_history(shown)


def test_keep_tokens_keeps_what_fits_by_the_estimate() -> None:
    whole = estimate_messages(TALK)
    assert kept(keep_tokens(whole), TALK) == TALK
    shown = kept(keep_tokens(whole - 1), TALK)
    assert shown == TALK[2:]
    assert estimate_messages(shown) < whole
    assert kept(keep_tokens(1), TALK) == [TALK[6], *TALK[-2:]]


@given(st.lists(st.sampled_from(["ask", "step", "answer"]), min_size=1), st.integers(1, 12), st.booleans())
def test_whatever_is_kept_can_be_sent(turns: list[str], limit: int, by_tokens: bool) -> None:
    messages = [user("begin")]
    for number, turn in enumerate(turns):
        if turn == "step":
            messages += step(f"call_{number}")
        elif turn == "answer" and messages[-1].role != "assistant":
            messages += [answer("so"), user("and?")]
        elif messages[-1].role == "tool":
            messages.append(user("steer"))
    shown = kept(keep_tokens(limit * 10) if by_tokens else keep_last(limit), messages)
    check_history(shown)
    assert shown[0].role == "user"
    assert shown[-1] == messages[-1]


@both_stores
def test_the_model_sees_less_and_history_and_session_keep_all(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            model = ScriptedModel(say("a"), say("b"), call("look", place="attic"), say("c"))
            agent = Agent("a", model=model, tools=[look], trim=keep_last(1))
            for prompt in ("one", "two", "three"):
                result = await agent.run(prompt, session=session)
            assert [[m.text for m in request.messages] for request in model.requests[:3]] == [
                ["one"],
                ["two"],
                ["three"],
            ]
            assert [m.role for m in model.requests[3].messages] == ["user", "assistant", "tool"]
            assert len(result.messages) == 8
            assert (await Session.load(store, "s")).messages == tuple(result.messages)

    run_virtual(main)


@virtual
async def test_hooks_see_what_the_model_will_see() -> None:
    seen: list[int] = []

    class Counts(Hooks):
        def before_model(self, run: AnyRun, request: ModelRequest) -> None:
            seen.append(len(request.messages))

    await Agent("a", model=ScriptedModel(say("ok")), trim=keep_last(1), hooks=[Counts()]).run("now", history=TALK[:2])
    assert seen == [1]


@virtual
async def test_now_cuts_an_async_trim_where_it_waits_and_the_run_can_go_on() -> None:
    reached, slow = asyncio.Event(), True

    async def summary(messages: list[Message]) -> Sequence[Message]:
        reached.set()
        if slow:
            await pass_time(60)
        return messages

    model = ScriptedModel(say("done"))
    agent = Agent("a", model=model, trim=summary)
    async with agent.start("go") as run:
        await reached.wait()
        asked = now()
        assert await run.cancel().wait() == "stopped"
        assert now() == asked
    assert (run.result.stop_reason, model.calls) == ("cancelled", 0)
    check_history(run.result.messages)
    assert run.result.checkpoint is not None
    slow = False
    assert (await agent.resume(run.result.checkpoint)).text == "done"


@virtual
async def test_a_safe_point_ask_lets_a_trim_finish() -> None:
    async def summary(messages: list[Message]) -> Sequence[Message]:
        await pass_time(1)
        return messages

    model = ScriptedModel(call("look", place="attic"), say("no"))
    async with Agent("a", model=model, tools=[look], trim=summary).start("go") as run:
        assert await run.cancel(SafePoint.AFTER_MODEL).wait() == "stopped"
    assert model.calls == 1


@virtual
async def test_a_message_that_comes_during_a_trim_joins_before_the_next_call() -> None:
    async def summary(messages: list[Message]) -> Sequence[Message]:
        if len(messages) == 1:
            run.steer("and the cellar")
        await pass_time(1)
        return messages

    model = ScriptedModel(call("look", place="attic"), say("done"))
    async with Agent("a", model=model, tools=[look], trim=summary).start("go") as run:
        await run.wait()
    assert [m.role for m in model.requests[0].messages] == ["user"]
    assert model.requests[1].messages[-1].text == "and the cellar"


def tears(messages: list[Message]) -> list[Message]:
    return messages[-1:]


def empties(messages: list[Message]) -> list[Message]:
    return []


def ends_early(messages: list[Message]) -> list[Message]:
    return messages[:-1]


def raises(messages: list[Message]) -> list[Message]:
    raise LookupError("no summary")


def no_list(messages: list[Message]) -> list[Message]:
    return None  # type: ignore[return-value]  # what an untyped trim may do


@pytest.mark.parametrize(
    ("trim", "error", "words"),
    [
        (tears, HistoryError, "trim returned what no provider takes: .*Keep each call with its result"),
        (empties, HistoryError, "trim left the model nothing to answer"),
        (ends_early, HistoryError, "trim"),
        (raises, LookupError, "no summary"),
        (no_list, HistoryError, "a history is a list of Message"),
    ],
)
@virtual
async def test_a_trim_that_goes_wrong_is_the_runs_error_and_nothing_is_sent(
    trim: Trim, error: type[Exception], words: str
) -> None:
    model = ScriptedModel(call("look", place="attic"), say("never"))
    agent = Agent("a", model=model, tools=[look], trim=lambda m: m if len(m) == 1 else trim(m))
    with pytest.raises(RunFailed) as failed:
        await agent.run("go")
    cause = failed.value.result.error
    assert isinstance(cause, error)
    with pytest.raises(type(cause), match=words):
        raise cause
    assert model.calls == 1
    check_history(failed.value.result.messages)


def test_what_is_no_trim_is_refused() -> None:
    with pytest.raises(ValueError, match=r"trim=20: write trim=keep_last\(20\)"):
        Agent("a", model=ScriptedModel(), trim=20)  # type: ignore[arg-type]  # what an untyped caller may write
    for bad in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="from 1 up"):
            keep_last(bad)  # type: ignore[arg-type]  # as above
        with pytest.raises(ValueError, match="from 1 up"):
            keep_tokens(bad)  # type: ignore[arg-type]  # as above
