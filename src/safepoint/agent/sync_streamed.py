"""A run as a plain iterator of events, for programs without an event loop.

    NEW ──the first event is read──▶ LIVE ──its last event was read, or it was left──▶ CLOSED
     └──left before that: it never starts─────────────────────────────────────────────────▲

The run lives on a loop in a thread of its own. So it continues, and can be stopped, while the program does other work
between two events; a slow program gets its text in larger pieces, as every slow reader does.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from concurrent.futures import Future
from contextvars import copy_context
from enum import StrEnum
from types import TracebackType
from typing import Any, Generic

from safepoint._core.reasons import Reason, Source
from safepoint.agent.event_hub import EventReader
from safepoint.agent.events import Event
from safepoint.agent.result import OutT
from safepoint.agent.run import Run
from safepoint.agent.sync import Presses, end_loop
from safepoint.errors import CtrlC
from safepoint.tools.context import DepsT

_log = logging.getLogger("safepoint")


class StreamState(StrEnum):
    NEW = "new"
    LIVE = "live"
    CLOSED = "closed"


class SyncStreamed(Generic[DepsT, OutT]):
    """`with agent.stream_sync(…) as events: for event in events:`. The first event starts the run; `run` is its handle.

    Leaving early stops the run, and `with` or `close()` waits for that. Ctrl-C during the wait for the next event stops
    the run; the remaining events still arrive, and `CtrlC` is raised after the last one. Anywhere else Ctrl-C belongs
    to the program, and leaves the block like any other exception.
    """

    def __init__(self, run: Run[DepsT, OutT], *, nested: bool) -> None:
        self.run = run
        self.run.discard()  # the stream itself warns if it is never read
        self._state = StreamState.NEW
        self._presses = Presses(run)
        self._life = _Life(run, nested=nested)

    def __iter__(self) -> SyncStreamed[DepsT, OutT]:
        return self

    def __next__(self) -> Event:
        """The next event; after the last one, no work of the run is left."""
        with self._presses.heard():
            if self._state is StreamState.NEW:
                self._state = StreamState.CLOSED  # stays so if the start is refused
                self._life.begin()
                self._state = StreamState.LIVE
                self._presses.govern()
            event = self._life.next() if self._state is StreamState.LIVE else None
            if event is not None:
                return event
        self.close()
        if self._presses.count:
            raise CtrlC(self.run.result)
        raise StopIteration

    def close(self) -> None:
        """Leave the stream: stop the run, if it has not ended, and wait for that within its ladder."""
        before, self._state = self._state, StreamState.CLOSED
        if before is StreamState.LIVE and self._presses.insist:
            self._life.leave()  # the loop is blocked, and the user pressed Ctrl-C again
        elif before is StreamState.LIVE:
            with self._presses.heard():
                self._life.end()

    def __enter__(self) -> SyncStreamed[DepsT, OutT]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._state is StreamState.NEW:
            name = self.run.agent.name
            message = f"agent.stream_sync(…) of {name!r} was never read: write `for event in agent.stream_sync(…):`"
            warnings.warn(message, RuntimeWarning, stacklevel=2, source=self)
        elif self._state is StreamState.LIVE:
            self._life.leave()


class _Life:
    """The thread, its loop, and the run on it."""

    def __init__(self, run: Run[Any, Any], *, nested: bool) -> None:  # Any: of any agent
        self._run = run
        self._nested = nested
        self._place: Future[tuple[asyncio.AbstractEventLoop, EventReader, asyncio.Event]] = Future()
        self._over: Future[None] = Future()

    def begin(self) -> None:
        """Start the run. Raises the errors of the start."""
        body, name = copy_context(), f"stream of {self._run.agent.name}"
        threading.Thread(target=body.run, args=(self._serve,), name=name, daemon=True).start()
        self._place.result()

    def next(self) -> Event | None:
        """The next event; None after the last one."""
        loop, reader, _ = self._place.result()
        return asyncio.run_coroutine_threadsafe(_next(reader), loop).result()

    def leave(self) -> None:
        """Stop the run if it still runs, and have its loop ended. Never waits."""
        loop, _, left = self._place.result()
        if not self._run.ended:
            self._run.node.cancel(reason=Reason("its stream was closed", Source.DISCONNECT))
        loop.call_soon_threadsafe(left.set)

    def end(self) -> None:
        """As `leave`, and wait; raises a tool's KeyboardInterrupt."""
        self.leave()
        ladder = self._run.ladder
        try:  # the run closes itself within the cap, and so do the tasks it left on the loop
            self._over.result(timeout=2 * ladder.cap + ladder.task)
        except TimeoutError:
            _log.warning("%s does not end: something blocks its event loop", self._run.node.path)

    def _serve(self) -> None:
        loop = asyncio.new_event_loop()
        error: BaseException | None = None
        try:
            loop.run_until_complete(self._live(loop))
        except BaseException as raised:  # every exception belongs to the thread that reads
            error = raised
        finally:
            end_loop(loop, self._run.ladder)
        if not self._place.done():
            self._place.set_exception(error or RuntimeError("the run did not start"))
        elif error is not None:
            self._over.set_exception(error)
        else:
            self._over.set_result(None)

    async def _live(self, loop: asyncio.AbstractEventLoop) -> None:
        """The body of the thread's loop."""
        left = asyncio.Event()
        self._run.launch()
        self._place.set_result((loop, self._run.events(nested=self._nested), left))
        try:
            await self._run.join()  # on a loop of our own, which has no caller to cancel it
        finally:
            await left.wait()  # until then the reader may fetch the last events


async def _next(reader: EventReader) -> Event | None:
    return await anext(reader, None)
