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
from functools import partial
from typing import Any

from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.agent.base import BaseAgent
from safepoint.errors import SafepointError, SessionBusy, StoreError
from safepoint.history.parts import Message
from safepoint.server.apps import Catalog
from safepoint.server.config import ServerConfig
from safepoint.server.hosted import NOT_TAKEN, HostedRun
from safepoint.server.ids import SessionKey
from safepoint.server.operations import Operations
from safepoint.server.others import Others
from safepoint.server.principal import Principal
from safepoint.server.requests import RunRequest, digest_of
from safepoint.server.shared_state import SHARED, lasting, merge, own
from safepoint.server.starting import Start, start
from safepoint.server.telling import AnyRun
from safepoint.server.turn_state import share
from safepoint.server.wire_events import Scene
from safepoint.sessions.busy import IfBusy, Sender
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


class Host:
    """The server's sessions and runs."""

    def __init__(self, catalog: Catalog, storage: Storage, config: ServerConfig) -> None:
        self.catalog = catalog
        self.storage = storage
        self.config = config
        self.operations = Operations()
        self.draining = False
        self.runs: OrderedDict[str, HostedRun] = OrderedDict()
        # Those of them that have a task: few, where `runs` has many that are over.
        self._led: dict[str, HostedRun] = {}
        self._others = Others(storage, self._led.get)
        # Pauses that are being cleared, by run id: whether that is durable, or None if there was none to clear.
        self.clearing: dict[str, asyncio.Task[bool | None]] = {}
        # Messages whose record is not stored yet: by which key, and whether they are to wait for their turn.
        self._arriving: dict[object, tuple[str, bool]] = {}
        self._senders: OrderedDict[SessionKey, Sender] = OrderedDict()
        self._patched: set[SessionKey] = set()
        # Sessions with a run that is about to begin, and whose record is stored with that.
        self._beginning: dict[SessionKey, HostedRun] = {}

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
        self._keep(key, Sender(_of_server(session)))
        return session

    async def sender(self, key: SessionKey) -> Sender:
        """The one sender of that session. Raises `SessionNotFound`. Cancellation: nothing has changed."""
        known = self._senders.get(key)
        if known is not None:
            self._senders.move_to_end(key)
            return known
        session = await Session.load(self.storage, key.stored_as)
        return self._senders.get(key) or self._keep(key, Sender(_of_server(session)))

    async def up_to_date(self, key: SessionKey) -> Sender:
        """As `sender`, and its session knows what other processes have said. For whoever goes on from there.

        Raises `SessionNotFound`. Cancellation: nothing has changed.
        """
        sender = await self.sender(key)
        if self.storage.durable and not sender.busy:
            await sender.between(sender.session.refresh)
        return sender

    async def view(self, key: SessionKey) -> Session:
        """The session as it is now, to look at, also if another process has changed it since.

        Raises `SessionNotFound`. Cancellation: nothing has changed.
        """
        sender = await self.sender(key)
        if sender.busy or not self.storage.durable or sender.session.end_is_pending:
            return sender.session
        return Session(self.storage, key.stored_as, await self.storage.sessions.load(key.stored_as))

    def _keep(self, key: SessionKey, sender: Sender) -> Sender:
        self._senders[key] = sender
        if len(self._senders) > _CACHED_SESSIONS:
            idle = next((old for old, each in self._senders.items() if not each.busy and old != key), None)
            if idle is not None:
                del self._senders[idle]
        return sender

    def state_of(self, key: SessionKey, stored: Mapping[str, Any]) -> Mapping[str, Any]:  # Any: JSON values
        """The session's state: as a live run has it, or else as it is stored."""
        known = self._senders.get(key)
        return stored if known is None else known.session.state

    async def delete(self, key: SessionKey) -> None:
        """Its runs are stopped first, also those that come meanwhile. Cancellation: the session may still be there."""
        while live := self.live_of(key):
            for hosted in live:
                hosted.ask(SafePoint.NOW, Reason("its session is deleted"))
            for hosted in live:
                await hosted.over.wait()
        self._senders.pop(key, None)
        id = key.stored_as
        await self.storage.commit(DeleteSession(id), ForgetRuns(id), ForgetNotes(id))

    async def patch(self, key: SessionKey, delta: Mapping[str, Any]) -> None:  # Any: JSON values
        """Change the state, also under a live run, which goes on. Cancellation: changed or not."""
        sender, kept = await self.sender(key), lasting(delta)
        merge(sender.session.state, kept)
        if sender.busy:
            self._patched.add(key)  # a live run writes it with its next step; one that has written its last, nobody
            for hosted in self.live_of(key):
                hosted.telling.state.patched(kept)
        else:
            try:
                await sender.between(sender.session.save_state)
            except (SessionBusy, StoreError):  # whoever is told that it failed must not find it done by the next run
                stored = sender.session.stored_state
                merge(sender.session.state, {name: deepcopy(stored.get(name)) for name in kept})
                raise
        now, id = time.time(), key.stored_as
        note = Note(now, {"id": f"p-{uuid.uuid4()}", "stateDelta": kept})
        await self.storage.commit(*share(key, kept), AddNote(id, note), TouchSession(id, now))

    # -- running -------------------------------------------------------------------------------------------------------

    async def submit(self, who: Principal, key: SessionKey, request: RunRequest) -> HostedRun | RunRecord:
        """Accept a message; a repeated idempotency key gives the run that it belongs to.

        Raises `SessionBusy`, `Draining`, `TooMany`, `NoSuchApp`, `SessionNotFound`, `NothingToAnswer`, `ValueError`.
        Cancellation: it was accepted, or it was not.
        """
        sender = await self._ready(key, request)
        if (known := await self._repeated(key, request)) is not None:
            return known
        others = await self._others.of(key.stored_as, request.if_busy)
        waits = self._is_busy(key, sender) or bool(others)
        self._admit(who, request.if_busy, waits=waits)
        # Counted from here on, not from when its record is stored: many may come at once.
        arriving = object()
        self._arriving[arriving] = (who.name, waits)
        try:
            hosted = await self._host(who, key, sender, request)
            if not waits and not self._is_busy(key, sender):
                try:
                    return await self._begin(hosted, sender, request, arriving)
                except SessionBusy:
                    if request.if_busy == "reject":
                        raise
                # Another process was faster: the message waits for its turn, as a run that was not yet told to anybody.
                hosted = await self._host(who, key, sender, request)
            return await self._queue(hosted, sender, request, arriving)
        finally:
            self._arriving.pop(arriving, None)

    async def _ready(self, key: SessionKey, request: RunRequest) -> Sender:
        """Raises `NoSuchApp`, `SessionNotFound`. Cancellation: nothing has changed."""
        self.agent(key.app)
        return await (self.up_to_date(key) if request.continues else self.sender(key))

    def _is_busy(self, key: SessionKey, sender: Sender) -> bool:
        """Would a message have to wait for a run of this process?"""
        return sender.busy or key in self._beginning

    async def _host(self, who: Principal, key: SessionKey, sender: Sender, request: RunRequest) -> HostedRun:
        """A run for that message, which is not served yet. Cancellation: it is discarded."""
        begun = start(self.agent(key.app), sender.session, request, self.config.ladder)
        try:
            scene = await self.scene(begun, sender.session, request)
        except BaseException:
            begun.run.discard()
            raise
        hosted = HostedRun(key, begun.run, begun.prompt, scene, by=who.name)
        hosted.leaving.policy = request.on_disconnect
        hosted.state_delta = request.state_delta or {}
        return hosted

    async def scene(self, begun: Start, session: Session, request: RunRequest) -> Scene:
        """A run that goes on keeps the name and the marks of the turn that it belongs to. Cancellation: no change."""
        agent, metadata = begun.run.agent, request.custom_metadata
        if not begun.continued:
            return Scene.of(begun.run.id, agent, metadata)
        origin = session.runs[-1].origin
        record = await self.storage.runs.get(origin)
        before: dict[str, Any] = record.request.get("customMetadata", {}) if record is not None else {}  # Any: JSON
        return Scene.of(origin, agent, {**before, **(metadata or {})})

    async def _begin(
        self, hosted: HostedRun, sender: Sender, request: RunRequest, arriving: object
    ) -> HostedRun | RunRecord:
        """Let it run; its record is stored with its beginning. Raises `SessionBusy` if the session is not free.

        Cancellation: it was accepted, or it was not.
        """
        record = self._record(hosted, request, RunState.LIVE)
        hosted.accept = AcceptRun(record, hosted.accepted_at - _DAY, only_first=self._others.matter(request.if_busy))
        self._beginning[hosted.key] = hosted
        try:
            self._arriving.pop(arriving)  # from here on it counts as live
            self.serve(hosted, sender, request.if_busy)
            await hosted.accepted.wait()
        finally:
            del self._beginning[hosted.key]
        if hosted.is_accepted:
            return hosted
        await hosted.over.wait()
        self.runs.pop(hosted.id, None)
        if hosted.twin is not None:
            return self.runs.get(hosted.twin.run_id) or hosted.twin
        raise hosted.why_not_accepted

    async def _queue(
        self, hosted: HostedRun, sender: Sender, request: RunRequest, arriving: object
    ) -> HostedRun | RunRecord:
        """Store its record, then let it wait for its turn. Cancellation: it was accepted, or it was not."""
        hosted.queued, now = True, hosted.accepted_at
        record = self._record(hosted, request, RunState.QUEUED)
        try:
            known = await self.storage.runs.accept(record, since=now - _DAY)
        except BaseException:
            hosted.run.discard()
            raise
        if known.run_id != hosted.id:  # its twin was faster
            hosted.run.discard()
            return self.runs.get(known.run_id) or known
        if self.draining:  # it began to, while the record was stored
            hosted.run.discard()
            await self.storage.runs.move(hosted.id, RunState.ENDED, epoch=0, ended_at=now, **NOT_TAKEN)
            self._refuse_if_draining()
        if self._others.matter(request.if_busy):
            id = hosted.key.stored_as
            hosted.others_over = partial(self._others.make_way, request.if_busy, id, hosted.id)
        self._arriving.pop(arriving, None)
        self.serve(hosted, sender, request.if_busy)
        return hosted

    def _record(self, hosted: HostedRun, request: RunRequest, state: RunState) -> RunRecord:
        now = hosted.accepted_at
        return RunRecord(
            hosted.id,
            hosted.key.stored_as,
            state,
            now,
            self.storage.worker,
            request.model_dump(mode="json", by_alias=True, exclude_none=True),
            request.idempotency_key,
            digest_of(request) if request.idempotency_key is not None else None,
            started_at=now if state is RunState.LIVE else None,
            by=hosted.by,
        )

    async def _repeated(self, key: SessionKey, request: RunRequest) -> HostedRun | RunRecord | None:
        """The run of the same idempotency key. Raises `KeyTaken`. Cancellation: nothing has changed."""
        if request.idempotency_key is None:
            return None
        if (beginning := self._beginning.get(key)) is not None:
            await beginning.accepted.wait()  # it may be the same request, whose record is not stored yet
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

    def serve(self, hosted: HostedRun, sender: Sender, if_busy: IfBusy) -> None:
        """Give an accepted run its task."""
        self.runs[hosted.id] = self._led[hosted.id] = hosted
        self.operations.accepted(hosted)
        body = self._lead(hosted, sender, if_busy)
        hosted.task = asyncio.create_task(body, name=f"safepoint: {hosted.key.stored_as}")

    async def _lead(self, hosted: HostedRun, sender: Sender, if_busy: IfBusy) -> None:
        """Cancellation: a run that waits for its turn is withdrawn; a live one is stopped NOW."""
        limit = asyncio.get_running_loop().call_later(
            self.config.limits.run_seconds,
            hosted.ask,
            SafePoint.NOW,
            Reason("it ran as long as a run may", Source.POLICY),
        )

        def joined(live: AnyRun) -> None:
            other = self.runs.get(live.id)
            if other is not None:
                hosted.feed.join(other.feed)
            merge(sender.session.state, hosted.state_delta)

        try:
            await hosted.serve(sender, if_busy, self.storage.runs, joined)
        finally:
            limit.cancel()
            self._led.pop(hosted.id, None)
            self.operations.over(hosted)
            self._forget_old()
        if hosted.key in self._patched and not sender.busy:
            self._patched.discard(hosted.key)
            with suppress(StoreError):  # then the next run saves it
                await sender.between(sender.session.save_state)

    def _forget_old(self) -> None:
        """Runs that are over stay for a while, for viewers that come back; then the store has what they left."""
        while len(self.runs) > _KEPT_RUNS:
            oldest = next((id for id, run in self.runs.items() if not run.live), None)
            if oldest is None:
                return
            del self.runs[oldest]

    # -- finding -------------------------------------------------------------------------------------------------------

    def live(self) -> list[HostedRun]:
        return [run for run in self._led.values() if run.live]

    def live_of(self, key: SessionKey) -> list[HostedRun]:
        return [run for run in self.live() if run.key == key]

    # -- the end -------------------------------------------------------------------------------------------------------

    async def shut_down(self) -> bool:
        """Stop taking runs, ask those that are live to stop at a safe point, then NOW; return when all are recorded.

        Bounded: what does not end by then is forced, and what does not end then is left to the next start. True if
        there is no such run. Cancellation: the asks stand.
        """
        self.draining = True
        reason = Reason("the server is shutting down", Source.SHUTDOWN)
        for hosted in self.live():
            if hosted.state is RunState.QUEUED:
                hosted.withdraw(reason)
            else:
                hosted.run.node.cancel(
                    SafePoint.ANY, within=self.config.shutdown_seconds, recursive=True, reason=reason
                )
        ladders = [self.config.ladder or hosted.run.agent.ladder for hosted in self.live()]
        cap = max((ladder.cap for ladder in ladders), default=0.0)
        if await self._all_over(self.config.shutdown_seconds + cap + _WRITING):
            return True
        self.force()
        if await self._all_over(_WRITING):
            return True
        for hosted in self.live():
            hosted.give_up(reason)
        return False

    async def _all_over(self, seconds: float) -> bool:
        """Wait for that, so long. Cancellation: only the waiting ends."""
        try:
            async with asyncio.timeout(seconds):
                if self.clearing:
                    await asyncio.wait(self.clearing.values())
                for hosted in self.live():
                    await hosted.over.wait()
        except TimeoutError:
            return False
        return True

    def force(self) -> None:
        """Somebody can't wait."""
        for hosted in self.live():
            hosted.ask(SafePoint.FORCE, Reason("the server was told to end at once", Source.SHUTDOWN))


def _of_server(session: Session) -> Session:
    """What sessions share is kept once, beside them."""
    session.keep_elsewhere(*SHARED)
    return session
