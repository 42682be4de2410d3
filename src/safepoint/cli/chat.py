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
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TextIO

from safepoint import Agent, Message, Run, RunResult, SafePoint, StopReason
from safepoint.cli.echo_model import EchoModel
from safepoint.cli.sanitize import sanitize
from safepoint.errors import ModelNotReady
from safepoint.models import Model
from safepoint.models.registry import choose_model

# A conversation with an agent, one answer at a time, each of which can be stopped.
#
# The history grows by every answer, whole or stopped: a stopped run leaves a valid conversation, so the next message
# simply follows it.


class Conversation:
    """Writes the agent's answers to `out` as they come."""

    def __init__(self, agent: Agent[Any, Any], out: TextIO) -> None:  # Any: every agent can be talked to
        self.history: list[Message] = []
        self._agent = agent
        self._out = out
        self._run: Run[Any, Any] | None = None
        # How often somebody asked to stop the answer that is under way, or about to begin.
        self._asked = 0

    async def answer(self, words: str) -> RunResult[Any]:
        """Say something to the agent and write what it answers.

        Cancellation: the answer is stopped NOW, and neither it nor the words become part of the history.
        """
        try:
            async with self._agent.start(words, history=self.history) as run:
                self._run = run
                if self._asked:
                    self._ask(run)
                async for piece in run.text():
                    self._write(piece)
        finally:
            self._run, self._asked = None, 0
        self.history = run.result.messages
        self._write(_mark(run.result) + "\n")
        return run.result

    def stop(self) -> None:
        """Stop the answer, or the one that is about to begin; asked again, force it. Safe in a signal handler."""
        self._asked += 1
        if self._run is not None:
            self._ask(self._run)

    def forget_stop(self) -> None:
        """Nothing is under way: what was asked so far was not meant for the next answer."""
        self._asked = 0

    def _ask(self, run: Run[Any, Any]) -> None:
        run.cancel(SafePoint.NOW if self._asked == 1 else SafePoint.FORCE, reason="Ctrl-C")

    def _write(self, text: str) -> None:
        self._out.write(sanitize(text))
        self._out.flush()


def _mark(result: RunResult[Any]) -> str:
    """What is added to an answer that is not whole."""
    match result.stop_reason:
        case StopReason.END_TURN:
            return ""
        case StopReason.CANCELLED:
            return "[stopped]"
        case StopReason.ERROR:
            return f"[failed: {result.error}]"
        case other:
            return f"[{other}]"


PROMPT = "you> "
KEYS = "Ctrl-C stops the answer. Ctrl-D or /quit ends the chat.\n"
GREETING = (
    f"This is a chat with a script: no language model is connected. It answers slowly, so that you can stop it.\n{KEYS}"
)
# Whoever has a key for a provider means that provider; the model is a small, current one.
BY_KEY = {
    "OPENAI_API_KEY": "openai:gpt-5-mini",
    "ANTHROPIC_API_KEY": "anthropic:claude-haiku-4-5",
    "GEMINI_API_KEY": "gemini:gemini-flash-latest",
    "GOOGLE_API_KEY": "gemini:gemini-flash-latest",
}
SCRIPT = "script"
HINT = "\n(Ctrl-D or /quit ends the chat.)\n"
QUIT = ("/quit", "/exit")
INTERRUPTED = 130  # what a shell says of a program that Ctrl-C has ended


class Chat:
    """Reads lines and has them answered. Without a terminal the lines are repeated, so that the output tells it all.

    `read_line` returns an empty string at the end of the input. `greeting` comes first, and says who answers.
    """

    def __init__(
        self,
        agent: Agent[Any, Any],  # Any: every agent can be talked to
        read_line: Callable[[], str],
        stdout: TextIO,
        *,
        interactive: bool,
        greeting: str = GREETING,
    ) -> None:
        self._conversation = Conversation(agent, stdout)
        self._read_line = read_line
        self._stdout = stdout
        self._interactive = interactive
        self._greeting = greeting
        self._reading = False

    def run(self) -> int:
        """Chat until the input ends; returns the exit code."""
        self._write(self._greeting)
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
        self._reading = True  # first, so that no press falls between the answer that is over and this line
        try:
            self._conversation.forget_stop()
            return self._read_line()
        finally:
            self._reading = False

    def _write(self, text: str) -> None:
        self._stdout.write(text)
        self._stdout.flush()


@contextmanager
def ctrl_c(press: Callable[[], object]) -> Generator[None]:
    """Inside the block Ctrl-C calls `press`; a process that was started to ignore SIGINT goes on ignoring it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, lambda _signal, _frame: press())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def default_model(environment: Mapping[str, str]) -> str:
    """The model of the first provider that there is a key for; without any key, the one on this machine."""
    return next((model for key, model in BY_KEY.items() if environment.get(key)), "local")


def greeting(model: str) -> str:
    """Who answers, and how to stop it."""
    if model == SCRIPT:
        return GREETING
    if model != "local":
        return f"This is a chat with {model}.\n{KEYS}"
    return (
        "This is a chat with local: SmolLM2-135M, a small language model on this machine. It needs no key, and much\n"
        f"of what it says is wrong. With {', '.join(list(BY_KEY)[:3])} in the environment\n"
        f"that provider answers; --model NAME chooses another one.\n{KEYS}"
    )


def ready(name: str, pause: float) -> Model:
    """The model, ready to answer: the local one has been fetched and started, which takes a while the first time."""
    if name == SCRIPT:
        return EchoModel(partial(asyncio.sleep, pause))
    model = choose_model(name)
    prepare: Callable[[], Coroutine[None, None, object]] | None = getattr(model, "prepare", None)
    if prepare is not None:
        sys.stderr.write("Waking up the local model (93 MB are fetched the first time) ...\n")
        asyncio.run(prepare())
    return model


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m safepoint.cli.chat", description="Talk to an agent, and stop it.")
    parser.add_argument("--model", default=default_model(os.environ), metavar="NAME", help="who answers (%(default)s)")
    parser.add_argument("--pause", type=float, default=0.08, metavar="SECONDS", help="of the model 'script' per word")
    options = parser.parse_args(arguments)
    pause: float = options.pause
    if not 0 <= pause <= 60:
        parser.error(f"--pause {pause}: write a number of seconds from 0 to 60")
    try:
        model = ready(options.model, pause)
    except (ModelNotReady, ValueError) as problem:
        parser.error(f"{problem}\n(--model {SCRIPT} needs nothing: a script answers.)")
    except KeyboardInterrupt:
        return INTERRUPTED
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what cannot be decoded or shown must not end the chat
    agent = Agent("chat", model=model)
    interactive = sys.stdin.isatty()
    chat = Chat(agent, sys.stdin.readline, sys.stdout, interactive=interactive, greeting=greeting(options.model))
    try:
        with ctrl_c(chat.press_ctrl_c):
            return chat.run()
    except BrokenPipeError:
        # Whoever read our output has left. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
