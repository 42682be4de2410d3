"""A program in a process of its own, talked to in lines, with the wall clock running.

The program writes one word per line, and perhaps a JSON value after it: ``READY``, ``BACK {"stop_reason": …}``. Every
line is stamped when it arrives, so a test can say how long after a signal the program answered.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tests.program import imports
from tests.warm.process import start_python

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]
PATIENCE = 30.0  # for a start on a busy machine; nothing that is measured comes near it


@dataclass(frozen=True, slots=True)
class Line:
    word: str
    value: Any  # Any: decoded JSON
    at: float


@dataclass(frozen=True, slots=True)
class Exit:
    code: int
    stderr: str
    at: float


class Child:
    """`with Child("ctrl_c.py", "task") as child:`; whatever happens, no process is left behind.

    `in_background`: SIGINT is ignored, as for a command that a script starts with `&`.
    """

    def __init__(self, program: str, *args: str, in_background: bool = False) -> None:
        said, out = os.pipe()
        complained, err = os.pipe()
        try:
            self._process = start_python(
                [str(PROGRAMS / program), *args],
                preload=list(imports((PROGRAMS / program).read_text())),
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                files=(None, out, err),
                options=["warnings_are_errors", "new_session", *(["in_background"] if in_background else [])],
            )
        finally:
            os.close(out)
            os.close(err)
        self._streams = os.fdopen(said), os.fdopen(complained)
        self._lines: queue.Queue[Line | None] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self._streams[0],), daemon=True),
            threading.Thread(target=self._collect, args=(self._streams[1],), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for reader in self._readers:
            reader.join()
        for stream in self._streams:
            stream.close()

    def expect(self, word: str, *, within: float = PATIENCE) -> Line:
        """The next line, which must be this one."""
        line = self.expect_any(within=within)
        assert line.word == word, f"it said {line.word} {line.value}, not {word}\n{self.stderr}"
        return line

    def expect_any(self, *, within: float = PATIENCE) -> Line:
        try:
            line = self._lines.get(timeout=within)
        except queue.Empty:
            raise AssertionError(f"it said nothing for {within} s\n{self.stderr}") from None
        assert line is not None, f"it ended and said nothing more\n{self.stderr}"
        return line

    def stays_silent(self, seconds: float) -> None:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            return
        raise AssertionError(f"it said {line}\n{self.stderr}")

    def signal(self, number: int = signal.SIGINT) -> float:
        """Send it; returns when that was."""
        at = time.monotonic()
        self._process.send_signal(number)
        return at

    def exit(self, *, within: float = PATIENCE) -> Exit:
        """Wait for its end."""
        try:
            code = self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not exit within {within} s\n{self.stderr}") from None
        at = time.monotonic()
        for reader in self._readers:
            reader.join()
        return Exit(code, self.stderr, at)

    @property
    def stderr(self) -> str:
        return "".join(self._errors)

    def _read(self, stream: IO[str]) -> None:
        for text in stream:
            word, _, rest = text.strip().partition(" ")
            self._lines.put(Line(word, json.loads(rest) if rest else None, time.monotonic()))
        self._lines.put(None)

    def _collect(self, stream: IO[str]) -> None:
        self._errors.extend(stream)
