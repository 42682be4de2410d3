"""A storage in a PostgreSQL database, which many processes on many machines share.

    workers ─────────────── who is alive, by the clock of the database
       ▲ owner     ▲ owner        ▲ owner
    sessions    run_records    loop_claims
       │           │              │
    messages    cancel_requests  loop_items, loop_turns, loop_messages
    runs ── calls, inside
    late, session_notes, session_marks        shared_values
                                              receipts (units that were done)    watches (who is told of what)

Every unit of work is one statement, a call of the function `commit_units`, and therefore one transaction: it takes the
locks of its sessions, decides, writes, and notifies who watches. Its caller waits on any event loop; the work is done
by a thread with a loop of its own, so that no cancellation ever reaches a statement, and the lease is renewed whatever
the caller's loop does.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import psycopg

from safepoint._core.asks import is_seconds
from safepoint.errors import StoreError
from safepoint.storage import operations as op
from safepoint.storage.changes import Subscription
from safepoint.storage.lease import Lease
from safepoint.storage.operations import Query, Statement
from safepoint.storage.parts import Audit, Freezes, Loops, Runs, Sessions, Shared
from safepoint.storage.peers import PeerAddress
from safepoint.storage.postgres.address import check_address, check_driver
from safepoint.storage.postgres.channels import ChannelPushes
from safepoint.storage.postgres.placement import PostgresPlacement
from safepoint.storage.postgres.push import PushedChanges
from safepoint.storage.postgres.queries import Rows
from safepoint.storage.postgres.schema import SCHEMA, check_name, one_line
from safepoint.storage.postgres.service import Service, ServiceOptions
from safepoint.storage.postgres.worker_lease import WorkerLease
from safepoint.storage.postgres.workers import Workers
from safepoint.storage.postgres.writer import WriteJob
from safepoint.storage.reply import Reply

T = TypeVar("T")

LEASE = 10.0
# Called with what was answered, `commit` or the name of a query, how many seconds it took, and the refusal of a commit.
OnAnswer: TypeAlias = Callable[[str, float, Exception | None], object]


class PostgresStorage:
    """`PostgresStorage("postgresql://user@host/database")`. `safepoint db upgrade` makes its tables.

    `lease`: how many seconds this worker may be silent before others take over what it owns, from 1 to 300.
    `patience`: how long a statement is tried again while the database cannot be reached. `deadline`: how long one
    answer may take before its connection counts as lost. `connections`: at most so many, and one that listens.
    `listen_url`: a direct address for that one, where `url` leads to a pooler. `schema`: where the tables are.
    """

    durable = True

    def __init__(
        self,
        url: str,
        *,
        lease: float = LEASE,
        patience: float = 30.0,
        deadline: float = 5.0,
        connections: int = 8,
        listen_url: str | None = None,
        schema: str = SCHEMA,
    ) -> None:
        if not is_seconds(lease) or not 1 <= lease <= 300:
            raise ValueError(f"PostgresStorage(lease={lease!r}): write a number of seconds from 1 to 300")
        for name, seconds in (("patience", patience), ("deadline", deadline)):
            if not is_seconds(seconds):
                raise ValueError(f"PostgresStorage({name}={seconds!r}): write a number of seconds above 0")
        if connections < 1:
            raise ValueError(f"PostgresStorage(connections={connections!r}): write 1 or more")
        check_driver()
        direct = check_address(url if listen_url is None else listen_url)
        self.lease = WorkerLease(lease)
        self._lease = Lease(lease)
        self.worker = self._lease.worker
        options = ServiceOptions(check_address(url), direct, connections, deadline, patience, check_name(schema))
        self._service = Service(options, self._lease, self.lease)
        self.schema = schema
        self.sessions = Sessions(self)
        self.runs = Runs(self)
        self.shared = Shared(self)
        self.freezes = Freezes(self)
        self.audit = Audit(self)
        self.loops = Loops(self)
        self._changes = PushedChanges(self._ask, self._begin, lambda: self._service.listener)
        self.workers = Workers(self._call, self._announce, self._changes)
        self.placement = PostgresPlacement(self._call, self._retire_the_gone, self.worker)
        self._thread = _LoopThread("safepoint:postgres", self._service)
        self._closed = False
        self._on_answer: OnAnswer = _ignore_answer
        # What each loop has submitted in its present pass.
        self._gathered: dict[asyncio.AbstractEventLoop, list[WriteJob]] = {}

    def __repr__(self) -> str:
        return f"<PostgresStorage, worker {self.worker}>"

    @property
    def transactions(self) -> int:
        """How many write transactions were committed; renewals of the lease are not counted."""
        return self._service.transactions

    @property
    def is_pushed(self) -> bool:
        """Is this storage told of changes? Without it, it polls."""
        return self._service.is_pushed

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: a result for each
        """Cancellation: only the waiting ends; the unit of work still happens, whole, in its turn."""
        self._refuse_closed()
        job = WriteJob(statements)
        self._submit(job)
        sent = time.perf_counter()
        try:
            results = await asyncio.shield(job.future)
        except asyncio.CancelledError:
            self._leave(job)
            raise
        except Exception as error:
            self._on_answer("commit", time.perf_counter() - sent, error)
            raise
        self._on_answer("commit", time.perf_counter() - sent, None)
        self._changes.publish(statements, results)
        return results

    def _leave(self, job: WriteJob) -> None:
        """The caller no longer waits for these writes; the next reader of those sessions does."""
        job.left = True

        def done(future: asyncio.Future[tuple[Any, ...]]) -> None:  # Any: of every result
            if not future.cancelled() and future.exception() is None:
                self._changes.publish(job.statements, future.result())

        job.future.add_done_callback(done)

    def _submit(self, job: WriteJob) -> None:
        """Units of one pass of the loop are sent together, where they are about the same session."""
        loop = asyncio.get_running_loop()
        if loop in self._gathered:
            self._gathered[loop].append(job)
        else:
            self._gathered[loop] = [job]
            loop.call_soon(self._flush, loop)

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        jobs = self._gathered.pop(loop, [])
        if jobs:
            self._thread.call(self._service.write, jobs)

    async def read(self, query: Query[T]) -> T:
        """Cancellation: nothing has changed."""
        self._flush(asyncio.get_running_loop())  # what was submitted before it is ahead of it
        sent = time.perf_counter()
        found = await self._ask(lambda: self._service.read(query))
        self._on_answer(type(query).__name__, time.perf_counter() - sent, None)
        return found

    async def _call(self, sql: str, given: Mapping[str, Any]) -> Rows:  # Any: as in `Fetch`
        return await self._ask(lambda: self._service.call(sql, given))

    async def engine_rows(self, sql: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:  # Any: as in `Fetch`
        """A statement of the engine. Raises `StoreError`. Cancellation: only the waiting ends."""
        return await self._ask(lambda: self._service.rows(sql, given))

    def observe(self, on_answer: OnAnswer) -> None:
        """Have that called for each answer from now on."""
        self._on_answer = on_answer

    def engine_pushes(self, channels: Sequence[str]) -> ChannelPushes:
        """What comes on the channels of the engine, on the one connection that listens."""
        return ChannelPushes(self._changes, channels)

    async def _retire_the_gone(self) -> None:
        await self._ask(self._service.retire_the_gone)

    async def _announce(self, info: str, draining: bool) -> None:
        await self._ask(lambda: self._service.announce(info, draining))

    async def _ask(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:  # Any: what it yields
        """Cancellation: the work goes on."""
        self._refuse_closed()
        reply: Reply[T] = Reply("postgres")

        async def answered() -> None:
            await _answer(reply, work())

        self._begin(answered)
        return await reply.future

    def changes(
        self,
        *,
        run: str | None = None,
        session: str | None = None,
        worker: str | None = None,
        topic: str | None = None,
        every: float = 0.05,
    ) -> Subscription:
        self._refuse_closed()
        return self._changes.subscribe(run=run, session=session, worker=worker, topic=topic, every=every)

    def publish_peer(self, address: PeerAddress | None) -> None:
        """Written when the worker is announced."""
        self.workers.peer = address

    async def peer_of(self, worker: str) -> PeerAddress | None:
        """Cancellation: nothing has changed."""
        return await self.workers.peer_of(worker)

    async def check(self) -> None:
        """Raise `StoreError`, in one line, if the database cannot be used. Cancellation: nothing has changed."""
        await self.read(op.GetRun(""))

    async def aclose(self) -> None:
        """Finish what was submitted, and give up what this worker owns. Cancellation: only the waiting ends."""
        if self._closed:
            return
        self._closed = True
        for loop in tuple(self._gathered):
            self._flush(loop)
        if self._thread.is_begun:
            reply: Reply[None] = Reply("postgres")

            async def work() -> None:
                await _answer(reply, self._service.aclose())
                asyncio.get_running_loop().stop()

            self._begin(work)
            await asyncio.shield(reply.future)

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:  # Any: what it yields
        self._thread.call(self._service.begin, work)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")


def _ignore_answer(operation: str, seconds: float, refusal: Exception | None) -> None:
    """As long as no one counts."""


async def _answer(reply: Reply[T], work: Coroutine[Any, Any, T]) -> None:  # Any: what it yields
    try:
        value = await work
    except psycopg.Error as error:
        failure = StoreError(f"the session store failed: {one_line(error)}")
        failure.__cause__ = error
        reply.fail(failure)
    except Exception as error:  # it is the caller's, and not this loop's
        reply.fail(error)
    else:
        reply.succeed(value)


class _LoopThread:
    """A daemon thread with an event loop, begun by the first call: so a database that hangs holds no exit."""

    def __init__(self, name: str, service: Service) -> None:
        self._name = name
        self._service = service
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()

    @property
    def is_begun(self) -> bool:
        return self._loop is not None

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Any thread may call it; calls of one thread arrive in their order."""
        if self._loop is None:
            with self._starting:
                if self._loop is None:
                    loop = asyncio.new_event_loop()
                    threading.Thread(target=self._run, args=(loop,), name=self._name, daemon=True).start()
                    loop.call_soon_threadsafe(self._service.start)
                    self._loop = loop
        with suppress(RuntimeError):  # it was closed
            self._loop.call_soon_threadsafe(function, *args)

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()
