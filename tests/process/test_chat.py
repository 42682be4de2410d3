"""The chat as a user meets it: a process, a terminal or a pipe, and a real Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from safepoint.models import LocalModel
from tests.signals import default_signals

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are a thing of Unix", allow_module_level=True)

COMMAND = [sys.executable, "-W", "error", "-m", "safepoint.cli.chat", "--model", "script"]
SECONDS = 20.0


class Terminal:
    """The user's side of a pseudo-terminal: reads the screen until something is on it."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.screen = ""

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def read_until(self, text: str, meanwhile: Callable[[], None] | None = None) -> str:
        """What came up to and including `text`; the rest stays for the next look. `meanwhile`: again and again."""
        deadline = time.monotonic() + SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._file, selectors.EVENT_READ)
            while text not in self.screen:
                if meanwhile is not None:
                    meanwhile()  # a key that is pressed before the prompt reads is lost, as in any terminal
                    if not selector.select(1.0) and time.monotonic() < deadline:
                        continue
                assert selector.select(deadline - time.monotonic()), f"{text!r} did not come; there is {self.screen!r}"
                self.screen += os.read(self._file, 4096).decode()
        found, _, self.screen = self.screen.partition(text)
        return found + text


@contextmanager
def chat_in_a_terminal(*arguments: str) -> Generator[tuple[subprocess.Popen[bytes], Terminal]]:
    ours, theirs = os.openpty()
    try:
        with default_signals():
            process = subprocess.Popen([*COMMAND, *arguments], stdin=theirs, stdout=theirs, start_new_session=True)
    finally:
        os.close(theirs)
    with process:
        try:
            yield process, Terminal(ours)
        finally:
            process.kill()
            os.close(ours)


def test_ctrl_c_stops_the_answer_in_the_middle_and_the_chat_goes_on() -> None:
    with chat_in_a_terminal("--pause", "0.1") as (process, terminal):
        assert "no language model is connected" in terminal.read_until("you> ")
        terminal.type("hello\n")
        terminal.read_until("I am a script")
        process.send_signal(signal.SIGINT)
        answer = terminal.read_until("[stopped]")
        assert "That was all." not in answer

        terminal.read_until("you> ")
        terminal.type("what now?\n")
        terminal.read_until(
            'You stopped me before I was done, and I can see it in our conversation. You said "what now?".'
        )
        process.send_signal(signal.SIGINT)
        terminal.read_until("you> ")

        terminal.read_until("ends the chat.)", meanwhile=lambda: process.send_signal(signal.SIGINT))
        terminal.read_until("you> ")
        terminal.type("\x04")
        assert process.wait(SECONDS) == 0


@pytest.mark.proof
def test_the_local_model_is_stopped_in_the_middle_of_a_sentence_and_answers_again() -> None:
    asyncio.run(LocalModel().prepare())  # the first time it is fetched, which takes longer than a screen may stay empty
    with chat_in_a_terminal("--model", "local") as (process, terminal):
        assert "This is a chat with local: SmolLM2-135M" in terminal.read_until("you> ")
        terminal.type("Write a long story about a dragon.\n")
        terminal.read_until("dragon.\r\n")
        terminal.read_until(" ")
        process.send_signal(signal.SIGINT)
        terminal.read_until("[stopped]")
        terminal.read_until("you> ")
        terminal.type("Hello!\n")
        terminal.read_until("Hello!\r\n")
        assert terminal.read_until("you> ").removesuffix("you> ").strip()
        terminal.type("\x04")
        assert process.wait(SECONDS) == 0


def test_lines_from_a_pipe_are_answered_one_after_the_other() -> None:
    done = subprocess.run(
        [*COMMAND, "--pause", "0"], input="hello\nagain\n", capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert done.stderr == ""
    assert done.stdout.count("That was all.") == 2
    assert 'you> again\nYou said "again".' in done.stdout


def test_an_output_that_nobody_reads_any_more_ends_the_chat_quietly() -> None:
    with subprocess.Popen(
        [*COMMAND, "--pause", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write("hello\n" * 5)
        process.stdin.close()
        assert process.wait(SECONDS) == 1
        assert process.stderr.read() == ""
