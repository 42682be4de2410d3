"""The chat reads lines, has them answered, and knows what Ctrl-C means at each moment."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from safepoint import Agent
from safepoint.cli.chat import (
    BY_KEY,
    GREETING,
    HINT,
    INTERRUPTED,
    PROMPT,
    Chat,
    Conversation,
    ctrl_c,
    default_model,
    greeting,
    main,
)
from safepoint.testing import ScriptedModel, say, stall
from tests.signals import default_signals, sigint_ignored


class Keyboard:
    """Lines to read, some of which do something instead."""

    def __init__(self, *lines: str) -> None:
        self.lines: list[str | Callable[[], object]] = list(lines)

    def read_line(self) -> str:
        while self.lines:
            line = self.lines.pop(0)
            if isinstance(line, str):
                return line
            line()
        return ""


def chat_about(model: ScriptedModel, *lines: str, interactive: bool) -> tuple[Chat, io.StringIO, Keyboard]:
    out, keyboard = io.StringIO(), Keyboard(*lines)
    return Chat(Agent("chat", model=model), keyboard.read_line, out, interactive=interactive), out, keyboard


def said(out: io.StringIO) -> str:
    assert out.getvalue().startswith(GREETING)
    return out.getvalue().removeprefix(GREETING)


def test_it_says_first_that_it_is_a_script() -> None:
    assert "no language model is connected" in GREETING.splitlines()[0]


@pytest.mark.parametrize("last", ["/quit\n", "/exit\n"])
def test_each_line_is_answered_until_somebody_quits(last: str) -> None:
    model = ScriptedModel(say("Hello."), say("Yes."))
    chat, out, _ = chat_about(model, "hi\n", "  \n", "there?\n", last, "more\n", interactive=True)
    assert chat.run() == 0
    assert said(out) == f"{PROMPT}Hello.\n{PROMPT}{PROMPT}Yes.\n{PROMPT}"
    model.check_used()


def test_the_end_of_the_input_ends_the_chat_on_a_line_of_its_own() -> None:
    chat, out, _ = chat_about(ScriptedModel(say("Hello.")), "hi\n", interactive=True)
    assert chat.run() == 0
    assert said(out) == f"{PROMPT}Hello.\n{PROMPT}\n"


def test_without_a_terminal_the_output_repeats_the_lines() -> None:
    chat, out, _ = chat_about(ScriptedModel(say("Hello.")), "hi\n", "/quit\n", interactive=False)
    assert chat.run() == 0
    assert said(out) == f"{PROMPT}hi\nHello.\n{PROMPT}/quit\n"


def test_ctrl_c_while_an_answer_comes_stops_the_answer_and_not_the_chat() -> None:
    press: list[Callable[[], None]] = []
    model = ScriptedModel([say("Once upon a "), stall(on_reached=lambda: press[0]())], say("Again."))
    chat, out, _ = chat_about(model, "a story\n", "go on\n", interactive=True)
    press.append(chat.press_ctrl_c)
    assert chat.run() == 0
    assert said(out) == f"{PROMPT}Once upon a [stopped]\n{PROMPT}Again.\n{PROMPT}\n"


def test_ctrl_c_while_a_line_is_read_leaves_the_line_and_stops_no_later_answer() -> None:
    chat, out, keyboard = chat_about(ScriptedModel(say("Hello.")), interactive=True)
    keyboard.lines += [chat.press_ctrl_c, "hi\n"]
    assert chat.run() == 0
    assert said(out) == f"{PROMPT}{HINT}{PROMPT}Hello.\n{PROMPT}\n"


def test_ctrl_c_between_two_answers_stops_neither() -> None:
    class Screen(io.StringIO):
        def write(self, text: str, /) -> int:
            if text == PROMPT:
                chat.press_ctrl_c()
            return super().write(text)

    screen = Screen()
    model = ScriptedModel(say("Hello."), say("Yes."))
    chat = Chat(Agent("chat", model=model), Keyboard("hi\n", "there?\n").read_line, screen, interactive=True)
    assert chat.run() == 0
    assert said(screen) == f"{PROMPT}Hello.\n{PROMPT}Yes.\n{PROMPT}\n"


def test_ctrl_c_in_the_moment_in_which_a_line_begins_leaves_the_line() -> None:
    chat, out, _ = chat_about(ScriptedModel(say("Hello.")), "hi\n", interactive=True)
    forgets = Conversation.forget_stop.__code__

    def press_when_forgotten(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code is forgets:
            sys.setprofile(None)
            chat.press_ctrl_c()

    sys.setprofile(press_when_forgotten)
    try:
        assert chat.run() == 0
    finally:
        sys.setprofile(None)
    assert said(out) == f"{PROMPT}{HINT}{PROMPT}Hello.\n{PROMPT}\n"


def test_ctrl_c_while_a_line_is_read_ends_a_chat_without_a_terminal() -> None:
    chat, out, keyboard = chat_about(ScriptedModel(), interactive=False)
    keyboard.lines += [chat.press_ctrl_c, "hi\n"]
    assert chat.run() == INTERRUPTED
    assert said(out) == f"{PROMPT}\n"


def test_the_signal_is_ours_inside_the_block_only() -> None:
    presses: list[str] = []
    with default_signals():
        with ctrl_c(lambda: presses.append("pressed")):
            signal.raise_signal(signal.SIGINT)
        assert presses == ["pressed"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_that_is_ignored_stays_ignored_inside_the_block() -> None:
    presses: list[str] = []
    with sigint_ignored():
        with ctrl_c(lambda: presses.append("pressed")):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert presses == []


@pytest.mark.parametrize("pause", ["-1", "nan", "61"])
def test_a_pause_that_makes_no_sense_is_refused(pause: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--model", "script", "--pause", pause])
    assert "write a number of seconds from 0 to 60" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "model"),
    [
        ({}, "local"),
        ({"OPENAI_API_KEY": ""}, "local"),
        ({"ANTHROPIC_API_KEY": "k"}, BY_KEY["ANTHROPIC_API_KEY"]),
        ({"GEMINI_API_KEY": "k", "OPENAI_API_KEY": "k"}, BY_KEY["OPENAI_API_KEY"]),
    ],
)
def test_whoever_there_is_a_key_for_answers_and_otherwise_the_local_model(
    environment: dict[str, str], model: str
) -> None:
    assert default_model(environment) == model


@pytest.mark.parametrize("model", ["local", "openai:gpt-5-mini", "script"])
def test_it_says_first_who_answers(model: str) -> None:
    assert f"This is a chat with {'a script' if model == 'script' else model}" in greeting(model).splitlines()[0]


def test_a_model_that_cannot_answer_is_said_with_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--model", "nobody"])
    told = capsys.readouterr().err
    assert "'openai:NAME'" in told
    assert "--model script" in told
