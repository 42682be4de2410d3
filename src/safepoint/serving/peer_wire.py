"""What two processes of a cluster say to each other about one run, as the relayed viewers of the one need it.

    owner   ─ Greeting ─────────────▶  asker     a nonce
            ◀───────── WatchRequest ─            which run, from where on, and a proof for that nonce
            ─ WatchAnswer ──────────▶            a proof for the asker's nonce; or a WatchRefusal
            ─ FeedHeader ───────────▶            whose events these are
            ─ EventFrame, … ────────▶            frames of the feed, each with where the viewer is after it
            ─ Beat ─▶     ◀─ Beat ─              while there is nothing to tell; silence means that the link is lost
            ─ FeedEnd, FeedSwitch ──▶            no more will come; or what comes is told by another run
            ◀────────────── Goodbye ─            the asker has no viewer any more

A proof is an HMAC with the token of the owner, which stands in its row of the storage: so the token itself is never
sent, and what was overheard cannot be said again. Each message is a length and so much JSON. Whoever has proved nothing
yet may send a few hundred bytes and no more.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from typing import TypeAlias

from safepoint._values import Value
from safepoint.errors import SafepointError
from safepoint.history.json_codec import Codec
from safepoint.serving.events import Failure, MessageEvent, PartialText, ToolOutput, Turn
from safepoint.serving.feed import Cursor, Frame, Viewer

VERSION = 1
MOST = 64 << 20
MOST_UNPROVED = 4096
_LENGTH = 4
_MOST_REMEMBERED = 256

_log = logging.getLogger("safepoint.server")


class BadPeer(SafepointError):
    """The other end is no process of this cluster, or says what it must not. `more` differs from time to time."""

    def __init__(self, kind: str, more: object = "") -> None:
        super().__init__(f"{kind}{more}")
        self.kind = kind


class Greeting(Value, frozen=True, tag_field="kind", tag="greeting"):
    nonce: str
    version: int = VERSION


class WatchRequest(Value, frozen=True, tag_field="kind", tag="watch"):
    """`cursor`: where another link of the same asker has stopped; None from the beginning on."""

    run: str
    nonce: str
    proof: str
    cursor: Cursor | None = None


class WatchAnswer(Value, frozen=True, tag_field="kind", tag="watched"):
    proof: str


class FeedHeader(Value, frozen=True, tag_field="kind", tag="begun"):
    """`first`: the number before the first event of the feed."""

    turn: Turn
    first: int


class WatchRefusal(Value, frozen=True, tag_field="kind", tag="refused"):
    reason: str


class EventFrame(Value, frozen=True, tag_field="kind", tag="told"):
    """`number`: of a viewer that has seen it."""

    cursor: Cursor
    number: int
    event: MessageEvent


class TextFrame(Value, frozen=True, tag_field="kind", tag="words"):
    """A `PartialText`, without its turn."""

    cursor: Cursor
    position: int
    at: float
    text: str
    thought: bool
    speaker: str | None
    step: int

    @staticmethod
    def of(cursor: Cursor, text: PartialText) -> TextFrame:
        return TextFrame(cursor, text.position, text.at, text.text, text.thought, text.speaker, text.step)

    def event(self, turn: Turn) -> PartialText:
        return PartialText(turn, self.position, self.at, self.text, self.thought, self.speaker, self.step)


class OutputFrame(Value, frozen=True, tag_field="kind", tag="output"):
    """A `ToolOutput`, without its turn."""

    cursor: Cursor
    position: int
    at: float
    call_id: str
    tool: str
    text: str
    speaker: str | None
    inner_path: str | None

    @staticmethod
    def of(cursor: Cursor, said: ToolOutput) -> OutputFrame:
        return OutputFrame(
            cursor, said.position, said.at, said.call_id, said.tool, said.text, said.speaker, said.inner_path
        )

    def event(self, turn: Turn) -> ToolOutput:
        return ToolOutput(
            turn, self.position, self.at, self.call_id, self.tool, self.text, self.speaker, self.inner_path
        )


class Beat(Value, frozen=True, tag_field="kind", tag="beat"):
    pass


class FeedEnd(Value, frozen=True, tag_field="kind", tag="closed"):
    failure: Failure | None = None


class FeedSwitch(Value, frozen=True, tag_field="kind", tag="joined"):
    """`cursor`, `number`: where the viewer is in the feed of that run, and its number there."""

    run: str
    cursor: Cursor
    number: int


class Goodbye(Value, frozen=True, tag_field="kind", tag="bye"):
    pass


OwnerMessage: TypeAlias = FeedHeader | EventFrame | TextFrame | OutputFrame | Beat | FeedEnd | FeedSwitch
PeerMessage: TypeAlias = (
    Greeting
    | WatchRequest
    | WatchAnswer
    | WatchRefusal
    | FeedHeader
    | EventFrame
    | TextFrame
    | OutputFrame
    | Beat
    | FeedEnd
    | FeedSwitch
    | Goodbye
)

_MESSAGE: Codec[PeerMessage] = Codec(PeerMessage)
_BEAT = _MESSAGE.encode(Beat())


def as_message(viewer: Viewer, frame: Frame) -> OwnerMessage:
    """A frame that the viewer has just taken."""
    cursor, event = viewer.cursor, frame.event
    if isinstance(event, MessageEvent):
        return EventFrame(cursor, frame.seq, event)
    return TextFrame.of(cursor, event) if isinstance(event, PartialText) else OutputFrame.of(cursor, event)


def feed_switch(viewer: Viewer, run: str) -> FeedSwitch:
    cursor = viewer.cursor
    return FeedSwitch(run, cursor, viewer.feed.number(cursor.whole))


def new_nonce() -> str:
    return secrets.token_hex(16)


def proof(token: str, role: str, nonce: str, run: str) -> str:
    """Of one end, `role`, for the other end's nonce."""
    return hmac.new(token.encode(), f"{role}\n{nonce}\n{run}".encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def is_proof(given: str, token: str, role: str, nonce: str, run: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), proof(token, role, nonce, run).encode())


class RefusalLog:
    """Logs what was wrong with a peer once: one that tries again and again fills no log."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def log(self, who: str, error: BadPeer) -> None:
        kind = who, error.kind
        if kind not in self._logged and len(self._logged) < _MOST_REMEMBERED:
            self._logged.add(kind)
            _log.warning("a peer at %s was refused: %s; that is not told again", who, error)


class Line:
    """One end of a connection. `patience`: how long the other end may say nothing, or read nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, patience: float) -> None:
        self._reader = reader
        self._writer = writer
        self._patience = patience
        self._most = MOST_UNPROVED

    def trust(self) -> None:
        """The other end has proved that it belongs to the cluster: it may send whole messages."""
        self._most = MOST

    async def read(self) -> PeerMessage:
        """Raises `BadPeer`; `OSError`, `EOFError` or `TimeoutError` for a link that is lost. Cancellation: unusable."""
        async with asyncio.timeout(self._patience):
            size = int.from_bytes(await self._reader.readexactly(_LENGTH))
            if size > self._most:
                raise BadPeer(f"it announced a message of more than {self._most} bytes: ", size)
            data = await self._reader.readexactly(size)
        try:
            return _MESSAGE.decode(data)
        except (ValueError, RecursionError) as error:
            raise BadPeer("it sent what is no message: ", str(error)[:200]) from None

    async def send(self, said: PeerMessage) -> None:
        """Raises `OSError`, `TimeoutError`, ValueError for what is too large. Cancellation: unusable."""
        data = _MESSAGE.encode(said) if not isinstance(said, Beat) else _BEAT
        if len(data) > MOST:
            raise ValueError(f"a message of {len(data)} bytes is too large for a link; {MOST} are allowed")
        self._writer.write(len(data).to_bytes(_LENGTH) + data)
        async with asyncio.timeout(self._patience):
            await self._writer.drain()

    def say_last(self, said: PeerMessage) -> None:
        """Send it if that needs no waiting, and close the connection."""
        data = _MESSAGE.encode(said)
        self._writer.write(len(data).to_bytes(_LENGTH) + data)
        self._writer.close()

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        """Now: what is not sent yet is lost, and whoever reads gets an error."""
        self._writer.transport.abort()
