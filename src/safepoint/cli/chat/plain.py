"""The chat without a screen: a pipe, a dumb terminal, a log. No colour, no cursor movement, ASCII signs.

The answer goes to stdout, everything else to stderr. Lines are read one after the other, each is a message.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TextIO

from safepoint import Question
from safepoint.cli.chat.activity import Call
from safepoint.cli.chat.approvals import Request, read_answer
from safepoint.cli.chat.conversation import QuestionLeft
from safepoint.cli.chat.lines import ASCII, Line, plain
from safepoint.cli.chat.words import Look, call_line
from safepoint.cli.sanitize import sanitize

PROMPT = "> "


class LineReader:
    """Lines of a file descriptor, read in a thread of its own: Ctrl-C and the loop are never held up by it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        # A daemon that reads the descriptor itself: at exit it holds no lock of Python's.
        threading.Thread(target=self._read, daemon=True, name="safepoint:stdin").start()

    async def line(self) -> str | None:
        """The next line; None at the end of the input. Cancellation: no line is lost."""
        return await self._lines.get()

    def _read(self) -> None:
        rest = b""
        while piece := self._piece():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                self._put(line.decode(errors="replace"))
        if rest:
            self._put(rest.decode(errors="replace"))
        self._put(None)

    def _piece(self) -> bytes:
        try:
            return os.read(self._descriptor, 65_536)
        except OSError:  # a terminal that is gone
            return b""

    def _put(self, line: str | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
        except RuntimeError:  # the chat has ended
            return


class PlainView:
    """A `View`. `interactive`: there is a person at a terminal, who is prompted and asked."""

    def __init__(self, reader: LineReader, out: TextIO, err: TextIO, *, interactive: bool) -> None:
        self.look = Look(80, ASCII)
        self.interactive = interactive
        self._reader, self._out, self._err = reader, out, err
        self._asking: asyncio.Task[str | None] | None = None

    def words(self, piece: str) -> None:
        self._out.write(sanitize(piece))
        self._out.flush()

    def end_words(self) -> None:
        self._out.write("\n")
        self._out.flush()

    def print(self, *lines: Line) -> None:
        for line in lines:
            self._err.write(f"{plain(line)}\n")
        self._err.flush()

    def changed(self) -> None:
        """Nothing is shown live."""

    def begin(self, call: Call) -> None:
        if self.interactive and call.depth == 0:
            self.print(call_line(call, call.since, self.look))

    def give_back(self, text: str) -> None:
        self._err.write(f"not sent: {sanitize(text)}\n")

    def prompt(self) -> None:
        if self.interactive:
            self._err.write(PROMPT)
            self._err.flush()

    def leave_question(self) -> bool:
        """Ctrl-C at a question: it stays open."""
        return self._asking is not None and self._asking.cancel()

    async def ask(self, question: Question, call: Call | None) -> object:
        """Cancellation: nothing was answered."""
        request = Request.of(question.payload)
        what = (
            f"{request.tool} wants to {request.verb}: {request.text}"
            if request is not None
            else f"{question.tool} asks: {question.payload}"
        )
        self._err.write(f"? {sanitize(what)}\n")
        if not self.interactive:
            self._err.write("x there is no terminal to ask at, so the answer is no\n")
            return False if request is not None or question.kind != "interrupt" else "no person can answer here"
        self._err.write(f"  {'y once, a always, n no, or say why not' if request is not None else 'your answer'}\n")
        self.prompt()
        async with asyncio.TaskGroup() as group:
            self._asking = group.create_task(self._reader.line())
        asked, self._asking = self._asking, None
        typed = None if asked.cancelled() else asked.result()
        if typed is None or not typed.strip():
            raise QuestionLeft
        if request is None and question.kind == "interrupt":
            return typed.strip()
        answer = read_answer(typed)
        return typed.strip() if answer is None else answer
