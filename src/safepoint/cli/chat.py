"""Talk to an agent in the terminal, and stop it: `python -m safepoint.cli.chat`.

Ctrl-C means one of two things. While an answer comes, it stops the answer. While a line is read, it leaves the line.
One handler serves the whole chat, so there is no moment in which it means nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TextIO

from safepoint import Agent
from safepoint.cli.conversation import Conversation
from safepoint.cli.parrot import Parrot

PROMPT = "you> "
GREETING = """\
This is a chat with a script: no language model is connected. It answers slowly, so that you can stop it.
Ctrl-C stops the answer. Ctrl-D or /quit ends the chat.
"""
HINT = "\n(Ctrl-D or /quit ends the chat.)\n"
QUIT = ("/quit", "/exit")
INTERRUPTED = 130  # what a shell says of a program that Ctrl-C has ended


class Chat:
    """Reads lines and has them answered. Without a terminal the lines are repeated, so that the output tells it all.

    `read_line` returns an empty string at the end of the input.
    """

    def __init__(
        self,
        agent: Agent[Any, Any],  # Any: every agent can be talked to
        read_line: Callable[[], str],
        stdout: TextIO,
        *,
        interactive: bool,
    ) -> None:
        self._conversation = Conversation(agent, stdout)
        self._read_line = read_line
        self._stdout = stdout
        self._interactive = interactive
        self._reading = False

    def run(self) -> int:
        """Chat until the input ends; returns the exit code."""
        self._write(GREETING)
        with asyncio.Runner() as runner:
            while True:
                try:
                    line = self._read()
                except KeyboardInterrupt:
                    self._write(HINT if self._interactive else "\n")
                    if not self._interactive:
                        return INTERRUPTED
                    continue
                words = line.strip()
                if not line or not self._interactive:
                    self._write(f"{words}\n")
                if not line or words in QUIT:
                    return 0
                if words:
                    runner.run(self._conversation.answer(words))

    def press_ctrl_c(self) -> None:
        """What Ctrl-C does. Call it in the main thread, as a signal handler is."""
        if self._reading:
            raise KeyboardInterrupt
        self._conversation.stop()

    def _read(self) -> str:
        self._write(PROMPT)
        self._conversation.forget_stop()
        self._reading = True
        try:
            return self._read_line()
        finally:
            self._reading = False

    def _write(self, text: str) -> None:
        self._stdout.write(text)
        self._stdout.flush()


@contextmanager
def ctrl_c(press: Callable[[], object]) -> Generator[None]:
    """Inside the block Ctrl-C calls `press`."""
    before = signal.signal(signal.SIGINT, lambda _signal, _frame: press())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m safepoint.cli.chat", description="Talk to an agent, and stop it.")
    parser.add_argument("--pause", type=float, default=0.08, metavar="SECONDS", help="after each word (default: 0.08)")
    pause: float = parser.parse_args(arguments).pause
    if not 0 <= pause <= 60:
        parser.error(f"--pause {pause}: write a number of seconds from 0 to 60")
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what cannot be decoded or shown must not end the chat
    agent = Agent("chat", model=Parrot(partial(asyncio.sleep, pause)))
    chat = Chat(agent, sys.stdin.readline, sys.stdout, interactive=sys.stdin.isatty())
    try:
        with ctrl_c(chat.press_ctrl_c):
            return chat.run()
    except BrokenPipeError:
        # Whoever read our output has left. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
