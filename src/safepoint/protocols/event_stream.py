"""A feed as server-sent events, for any protocol: a plain ASGI answer, with at most one task beside the request's own.

It has no queue. The request's task writes what its viewer can take and waits for more; the other waits for the client
to leave, and then makes the viewer leave. So a viewer is left in one place, however and whenever its client goes. A
client that reads nothing for a while is dropped: it can come back by the last id it has seen.

(sse-starlette's `EventSourceResponse` has four tasks and a poller for each stream, and cost three times as much; and it
takes a generator, which never gets to its `finally` if the client leaves before it was started.)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from fastapi.responses import Response
from starlette.types import Message, Receive, Scope, Send

from safepoint.protocols.http import Access, access_of
from safepoint.serving.config import ServingConfig
from safepoint.serving.events import Failure
from safepoint.serving.feed import Encoder, Feed, Frame, Viewer

_log = logging.getLogger("safepoint.server")

STREAM_HEADERS: Mapping[str, str] = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}
_PIECE = 65_536  # what is given to a socket at once: all that a stalled reader can hold
_KEEP_ALIVE = b": keep-alive\n\n"
_GOODBYE = 1.0
_LAST_WORDS = 0.25
_A_MOMENT = 0.05


class StreamEncoder(Protocol):
    """How one stream is written: text that is sent as it is. It may remember what its client has been told."""

    def opening(self) -> str:
        """What comes before the first frame."""
        ...

    def frame(self, frame: Frame) -> str: ...

    async def ending(self, feed: Feed, failure: Failure | None) -> str:
        """What comes last. `feed`: the feed that was read to its end; it is still open if the client was refused.

        Cancellation: that of the request.
        """
        ...


@dataclass(frozen=True, slots=True)
class Wire:
    """A `StreamEncoder` without memory, for a protocol in which each event is a frame, encoded once for all viewers."""

    event: Encoder
    failure: Callable[[Failure], str]

    def opening(self) -> str:
        return ""

    def frame(self, frame: Frame) -> str:
        return f"id: {frame.seq}\ndata: {frame.encoded(self.event)}\n\n"

    async def ending(self, feed: Feed, failure: Failure | None) -> str:
        """Cancellation: nothing is sent."""
        return "" if failure is None else f"data: {self.failure(failure)}\n\n"


class EventStream(Response):
    """The events of a feed after the first `after` whole ones, until it is closed. `wire`: how they are written."""

    media_type = "text/event-stream"

    def __init__(
        self,
        feed: Feed,
        wire: StreamEncoder,
        config: ServingConfig,
        *,
        run_id: str,
        after: int = 0,
        partials: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers={**STREAM_HEADERS, "Safepoint-Run": run_id, **(headers or {})})
        del self.headers["content-length"]
        self._feed, self._after, self._partials = feed, after, partials
        self._wire = wire
        self._config = config
        # How long the client may take to read what it is sent, and the clock of what it is being sent.
        self._stalled = config.stalled_seconds
        self._patience: asyncio.Timeout | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Cancellation: the viewer leaves; what that means for the run is its policy."""
        with self._feed.view(self._after, partials=self._partials) as viewer:
            access = access_of(scope)
            access.when_refused(partial(self._cut_off, viewer))
            watch = _Watch(receive, viewer)
            try:
                await self._tell(viewer, access, send)
            except TimeoutError:
                _log.warning("a viewer read nothing for %g s and was dropped", self._stalled)
            except OSError:
                pass  # it left in this very moment
            finally:
                await watch.end()

    def _cut_off(self, viewer: Viewer) -> None:
        """Its caller may not be here any more: nothing waits for what comes, nor long for a client to take it."""
        self._stalled = _LAST_WORDS
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time() + self._stalled)
        viewer.wake()

    async def _tell(self, viewer: Viewer, access: Access, send: Send) -> None:
        """Raises `TimeoutError` if the client reads nothing. Cancellation: a frame may be cut short."""
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._write(send, self._wire.opening().encode())
        while not viewer.gone and access.check() is None:
            if data := self._ready(viewer):
                await self._write(send, data)
            elif viewer.over:
                break
            else:
                try:
                    async with asyncio.timeout(self._config.keep_alive_seconds):
                        await viewer.wait()
                except TimeoutError:
                    await self._write(send, _KEEP_ALIVE)
        failure = viewer.feed.failure
        if access.refusal is not None:
            failure = Failure("Unauthorized", access.refusal.text, time.time())
        if not viewer.gone:
            await self._write(send, (await self._wire.ending(viewer.feed, failure)).encode())
        await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    def _ready(self, viewer: Viewer) -> bytes:
        """The frames that are ready, up to the size of one piece; a single larger frame is sent whole.

        A remark about the viewer comes first, as a comment of the stream.
        """
        found, size = list[str](), 0
        if (remark := viewer.remark()) is not None:
            found.append(f": {remark}\n\n")
        while size < _PIECE and (frame := viewer.take()) is not None:
            found.append(text := self._wire.frame(frame))
            size += len(text)
        return "".join(found).encode()

    async def _write(self, send: Send, data: bytes) -> None:
        """Each piece is given to the socket when that has taken the one before. Cancellation: the rest is not sent."""
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            await self._send(send, {"type": "http.response.body", "body": piece, "more_body": True})

    async def _send(self, send: Send, message: Message) -> None:
        async with asyncio.timeout(self._stalled) as self._patience:
            await send(message)
        self._patience = None


class _Watch:
    """Makes the viewer leave when its client has left. A stream that is over in a moment costs no task for that."""

    def __init__(self, receive: Receive, viewer: Viewer) -> None:
        self._receive = receive
        self._viewer = viewer
        self._task: asyncio.Task[None] | None = None
        self._later = asyncio.get_running_loop().call_later(_A_MOMENT, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="safepoint: watch for a client that leaves")

    async def _watch(self) -> None:
        """Cancellation: only the waiting ends."""
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        finally:
            self._viewer.leave()

    async def end(self) -> None:
        """Bounded. Cancellation: the task has been cancelled."""
        self._later.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_GOODBYE)
