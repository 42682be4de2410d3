"""One connection below the app: uvicorn's, with a bound on how long and how large the head of a request may be.

uvicorn waits for ever for a client that sends half a request, and answers 400 to whatever it can't read, also where
the answer has begun. Both end here: a request that is not whole after `request_seconds` is refused, and a connection
that breaks the protocol is closed without harm to the answer under way.
"""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus
from typing import Any, ClassVar

import h11
from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from safepoint.server.config import Limits

_PIECE = 1024
_A_MOMENT = 0.001
_BAD_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Connection(H11Protocol):
    """`request_seconds`: from the first byte to the last of one request, and for the first byte of a connection."""

    request_seconds: ClassVar[float] = 30.0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # The next request may be here already, in part.
        if self.conn.their_state is h11.SEND_BODY:
            self._arm()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._disarm()
        limit = self.config.h11_max_incomplete_event_size
        size = len(event.target) + sum(len(name) + len(value) + 4 for name, value in event.headers)
        if limit is not None and size > limit:
            self._refuse(431, f"the head of a request may have {limit} bytes")
        else:
            super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it where it has caught the error, which knows the better status."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self._refuse(status, msg)

    def _watch(self) -> None:
        """A request that is here in part has a deadline."""
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._arm()
        else:
            self._disarm()

    def _arm(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.request_seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self._refuse(408, f"a request must be sent within {self.request_seconds:g} seconds")

    def _refuse(self, status: int, text: str) -> None:
        """Say so, if no answer has begun, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = text.encode("ascii", "replace")
            headers = [
                (b"content-type", b"text/plain; charset=utf-8"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            reason = HTTPStatus(status).phrase.encode()
            for event in (h11.Response(status_code=status, headers=headers, reason=reason), h11.Data(data=body)):
                self.transport.write(self.conn.send(event) or b"")
        cycle: RequestResponseCycle | None = getattr(self, "cycle", None)  # None before the first request
        if cycle is not None and not cycle.response_complete:
            # The app must not try to answer the request any more.
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()


class Socket(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket. What can't be read ends it, without a word in the log.

    uvicorn blames the app if it says something after that; here it is told that its client has gone.
    """

    _broken = False
    # What has come and is not read yet, and from where on. While there is any, no more is taken from the network.
    _unread = b""
    _at = 0
    _turn: asyncio.Handle | None = None

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated:
            self._unread, self._at = self._unread[self._at :] + data, 0
            self._read()
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(_BAD_HANDSHAKE)
            self.transport.close()

    def _read(self) -> None:
        """Read for a moment, or up to the next messages for the app; then it is the turn of other connections.

        What comes from the network at once may be tens of thousands of frames.
        """
        self._turn = None
        until = self.loop.time() + _A_MOMENT
        while self._at < len(self._unread) and not (self.read_paused or self._broken) and self.loop.time() < until:
            piece, self._at = self._unread[self._at : self._at + _PIECE], self._at + _PIECE
            super().data_received(piece)
        if self._at >= len(self._unread) or self._broken:
            self._unread, self._at = b"", 0
            if not self.read_paused:
                self.transport.resume_reading()
        self._read_on()

    def _read_on(self) -> None:
        """uvicorn takes more from the network once the app has taken all messages: first comes what is here."""
        if self._unread and not self.read_paused and self._turn is None:
            self.transport.pause_reading()
            self._turn = self.loop.call_soon(self._read)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unread, self._at = b"", 0
        super().connection_lost(exc)

    async def receive(self) -> ASGIReceiveEvent:
        """Cancellation: as uvicorn's."""
        message = await super().receive()
        self._read_on()
        return message

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:  # its client reads nothing; the answer to a later ping is enough (RFC 6455, 5.5.3)
            self.conn.data_to_send()

    def handle_parser_exception(self) -> None:
        self._broken = True
        super().handle_parser_exception()

    def keepalive_timeout(self) -> None:
        self._broken = True
        super().keepalive_timeout()

    async def send(self, message: ASGISendEvent) -> None:
        """Cancellation: as uvicorn's."""
        if self._broken:
            raise ClientDisconnected
        await super().send(message)
        self._read_on()

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not _is_text(b"".join(self.frames)):
            self.frames = []
            self.conn.send_close(1007, "a text frame must be UTF-8")
            self.handle_parser_exception()
            return
        super().send_receive_event_to_app()


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def wire_options(limits: Limits) -> dict[str, Any]:  # Any: as uvicorn declares its options
    """What uvicorn is told about sockets. Forwarding headers are ignored: any client can write them."""
    return {
        "http": type("BoundedConnection", (Connection,), {"request_seconds": limits.request_seconds}),
        "ws": Socket,
        "ws_max_size": limits.body_bytes,
        "h11_max_incomplete_event_size": limits.header_bytes,
        "proxy_headers": False,
        "server_header": False,
    }
