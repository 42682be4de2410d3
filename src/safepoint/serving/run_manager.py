"""All runs of one process: which are live, which wait, and how a message becomes a run. It knows no HTTP.

Entries are kept by run id, so one run's end can never take another's entry away. A message is accepted once its
record is stored: a successor finds it there. The record of a run that begins at once is stored with its beginning; that
of a message that has to wait is stored before.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from importlib.metadata import version
from typing import Any

from msgspec.structs import replace

from safepoint._core.latch import Latch
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.agent.base import BaseAgent
from safepoint.agent.freeze import Gate, Switch
from safepoint.errors import SafepointError, SessionBusy, StoreError
from safepoint.history.parts import Message
from safepoint.serving.apps import Catalog
from safepoint.serving.config import Role, ServingConfig
from safepoint.serving.cross_process_queue import CrossProcessQueue
from safepoint.serving.drain import Drain
from safepoint.serving.event_publisher import AnyRun
from safepoint.serving.events import Turn
from safepoint.serving.feed import Feed
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import NOT_TAKEN, ManagedRun, Phase, share
from safepoint.serving.operations import Operations
from safepoint.serving.principal import Principal
from safepoint.serving.shared_state import SHARED, lasting, merge, session_part
from safepoint.serving.submission import Start, Submission, start
from safepoint.sessions.dispatch import IfBusy, SessionDispatcher
from safepoint.sessions.session import Session
from safepoint.storage.operations import AcceptRun, AddNote, DeleteSession, ForgetNotes, ForgetRuns, TouchSession
from safepoint.storage.placement import placement_of
from safepoint.storage.protocol import Storage
from safepoint.storage.run_records import FREE, AlreadyAccepted, RunRecord, RunState, same_request
from safepoint.storage.shared_state import Note
from safepoint.storage.workers import WorkerInfo, workers_of

_DAY = 86_400.0
_CACHED_SESSIONS = 1000
_KEPT_RUNS = 1000
_TOO_LONG = Reason("it ran as long as a run may", Source.POLICY)
_WRITING = 1.0  # for the records of runs that have stopped


class Draining(SafepointError):
    """The server is shutting down and takes no new runs."""


class TooMany(SafepointError):
    """This key has as many runs as are allowed at once."""


class NoSuchApp(SafepointError):
    """No app has that name, or it could not be loaded."""


class RunManager:
    """The server's sessions and runs."""

    def __init__(self, catalog: Catalog, storage: Storage, config: ServingConfig) -> None:
        self.catalog = catalog
        self.storage = storage
        self.config = config
        self.operations = Operations()
        observe = getattr(storage, "observe", None)
        if callable(observe):
            observe(self.operations.metrics.answered)
        # What may not begin now, as the storage says: see `freezes.py`.
        self.switch = Switch()
        self.draining = False
        # Runs that were taken for the engine, and are only just being picked up.
        self.settling: set[str] = set()
        # Called when it begins to drain.
        self.on_drain: list[Callable[[], object]] = []
        # Agents of single sessions, in place of that of their app: a client may bring tools to a session.
        self.session_agents: dict[SessionKey, BaseAgent[Any, Any]] = {}  # Any: agents of every kind
        self.runs: OrderedDict[str, ManagedRun] = OrderedDict()
        # Those of them that have a task: few, where `runs` has many that are over.
        self._led: dict[str, ManagedRun] = {}
        # The feeds of runs that other processes have and that are watched here, by run id.
        self.relayed: dict[str, Feed] = {}
        self._cross_process_queue = CrossProcessQueue(storage, self._led.get)
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

    @property
    def is_pushed(self) -> bool:
        """Does the storage tell this process what others write? Else it looks, now and then."""
        return bool(getattr(self.storage, "is_pushed", False))

    # -- sessions ------------------------------------------------------------------------------------------------------

    def agent(self, app: str) -> BaseAgent[Any, Any]:  # Any: agents of every kind
        """Raises `NoSuchApp`."""
        found = self.catalog.get(app)
        if found is None:
            raise NoSuchApp(f"App not found: {app}")
        if found.agent is None:
            raise NoSuchApp(f"App {app} can't be served: {found.error}")
        return found.agent

    def gate(self, key: SessionKey) -> Gate:
        """What is frozen for runs of that session."""
        return self.switch.of(app=key.app, user=key.user)

    def agent_of(self, key: SessionKey) -> BaseAgent[Any, Any]:  # Any: agents of every kind
        """The agent of that session. Raises `NoSuchApp`."""
        return self.session_agents.get(key) or self.agent(key.app)

    async def create(
        self,
        key: SessionKey,
        state: Mapping[str, Any] | None,  # Any: JSON values
        history: Sequence[Message] = (),
    ) -> Session:
        """Raises `SessionExists`, `HistoryError`. Cancellation: it is made or it is not."""
        session = await Session.create(self.storage, key.stored_as, state=session_part(state or {}), history=history)
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
        """As `dispatcher`, with its session brought up to date, for a caller that continues from there.

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
            self._patched.add(key)  # a live run writes it with its next step; after its last step, `_lead` does
            for managed in self.live_of(key):
                managed.publisher.state.patched(kept)
        else:
            try:
                await dispatcher.between(dispatcher.session.save_state)
            except (SessionBusy, StoreError):  # the caller is told that it failed, so the next run must not write it
                stored = dispatcher.session.stored_state
                merge(dispatcher.session.state, {name: deepcopy(stored.get(name)) for name in kept})
                raise
        now, id = time.time(), key.stored_as
        note = Note(now, {"id": f"p-{uuid.uuid4()}", "stateDelta": kept})
        await self.storage.commit(*share(key, kept), AddNote(id, note), TouchSession(id, now))

    # -- running -------------------------------------------------------------------------------------------------------

    async def submit(self, who: Principal, key: SessionKey, submission: Submission) -> ManagedRun | RunRecord:
        """Accept a message; a repeated idempotency key gives the run that it belongs to.

        Raises `SessionBusy`, `Draining`, `TooMany`, `NoSuchApp`, `SessionNotFound`, `NothingToAnswer`, `ValueError`.
        Cancellation: it was accepted, or it was not.
        """
        if submission.idempotency is None:
            return await self._accept(who, key, submission)
        # The same message may come twice at once. The second waits until the first is decided, and is found to be that
        # run before anything is asked about the session, which is busy with it.
        sent = (key, submission.idempotency.key)
        while (first := self._undecided.get(sent)) is not None:
            await first.wait()
        decided = self._undecided[sent] = Latch()
        try:
            known = await self._repeated(key, submission)
            return known if known is not None else await self._accept(who, key, submission)
        except SessionBusy:
            # Another process may have accepted the same message meanwhile: then that is what the session is busy with.
            if (known := await self._repeated(key, submission)) is None:
                raise
            return known
        finally:
            del self._undecided[sent]
            decided.set()

    async def _accept(self, who: Principal, key: SessionKey, submission: Submission) -> ManagedRun | RunRecord:
        """As `submit`, for a message that is not known. Cancellation: likewise."""
        dispatcher = await self._ready(key, submission)
        ahead = await self._cross_process_queue.of(key.stored_as, submission.if_busy)
        is_frozen = self.gate(key).of_run() is not None
        is_busy = self._is_busy(key, dispatcher) or bool(ahead) or (is_frozen and bool(self.live_of(key)))
        waits = is_busy or is_frozen
        self._admit(who, submission.if_busy if is_busy else "queue", waits=waits)
        # Counted from here on, not from when its record is stored: many may come at once.
        arriving = object()
        self._arriving[arriving] = (who.name, waits)
        try:
            managed = await self._manager(who, key, dispatcher, submission)
            if self._is_full(waits=waits):
                return await self._place(managed, submission)
            if waits or self._is_busy(key, dispatcher):
                return await self._queue(managed, dispatcher, submission, arriving)
            try:
                return await self._begin(managed, dispatcher, submission, arriving)
            except SessionBusy:  # another message was accepted meanwhile, here or by another process
                if submission.if_busy == "reject":
                    raise
                return await self._wait_after_all(managed, who, dispatcher, submission)
            finally:
                managed.decided.set()
        finally:
            self._arriving.pop(arriving, None)

    def _is_full(self, *, waits: bool) -> bool:
        """Is the run one for other workers? Without any that could take it, there are none."""
        if placement_of(self.storage) is None or self.config.role is Role.WORKER:
            return False
        if self.config.role is Role.API:
            return True
        return not waits and sum(run.state is RunState.LIVE for run in self.live()) >= self.config.local_slots

    async def _place(self, managed: ManagedRun, submission: Submission) -> RunRecord:
        """Store its record as one that any worker may take, in its turn. Raises `SessionBusy`.

        Cancellation: it was accepted, or it was not.
        """
        managed.run.discard()
        record = replace(self._record(managed, submission, RunState.QUEUED), owner=FREE)
        accept = AcceptRun(record, managed.accepted_at - _DAY, only_first=submission.if_busy == "reject")
        try:
            await self.storage.commit(accept)
        except AlreadyAccepted as error:
            return error.record
        await self._cross_process_queue.stop(submission.if_busy, record)
        return record

    async def _ready(self, key: SessionKey, submission: Submission) -> SessionDispatcher:
        """Raises `NoSuchApp`, `SessionNotFound`. Cancellation: nothing has changed."""
        self.agent(key.app)
        return await (self.up_to_date(key) if not submission.is_new_turn else self.dispatcher(key))

    def _is_busy(self, key: SessionKey, dispatcher: SessionDispatcher) -> bool:
        """Would a message have to wait for a run of this process?"""
        return dispatcher.busy or key in self._beginning

    async def _manager(
        self,
        who: Principal,
        key: SessionKey,
        dispatcher: SessionDispatcher,
        submission: Submission,
        *,
        run_id: str | None = None,
    ) -> ManagedRun:
        """A run for that message, which is not served yet. Cancellation: it is discarded."""
        begun = start(self.agent_of(key), dispatcher.session, submission, self.config.ladder, self.gate(key))
        if run_id is not None:
            begun = replace(begun, run=begun.run.under(run_id))
        try:
            turn = await self.turn(begun, dispatcher.session, submission)
        except BaseException:
            begun.run.discard()
            raise
        managed = ManagedRun(key, begun.run, begun.prompt, turn, by=who.name)
        managed.disconnect_policy.policy = submission.on_disconnect
        managed.state_delta = submission.state_delta or {}
        return managed

    async def turn(self, begun: Start, session: Session, submission: Submission) -> Turn:
        """A run that goes on keeps the name and the marks of the turn that it belongs to. Cancellation: no change."""
        agent, metadata = begun.run.agent, submission.metadata
        if not begun.continued:
            return Turn.of(begun.run.id, agent, metadata)
        origin = session.runs[-1].origin
        record = await self.storage.runs.get(origin)
        before: dict[str, Any] = record.request.get("customMetadata", {}) if record is not None else {}  # Any: JSON
        return Turn.of(origin, agent, {**before, **(metadata or {})})

    async def _begin(
        self, managed: ManagedRun, dispatcher: SessionDispatcher, submission: Submission, arriving: object
    ) -> ManagedRun | RunRecord:
        """Let it run; its record is stored with its beginning. Raises `SessionBusy` if the session is not free.

        Cancellation: it was accepted, or it was not.
        """
        record = self._record(managed, submission, RunState.LIVE)
        managed.accept = AcceptRun(
            record, managed.accepted_at - _DAY, only_first=self._cross_process_queue.matter(submission.if_busy)
        )
        self._beginning[managed.key] = managed
        # Also if this request has gone: until then the session is taken, and its key may be this message's.
        managed.accepted.when_set(lambda: self._beginning.pop(managed.key))
        self._arriving.pop(arriving)  # from here on it counts as live
        self.serve(managed, dispatcher, submission.if_busy)
        await managed.accepted.wait()
        if managed.is_accepted:
            return managed
        await managed.over.wait()
        self.runs.pop(managed.id, None)
        if managed.twin is not None:
            return self.runs.get(managed.twin.run_id) or managed.twin
        raise managed.why_not_accepted

    async def _wait_after_all(
        self, refused: ManagedRun, who: Principal, dispatcher: SessionDispatcher, submission: Submission
    ) -> ManagedRun | RunRecord:
        """Queue a message whose run could not begin. A client that has seen that run finds it under the same id.

        If it was asked to stop, that is what becomes of it. Cancellation: it was accepted, or it was not.
        """
        managed = await self._manager(who, refused.key, dispatcher, submission, run_id=refused.id)
        asked = refused.run.node.request()
        if asked is not None:
            managed.withdraw(asked.reason)
        accepted = await self._queue(managed, dispatcher, submission, None)
        refused.again = managed if accepted is managed else None
        return accepted

    async def _queue(
        self, managed: ManagedRun, dispatcher: SessionDispatcher, submission: Submission, arriving: object
    ) -> ManagedRun | RunRecord:
        """Store its record, then let it wait for its turn. Cancellation: it was accepted, or it was not."""
        now = managed.accepted_at
        record = self._record(managed, submission, RunState.QUEUED)
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
        if self._cross_process_queue.matter(submission.if_busy):
            id = managed.key.stored_as
            managed.ahead_over = partial(self._cross_process_queue.make_way, submission.if_busy, id, managed.id)
        managed.queue()
        self._arriving.pop(arriving, None)
        self.serve(managed, dispatcher, submission.if_busy)
        return managed

    def _record(self, managed: ManagedRun, submission: Submission, state: RunState) -> RunRecord:
        now, once = managed.accepted_at, submission.idempotency
        return RunRecord(
            managed.id,
            managed.key.stored_as,
            state,
            now,
            self.storage.worker,
            submission.to_json(),
            once.key if once is not None else None,
            once.digest if once is not None else None,
            started_at=now if state is RunState.LIVE else None,
            by=managed.by,
        )

    async def _repeated(self, key: SessionKey, submission: Submission) -> ManagedRun | RunRecord | None:
        """The run of the same idempotency key. Raises `KeyTaken`. Cancellation: nothing has changed."""
        if submission.idempotency is None:
            return None
        if (beginning := self._beginning.get(key)) is not None:
            await beginning.accepted.wait()  # it may be the same message, whose sender has left meanwhile
        known = await self.storage.runs.by_key(key.stored_as, submission.idempotency.key, since=time.time() - _DAY)
        if known is None:
            return None
        same_request(known, submission.idempotency.digest)
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
        gate = managed.gate = self.gate(managed.key)
        if managed.frozen_before() is not None and managed.phase is Phase.QUEUED:
            managed.ahead_over = partial(_after_thaw, gate, managed, managed.ahead_over)
            if_busy = "queue" if if_busy == "reject" else if_busy  # it was found to be the next, and has to wait
        self.operations.accepted(managed)
        body = self._lead(managed, dispatcher, if_busy)
        managed.task = asyncio.create_task(body, name=f"safepoint: {managed.key.stored_as}")

    async def _lead(self, managed: ManagedRun, dispatcher: SessionDispatcher, if_busy: IfBusy) -> None:
        """Cancellation: a run that waits for its turn is withdrawn; a live one is stopped NOW."""
        self._limit_time(managed)

        def joined(live: AnyRun) -> None:
            other = self.runs.get(live.id)
            if other is not None:
                managed.feed.join(other.feed)
            merge(dispatcher.session.state, managed.state_delta)

        try:
            await managed.serve(dispatcher, if_busy, self.storage.runs, joined)
        finally:
            if managed.limit is not None:
                managed.limit.cancel()
            self._led.pop(managed.id, None)
            self.operations.over(managed)
            self._forget_old()
        if managed.key in self._patched and not dispatcher.busy:
            self._patched.discard(managed.key)
            with suppress(StoreError):  # then the next run saves it
                await dispatcher.between(dispatcher.session.save_state)

    def _limit_time(self, managed: ManagedRun) -> None:
        seconds = self.config.limits.run_seconds
        managed.limit = asyncio.get_running_loop().call_later(seconds, self._too_long, managed)

    def _too_long(self, managed: ManagedRun) -> None:
        """A run that waits for a thaw has that much time again."""
        if managed.held_by is None:
            managed.ask(SafePoint.NOW, _TOO_LONG)
        else:
            self._limit_time(managed)

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

        `shutdown_seconds` bound all of that, whatever tools declare: see `Drain`. What does not end by then is left to
        the next start. True if there is no such run. Cancellation: the asks stand.
        """
        self.draining = True
        for call in self.on_drain:
            call()
        await self._announce_leave()
        reason = Reason("the server is shutting down", Source.SHUTDOWN)
        drain = Drain(self.config.shutdown_seconds, asyncio.get_running_loop().time())
        for managed in self.live():
            drain.ask(managed, reason)
        if await self._all_over(drain.until_force()):
            return True
        drain.list_forced(self.live())
        self.force()
        if await self._all_over(drain.until_end()):
            return True
        for managed in self.live():
            managed.give_up(reason)
        return False

    async def _announce_leave(self) -> None:
        """Runs that stop from now on are offered to others. Bounded. Cancellation: announced, or not."""
        workers = workers_of(self.storage)
        if workers is not None:
            with suppress(StoreError, TimeoutError):  # what is offered to this process is found by others at a look
                async with asyncio.timeout(_WRITING):
                    await workers.announce(worker_info(self), draining=True)

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
        """Skip the remaining grace periods of all live runs."""
        for managed in self.live():
            managed.ask(SafePoint.FORCE, Reason("the server was told to end at once", Source.SHUTDOWN))


async def _after_thaw(gate: Gate, managed: ManagedRun, ahead_over: Callable[[], Awaitable[None]] | None) -> None:
    """Cancellation: only the waiting ends."""
    await gate.opened(managed.frozen_before)
    if ahead_over is not None:
        await ahead_over()


def worker_info(manager: RunManager) -> WorkerInfo:
    """What this process says of itself to the others of its cluster."""
    room = 0 if manager.config.role is Role.API else manager.config.job_slots
    return WorkerInfo(socket.gethostname(), os.getpid(), version("safepoint"), tuple(manager.catalog.names), room=room)


def _of_server(session: Session) -> Session:
    """What sessions share is kept once, beside them."""
    session.keep_elsewhere(*SHARED)
    return session
