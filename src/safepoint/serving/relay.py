"""The feed of a run that another process has, for the viewers of this one.

There is one relay for each run that is watched here, however many watch it, and it lives as long as they do:

    LINKED ── the link is lost ──▶ STORED ── the owner can be reached ──▶ LINKED
      the owner's frames             what is stored, and a remark that says so
    LINKED, STORED ── the run has another owner ──▶ linked to that one, which may be this process
    LINKED, STORED ── the run is over, or its last viewer has left ──▶ done

All sources tell the same events, and each tells some that another has told: an event is known by its position. The
numbers are the owner's, so a viewer can come back with one at any process. An event of the storage gets the number that
the owner gives it if it tells each event in one form. The owner may have told two forms and be further, never less far:
so a viewer that comes back may be told an event again, and misses none.

When a run is handed over, its old owner tells an end that is none. So an end is held back until the record says that
the run has ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

from safepoint._core.supervisor import Supervisor
from safepoint.errors import StoreError
from safepoint.serving.config import ServingConfig
from safepoint.serving.events import Failure, MessageEvent, Turn
from safepoint.serving.feed import Cursor, Feed, Viewer
from safepoint.serving.managed_run import first_event
from safepoint.serving.peer_server import LOST, TIMING, PeerTiming, id_of
from safepoint.serving.peer_wire import (
    BadPeer,
    Beat,
    EventFrame,
    FeedEnd,
    FeedHeader,
    FeedSwitch,
    Goodbye,
    Greeting,
    Line,
    OutputFrame,
    OwnerMessage,
    RefusalLog,
    TextFrame,
    WatchAnswer,
    WatchRefusal,
    WatchRequest,
    as_message,
    feed_switch,
    is_proof,
    new_nonce,
    proof,
)
from safepoint.serving.run_manager import RunManager
from safepoint.storage.peers import PeerAddress, peers_of
from safepoint.storage.run_records import FREE, RunRecord, RunState

_log = logging.getLogger("safepoint.server")

# What is stored of a run, as events.
Stored: TypeAlias = Callable[[RunRecord], Awaitable[Sequence[MessageEvent]]]

STORED = "the storage"
STORED_ONLY = "the process that has the run cannot be reached: until it can, only what is stored is told"
_LOOK = 0.25
_RETRY = (0.1, 2.0)  # seconds until the owner is tried again, at first and at most
_FIRST_VIEWER = 10.0  # the request that asked for the feed has to come by then
_HANDED_OVER = 10.0  # how long a run that was handed over may have no owner
_REFUSALS = RefusalLog()


class RelayedFeed(Feed):
    """A feed whose whole events keep the numbers that the owner of the run gave them."""

    def __init__(self, turn: Turn, first: int, watched: Callable[[bool], object]) -> None:
        super().__init__(turn, first, watched)
        # By count of whole events, the latest number for it; and by every number that was told, the count.
        self._numbers_told: list[int] = [first]
        self._counts: dict[int, int] = {first: 0}
        # By position: how many whole events there are with its latest form, and who has told that.
        self._known: dict[int, tuple[int, str]] = {}

    def number(self, count: int) -> int:
        return self._numbers_told[count]

    def seen_by(self, number: int) -> int:
        return self._counts.get(number, 0)

    def tell(self, event: MessageEvent, source: str, number: int) -> None:
        """`source`: who tells it. `number`: of a viewer that has seen it."""
        if self.closed:
            return
        count = self._known[event.position][0] if not self._is_news(event, source) else self._add(event, source)
        self._counts[number] = min(count, self._counts.get(number, count))
        self._numbers_told[count] = max(number, self._numbers_told[count])

    def _is_news(self, event: MessageEvent, source: str) -> bool:
        """What one source tells again has changed. Another one may say more of an end, or of calls that wait."""
        if event.position not in self._known:
            return True
        count, source_before = self._known[event.position]
        known = self.whole[count - 1]
        if source_before == source != STORED:
            return event != known
        ends, waits = event.end is not None and known.end is None, event.waiting_calls not in ((), known.waiting_calls)
        return event.message != known.message or ends or waits

    def _add(self, event: MessageEvent, source: str) -> int:
        self._numbers_told.append(0)
        self.append(event)
        count = len(self.whole)
        self._known[event.position] = count, source
        return count


class Link(Protocol):
    """Where the frames of a run come from. `source`: who tells them; `where`: the address of that, for the log."""

    source: str
    where: str
    turn: Turn

    async def read(self) -> OwnerMessage:
        """Raises as `Line.read`. Cancellation: the link cannot be used any more."""
        ...

    def leave(self) -> None:
        """It is not wanted any more: `read` raises or returns soon."""
        ...


class PeerLink:
    """To the process that has the run."""

    def __init__(self, line: Line, source: str, where: str, begun: FeedHeader, beat: float) -> None:
        self.source = source
        self.where = where
        self.turn = begun.turn
        self._line = line
        self._beat = beat
        self._said = time.monotonic()

    @staticmethod
    async def open(address: PeerAddress, run: str, source: str, cursor: Cursor | None, timing: PeerTiming) -> PeerLink:
        """Raises as `Line.read`, and `NotThere`. Cancellation: there is no link."""
        async with asyncio.timeout(timing.patience):
            reader, writer = await asyncio.open_connection(address.host, address.port)
        line = Line(reader, writer, timing.patience)
        try:
            greeting, nonce = await line.read(), new_nonce()
            if not isinstance(greeting, Greeting):
                raise BadPeer("it did not greet")
            await line.send(WatchRequest(run, nonce, proof(address.token, "asker", greeting.nonce, run), cursor))
            match await line.read():
                case WatchAnswer(given) if is_proof(given, address.token, "owner", nonce, run):
                    line.trust()
                case WatchRefusal():
                    raise NotThere
                case _:
                    raise BadPeer("its proof is wrong")
            begun = await line.read()
            if not isinstance(begun, FeedHeader):
                raise BadPeer("it did not say whose events it tells")
            return PeerLink(line, source, name_of(address), begun, timing.beat)
        except BaseException:
            line.abort()
            raise

    async def read(self) -> OwnerMessage:
        """Cancellation: the link cannot be used any more."""
        said = await self._line.read()
        if not isinstance(said, EventFrame | TextFrame | OutputFrame | Beat | FeedEnd | FeedSwitch):
            raise BadPeer("it sent what only an asker sends")
        if (now := time.monotonic()) - self._said >= self._beat:
            self._said = now
            await self._line.send(Beat())
        return said

    def leave(self) -> None:
        self._line.say_last(Goodbye())


class LocalLink:
    """To a run of this very process, which has taken it over."""

    where = "this process"

    def __init__(self, manager: RunManager, feed: Feed, source: str, cursor: Cursor | None) -> None:
        self.source = source
        self.turn = feed.turn
        self._manager = manager
        self._feed = feed
        self._viewer: Viewer = feed.view() if cursor is None else feed.view_from(cursor)

    async def read(self) -> OwnerMessage:
        """Cancellation: nothing is lost."""
        viewer = self._viewer
        while True:
            if viewer.feed is not self._feed:
                return feed_switch(viewer, id_of(self._manager, viewer.feed))
            if (frame := viewer.take()) is not None:
                return as_message(viewer, frame)
            if viewer.over:
                return FeedEnd(self._feed.failure)
            await viewer.wait()

    def leave(self) -> None:
        self._viewer.leave()


def name_of(address: PeerAddress) -> str:
    """For the log."""
    return f"{address.host}:{address.port}"


class NotThere(Exception):
    """The owner does not have the run, or not yet."""


class Relay:
    """`feed`: what the run tells, as long as it has viewers. `begin` once."""

    def __init__(
        self,
        manager: RunManager,
        record: RunRecord,
        stored: Stored,
        *,
        start: tuple[str, Cursor, int] | None = None,
        timing: PeerTiming = TIMING,
    ) -> None:
        self._manager = manager
        self._run = record.run_id
        self._session = record.session
        self._stored = stored
        self._timing = timing
        first = first_event(record.epoch) if start is None else start[2]
        self.feed = RelayedFeed(Turn(record.run_id, ""), first, self._watched)
        # Where the link was, by who was at its other end; and which text under way that was.
        self._cursor: tuple[str, Cursor] | None = None if start is None else start[:2]
        self._text: tuple[str, int] | None = None
        self._link: Link | None = None
        self._left = False
        self._tried: tuple[str, int, RunState] | None = None
        self._suspended_since: float | None = None
        self._failure: Failure | None = None

    def begin(self) -> None:
        """Call it on a loop."""
        asyncio.get_running_loop().call_later(_FIRST_VIEWER, self._look_for_viewers)
        Supervisor.current().spawn(self._follow(), f"watch {self._run}", None)

    def _look_for_viewers(self) -> None:
        self._watched(self.feed.viewers > 0)

    def _watched(self, watched: bool) -> None:
        if watched or self._left:
            return
        self._left = True
        if self._manager.relayed.get(self._run) is self.feed:
            del self._manager.relayed[self._run]
        if self._link is not None:
            self._link.leave()

    @property
    def _is_wanted(self) -> bool:
        return not self._left and not self._manager.draining

    async def _follow(self) -> None:
        """Cancellation: its viewers see no more."""
        try:
            while self._is_wanted:
                try:
                    if not await self._once():
                        break
                except StoreError as error:
                    _log.error("the run %s can't be watched at present: %s", self._run, error)
                    await asyncio.sleep(_RETRY[1])
        finally:
            self.feed.close(self._failure)
            self._watched(False)

    async def _once(self) -> bool:
        """From one link to the next. False: no more will come. Raises `StoreError`. Cancellation: no change."""
        record = await self._manager.storage.runs.get(self._run)
        if record is None or not self._goes_on(record):
            if record is not None:
                await self._tell_stored(record)
                self._failure = self._failure or failure_of(record)
            return False
        is_new, self._tried = _place(record) != self._tried, _place(record)
        link = (await self._reach(record) if is_new else None) or await self._apart(record)
        return link is None or await self._mirror(link)

    def _goes_on(self, record: RunRecord) -> bool:
        if record.state is not RunState.SUSPENDED:
            self._suspended_since = None
        elif self._suspended_since is None:
            self._suspended_since = time.monotonic()
        elif time.monotonic() > self._suspended_since + _HANDED_OVER:
            return False
        return goes_on(record, self._manager.config)

    # -- the owner -----------------------------------------------------------------------------------------------------

    async def _reach(self, record: RunRecord) -> Link | None:
        """Raises `StoreError`. Cancellation: there is no link."""
        source, storage = source_of(record), self._manager.storage
        cursor = self._cursor[1] if self._cursor is not None and self._cursor[0] == source else None
        if record.owner == storage.worker:
            managed = self._manager.runs.get(self._run)
            here = managed is not None and managed.epoch == record.epoch
            return LocalLink(self._manager, managed.feed, source, cursor) if managed is not None and here else None
        if record.owner == FREE:
            return None
        directory = peers_of(storage)
        address = await directory.peer_of(record.owner) if directory is not None else None
        try:
            if address is not None:
                return await PeerLink.open(address, self._run, source, cursor, self._timing)
        except NotThere:
            return None
        except LOST:
            pass
        except BadPeer as error:
            assert address is not None
            _REFUSALS.log(name_of(address), error)
        self.feed.say(STORED_ONLY)
        return None

    async def _mirror(self, link: Link) -> bool:
        """Until it ends. False: no more will come. Raises `StoreError`. Cancellation: the link is left."""
        self._link = link
        self.feed.turn = link.turn
        self.feed.say(None)
        held: EventFrame | None = None
        try:
            while self._is_wanted:
                said = await link.read()
                if isinstance(said, EventFrame) and said.event.end is not None:
                    held = None if await self._tell_end(said, link.source) else said
                elif isinstance(said, FeedEnd):
                    over = await self._is_over()
                    if over and held is not None:
                        self.feed.tell(held.event, link.source, held.number)
                    self._failure = said.failure if over else None
                    return not over
                elif isinstance(said, FeedSwitch):
                    return await self._join(said, link.source)
                else:
                    self._take(said, link.source)
        except LOST:
            self.feed.say(STORED_ONLY)
        except BadPeer as error:
            _REFUSALS.log(link.where, error)
            self.feed.say(STORED_ONLY)
        finally:
            self._link = None
            link.leave()
        return True

    def _take(self, said: OwnerMessage, source: str) -> None:
        match said:
            case EventFrame(cursor, number, event):
                self._cursor = source, cursor
                self.feed.tell(event, source, number)
            case TextFrame(cursor) | OutputFrame(cursor):
                self._cursor = source, cursor
                if isinstance(said, OutputFrame):
                    self.feed.append_output(said.event(self.feed.turn))
                    return
                if self._text != (source, cursor.under_way):  # text of an earlier attempt is no part of it
                    self._text = source, cursor.under_way
                    self.feed.begin()
                self.feed.append_partial(said.event(self.feed.turn))
            case _:
                pass

    async def _tell_end(self, said: EventFrame, source: str) -> bool:
        """Not if the run goes on, elsewhere. Raises `StoreError`. Cancellation: not told."""
        if not await self._is_over():
            return False
        self._cursor = source, said.cursor
        self.feed.tell(said.event, source, said.number)
        return True

    async def _is_over(self) -> bool:
        record = await self._manager.storage.runs.get(self._run)
        return record is None or not self._goes_on(record)

    async def _join(self, said: FeedSwitch, source: str) -> bool:
        """Raises `StoreError`. Cancellation: its viewers see no more."""
        record = await self._manager.storage.runs.get(said.run)
        if record is None:
            return False
        # It begins where the message has joined, so it is none for those who watch the other run.
        other = Relay(
            self._manager,
            record,
            self._stored,
            start=(source_of(record), said.cursor, said.number),
            timing=self._timing,
        )
        self.feed.join(other.feed)
        other.begin()
        return False

    # -- the storage ---------------------------------------------------------------------------------------------------

    async def _apart(self, record: RunRecord) -> Link | None:
        """What is stored, until the owner is reached, or is another. Raises `StoreError`. Cancellation: no change."""
        storage, delay = self._manager.storage, _RETRY[0]
        retry = time.monotonic() + delay
        async with storage.changes(run=self._run, session=self._session, every=_LOOK) as changes:
            await anext(changes)
            while self._is_wanted:
                now = await storage.runs.get(self._run)
                if now is None or _place(now) != _place(record) or not self._goes_on(now):
                    return None
                await self._tell_stored(now)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(max(retry - time.monotonic(), 0.0), _LOOK)):
                        await anext(changes)
                if time.monotonic() >= retry:
                    if (link := await self._reach(now)) is not None:
                        return link
                    delay = min(2 * delay, _RETRY[1])
                    retry = time.monotonic() + delay
        return None

    async def _tell_stored(self, record: RunRecord) -> None:
        """Raises `StoreError`. Cancellation: some were told.

        A run that is to go on, and has an end, was closed for now: its next owner may tell the last of that otherwise.
        """
        events = await self._stored(record)
        if self._goes_on(record) and any(event.end is not None for event in events):
            return
        for number, event in enumerate(events, first_event(record.epoch) + 1):
            if not self.feed.turn.agent:
                self.feed.turn = event.turn
            self.feed.tell(event, STORED, number)


def goes_on(record: RunRecord, config: ServingConfig) -> bool:
    """Are there events to come? A run that was suspended is handed over to another worker, if any may take it."""
    if record.state is RunState.SUSPENDED:
        return config.resume_on_start
    return record.state in (RunState.QUEUED, RunState.LIVE)


def source_of(record: RunRecord) -> str:
    """Who tells its events: another owner tells them in a feed of its own."""
    return f"{record.owner}/{record.epoch}"


def _place(record: RunRecord) -> tuple[str, int, RunState]:
    return record.owner, record.epoch, record.state


def failure_of(record: RunRecord) -> Failure | None:
    reason = record.reason or {}
    return Failure(reason["error"], reason["text"], record.ended_at or 0.0) if "error" in reason else None


async def copy_from_owner(manager: RunManager, record: RunRecord, timing: PeerTiming = TIMING) -> Feed | None:
    """All that a run has told that is over, with its owner's numbers; None if the owner cannot be asked any more.

    Raises `StoreError`. Cancellation: there is no copy.
    """
    directory = peers_of(manager.storage)
    address = await directory.peer_of(record.owner) if directory is not None else None
    if address is None or record.owner == manager.storage.worker:
        return None
    source = source_of(record)
    try:
        link = await PeerLink.open(address, record.run_id, source, None, timing)
    except (*LOST, NotThere, BadPeer):
        return None
    feed = RelayedFeed(link.turn, first_event(record.epoch), lambda watched: None)
    try:
        while not isinstance(said := await link.read(), FeedEnd):
            if isinstance(said, EventFrame):
                feed.tell(said.event, source, said.number)
    except (*LOST, BadPeer):
        return None
    finally:
        link.leave()
    feed.close(said.failure)
    return feed
