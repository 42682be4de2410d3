"""A turn of the chat is shown as it comes, each press stops it harder, and the next message follows what was left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from safepoint import Agent, Question, RunResult, Source, StopReason, check_history, tool
from safepoint._core.points import Level
from safepoint.cli.chat.activity import Call
from safepoint.cli.chat.conversation import Conversation, Press
from safepoint.cli.chat.lines import Line, plain
from safepoint.cli.chat.words import Look
from safepoint.errors import ModelUnavailable
from safepoint.sessions import MemoryStorage, Session
from safepoint.testing import ScriptedModel, call, fail, say, stall
from safepoint.tools.base import BaseTool
from tests.core import piece
from tests.virtual import now, passes, virtual


class Paper:
    """A view that keeps what it is told."""

    look = Look()

    def __init__(self) -> None:
        self.text = ""
        self.lines: list[str] = []
        self.back = ""

    def words(self, piece: str) -> None:
        self.text += piece

    def end_words(self) -> None:
        self.text += "\n"

    def print(self, *lines: Line) -> None:
        self.lines += map(plain, lines)

    def changed(self) -> None:
        """Nothing is shown live."""

    def begin(self, call: Call) -> None:
        """Nothing is shown live."""

    def give_back(self, text: str) -> None:
        self.back += text

    async def ask(self, question: Question, call: Call | None) -> object:
        raise AssertionError(f"nothing asks here: {question}")


async def talk_with(model: ScriptedModel, *tools: BaseTool) -> tuple[Conversation, Paper]:
    agent, paper = Agent("chat", model=model, tools=tools, retries=0), Paper()
    return Conversation(agent, await Session.create(MemoryStorage()), paper, clock=now), paper


@tool(grace=10)
async def stubborn() -> None:
    """Clean up for ever."""
    await for_a_minute()


for_a_minute = piece.stubborn(60)


async def end(turn: asyncio.Task[RunResult[Any] | None]) -> RunResult[Any]:
    result = await turn
    assert result is not None
    return result


@virtual
async def test_an_answer_is_shown_and_remembered() -> None:
    model = ScriptedModel(say("Hello there.", pieces=4), say("Still here."))
    talk, paper = await talk_with(model)
    await talk.say("hi")
    await talk.say("and now?")
    assert talk.session.state["title"] == "hi"
    assert paper.text == "Hello there.\nStill here.\n"
    assert [message.text for message in model.requests[1].messages] == ["hi", "Hello there.", "and now?"]


@virtual
async def test_the_history_has_an_answer_as_it_was_and_errors_cannot_steer_the_terminal() -> None:
    words = "\x1b]52;c;cm0gLXJm\x07red\x1b[2J\x9b1m\ttab\n"
    talk, paper = await talk_with(ScriptedModel(say(words, pieces=9), fail(ModelUnavailable("\x1b[8mgone"))))
    await talk.say("hi")
    assert talk.session.messages[-1].text == words
    await talk.say("and now?")
    assert paper.lines == ["■ Failed: [8mgone   /resume tries again"]


@virtual
async def test_a_stopped_answer_is_kept_and_the_next_message_works() -> None:
    reached = asyncio.Event()
    model = ScriptedModel([say("Once upon a "), stall(on_reached=reached.set)], say("Again."))
    talk, paper = await talk_with(model)
    async with asyncio.TaskGroup() as group:
        turn = group.create_task(talk.say("tell me a story"))
        await reached.wait()
        assert talk.press() is Press.STOPS
        stopped = await end(turn)
    assert stopped.cancellation is not None
    assert (stopped.cancellation.reason.text, stopped.cancellation.reason.source) == ("Ctrl-C", Source.USER)
    assert stopped.cancellation.level is Level.NOW
    assert paper.lines[0].startswith("■ Stopped by you in 0 ms · text kept")
    await talk.say("go on")
    assert paper.text == "Once upon a \nAgain.\n"
    check_history(talk.session.messages)
    assert any(part.kind == "notice" for part in model.requests[1].messages[1].parts)


async def forced(talk: Conversation) -> RunResult[Any]:
    """The result of a turn that three presses have forced."""
    async with asyncio.TaskGroup() as group:
        turn = group.create_task(talk.say("go"))
        for level in (Level.SAFE, Level.NOW, Level.FORCE):
            await passes(1)
            assert talk.press() is Press.STOPS
            assert talk.level is level
            assert talk.press() is Press.STOPS  # the key is held down
            assert talk.level is level
        return await end(turn)


@virtual
async def test_each_press_goes_a_level_further_and_the_third_waits_for_nothing() -> None:
    talk, paper = await talk_with(ScriptedModel(call("stubborn")), stubborn)
    await forced(talk)
    assert paper.lines[0].startswith("■ Forced after 2.0 s · 1 in doubt")
    assert paper.lines[1].startswith("  ! stubborn       in doubt, still running")
    assert talk.let_go == ["stubborn"]
    await passes(60)


@pytest.mark.parametrize(("seconds", "does"), [(0.1, Press.REPEATED), (1.0, Press.LEAVE), (2.1, Press.IDLE)])
def test_the_fourth_press_leaves_the_program_for_two_seconds(seconds: float, does: Press) -> None:
    @virtual
    async def press() -> None:
        talk, _ = await talk_with(ScriptedModel(call("stubborn")), stubborn)
        await forced(talk)
        await passes(seconds)
        assert talk.press() is does
        await passes(60)

    press()


@virtual
async def test_a_stop_that_waits_is_taken_back_with_every_press_of_the_held_key() -> None:
    @tool
    async def slow() -> str:
        """Take five seconds."""
        await passes(5)
        return "done"

    talk, paper = await talk_with(ScriptedModel(call("slow"), say("Through.")), slow)
    async with asyncio.TaskGroup() as group:
        turn = group.create_task(talk.say("go"))
        await passes(1)
        for _ in range(3):
            talk.press()
            await passes(0.05)
        assert talk.go_on()
        assert talk.level is Level.NONE
        assert (await end(turn)).stop_reason is StopReason.END_TURN
    assert paper.text == "Through.\n"


@virtual
async def test_a_press_while_nothing_runs_stops_no_later_answer_and_a_second_one_leaves() -> None:
    talk, paper = await talk_with(ScriptedModel(say("First."), say("Second.")))
    assert talk.press() is Press.IDLE
    await talk.say("one")
    await passes(2.5)
    assert talk.press() is Press.IDLE
    await passes(0.2)
    assert talk.press() is Press.REPEATED
    await passes(1)
    assert talk.press() is Press.LEAVE
    await talk.say("two")
    assert paper.text == "First.\nSecond.\n"


@virtual
async def test_a_failed_answer_says_so_and_the_next_message_works() -> None:
    talk, paper = await talk_with(ScriptedModel(fail(ModelUnavailable("busy")), say("Back.")))
    failed = await talk.say("one")
    assert failed is not None
    assert failed.stop_reason is StopReason.ERROR
    assert paper.lines == ["■ Failed: busy   /resume tries again"]
    await talk.say("two")
    assert paper.text == "Back.\n"


@virtual
async def test_a_turn_whose_task_is_cancelled_is_recorded_and_the_next_message_works() -> None:
    reached = asyncio.Event()
    talk, paper = await talk_with(ScriptedModel([say("Well"), stall(on_reached=reached.set)], say("Yes.")))
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(talk.say("one"))
        await reached.wait()
        answer.cancel()
    assert answer.cancelled()
    assert not talk.working
    await talk.say("two")
    assert paper.text == "Well\nYes.\n"
    check_history(talk.session.messages)


@virtual
async def test_output_that_is_gone_ends_the_answer() -> None:
    class Gone(Paper):
        def words(self, piece: str) -> None:
            raise BrokenPipeError

    talk, _ = await talk_with(ScriptedModel([say("Hello"), stall()]))
    talk.view = Gone()
    with pytest.raises(BrokenPipeError):
        await talk.say("hi")
    assert not talk.working
