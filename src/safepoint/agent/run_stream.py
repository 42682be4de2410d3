"""A run as an async iterator that cannot leak: closed, left early or dropped, its run is stopped or detached."""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import Generic, Literal

from safepoint._core.reasons import Reason, Source
from safepoint.agent.event_hub import EventReader
from safepoint.agent.events import Event
from safepoint.agent.result import OutT
from safepoint.agent.run import Run
from safepoint.errors import UsageError
from safepoint.tools.context import DepsT


def check_on_close(on_close: str) -> None:
    if on_close not in ("cancel", "detach"):
        raise ValueError(f"on_close={on_close!r}: write 'cancel' or 'detach'")


class RunStream(Generic[DepsT, OutT]):
    """`async for event in agent.stream(…)`; reading the first event starts the run. `run` is its handle.

    Leaving early: with "cancel" the run is stopped, and `async with` or `aclose()` waits for that; with "detach" it
    continues by itself. A stream that is simply dropped does the same, without a wait. If it is left before its first
    event, the run never starts.
    """

    def __init__(self, run: Run[DepsT, OutT], on_close: Literal["cancel", "detach"], *, nested: bool) -> None:
        self.run = run
        self._nested = nested
        self.run.discard()  # the stream itself warns if it is never read
        self._closed = False
        # Whether the caller read an event, even if the run was refused then.
        self._tried = False
        self._on_close = on_close
        self._reader: EventReader | None = None

    def __aiter__(self) -> RunStream[DepsT, OutT]:
        return self

    async def __anext__(self) -> Event:
        """The next event; ends when no work of the run is left.

        Cancellation: with "cancel" the run is stopped NOW and closes itself before the exception is raised.
        """
        if self._closed and self._reader is None:
            raise StopAsyncIteration
        if self._reader is None:
            self._tried = True
            self._reader = self.run.events(nested=self._nested)
            self.run.launch_eagerly()
        try:
            return await anext(self._reader)
        except StopAsyncIteration:
            await self.run.join()
            raise
        except UsageError:
            raise  # raised for a second reader: the first one continues
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Leave the stream. Cancellation: deferred until the run has closed itself, then raised."""
        self._closed = True
        if self._reader is None:
            return
        self._reader.detach()
        if self._on_close == "cancel":
            if not self.run.ended:
                self._ask()
            await self.run.join()  # hooks of an ended run may still be running

    async def __aenter__(self) -> RunStream[DepsT, OutT]:
        """Enter the stream; the run starts with the first event. Never waits. Cancellation: no run was started."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As `aclose`. Cancellation: as for `aclose`."""
        await self.aclose()

    def _ask(self) -> None:
        self.run.node.cancel(reason=Reason("its stream was closed", Source.DISCONNECT))

    def __del__(self) -> None:
        if not self._closed and not self._tried:
            name = self.run.agent.name
            message = f"agent.stream(…) of {name!r} was never read: write `async for event in agent.stream(…):`"
            warnings.warn(message, RuntimeWarning, stacklevel=2, source=self)
        if self._reader is not None and self._on_close == "cancel" and not self.run.ended:
            self._ask()
