"""A llama.cpp server on this machine, in a process of its own.

The process keeps the computation off this program's GIL and ends when it should: the server lives as long as the pipe
to its input, and the pipe as long as this process. `close` ends it at once; so does any end of this process.

    NEW ──start──▶ STARTING ──its address──▶ READY ──close──▶ CLOSED
                       └────it ends first──▶ FAILED ──start──▶ STARTING

A stop reaches the computing between two batches of tokens. While an answer is written a batch is one token; while a
prompt is read it is `LlamaOptions.batch`, and up to two of them are computed after the connection was closed: the one
under way, and one begun before the server had noticed.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Final

from safepoint._core.clock import current_clock
from safepoint._core.latch import Latch
from safepoint.errors import ModelNotReady
from safepoint.models.extras import check_installed

# Run as a file: it needs nothing of Safepoint, and importing that would double the time until it answers.
_PROGRAM = Path(__file__).with_name("llama_child.py")
BATCH: Final = 8
"""Tokens of a prompt that are read at a time.

Measured with SmolLM2 on one thread of a busy machine, in CPU time. In batches of 64: 133 tokens in a second, and up to
0.87 s until a stop was heard; of 16: 90 and 0.23 s; of 8: 88 and 0.13 s; of 4: 74 and 0.06 s.
"""
ENDS_WITHIN: Final = 5.0
"""Seconds that a server may take to end when its input has ended; then it is killed."""


def default_threads() -> int:
    """Half of the processors, and no more than four: the program around the model has to run too."""
    return max(1, min(4, (os.cpu_count() or 1) // 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions:
    """`context` is in tokens, for each of the `slots`, which is how many answers are computed at once.

    `batch` is how many tokens of a prompt are read at a time: a stop waits for at most two batches, and small ones read
    more slowly. None: `BATCH`, or more if there are many slots. `template` is a Jinja chat template in place of the
    model's own.
    """

    alias: str = "local"
    slots: int = 2
    context: int = 4096
    threads: int = field(default_factory=default_threads)
    batch: int | None = None
    template: str | None = None

    def __post_init__(self) -> None:
        for option in ("slots", "context", "threads", "batch"):
            value: object = getattr(self, option)
            if value is None and option == "batch":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{option}={value!r}: write a whole number from 1 up, or leave it out")
        if self.batch is not None and self.batch <= self.slots:
            raise ValueError(
                f"batch={self.batch} with slots={self.slots}: each slot that writes takes a place in the batch, and "
                f"prompts would have none; write batch={self.slots + 1} or more, or leave it out"
            )

    @property
    def tokens_at_once(self) -> int:
        """The size of a batch: with room for prompts when all other slots write."""
        return self.batch or max(BATCH, 2 * self.slots)


@dataclass(frozen=True, slots=True)
class Ready:
    """A server that listens. `knows_tools`: its chat template does, so calls can be left to llama.cpp."""

    address: str
    knows_tools: bool


class LlamaServer:
    """The server for one file of weights. `await address()` starts it if need be; `close()` ends it."""

    def __init__(self, weights: Path, options: LlamaOptions | None = None) -> None:
        self._weights = weights
        self._options = options or LlamaOptions()
        # Held only for the moment of deciding which caller starts the process.
        self._deciding = threading.Lock()
        self._child: _Child | None = None

    @property
    def pid(self) -> int | None:
        return self._child.process.pid if self._child is not None else None

    async def address(self) -> str:
        """Where the server listens, once it does. Cancellation: only this waiter leaves; the start continues."""
        return (await self.ready()).address

    async def ready(self) -> Ready:
        """The server, once it listens. Cancellation: as for `address`."""
        child = self._started()
        outside = current_clock().outside("llama.cpp server")
        try:
            await child.spoken.wait()
        finally:
            outside.done()
        if child.ready is None:
            self._end(child)
            raise ModelNotReady(f"the llama.cpp server for {self._weights} did not start: {child.last_words}")
        return child.ready

    def _started(self) -> _Child:
        with self._deciding:
            if self._child is not None and self._child.process.poll() is not None:
                self._child.end()  # it has ended by itself; this only releases its resources
                self._child = None
            if self._child is None:
                check_installed("xllamacpp", "local")
                self._child = _Child(self._weights, self._options)
            return self._child

    def close(self) -> None:
        """End the server. Blocks for a moment; a later `address()` starts it anew."""
        child = self._child
        if child is not None:
            self._end(child)

    def _end(self, child: _Child) -> None:
        """End that process, but not the process that another caller has started since."""
        with self._deciding:
            if self._child is not child:
                return
            self._child = None
        child.end()


class _Child:
    """The process. `spoken` is set when it has printed its address, or has ended without one."""

    def __init__(self, weights: Path, options: LlamaOptions) -> None:
        setup = {"model": str(weights), **asdict(options), "batch": options.tokens_at_once}
        self.spoken = Latch()
        self.ready: Ready | None = None
        self.last_words = ""
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `end`)
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM), json.dumps(setup)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        _children.add(self)
        self._listener = threading.Thread(target=self._listen, name="safepoint:llama", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if self.ready is None and line.startswith(b"http"):
                address, _, abilities = line.decode().partition(" ")
                self.ready = Ready(address, bool(json.loads(abilities)["tools"]))
                self.spoken.set()
        if self.ready is None:
            self.last_words = self._logged()
        self.spoken.set()

    def _logged(self) -> str:
        os.lseek(self._log.fileno(), 0, os.SEEK_SET)
        words = self._log.read().decode(errors="replace").strip().splitlines()
        hint = " (on Debian, type `apt install libgomp1`)" if "libgomp" in " ".join(words) else ""
        return (" ".join(words[-3:]) or "it said nothing") + hint

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._listener.join(ENDS_WITHIN)
        if self.process.stdout is not None and not self._listener.is_alive():
            self.process.stdout.close()
        self._log.close()
        _children.discard(self)


_children: weakref.WeakSet[_Child] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for child in list(_children):
        child.end()
