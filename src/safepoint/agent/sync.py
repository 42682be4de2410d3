"""A run for programs without an event loop, and what Ctrl-C means there.

The first Ctrl-C asks the run to stop NOW; it closes itself within its ladder and `CtrlC` is raised, with the result. A
second one is FORCE. A third one is raised where the program stands: nothing else interrupts a tool that never yields.
Safepoint's handler is installed only during the wait, only in the main thread, and only if SIGINT has Python's default
handler. A program's own handler stays, and so does an ignored SIGINT, which a shell sets for commands started with `&`.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from safepoint._core.ladder import Ladder
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.supervisor import wind_down
from safepoint.agent.result import OutT, RunResult
from safepoint.agent.run import Run
from safepoint.errors import CtrlC, UsageError
from safepoint.tools.context import DepsT


def refuse_loop(form: str, instead: str) -> None:
    """Refuse a program that has a running loop: a second loop would block it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(f"{form} inside a running event loop (as in Jupyter): write `{instead}`")


def run_sync(run: Run[DepsT, OutT]) -> RunResult[OutT]:
    """Start the run on a loop of its own and wait for its end. Tasks left on that loop do not delay the return."""
    presses = Presses(run)

    async def main() -> None:
        run.launch()
        presses.govern()
        await run.join()  # on a loop of our own: Ctrl-C is the only caller

    loop = asyncio.new_event_loop()
    try:
        with presses.heard():
            loop.run_until_complete(main())
    except KeyboardInterrupt:
        if not run.node.started or not presses.count:
            raise
    finally:
        end_loop(loop, run.ladder)
    if presses.count:
        raise CtrlC(run.result)
    return run.result


def end_loop(loop: asyncio.AbstractEventLoop, ladder: Ladder) -> None:
    """End the tasks that are left on a loop of our own, within the ladder, and close it."""
    try:
        loop.run_until_complete(wind_down(ladder))
    finally:
        loop.close()


class Presses:
    """Counts presses of Ctrl-C. The handler runs between any two steps of the main thread, so it takes no lock."""

    def __init__(self, run: Run[Any, Any]) -> None:  # Any: of any agent
        self.count = 0
        self._run = run
        self._governs = False

    @property
    def insist(self) -> bool:
        """Whether NOW and FORCE were both too slow: the next press returns control to the program."""
        return self.count > 2

    def govern(self) -> None:
        """The run has started: from now on presses ask it to stop, including earlier ones."""
        self._governs = True
        if self.count:
            self._ask()

    @contextmanager
    def heard(self) -> Generator[None]:
        """Handle Ctrl-C inside this block."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.default_int_handler:
            yield  # the program has its own handler for Ctrl-C
            return
        signal.signal(signal.SIGINT, self._press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _press(self, _signal: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.insist:
            raise KeyboardInterrupt
        if self._governs:
            self._ask()

    def _ask(self) -> None:
        at = SafePoint.NOW if self.count == 1 else SafePoint.FORCE
        self._run.node.cancel(at, reason=Reason("Ctrl-C", Source.CALLER))
