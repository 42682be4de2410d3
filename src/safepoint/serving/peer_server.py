"""The port on which other processes of the cluster watch the runs of this one.

Each link is one viewer of one feed, for however many viewers the other process has. A link that is cut without a
goodbye keeps its seat for a while: the viewers behind it are still there, and a run that ends with its last viewer must
not end because two machines lost sight of each other.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass

from safepoint.serving.config import split_address
from safepoint.serving.feed import Feed, Viewer
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.peer_wire import (
    BadPeer,
    Beat,
    FeedEnd,
    FeedHeader,
    Goodbye,
    Greeting,
    Line,
    RefusalLog,
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

_log = logging.getLogger("safepoint.server")

LOST = (OSError, EOFError, TimeoutError)
_GOODBYE = 1.0
_BUFFER = 65_536
_MOST_LINKS = 4096
_MOST_UNPROVED = 64  # at the same time


@dataclass(frozen=True, slots=True)
class PeerTiming:
    """Seconds: between two beats, until a link that is silent is lost, and how long a lost link keeps its seat."""

    beat: float = 0.5
    patience: float = 2.5
    seat: float = 10.0


TIMING = PeerTiming()


class PeerServer:
    """`await start()` before the first run, `await stop()` after the last. Without a shared storage: nothing."""

    def __init__(self, manager: RunManager, address: str | None, timing: PeerTiming = TIMING) -> None:
        self._manager = manager
        self._address = address
        self._timing = timing
        self._token = secrets.token_hex(32)
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._unproved = 0
        self._seats: dict[asyncio.TimerHandle, Viewer] = {}
        self._refused = RefusalLog()

    async def start(self) -> None:
        """Raises `OSError` for an address that is not free. Cancellation: it may listen."""
        directory = peers_of(self._manager.storage)
        if directory is None or self._address is None:
            return
        host, port = split_address(self._address)
        self._server = await asyncio.start_server(self._take, host, port, limit=_BUFFER)
        listening = self._server.sockets[0].getsockname()[1]
        directory.publish_peer(PeerAddress(host, listening, self._token))

    async def stop(self) -> None:
        """Bounded. Cancellation: links may be left, and end with their runs."""
        if self._server is None:
            return
        self._server.close()
        for timer, viewer in list(self._seats.items()):
            timer.cancel()
            viewer.leave()
        if self._links:
            await asyncio.wait(self._links, timeout=_GOODBYE)  # what was told last
        for link in self._links:
            link.cancel()
        if self._links:
            await asyncio.wait(self._links, timeout=_GOODBYE)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Cancellation: the link is cut."""
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        line, who = Line(reader, writer, self._timing.patience), str(writer.get_extra_info("peername", ("?",))[0])
        try:
            await self._serve(line)
        except LOST:
            pass
        except asyncio.CancelledError:
            pass  # by `stop`, which waits for it; asyncio would log it as an error
        except BadPeer as error:
            self._refused.log(who, error)
        except Exception:
            _log.exception("the link to a peer at %s failed", who)
        finally:
            line.close()
            self._links.discard(task)

    async def _serve(self, line: Line) -> None:
        """Raises as `Line.read`. Cancellation: the link is cut."""
        if self._unproved >= _MOST_UNPROVED or len(self._links) > _MOST_LINKS:
            raise BadPeer("too many links at once")
        self._unproved += 1
        try:
            watch, managed = await self._meet(line)
        finally:
            self._unproved -= 1
        if managed is None:
            await line.send(WatchRefusal("the run is not here"))
            return
        await line.send(WatchAnswer(proof(self._token, "owner", watch.nonce, watch.run)))
        feed = managed.feed
        viewer = feed.view() if watch.cursor is None else feed.view_from(watch.cursor)
        at_once = False
        try:
            await line.send(FeedHeader(feed.turn, feed.first))
            at_once = await self._tell(line, feed, viewer)
        finally:
            self._leave(viewer, at_once=at_once)

    async def _meet(self, line: Line) -> tuple[WatchRequest, ManagedRun | None]:
        """Raises as `Line.read`. Cancellation: the link is cut."""
        nonce = new_nonce()
        await line.send(Greeting(nonce))
        watch = await line.read()
        if not isinstance(watch, WatchRequest):
            raise BadPeer("it did not say what it wants to watch")
        if not is_proof(watch.proof, self._token, "asker", nonce, watch.run):
            raise BadPeer("its proof is wrong")
        return watch, self._manager.runs.get(watch.run)

    async def _tell(self, line: Line, feed: Feed, viewer: Viewer) -> bool:
        """True if the other end has said goodbye. Raises as `Line.read`. Cancellation: the link is cut."""
        hearing = asyncio.create_task(self._hear(line, viewer), name="safepoint: a peer")
        try:
            while viewer.feed is feed and not hearing.done():
                frame = viewer.take()
                if frame is not None:
                    await line.send(as_message(viewer, frame))
                elif viewer.over:
                    await line.send(FeedEnd(feed.failure))
                    return True
                else:
                    await self._wait(line, viewer)
            if not hearing.done():
                await line.send(feed_switch(viewer, id_of(self._manager, viewer.feed)))
                return False  # it comes back for the other run at once
            hearing.result()
            return True
        finally:
            hearing.cancel()
            await asyncio.wait({hearing}, timeout=_GOODBYE)

    async def _hear(self, line: Line, viewer: Viewer) -> None:
        """Until the other end says goodbye. Raises as `Line.read`. Cancellation: only the waiting ends."""
        try:
            while not isinstance(said := await line.read(), Goodbye):
                if not isinstance(said, Beat):
                    raise BadPeer("it sent what only an owner sends")
        finally:
            viewer.wake()

    async def _wait(self, line: Line, viewer: Viewer) -> None:
        """Cancellation: only the waiting ends."""
        try:
            async with asyncio.timeout(self._timing.beat):
                await viewer.wait()
        except TimeoutError:
            await line.send(Beat())

    def _leave(self, viewer: Viewer, *, at_once: bool) -> None:
        if at_once or viewer.over or self._manager.draining:
            viewer.leave()
            return

        def leave() -> None:
            self._seats.pop(timer, None)
            viewer.leave()

        timer = asyncio.get_running_loop().call_later(self._timing.seat, leave)
        self._seats[timer] = viewer


def id_of(manager: RunManager, feed: Feed) -> str:
    """A run that goes on with the turn of another one has a feed of its own, under the other's name."""
    return next((run.id for run in manager.runs.values() if run.feed is feed), feed.turn.run_id)
