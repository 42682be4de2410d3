"""Everything that a PostgreSQL storage does on the loop of its own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from safepoint.errors import StoreError
from safepoint.storage import operations as op
from safepoint.storage.lease import Lease
from safepoint.storage.operations import Query
from safepoint.storage.postgres.connections import Connections
from safepoint.storage.postgres.database import Database
from safepoint.storage.postgres.listener import WORKER, Listener
from safepoint.storage.postgres.queries import Rows, run_query
from safepoint.storage.postgres.refusals import is_gone
from safepoint.storage.postgres.text_codec import escape
from safepoint.storage.postgres.worker_lease import WorkerLease
from safepoint.storage.postgres.writer import WriteJob, Writer

T = TypeVar("T")

_GOODBYE = 2.0  # seconds that a database which does not answer may hold the end of a storage
_TIDY_EVERY = 600.0
_RENEW_AGAIN = 0.2


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """See `PostgresStorage`."""

    url: str
    listen_url: str
    connections: int
    deadline: float
    patience: float
    schema: str


class Service:
    """`start` first; every method is called on the thread's loop."""

    listener: Listener
    _writer: Writer
    _database: Database
    _connections: Connections
    _renewal: asyncio.Task[None]

    def __init__(self, options: ServiceOptions, lease: Lease, worker_lease: WorkerLease) -> None:
        self._options = options
        self._lease = lease
        self._worker_lease = worker_lease
        self._tasks: set[asyncio.Task[Any]] = set()  # Any: of every result
        self._started = False

    def start(self) -> None:
        options = self._options
        self._connections = Connections(options.url, options.connections, "safepoint")
        self._database = Database(
            self._connections, options.schema, deadline=options.deadline, patience=options.patience
        )
        self._writer = Writer(self._database, self._lease, self._worker_lease)
        self.listener = Listener(options.listen_url, self._lease.worker, self._database)
        self._started = True
        self._renewal = self.begin(self._renew_for_ever)

    @property
    def transactions(self) -> int:
        return self._writer.transactions if self._started else 0

    @property
    def is_pushed(self) -> bool:
        return self._started and self.listener.is_listening

    def begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:  # Any: what it yields
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def write(self, jobs: list[WriteJob]) -> None:
        self._writer.put(jobs)

    async def read(self, query: Query[T]) -> T:
        ahead = self._writer.ahead_of(_names_of(query))
        if ahead:
            await self._writer.wait_for(ahead)
        if isinstance(query, op.OrphanedRuns):
            await self.retire_the_gone()
        result: T = await self._database.run(lambda connection: run_query(query, self._database.fetch_on(connection)))
        return result

    async def retire_the_gone(self) -> None:
        """Workers of this machine whose process is gone need not be waited for until their lease is over."""
        here = f"{self._lease.process.boot}|{self._lease.process.namespace}|"
        sql = (
            "SELECT id, process FROM safepoint.workers WHERE lease_until > clock_timestamp()"
            " AND starts_with(process, %(here)s) AND id <> %(me)s"
        )
        for id, process in await self._database.call(sql, {"here": here, "me": escape(self._lease.worker)}):
            if is_gone(process, self._lease):
                await self._database.call("SELECT safepoint.retire_worker(%(id)s)", {"id": id})

    # -- the lease -----------------------------------------------------------------------------------------------------

    async def _renew_for_ever(self) -> None:
        """By real time. A renewal that fails is tried again soon: the lease runs on."""
        every = self._worker_lease.renew_every
        pause, until_tidy = every, _TIDY_EVERY
        while True:
            await asyncio.sleep(pause)
            pause = every
            if self._worker_lease.begun:
                try:
                    await self._renew()
                except (StoreError, psycopg.Error):
                    pause = min(every, _RENEW_AGAIN)
                    continue
            self.listener.wake_all()  # the poll leg: every subscriber looks once in a while, in case a push was lost
            until_tidy -= every
            if until_tidy <= 0 and self._worker_lease.begun:
                until_tidy = _TIDY_EVERY
                with suppress(StoreError, psycopg.Error):
                    await self._database.call("SELECT safepoint.tidy()", {}, patience=every)

    async def _renew(self) -> None:
        """Tried once: a later try is a renewal of its own, which counts from when it is sent."""
        sent = self._worker_lease.clock()
        given = {
            "worker": escape(self._lease.worker),
            "process": str(self._lease.process),
            "lease": self._worker_lease.seconds,
        }
        sql = "SELECT safepoint.renew(%(worker)s, %(process)s, %(lease)s)"
        [(waiting,)] = await self._database.call(sql, given, patience=_RENEW_AGAIN)
        self._worker_lease.renewed(sent)
        if waiting:
            self.listener.wake(WORKER)

    async def announce(self, info: str, draining: bool) -> None:
        sent = self._worker_lease.clock()
        given = {
            "worker": escape(self._lease.worker),
            "process": str(self._lease.process),
            "lease": self._worker_lease.seconds,
            "info": info,
            "draining": draining,
        }
        sql = "SELECT safepoint.announce(%(worker)s, %(process)s, %(lease)s, %(info)s, %(draining)s)"
        await self._database.call(sql, given)
        self._worker_lease.renewed(sent)

    async def rows(self, sql: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:  # Any: as in `Fetch`
        return await self._database.rows(sql, given)

    async def call(self, sql: str, given: Mapping[str, Any]) -> Rows:  # Any: as in `Fetch`
        return await self._database.call(sql, given)

    async def aclose(self) -> None:
        """Cancellation: never cancelled; only `close` ends it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.patience):
                await self._writer.finish()
        await self.listener.aclose()
        if self._worker_lease.begun:
            with suppress(StoreError, psycopg.Error):
                sql = "SELECT safepoint.retire_worker(%(worker)s)"
                await self._database.call(sql, {"worker": escape(self._lease.worker)}, patience=_GOODBYE)
        self._database.closing = True
        self._renewal.cancel()
        other_tasks = self._tasks - {asyncio.current_task()}
        await self._connections.aclose()
        if other_tasks:
            await asyncio.wait(other_tasks, timeout=_GOODBYE)


def _names_of(query: Query[Any]) -> set[str] | None:  # Any: of every result
    """What a query is about, as units of work name it; None for a query about many sessions or runs."""
    for kind, attribute in (("s:", "session_id"), ("r:", "run_id")):
        value = getattr(query, attribute, None)
        if isinstance(value, str):
            return {kind + escape(value)}
    if isinstance(query, op.ReadLoop):
        return {"l:" + escape(query.id)}
    return None
