"""An answer is written as it comes and can be stopped; the next message follows whatever was left."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

import pytest

from safepoint import Agent, Source, check_history
from safepoint.cli.chat import Conversation
from safepoint.errors import ModelUnavailable
from safepoint.testing import ScriptedModel, fail, say, stall


def conversation_with(model: ScriptedModel) -> tuple[Conversation, io.StringIO]:
    out = io.StringIO()
    return Conversation(Agent("chat", model=model, retries=0), out), out


def test_an_answer_is_written_piece_by_piece_and_remembered() -> None:
    model = ScriptedModel(say("Hello there.", pieces=4), say("Still here."))
    conversation, out = conversation_with(model)

    async def talk() -> None:
        await conversation.answer("hi")
        await conversation.answer("and now?")

    asyncio.run(talk())
    assert out.getvalue() == "Hello there.\nStill here.\n"
    assert [message.text for message in model.requests[1].messages] == ["hi", "Hello there.", "and now?"]


def test_an_answer_or_an_error_cannot_steer_the_terminal_and_the_history_has_it_as_it_was() -> None:
    words = "\x1b]52;c;cm0gLXJm\x07red\x1b[2J\x9b1m\ttab\n"
    conversation, out = conversation_with(ScriptedModel(say(words, pieces=9), fail(ModelUnavailable("\x1b[8mgone"))))

    async def talk() -> None:
        await conversation.answer("hi")
        assert conversation.history[-1].text == words
        await conversation.answer("and now?")

    asyncio.run(talk())
    assert out.getvalue() == "]52;c;cm0gLXJmred[2J1m\ttab\n\n[failed: [8mgone]\n"


def test_a_stopped_answer_stays_marked_and_the_next_message_works() -> None:
    stop: list[Callable[[], None]] = []
    model = ScriptedModel([say("Once upon a "), stall(on_reached=lambda: stop[0]())], say("Again."))
    conversation, out = conversation_with(model)
    stop.append(conversation.stop)

    async def talk() -> None:
        stopped = await conversation.answer("tell me a story")
        assert stopped.cancellation is not None
        assert (stopped.cancellation.reason.text, stopped.cancellation.reason.source) == ("Ctrl-C", Source.USER)
        await conversation.answer("go on")

    asyncio.run(talk())
    assert out.getvalue() == "Once upon a [stopped]\nAgain.\n"
    check_history(conversation.history)
    assert any(part.kind == "notice" for part in model.requests[1].messages[1].parts)


def test_a_second_stop_is_force() -> None:
    stop: list[Callable[[], None]] = []

    def stop_twice() -> None:
        stop[0]()
        stop[0]()

    conversation, _ = conversation_with(ScriptedModel(stall(on_reached=stop_twice)))
    stop.append(conversation.stop)
    result = asyncio.run(conversation.answer("hi"))
    assert result.cancellation is not None
    assert result.cancellation.level.name == "FORCE"


def test_a_stop_between_the_line_and_its_answer_stops_that_answer_and_no_later_one() -> None:
    model = ScriptedModel(say("First."), say("Second."))
    conversation, out = conversation_with(model)
    conversation.stop()

    async def talk() -> None:
        await conversation.answer("one")
        assert model.calls == 0
        await conversation.answer("two")

    asyncio.run(talk())
    assert out.getvalue() == "[stopped]\nFirst.\n"


def test_a_stop_that_was_forgotten_stops_nothing() -> None:
    conversation, out = conversation_with(ScriptedModel(say("First.")))
    conversation.stop()
    conversation.forget_stop()
    asyncio.run(conversation.answer("one"))
    assert out.getvalue() == "First.\n"


def test_a_failed_answer_says_so_and_the_next_message_works() -> None:
    conversation, out = conversation_with(ScriptedModel(fail(ModelUnavailable("busy")), say("Back.")))

    async def talk() -> None:
        await conversation.answer("one")
        await conversation.answer("two")

    asyncio.run(talk())
    assert out.getvalue() == "[failed: busy]\nBack.\n"


def test_an_answer_whose_task_is_cancelled_leaves_the_history_as_it_was() -> None:
    reached = asyncio.Event()
    conversation, _ = conversation_with(ScriptedModel([say("Well"), stall(on_reached=reached.set)]))

    async def talk() -> None:
        async with asyncio.TaskGroup() as group:
            answer = group.create_task(conversation.answer("one"))
            await reached.wait()
            answer.cancel()
        assert answer.cancelled()

    asyncio.run(talk())
    assert conversation.history == []


def test_output_that_is_gone_ends_the_answer() -> None:
    class Gone(io.StringIO):
        def write(self, text: str, /) -> int:
            raise BrokenPipeError

    conversation = Conversation(Agent("chat", model=ScriptedModel([say("Hello"), stall()])), Gone())
    with pytest.raises(BrokenPipeError):
        asyncio.run(conversation.answer("hi"))
