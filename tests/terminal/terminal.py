"""A program in a real terminal: a pty, with an emulator on our side that knows what is on the screen.

`screen` is the text that a person sees now, `all_text` has the scrollback above it too. Tests wait for text.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pyte

from tests.signals import default_signals

PATIENCE = 40.0  # for a start on a busy machine; a test that passes comes nowhere near it
CTRL_C, CTRL_D, CTRL_X, ESC, ENTER, TAB, UP, DOWN = "\x03", "\x04", "\x18", "\x1b", "\r", "\t", "\x1b[A", "\x1b[B"


class _Screen(pyte.HistoryScreen):
    """Answers where the cursor is, as terminals do."""

    def __init__(self, columns: int, rows: int, reply: Any) -> None:  # Any: a callable; pyte has no types
        super().__init__(columns, rows, history=5000, ratio=0.5)
        self._reply = reply

    def write_process_input(self, data: str) -> None:
        self._reply(data)

    def set_margins(self, *args: Any, **more: Any) -> None:  # Any: pyte passes private=… that its own method refuses
        more.pop("private", None)
        super().set_margins(*args, **more)


class Terminal:
    """`with Terminal(["chat", …]) as terminal:` runs `safepoint chat …`; no process is left behind."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        columns: int = 80,
        rows: int = 24,
        command: Sequence[str] | None = None,
    ) -> None:
        self._ours, theirs = os.openpty()
        self._emulator = _Screen(columns, rows, self.send)
        self._stream = pyte.ByteStream(self._emulator)
        self.raw = b""
        self.filter: Callable[[bytes], bytes] = bytes
        _set_size(theirs, columns, rows)
        environment = {**os.environ, "TERM": "xterm-256color", "XDG_DATA_HOME": str(cwd / "data"), **(env or {})}
        if "NO_COLOR" not in (env or {}):
            environment.pop("NO_COLOR", None)
        program = (
            list(command) if command is not None else [sys.executable, "-W", "error", "-m", "safepoint", *arguments]
        )
        try:
            with default_signals():
                self.process = subprocess.Popen(
                    program,
                    cwd=cwd,
                    env=environment,
                    stdin=theirs,
                    stdout=theirs,
                    stderr=theirs,
                    start_new_session=True,
                    preexec_fn=_take_terminal,
                )
        finally:
            os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def send(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def line(self, text: str) -> None:
        """Type the text and press Enter."""
        self.send(text + ENTER)

    @property
    def screen(self) -> str:
        return "\n".join(line.rstrip() for line in self._emulator.display).rstrip()

    @property
    def all_text(self) -> str:
        """The scrollback and the screen."""
        above = [
            "".join(row[at].data for at in range(self._emulator.columns)).rstrip() for row in self._emulator.history.top
        ]
        return "\n".join([*above, self.screen])

    def cells(self) -> list[list[tuple[str, str, bool]]]:
        """The screen, cell by cell: the character, its colour, and whether it is bold."""
        rows, columns = range(self._emulator.lines), range(self._emulator.columns)
        buffer = self._emulator.buffer
        return [[(buffer[y][x].data, buffer[y][x].fg, buffer[y][x].bold) for x in columns] for y in rows]

    def wait_for(self, *texts: str, gone: str | None = None) -> str:
        """Read until all of these are there, and `gone` is not on the screen; what is on the screen then."""
        deadline = time.monotonic() + PATIENCE
        while not (all(text in self.all_text for text in texts) and (gone is None or gone not in self.screen)):
            left = deadline - time.monotonic()
            came = left > 0 and self.read(left)
            assert came, f"{texts!r} did not come; there is\n{self.all_text}"
        return self.screen

    def read(self, seconds: float) -> bool:
        """Take in what comes next; False if nothing came, or the program has closed the terminal."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._ours, 65_536)
        except OSError:  # Linux: the other side is closed
            return False
        self.raw += data
        self._stream.feed(self.filter(data))
        return bool(data)

    def resize(self, columns: int, rows: int) -> None:
        self._emulator.resize(rows, columns)
        _set_size(self._ours, columns, rows)
        os.killpg(self.process.pid, signal.SIGWINCH)

    def exit_code(self) -> int:
        """Read to the end, and wait for the program."""
        while self.read(PATIENCE):
            pass
        return self.process.wait(PATIENCE)


def _take_terminal() -> None:
    """In the child: the pty is its controlling terminal, so that Ctrl-C is a signal in cooked mode."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _set_size(file: int, columns: int, rows: int) -> None:
    fcntl.ioctl(file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
