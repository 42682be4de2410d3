"""The one connection that listens, and who is woken by what it hears.

A push says "look", never what there is to see: it may come late, twice or not at all. Therefore everyone is woken after
each reconnect, which may have missed some, and with each renewal of the lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import psycopg
from psycopg import sql

from safepoint.errors import StoreError
from safepoint.storage.postgres.connections import Connection, connect, cut
from safepoint.storage.postgres.database import Database
from safepoint.storage.postgres.schema import one_line

# Called in the storage's thread with a channel and what was notified there.
Hear = Callable[[str, str], None]

_log = logging.getLogger("safepoint")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_SILENCE = 5.0  # after which the connection is asked whether it is there
_PROOF = 2.0
_PROVING = "proof"
_CHANNELS = "channels"
WORKER = "w"
"""The topic of requests for runs of this worker."""


class Listener:
    """On the loop of the storage's thread. Wakers are called there."""

    def __init__(self, conninfo: str, worker: str, database: Database) -> None:
        self._conninfo = conninfo
        self._worker = worker
        self._database = database
        self._wakers: dict[str, list[Callable[[], object]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._closing = asyncio.Event()
        self._tried = asyncio.Event()
        self.is_listening = False
        self.heard = 0
        """Pushes so far."""
        # Of others: who hears what comes there, and to which of them the connection listens by now.
        self._channels: dict[str, list[Hear]] = {}
        self._listened: set[str] = set()

    async def add(
        self, topics: Iterable[str], sessions: list[str], runs: list[str], wake: Callable[[], object]
    ) -> None:
        """Call `wake` for each push about these, once this returns. Raises `StoreError` if it will not be told."""
        if self._closing.is_set():
            return
        named = list(topics)
        for topic in named:
            self._wakers.setdefault(topic, []).append(wake)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen(), name="safepoint: postgres listener")
        await self._tried.wait()
        stored = [topic for topic in named if topic != WORKER]
        if stored and self.is_listening:
            given = {"topics": stored, "sessions": sessions, "runs": runs, "worker": self._worker}
            await self._database.call(
                "SELECT safepoint.watch(%(topics)s::text[], %(sessions)s::text[], %(runs)s::text[], %(worker)s)", given
            )

    async def remove(self, topics: Iterable[str], wake: Callable[[], object]) -> None:
        gone: list[str] = []
        for topic in topics:
            left = self._wakers.get(topic, [])
            if wake in left:
                left.remove(wake)
            if not left:
                self._wakers.pop(topic, None)
                gone.append(topic)
        if gone and self.is_listening:
            with suppress(StoreError, psycopg.Error):  # a watch too many costs a push, and is deleted with the worker
                await self._database.call(
                    "DELETE FROM safepoint.watches WHERE worker = %(worker)s AND topic = ANY (%(topics)s::text[])",
                    {"worker": self._worker, "topics": gone},
                )

    async def listen(self, channels: Sequence[str], hear: Hear) -> None:
        """Call `hear` for all that comes on these channels of others, and with ("", "") when some may be missed."""
        for channel in channels:
            self._channels.setdefault(channel, []).append(hear)
        await self.add((), [], [], self._no_waker)
        await self._look_at_channels()

    async def unlisten(self, channels: Sequence[str], hear: Hear) -> None:
        for channel in channels:
            left = self._channels.get(channel, [])
            if hear in left:
                left.remove(hear)
            if not left:
                self._channels.pop(channel, None)
        await self._look_at_channels()

    @staticmethod
    def _no_waker() -> None:
        """Only so that the connection is there."""

    async def _look_at_channels(self) -> None:
        """Its connection is busy with waiting, and a push to itself is what ends that."""
        if self.is_listening and set(self._channels) != self._listened:
            given = {"channel": f"safepoint_{self._worker}", "payload": _CHANNELS}
            with suppress(StoreError, psycopg.Error):
                await self._database.call("SELECT pg_notify(%(channel)s, %(payload)s)", given)

    async def _follow_channels(self, connection: Connection) -> None:
        wanted = set(self._channels)
        for channel in wanted - self._listened:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        for channel in self._listened - wanted:
            await connection.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))
        new, self._listened = wanted - self._listened, wanted
        for hear in {hear for channel in new for hear in self._channels.get(channel, ())}:
            hear("", "")  # what was notified before is lost: look once

    def wake(self, topic: str) -> None:
        for waker in tuple(self._wakers.get(topic, ())):
            waker()

    def wake_all(self) -> None:
        for topic in tuple(self._wakers):
            self.wake(topic)

    async def aclose(self) -> None:
        """Cancellation: never cancelled; only `close` ends it."""
        self._closing.set()
        task, self._task = self._task, None
        if task is not None:
            if self._connection is not None:
                cut(self._connection)
            # Not cancelled at once: a connect that is cancelled leaves an open connection behind, and a statement
            # would first ask the server for it.
            _, left = await asyncio.wait({task}, timeout=_SILENCE)
            if left:
                task.cancel()

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while not self._closing.is_set():
            try:
                async with await connect(self._conninfo, "safepoint listener") as connection:
                    self._connection = connection
                    if not self._closing.is_set():
                        await self._hear(connection)
            except (psycopg.Error, OSError) as error:
                if not self._closing.is_set() and (self.is_listening or not self._tried.is_set()):
                    text = one_line(error) if isinstance(error, psycopg.Error) else str(error)
                    _log.warning("no pushes from the database, it is polled instead: %s", text)
            finally:
                self._connection = None
                self.is_listening = False
                self._listened = set()
                self._tried.set()
                self.wake_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._closing.wait()
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _hear(self, connection: Connection) -> None:
        """Until the connection is lost. Raises psycopg's error then."""
        channel = f"safepoint_{self._worker}"
        await connection.execute(f'LISTEN "{channel}"'.encode())
        await self._follow_channels(connection)
        await self._ask(connection, channel)
        asked = True
        while True:
            heard = False
            async for push in connection.notifies(timeout=_PROOF if asked else _SILENCE, stop_after=1):
                heard = True
                if push.channel == channel:
                    self._take(push.payload)
                else:
                    for hear in tuple(self._channels.get(push.channel, ())):
                        hear(push.channel, push.payload)
            if set(self._channels) != self._listened:
                await self._follow_channels(connection)
            if asked and not heard:
                raise psycopg.OperationalError("LISTEN was taken and no push arrives: is there a pooler in between?")
            asked = not heard
            if asked:
                await self._ask(connection, channel)

    async def _ask(self, connection: Connection, channel: str) -> None:
        """A pooler takes the LISTEN and gives the connection to others: only a push that arrives proves anything."""
        timer = asyncio.get_running_loop().call_later(_SILENCE, cut, connection)
        try:
            await connection.execute("SELECT pg_notify(%s, %s)", (channel, _PROVING))
        finally:
            timer.cancel()

    def _take(self, payload: str) -> None:
        if payload == _CHANNELS:
            return
        if payload != _PROVING:
            self.heard += 1
            self.wake(payload)
        elif not self.is_listening:
            self.is_listening = True
            self._tried.set()
            self.wake_all()  # what was pushed before this is lost: look once
