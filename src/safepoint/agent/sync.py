"""A run for programs without an event loop, and what Ctrl-C means there.

The first Ctrl-C asks the run to stop NOW; it closes itself within its ladder and `CtrlC` is raised, with the result. A
second one is FORCE. A third one is raised right where the program is: a tool that never yields hears nothing else.
The handler is ours only while we wait, only in the main thread, and only if SIGINT has Python's default handler: the
program's own stays, and so does an ignored SIGINT, with which `&` in a script starts its commands.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

from safepoint._core.ladder import Ladder
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.supervisor import wind_down
from safepoint.agent.result import OutT, RunResult
from safepoint.agent.run import Run
from safepoint.errors import CtrlC, UsageError
from safepoint.tools.context import DepsT


def run_sync(make: Callable[[], Run[DepsT, OutT]], ladder: Ladder) -> RunResult[OutT]:
    """Start the run on a loop of its own and wait for its end. What the run leaves on the loop holds nobody."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise UsageError("run_sync() inside a running event loop (as in Jupyter): write `await agent.run(…)`")
    presses = _Presses()
    started: list[Run[DepsT, OutT]] = []

    async def main() -> None:
        run = make()
        run.launch()
        started.append(run)
        presses.govern(run.cancel)
        await run.join()  # on a loop of our own: Ctrl-C is the only caller

    loop = asyncio.new_event_loop()
    try:
        with _ctrl_c(presses):
            loop.run_until_complete(main())
    except KeyboardInterrupt:
        if not started or not presses.count:
            raise
    finally:
        try:
            loop.run_until_complete(wind_down(ladder))
        finally:
            loop.close()
    result = started[0].result
    if presses.count:
        raise CtrlC(result)
    return result


class _Presses:
    """How often Ctrl-C was pressed. The handler runs between any two steps of the main thread: it takes no lock."""

    def __init__(self) -> None:
        self.count = 0
        self._cancel: Callable[..., object] | None = None

    def govern(self, cancel: Callable[..., object]) -> None:
        self._cancel = cancel
        if self.count:
            self._ask()

    def press(self, _signal: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 2:
            raise KeyboardInterrupt
        if self._cancel is not None:
            self._ask()

    def _ask(self) -> None:
        assert self._cancel is not None
        at = SafePoint.NOW if self.count == 1 else SafePoint.FORCE
        self._cancel(at, reason=Reason("Ctrl-C", Source.CALLER))


@contextmanager
def _ctrl_c(presses: _Presses) -> Generator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield  # somebody has plans of their own for Ctrl-C
        return
    signal.signal(signal.SIGINT, presses.press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
