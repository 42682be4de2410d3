"""A shell as a tool: `shell()`. Processes that a command starts end with it, and a cut command reports its output.

Each call is a shell of its own, in its own session, under a keeper (see `subreaper`): stopping it stops children,
grandchildren and detached processes. Its output is streamed (`ToolOutputStreamed`), and the model gets its beginning
and its end, with the number of characters left out in between.

The command sees a few harmless environment variables and the ones you pass, not the keys of your program.
"""

from __future__ import annotations

import asyncio
import codecs
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safepoint._core.ladder import Ladder, StopPolicy, WorkKind
from safepoint.errors import CutShort, ProcessFailed
from safepoint.history.plain_text import clean
from safepoint.tools.arguments import Arguments, Parameter
from safepoint.tools.base import BaseTool, ToolSpec, checked_tool_name
from safepoint.tools.context import CallContext
from safepoint.tools.options import DEFAULT_GRACE_CAP, EffectLike, ToolOptions
from safepoint.tools.process import check_platform
from safepoint.tools.process_tree import Ended, ProcessTree

# The output of a program, which may be endless, in bounded memory: its beginning, its end, and how much lay between.


class OutputBuffer:
    """Half of the space is for the beginning, half for the end. Each piece is also streamed as it arrives."""

    def __init__(self, room: int, tell: Callable[[str], object]) -> None:
        self._head_room = room // 2
        self._tail_room = room - self._head_room
        self._tell = tell
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._tail_chars = 0
        self._left_out = 0

    def take(self, piece: bytes) -> None:
        self._keep(self._decoder.decode(piece))

    def finish(self) -> None:
        """The output has ended: half a character that is left over is emitted as broken."""
        self._keep(self._decoder.decode(b"", final=True))

    def _keep(self, text: str) -> None:
        if not text:
            return
        self._tell(text)
        if self._head_room:
            self._head.append(text[: self._head_room])
            text = text[self._head_room :]
            self._head_room -= len(self._head[-1])
        if text:
            self._tail.append(text)
            self._tail_chars += len(text)
        while self._tail_chars > self._tail_room:
            excess = self._tail_chars - self._tail_room
            first = self._tail.popleft()
            if len(first) > excess:
                self._tail.appendleft(first[excess:])
            lost = min(len(first), excess)
            self._tail_chars -= lost
            self._left_out += lost

    @property
    def text(self) -> str:
        gap = f"\n[{self._left_out} characters were left out here]\n" if self._left_out else ""
        return clean("".join(self._head) + gap + "".join(self._tail))


INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
MAX_OUTPUT = 30_000
_CHUNK = 65_536
_DESCRIPTION = (
    "Run a command in a shell and return what it prints. Every call starts a new shell in the same directory. "
    "What the command leaves running in the background is ended with it."
)


class Shell(BaseTool):
    """Made by `shell()`."""

    def __init__(
        self,
        name: str,
        options: ToolOptions,
        *,
        cwd: Path | None,
        env: Mapping[str, str],
        max_output: int,
        ladder: Ladder | None,
    ) -> None:
        self._arguments = Arguments("shell()", [Parameter("command", str, meaning="The command, as for /bin/sh.")])
        self.spec = ToolSpec(name, _DESCRIPTION, self._arguments.schema)
        self.options = options
        self.ladder = ladder
        self._cwd, self._env, self._max_output = cwd, dict(env), max_output

    @property
    def stop_policy(self) -> StopPolicy:
        return StopPolicy(WorkKind.PROCESS, grace=self.options.grace)

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: decoded JSON in, typed values out
        return self._arguments.validate(args)

    async def body(self, context: CallContext[Any], args: dict[str, Any]) -> object:
        """One command. Cancellation: all its processes are killed, and waited for, within a second."""
        output = OutputBuffer(self._max_output, context.tell)
        with _Pipe(output) as pipe:
            tree = ProcessTree(
                f"{self.name}:{context.call_id}",
                ["/bin/sh", "-c", args["command"]],
                clock=context.node.clock,
                cwd=self._cwd,
                env={**_inherited(), **self._env},
                output=pipe.end,
            )
            context.work.killable = tree
            pipe.let_go()
            ended = await tree.wait()
        if context.work.rung is not None and ended.code != 0:
            raise CutShort(output.text)
        if ended.status is None:
            raise ProcessFailed(f"the shell {ended}; what it had printed: {output.text or 'nothing'}")
        return _result_text(output.text, ended)


def shell(
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    grace: float | None = None,
    max_output: int = MAX_OUTPUT,
    name: str = "shell",
    effect: EffectLike = "effectful",
    ladder: Ladder | None = None,
) -> Shell:
    """A tool that runs the model's commands. `env` is added to the few variables that a command inherits.

    `timeout`: seconds for one command. `grace`: seconds between TERM and KILL. `max_output`: characters for the model.
    """
    check_platform()
    if not isinstance(max_output, int) or max_output < 100:  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"max_output={max_output!r}: write a whole number of characters from 100 up")
    options = ToolOptions.parse(effect=effect, timeout=timeout, grace=grace)
    options.check_grace(ladder.cap if ladder else DEFAULT_GRACE_CAP)
    folder = Path(cwd) if cwd is not None else None
    return Shell(checked_tool_name(name), options, cwd=folder, env=env or {}, max_output=max_output, ladder=ladder)


class _Pipe:
    """The pipe from the command to this process. All output before the end is read."""

    def __init__(self, output: OutputBuffer) -> None:
        self._output = output
        self._loop = asyncio.get_running_loop()
        self._ours, self.end = os.pipe()
        os.set_blocking(self._ours, False)
        self._open: Sequence[int] = (self._ours, self.end)

    def __enter__(self) -> _Pipe:
        self._loop.add_reader(self._ours, self._read)
        return self

    def let_go(self) -> None:
        """Close this process's copy of the writing end: the command has its own."""
        # A pipe ends when its last writing end is closed: with this one open, the end would never be read.
        os.close(self.end)
        self._open = (self._ours,)

    def _read(self) -> bool:
        """Read one piece; False if there is none now."""
        try:
            piece = os.read(self._ours, _CHUNK)
        except BlockingIOError:
            return False
        if not piece:
            self._loop.remove_reader(self._ours)
        self._output.take(piece)
        return bool(piece)

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._ours)
        # The command may have ended before the loop came to its last words: they are still in the pipe.
        while self._read():
            pass
        self._output.finish()
        for descriptor in self._open:
            os.close(descriptor)


def _inherited() -> dict[str, str]:
    return {name: os.environ[name] for name in INHERITED if name in os.environ}


def _result_text(output: str, ended: Ended) -> str:
    notes: list[str] = []
    if ended.code is None:
        notes.append(f"[the shell {ended}]")
    elif ended.code != 0:
        notes.append(f"[exit code {ended.code}]")
    if ended.left:
        notes.append(f"[it left {ended.left} process{'es' if ended.left > 1 else ''} running; ended]")
    return "\n".join([output.rstrip("\n") or "(no output)", *notes])
