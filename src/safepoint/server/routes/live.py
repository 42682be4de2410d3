"""Talk to an agent over one WebSocket: messages in, events out, any number of runs after each other.

The socket is a viewer of the runs that it starts, like any other: no queue, no scope of theirs. The request's own task
writes; one beside it reads, always, so a client that leaves is noticed. Runs are not the socket's: whichever way it
ends, the policy of each decides, and their history is closed by themselves.

    open ──close frame──▶ 1000        open ──client leaves, or reads nothing──▶ gone
      ├──the server drains, and its last run has been told──▶ 1012
      ├──its caller may not be here any more, or it sends too much──▶ 1008
      └──its session is deleted──▶ 1002        └──a fault of ours──▶ 1011

Other clients wait while a frame is read, so the loop is given back after each, and there is a limit to how many come.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Annotated

from fastapi import APIRouter, Query, WebSocket, WebSocketDisconnect

from safepoint.errors import HistoryError, SafepointError, SessionBusy, SessionNotFound, StoreError
from safepoint.protocols.adk.events import encode_live
from safepoint.protocols.adk.live_frames import (
    BadFrame,
    FrameLimits,
    Intake,
    LiveQuery,
    LiveRequest,
    error_frame,
    read_frame,
)
from safepoint.protocols.adk.requests import Content, RunRequest, SaidPart, refused
from safepoint.protocols.http import Manager, Who, access_of
from safepoint.serving.feed import Viewer
from safepoint.serving.ids import BadId, SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import NotFound, Principal
from safepoint.serving.run_manager import Draining, NoSuchApp, RunManager, TooMany
from safepoint.serving.submission import NothingToAnswer

_log = logging.getLogger("safepoint.server")

_GOODBYE = 1.0
_LAST_WORDS = 0.25
_REFUSED = 1008  # RFC 6455: a message that violates the policy. What is still to be told is not told.

# What a message can meet, and the code of the error frame that says so. The first that fits is taken.
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (SessionBusy, "SESSION_BUSY"),
    (Draining, "DRAINING"),
    (TooMany, "TOO_MANY"),
    (StoreError, "UNAVAILABLE"),
    (HistoryError, "BAD_REQUEST"),
    (SafepointError, "BAD_REQUEST"),
    (ValueError, "BAD_REQUEST"),
)

routes = APIRouter()


@routes.websocket("/run_live")
async def run_live(socket: WebSocket, manager: Manager, who: Who, query: Annotated[LiveQuery, Query()]) -> None:
    """Cancellation: as if the client had left."""
    await socket.accept()
    try:
        app = query.app_name or manager.config.default_app
        if app is None:
            raise NoSuchApp("app_name is required")
        manager.agent(app)
        key = who.session(app, query.user_id, query.session_id)
        if query.refusal is not None:
            await socket.send_text(error_frame("UNSUPPORTED", query.refusal, app))
            await socket.close(1008, query.refusal)
            return
        await manager.dispatcher(key)
    except (BadId, NoSuchApp) as error:
        await socket.close(1008, short(str(error)))
    except (NotFound, SessionNotFound):
        await socket.close(1002, "Session not found")
    except WebSocketDisconnect:
        pass
    else:
        await LiveSocket(socket, manager, who, key, query).serve()


def short(reason: str) -> str:
    """What fits into a close frame."""
    return reason.encode()[:123].decode(errors="ignore")


class LiveSocket:
    """One socket, from accepted to closed."""

    def __init__(
        self, socket: WebSocket, manager: RunManager, who: Principal, key: SessionKey, query: LiveQuery
    ) -> None:
        self._socket = socket
        self._manager = manager
        self._who = who
        self._key = key
        self._query = query
        self._woken = asyncio.Event()
        self._limits: FrameLimits = socket.app.state.config.limits
        self._watched: list[tuple[ManagedRun, Viewer]] = []
        # A message that comes in several frames, and how much of it is there.
        self._parts: list[SaidPart] = []
        self._size = 0
        # A message that is being accepted is accepted, whatever becomes of the socket.
        self._accepting: asyncio.Task[None] | None = None
        self._ended: tuple[int, str] | None = None
        self._intake = Intake(self._limits, time.monotonic)
        self._access = access_of(socket.scope)
        # How long the client may take to read what it is sent, and the clocks of what it is being sent.
        self._stalled = manager.config.stalled_seconds
        self._sending: set[asyncio.Timeout] = set()

    async def serve(self) -> None:
        """Cancellation: as if the client had left."""
        reading = asyncio.create_task(self._read(), name=f"safepoint: read {self._key.stored_as}")
        reading.add_done_callback(lambda _: self._woken.set())
        self._access.when_refused(self._cut_off)
        try:
            await self._write(reading)
            if self._ended is not None:
                async with asyncio.timeout(_GOODBYE):
                    await self._socket.close(self._ended[0], short(self._ended[1]))
        except WebSocketDisconnect:
            pass
        except TimeoutError:
            _log.warning("a live client read nothing for %g s and was dropped", self._stalled)
        finally:
            self._ended = self._ended or (1006, "")
            for _, viewer in self._watched:
                viewer.leave()
            reading.cancel()
            await asyncio.wait({reading, *([self._accepting] if self._accepting else [])}, timeout=_GOODBYE)

    def _cut_off(self) -> None:
        """Its caller may not be here any more: it is told nothing else, and not waited for long."""
        refusal = self._access.refusal
        assert refusal is not None
        self._ended = (_REFUSED, refusal.text)
        self._stalled = _LAST_WORDS
        for each in self._sending:
            each.reschedule(asyncio.get_running_loop().time() + self._stalled)
        self._woken.set()

    # -- out -----------------------------------------------------------------------------------------------------------

    async def _write(self, reading: asyncio.Task[None]) -> None:
        """Until it is to be closed, or has been. Cancellation: a frame may not be sent."""
        while True:
            self._woken.clear()
            self._access.check()
            text = None if self._ended is not None and self._ended[0] == _REFUSED else self._next()
            if text is not None:
                await self._send(text)
            elif self._ended is not None or reading.done():
                return
            elif self._manager.draining and not self._watched:
                self._ended = (1012, "the server is shutting down")
            else:
                await self._woken.wait()

    def _next(self) -> str | None:
        """The next frame of any of its runs; those that are over are let go."""
        for managed, viewer in list(self._watched):
            frame = viewer.take()
            if frame is not None:
                return frame.encoded(encode_live)
            # A message that has joined a run is told there, and once is enough.
            twin = any(other.feed is viewer.feed for _, other in self._watched if other is not viewer)
            if viewer.over or (twin and viewer.feed is not managed.feed):
                self._watched.remove((managed, viewer))
                viewer.leave()
                if managed.refused is not None:
                    return self._error(managed.refused)
        return None

    async def _send(self, text: str) -> None:
        """Raises `WebSocketDisconnect`, and `TimeoutError` if the client reads nothing. Cancellation: sent or not."""
        async with asyncio.timeout(self._stalled) as clock:
            self._sending.add(clock)
            try:
                await self._socket.send_text(text)
            finally:
                self._sending.discard(clock)

    def _error(self, error: Exception) -> str:
        code = next(code for kind, code in _CODES if isinstance(error, kind))
        return error_frame(error.code if isinstance(error, BadFrame) else code, str(error), self._key.app)

    # -- in ------------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Until the client has left or wants to. Cancellation: a message that is being accepted is accepted."""
        try:
            while True:
                message = await self._socket.receive()
                if message["type"] == "websocket.disconnect" or self._access.check() is not None:
                    return
                if (too_many := self._intake.message()) is not None:
                    self._ended = (_REFUSED, too_many)
                else:
                    await self._hear(message.get("text"))
                if self._ended is not None:
                    return
                await asyncio.sleep(0)  # frames that are here already are taken without waiting for anything
        except (WebSocketDisconnect, TimeoutError):
            return
        except Exception:
            _log.exception("the live socket of %s failed", self._key.stored_as)
            self._ended = (1011, "Internal error")

    async def _hear(self, text: str | None) -> None:
        """Cancellation: a message that is being accepted is accepted."""
        try:
            await self._take(read_frame(text, self._limits), size=len(text or ""))
        except SessionNotFound:
            self._ended = (1002, "Session not found")
        except (SafepointError, ValueError) as error:
            too_many = self._intake.bad_frame() if isinstance(error, BadFrame) else None
            if too_many is not None:
                self._ended = (_REFUSED, too_many)
            else:
                await self._send(self._error(error))

    async def _take(self, request: LiveRequest, *, size: int) -> None:
        """Cancellation: a message that is being accepted is accepted."""
        if request.content is not None:
            self._parts += request.content.parts
            self._size += size
            limit = self._limits.body_bytes
            if self._size > limit:
                self._parts, self._size = [], 0
                raise BadFrame("BAD_FRAME", f"a message may have {limit} bytes in all its frames: begin it again")
        if request.content is not None and not request.partial:
            content, self._parts, self._size = Content(role="user", parts=self._parts), [], 0
            self._accepting = asyncio.create_task(self._start(content, request), name="safepoint: accept")
            await asyncio.shield(self._accepting)
        elif request.state_delta:
            await self._manager.patch(self._key, request.state_delta)
        if request.close:
            self._ended = (1000, "")

    async def _start(self, content: Content, request: LiveRequest) -> None:
        """It is never cancelled; the storage bounds how long it takes."""
        run = RunRequest(
            app_name=self._key.app,
            user_id=self._key.user,
            session_id=self._key.session,
            new_message=content,
            streaming=True,
            state_delta=request.state_delta,
            on_disconnect=self._query.policy,
            if_busy=self._query.if_busy,
        )
        try:
            managed = await self._manager.submit(self._who, self._key, run.submission())
        except NothingToAnswer as error:
            raise refused(error, None) from error
        assert isinstance(managed, ManagedRun), "without an idempotency key nothing is repeated"
        viewer = managed.feed.view(several=self._woken)
        self._woken.set()
        if self._ended is None:
            self._watched.append((managed, viewer))
        else:
            viewer.leave()
