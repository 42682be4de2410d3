"""All runs of one server: who is live, who waits, and how a run is accepted and found. Not a word of HTTP.

Entries are kept by run id, so one run's end can never take another's entry away. A message is accepted once its
record is stored: a successor finds it there. The record of a run that begins at once is stored with its beginning; that
of a message that has to wait is stored before.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

from safepoint._core.latch import Latch
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.agent.base import BaseAgent
from safepoint.errors import SafepointError, SessionBusy, StoreError
from safepoint.history.parts import Message
from safepoint.server.config import ServerConfig
from safepoint.server.cross_process_queue import CrossProcessQueue
from safepoint.server.event_publisher import AnyRun
from safepoint.server.managed_run import NOT_TAKEN, ManagedRun
from safepoint.server.operations import Operations
from safepoint.server.requests import RunRequest, digest_of
from safepoint.server.run_request import Start, start
from safepoint.server.state_sync import share
from safepoint.server.wire_events import EventContext
from safepoint.serving.apps import Catalog
from safepoint.serving.ids import SessionKey
from safepoint.serving.principal import Principal
from safepoint.serving.shared_state import SHARED, lasting, merge, own
from safepoint.sessions.dispatch import IfBusy, SessionDispatcher
from safepoint.sessions.session import Session
from safepoint.storage.operations import AcceptRun, AddNote, DeleteSession, ForgetNotes, ForgetRuns, TouchSession
from safepoint.storage.protocol import Storage
from safepoint.storage.run_records import RunRecord, RunState, same_request
from safepoint.storage.shared_state import Note

_DAY = 86_400.0
_CACHED_SESSIONS = 1000
_KEPT_RUNS = 1000
_WRITING = 1.0  # for the records of runs that have stopped


class Draining(SafepointError):
    """The server is shutting down and takes no new runs."""


class TooMany(SafepointError):
    """This key has as many runs as are allowed at once."""


class NoSuchApp(SafepointError):
    """No app has that name, or it could not be loaded."""


class RunManager:
    """The server's sessions and runs."""

    def __init__(self, catalog: Catalog, storage: Storage, config: ServerConfig) -> None:
        self.catalog = catalog
        self.storage = storage
        self.config = config
        self.operations = Operations()
        self.draining = False
        self.runs: OrderedDict[str, ManagedRun] = OrderedDict()
        # Those of them that have a task: few, where `runs` has many that are over.
        self._led: dict[str, ManagedRun] = {}
        self._others = CrossProcessQueue(storage, self._led.get)
        # Pauses that are being cleared, by run id: whether that is durable, or None if there was none to clear.
        self.clearing: dict[str, asyncio.Task[bool | None]] = {}
        # Messages whose record is not stored yet: by which key, and whether they are to wait for their turn.
        self._arriving: dict[object, tuple[str, bool]] = {}
        self._senders: OrderedDict[SessionKey, SessionDispatcher] = OrderedDict()
        self._patched: set[SessionKey] = set()
        # Sessions with a run that is about to begin, and whose record is stored with that.
        self._beginning: dict[SessionKey, ManagedRun] = {}
        # Messages with an idempotency key that were neither accepted nor refused yet.
        self._undecided: dict[tuple[SessionKey, str], Latch] = {}

    # -- sessions ------------------------------------------------------------------------------------------------------

    def agent(self, app: str) -> BaseAgent[Any, Any]:  # Any: agents of every kind
        """Raises `NoSuchApp`."""
        found = self.catalog.get(app)
        if found is None:
            raise NoSuchApp(f"App not found: {app}")
        if found.agent is None:
            raise NoSuchApp(f"App {app} can't be served: {found.error}")
        return found.agent

    async def create(
        self,
        key: SessionKey,
        state: Mapping[str, Any] | None,  # Any: JSON values
        history: Sequence[Message] = (),
    ) -> Session:
        """Raises `SessionExists`, `HistoryError`. Cancellation: it is made or it is not."""
        session = await Session.create(self.storage, key.stored_as, state=own(state or {}), history=history)
        await self.storage.commit(*share(key, state or {}), TouchSession(key.stored_as, time.time()))
        self._keep(key, SessionDispatcher(_of_server(session)))
        return session

    async def dispatcher(self, key: SessionKey) -> SessionDispatcher:
        """The one sender of that session. Raises `SessionNotFound`. Cancellation: nothing has changed."""
        known = self._senders.get(key)
        if known is not None:
            self._senders.move_to_end(key)
            return known
        session = await Session.load(self.storage, key.stored_as)
        return self._senders.get(key) or self._keep(key, SessionDispatcher(_of_server(session)))

    async def up_to_date(self, key: SessionKey) -> SessionDispatcher:
        """As `dispatcher`, and its session knows what other processes have said. For whoever goes on from there.

        Raises `SessionNotFound`. Cancellation: nothing has changed.
        """
        dispatcher = await self.dispatcher(key)
        if self.storage.durable and not dispatcher.busy:
            await dispatcher.between(dispatcher.session.refresh)
        return dispatcher

    async def view(self, key: SessionKey) -> Session:
        """The session as it is now, to look at, also if another process has changed it since.

        Raises `SessionNotFound`. Cancellation: nothing has changed.
        """
        dispatcher = await self.dispatcher(key)
        if dispatcher.busy or not self.storage.durable or dispatcher.session.end_is_pending:
            return dispatcher.session
        return Session(self.storage, key.stored_as, await self.storage.sessions.load(key.stored_as))

    def _keep(self, key: SessionKey, dispatcher: SessionDispatcher) -> SessionDispatcher:
        self._senders[key] = dispatcher
        if len(self._senders) > _CACHED_SESSIONS:
            idle = next((old for old, each in self._senders.items() if not each.busy and old != key), None)
            if idle is not None:
                del self._senders[idle]
        return dispatcher

    def state_of(self, key: SessionKey, stored: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: JSON values
        """The session's state: as a live run has it, or else as it is stored."""
        known = self._senders.get(key)
        return stored if known is None else known.session.state

    async def delete(self, key: SessionKey) -> None:
        """Its runs are stopped first, also those that come meanwhile. Cancellation: the session may still be there."""
        while live := self.live_of(key):
            for managed in live:
                managed.ask(SafePoint.NOW, Reason("its session is deleted"))
            for managed in live:
                await managed.over.wait()
        self._senders.pop(key, None)
        id = key.stored_as
        await self.storage.commit(DeleteSession(id), ForgetRuns(id), ForgetNotes(id))

    async def patch(self, key: SessionKey, delta: Mapping[str, Any]) -> None:  # Any: JSON values
        """Change the state, also under a live run, which goes on. Cancellation: changed or not."""
        dispatcher, kept = await self.dispatcher(key), lasting(delta)
        merge(dispatcher.session.state, kept)
        if dispatcher.busy:
            self._patched.add(key)  # a live run writes it with its next step; one that has written its last, nobody
            for managed in self.live_of(key):
                managed.publisher.state.patched(kept)
        else:
            try:
                await dispatcher.between(dispatcher.session.save_state)
            except (SessionBusy, StoreError):  # whoever is told that it failed must not find it done by the next run
                stored = dispatcher.session.stored_state
                merge(dispatcher.session.state, {name: deepcopy(stored.get(name)) for name in kept})
                raise
        now, id = time.time(), key.stored_as
        note = Note(now, {"id": f"p-{uuid.uuid4()}", "stateDelta": kept})
        await self.storage.commit(*share(key, kept), AddNote(id, note), TouchSession(id, now))

    # -- running -------------------------------------------------------------------------------------------------------

    async def submit(self, who: Principal, key: SessionKey, request: RunRequest) -> ManagedRun | RunRecord:
        """Accept a message; a repeated idempotency key gives the run that it belongs to.

        Raises `SessionBusy`, `Draining`, `TooMany`, `NoSuchApp`, `SessionNotFound`, `NothingToAnswer`, `ValueError`.
        Cancellation: it was accepted, or it was not.
        """
        if request.idempotency_key is None:
            return await self._accept(who, key, request)
        # The same message may come twice at once. The second waits until the first is decided, and is found to be that
        # run before anything is asked about the session, which is busy with it.
        sent = (key, request.idempotency_key)
        while (first := self._undecided.get(sent)) is not None:
            await first.wait()
        decided = self._undecided[sent] = Latch()
        try:
            known = await self._repeated(key, request)
            return known if known is not None else await self._accept(who, key, request)
        except SessionBusy:
            # Another process may have accepted the same message meanwhile: then that is what the session is busy with.
            if (known := await self._repeated(key, request)) is None:
                raise
            return known
        finally:
            del self._undecided[sent]
            decided.set()

    async def _accept(self, who: Principal, key: SessionKey, request: RunRequest) -> ManagedRun | RunRecord:
        """As `submit`, for a message that is not known. Cancellation: likewise."""
        dispatcher = await self._ready(key, request)
        others = await self._others.of(key.stored_as, request.if_busy)
        waits = self._is_busy(key, dispatcher) or bool(others)
        self._admit(who, request.if_busy, waits=waits)
        # Counted from here on, not from when its record is stored: many may come at once.
        arriving = object()
        self._arriving[arriving] = (who.name, waits)
        try:
            managed = await self._manager(who, key, dispatcher, request)
            if waits or self._is_busy(key, dispatcher):
                return await self._queue(managed, dispatcher, request, arriving)
            try:
                return await self._begin(managed, dispatcher, request, arriving)
            except SessionBusy:  # another message was accepted meanwhile, here or by another process
                if request.if_busy == "reject":
                    raise
                return await self._wait_after_all(managed, who, dispatcher, request)
            finally:
                managed.decided.set()
        finally:
            self._arriving.pop(arriving, None)

    async def _ready(self, key: SessionKey, request: RunRequest) -> SessionDispatcher:
        """Raises `NoSuchApp`, `SessionNotFound`. Cancellation: nothing has changed."""
        self.agent(key.app)
        return await (self.up_to_date(key) if request.continues else self.dispatcher(key))

    def _is_busy(self, key: SessionKey, dispatcher: SessionDispatcher) -> bool:
        """Would a message have to wait for a run of this process?"""
        return dispatcher.busy or key in self._beginning

    async def _manager(
        self,
        who: Principal,
        key: SessionKey,
        dispatcher: SessionDispatcher,
        request: RunRequest,
        *,
        run_id: str | None = None,
    ) -> ManagedRun:
        """A run for that message, which is not served yet. Cancellation: it is discarded."""
        begun = start(self.agent(key.app), dispatcher.session, request, self.config.ladder)
        if run_id is not None:
            begun = replace(begun, run=begun.run.under(run_id))
        try:
            event_context = await self.event_context(begun, dispatcher.session, request)
        except BaseException:
            begun.run.discard()
            raise
        managed = ManagedRun(key, begun.run, begun.prompt, event_context, by=who.name)
        managed.disconnect_policy.policy = request.on_disconnect
        managed.state_delta = request.state_delta or {}
        return managed

    async def event_context(self, begun: Start, session: Session, request: RunRequest) -> EventContext:
        """A run that goes on keeps the name and the marks of the turn that it belongs to. Cancellation: no change."""
        agent, metadata = begun.run.agent, request.custom_metadata
        if not begun.continued:
            return EventContext.of(begun.run.id, agent, metadata)
        origin = session.runs[-1].origin
        record = await self.storage.runs.get(origin)
        before: dict[str, Any] = record.request.get("customMetadata", {}) if record is not None else {}  # Any: JSON
        return EventContext.of(origin, agent, {**before, **(metadata or {})})

    async def _begin(
        self, managed: ManagedRun, dispatcher: SessionDispatcher, request: RunRequest, arriving: object
    ) -> ManagedRun | RunRecord:
        """Let it run; its record is stored with its beginning. Raises `SessionBusy` if the session is not free.

        Cancellation: it was accepted, or it was not.
        """
        record = self._record(managed, request, RunState.LIVE)
        managed.accept = AcceptRun(record, managed.accepted_at - _DAY, only_first=self._others.matter(request.if_busy))
        self._beginning[managed.key] = managed
        # Also if nobody waits here any more: until then the session is taken, and its key may be this message's.
        managed.accepted.when_set(lambda: self._beginning.pop(managed.key))
        self._arriving.pop(arriving)  # from here on it counts as live
        self.serve(managed, dispatcher, request.if_busy)
        await managed.accepted.wait()
        if managed.is_accepted:
            return managed
        await managed.over.wait()
        self.runs.pop(managed.id, None)
        if managed.twin is not None:
            return self.runs.get(managed.twin.run_id) or managed.twin
        raise managed.why_not_accepted

    async def _wait_after_all(
        self, refused: ManagedRun, who: Principal, dispatcher: SessionDispatcher, request: RunRequest
    ) -> ManagedRun | RunRecord:
        """Queue a message whose run could not begin. A client that has seen that run finds it under the same id.

        If it was asked to stop, that is what becomes of it. Cancellation: it was accepted, or it was not.
        """
        managed = await self._manager(who, refused.key, dispatcher, request, run_id=refused.id)
        asked = refused.run.node.request()
        if asked is not None:
            managed.withdraw(asked.reason)
        accepted = await self._queue(managed, dispatcher, request, None)
        refused.again = managed if accepted is managed else None
        return accepted

    async def _queue(
        self, managed: ManagedRun, dispatcher: SessionDispatcher, request: RunRequest, arriving: object
    ) -> ManagedRun | RunRecord:
        """Store its record, then let it wait for its turn. Cancellation: it was accepted, or it was not."""
        managed.queued, now = True, managed.accepted_at
        record = self._record(managed, request, RunState.QUEUED)
        try:
            known = await self.storage.runs.accept(record, since=now - _DAY)
        except BaseException:
            managed.run.discard()
            raise
        if known.run_id != managed.id:  # its twin was faster
            managed.run.discard()
            return self.runs.get(known.run_id) or known
        if self.draining:  # it began to, while the record was stored
            managed.run.discard()
            await self.storage.runs.move(managed.id, RunState.ENDED, epoch=0, ended_at=now, **NOT_TAKEN)
            self._refuse_if_draining()
        if self._others.matter(request.if_busy):
            id = managed.key.stored_as
            managed.others_over = partial(self._others.make_way, request.if_busy, id, managed.id)
        self._arriving.pop(arriving, None)
        self.serve(managed, dispatcher, request.if_busy)
        return managed

    def _record(self, managed: ManagedRun, request: RunRequest, state: RunState) -> RunRecord:
        now = managed.accepted_at
        return RunRecord(
            managed.id,
            managed.key.stored_as,
            state,
            now,
            self.storage.worker,
            request.model_dump(mode="json", by_alias=True, exclude_none=True),
            request.idempotency_key,
            digest_of(request) if request.idempotency_key is not None else None,
            started_at=now if state is RunState.LIVE else None,
            by=managed.by,
        )

    async def _repeated(self, key: SessionKey, request: RunRequest) -> ManagedRun | RunRecord | None:
        """The run of the same idempotency key. Raises `KeyTaken`. Cancellation: nothing has changed."""
        if request.idempotency_key is None:
            return None
        if (beginning := self._beginning.get(key)) is not None:
            await beginning.accepted.wait()  # it may be the same message, whose sender has left meanwhile
        known = await self.storage.runs.by_key(key.stored_as, request.idempotency_key, since=time.time() - _DAY)
        if known is None:
            return None
        same_request(known, digest_of(request))
        return self.runs.get(known.run_id) or known

    def _admit(self, who: Principal, if_busy: IfBusy, *, waits: bool) -> None:
        self._refuse_if_draining()
        if waits and if_busy == "reject":
            raise SessionBusy("a run of this session is live: wait for it, stop it, or send ifBusy")
        queued = [run.state is RunState.QUEUED for run in self.live() if run.by == who.name]
        queued += [is_queued for name, is_queued in self._arriving.values() if name == who.name]
        limits, waiting = self.config.limits, sum(queued)
        if waits and waiting >= limits.queued_runs:
            raise TooMany(f"{waiting} messages wait for their turn, and no more may (limit queued_runs): stop one")
        if not waits and len(queued) - waiting >= limits.live_runs:
            live = len(queued) - waiting
            raise TooMany(f"{live} runs are live, and no more may be (limit live_runs): wait for one, or stop one")

    def _refuse_if_draining(self) -> None:
        if self.draining:
            raise Draining("the server is shutting down: try again on the next one")

    def serve(self, managed: ManagedRun, dispatcher: SessionDispatcher, if_busy: IfBusy) -> None:
        """Give an accepted run its task."""
        self.runs[managed.id] = self._led[managed.id] = managed
        self.operations.accepted(managed)
        body = self._lead(managed, dispatcher, if_busy)
        managed.task = asyncio.create_task(body, name=f"safepoint: {managed.key.stored_as}")

    async def _lead(self, managed: ManagedRun, dispatcher: SessionDispatcher, if_busy: IfBusy) -> None:
        """Cancellation: a run that waits for its turn is withdrawn; a live one is stopped NOW."""
        limit = asyncio.get_running_loop().call_later(
            self.config.limits.run_seconds,
            managed.ask,
            SafePoint.NOW,
            Reason("it ran as long as a run may", Source.POLICY),
        )

        def joined(live: AnyRun) -> None:
            other = self.runs.get(live.id)
            if other is not None:
                managed.feed.join(other.feed)
            merge(dispatcher.session.state, managed.state_delta)

        try:
            await managed.serve(dispatcher, if_busy, self.storage.runs, joined)
        finally:
            limit.cancel()
            self._led.pop(managed.id, None)
            self.operations.over(managed)
            self._forget_old()
        if managed.key in self._patched and not dispatcher.busy:
            self._patched.discard(managed.key)
            with suppress(StoreError):  # then the next run saves it
                await dispatcher.between(dispatcher.session.save_state)

    def _forget_old(self) -> None:
        """Runs that are over stay for a while, for viewers that come back; then the store has what they left."""
        while len(self.runs) > _KEPT_RUNS:
            oldest = next((id for id, run in self.runs.items() if not run.live), None)
            if oldest is None:
                return
            del self.runs[oldest]

    # -- finding -------------------------------------------------------------------------------------------------------

    def live(self) -> list[ManagedRun]:
        return [run for run in self._led.values() if run.live]

    def live_of(self, key: SessionKey) -> list[ManagedRun]:
        return [run for run in self.live() if run.key == key]

    # -- the end -------------------------------------------------------------------------------------------------------

    async def shut_down(self) -> bool:
        """Stop taking runs, ask those that are live to stop at a safe point, then NOW; return when all are recorded.

        Bounded: what does not end by then is forced, and what does not end then is left to the next start. True if
        there is no such run. Cancellation: the asks stand.
        """
        self.draining = True
        reason = Reason("the server is shutting down", Source.SHUTDOWN)
        for managed in self.live():
            if managed.state is RunState.QUEUED:
                managed.withdraw(reason)
            else:
                managed.run.node.cancel(
                    SafePoint.ANY, within=self.config.shutdown_seconds, recursive=True, reason=reason
                )
        ladders = [self.config.ladder or managed.run.agent.ladder for managed in self.live()]
        cap = max((ladder.cap for ladder in ladders), default=0.0)
        if await self._all_over(self.config.shutdown_seconds + cap + _WRITING):
            return True
        self.force()
        if await self._all_over(_WRITING):
            return True
        for managed in self.live():
            managed.give_up(reason)
        return False

    async def _all_over(self, seconds: float) -> bool:
        """Wait for that, so long. Cancellation: only the waiting ends."""
        try:
            async with asyncio.timeout(seconds):
                if self.clearing:
                    await asyncio.wait(self.clearing.values())
                for managed in self.live():
                    await managed.over.wait()
        except TimeoutError:
            return False
        return True

    def force(self) -> None:
        """Somebody can't wait."""
        for managed in self.live():
            managed.ask(SafePoint.FORCE, Reason("the server was told to end at once", Source.SHUTDOWN))


def _of_server(session: Session) -> Session:
    """What sessions share is kept once, beside them."""
    session.keep_elsewhere(*SHARED)
    return session
