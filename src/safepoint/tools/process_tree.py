"""The processes of one tool call: started through a keeper, asked to end, and over only when none is left.

    RUNNING ──terminate──▶ told to end ──kill──▶ killed
       └──────────────────────┴──────────────────┴──▶ OVER   (`wait` returns; the keeper has said how)

`subreaper` explains how the keeper knows that none is left. If the keeper itself is killed, the processes are found by
the mark in their environment and killed from here (`sweep`). A process may stop the keeper, again and again: then the
marked processes are killed from here, and the keeper continues with the rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safepoint._core.clock import Clock, Outside
from safepoint._core.latch import Latch

# The second net: processes found by a mark in their environment, anywhere in the tree.
#
# A child inherits its parent's environment, through forks, sessions and groups; only a process that replaces its
# environment loses the mark. The net is used where the keeper itself was killed; and where there is no subreaper, to
# name the processes that escaped.

MARK = "SAFEPOINT_CALL"


def marked(mark: str) -> list[int]:
    """The ids of all processes that carry this mark and that we may inspect."""
    try:
        import psutil
    except ImportError:
        _log.warning("processes that got away can't be looked for without psutil: pip install 'safepoint[process]'")
        return []
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process.pid)
        except psutil.Error:
            continue  # it has ended, or belongs to another user
    return found


def sweep(mark: str, *spared: int) -> int:
    """Kill all marked processes until none is left; how many there were. Bounded: unkillable processes stay."""
    killed: set[int] = set()
    for _ in range(10):
        found = set(marked(mark)) - {os.getpid(), *spared}
        if not found - killed:
            break
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        killed |= found
    return len(killed)


_KEEPER = str(Path(__file__).with_name("subreaper.py"))
_PATIENCE = 1.0
# How often, and seconds apart, a keeper that should kill is continued. The total is below the time on the ladder.
_NUDGES = 3
_BETWEEN_NUDGES = 0.2

_log = logging.getLogger("safepoint")


@dataclass(frozen=True, slots=True)
class Ended:
    """How the first process of a call ended; None if that is unknown because the keeper was killed.

    `left`: how many processes it left behind; they were ended too.
    """

    status: int | None
    left: int = 0

    @property
    def code(self) -> int | None:
        """The exit code of a process that exited by itself."""
        known = self.status is not None and os.WIFEXITED(self.status)
        return os.WEXITSTATUS(self.status) if known and self.status is not None else None

    def __str__(self) -> str:
        if self.status is None:
            return "was lost: the process that kept watch over it was killed"
        if self.code is not None:
            return f"ended with exit code {self.code}"
        number = os.WTERMSIG(self.status)
        why = " (perhaps it was out of memory)" if number == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(number).name}{why}"


class ProcessTree:
    """Starts the first process when it is made. `output`: a descriptor for its output, or None for our own."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        clock: Clock,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        output: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.pid: int | None = None
        self.ended = Ended(None)
        self._over = Latch()
        self._said = b""
        self._nudging: asyncio.TimerHandle | None = None
        self._mark = uuid.uuid4().hex
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._control, theirs = socket.socketpair()
        with theirs:
            try:
                self._keeper = self._start(theirs.fileno(), argv, cwd, env, output, pass_fds)
            except BaseException:
                self._control.close()
                raise
        self._control.setblocking(False)
        self._loop.add_reader(self._control, self._heard)
        self._outside: Outside = clock.outside(name)

    def _start(
        self,
        control: int,
        argv: Sequence[str],
        cwd: Path | None,
        env: Mapping[str, str] | None,
        output: int | None,
        pass_fds: Sequence[int],
    ) -> subprocess.Popen[bytes]:
        # subprocess forks and executes in C, which is safe even in a program with threads.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", _KEEPER, str(control), *argv],
            cwd=cwd,
            env={**(os.environ if env is None else env), MARK: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(control, *pass_fds),
            start_new_session=True,
        )

    def terminate(self) -> None:
        """Ask all of them to end."""
        self._outside.flagged()
        self._say(b"T")

    def kill(self) -> None:
        """Kill all of them. A virtual clock waits for them again: a killed process does end."""
        if not self._over.is_set:
            self._outside.done()
            self._outside = self._clock.outside(self.name)
            self._say(b"K")
            if self._nudging is None:
                self._nudge(_NUDGES)

    def _nudge(self, left: int) -> None:
        """One of the processes may have stopped the keeper, even after it was told to kill: continue it."""
        if left:
            self._nudging = self._loop.call_later(_BETWEEN_NUDGES, self._nudge, left - 1)
        else:
            sweep(self._mark, self._keeper.pid)  # a process that keeps stopping the keeper is not killed by it
        self._keeper.send_signal(signal.SIGCONT)

    async def wait(self) -> Ended:
        """Wait until all of them have ended. Cancellation: they are killed, and waited for, within a second."""
        try:
            await self._over.wait()
        except asyncio.CancelledError:
            self.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    await self._over.wait()  # they are killed, so this is short
            raise
        return self.ended

    def _say(self, word: bytes) -> None:
        with suppress(OSError):  # the keeper and all its processes are gone
            self._control.send(word)

    def _heard(self) -> None:
        try:
            said = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        self._said += said
        for line in self._said.split(b"\n")[:-1]:
            match line.split():
                case [b"S", pid]:
                    self.pid = int(pid)
                case [b"E", status, left]:
                    self.ended = Ended(int(status), int(left))
                case _:
                    pass
        self._said = self._said.rpartition(b"\n")[2]
        if not said:
            self._finish()

    def _finish(self) -> None:
        if self._nudging is not None:
            self._nudging.cancel()
        self._loop.remove_reader(self._control)
        self._control.close()
        self._keeper.wait()  # its last descriptor is closed: it has exited and only needs reaping
        if self.ended.status is None:
            killed = sweep(self._mark)
            _log.warning("the keeper of %s was killed; %d processes were found by their mark", self.name, killed)
        elif sys.platform != "linux" and (away := marked(self._mark)):
            _log.warning("%s has detached processes that still run: %s", self.name, away)
        elif self.ended.left:
            _log.info("%s left %d processes behind; they were ended", self.name, self.ended.left)
        self._over.set()
        self._outside.done()
