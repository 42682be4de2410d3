"""All runs of one server: who is live, who waits, and how a run is accepted and found. Not a word of HTTP.

Entries are kept by run id, so one run's end can never take another's entry away. A message is accepted once its
record is stored: whoever comes after a crash finds it there.
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
from safepoint.server.hosted import REFUSED, HostedRun
from safepoint.server.ids import SessionKey
from safepoint.server.operations import Operations
from safepoint.server.others import Others
from safepoint.server.principal import Principal
from safepoint.server.requests import RunRequest, digest_of
from safepoint.server.shared_state import lasting, merge, own
from safepoint.server.starting import Start, start
from safepoint.server.telling import AnyRun
from safepoint.server.turn_state import TurnState, share
from safepoint.server.wire_events import Scene
from safepoint.sessions.busy import IfBusy, Sender
from safepoint.sessions.owners import Owner
from safepoint.sessions.records import RunBook, RunRecord, RunState, same_request
from safepoint.sessions.session import Session
from safepoint.sessions.shelf import Note, Shelf
from safepoint.sessions.store import Store

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

    def __init__(self, catalog: Catalog, store: Store, book: RunBook, shelf: Shelf, config: ServerConfig) -> None:
        self.catalog = catalog
        self.store = store
        self.book = book
        self.shelf = shelf
        self.config = config
        self.operations = Operations()
        self.draining = False
        self.owner = str(Owner.this_process())
        self.runs: OrderedDict[str, HostedRun] = OrderedDict()
        # Those of them that have a task: few, where `runs` has many that are over.
        self._led: dict[str, HostedRun] = {}
        self._others = Others(book, self.owner, self._led.get)
        # Pauses that are being cleared, by run id: whether that is durable, or None if there was none to clear.
        self.clearing: dict[str, asyncio.Task[bool | None]] = {}
        # Messages whose record is not stored yet: by which key, and whether they are to wait for their turn.
        self._arriving: list[tuple[str, bool]] = []
        self._senders: OrderedDict[SessionKey, Sender] = OrderedDict()
        self._patched: set[SessionKey] = set()

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
        session = await Session.create(self.store, key.stored_as, state=own(state or {}), history=history)
        await share(self.shelf, key, state or {})
        await self.book.touch(key.stored_as, time.time())
        self._keep(key, Sender(session))
        return session

    async def sender(self, key: SessionKey) -> Sender:
        """The one sender of that session. Raises `SessionNotFound`. Cancellation: nothing has changed."""
        known = self._senders.get(key)
        if known is not None:
            self._senders.move_to_end(key)
            return known
        session = await Session.load(self.store, key.stored_as)
        return self._senders.get(key) or self._keep(key, Sender(session))

    async def up_to_date(self, key: SessionKey) -> Sender:
        """As `sender`, and its session knows what other processes have said. For whoever goes on from there.

        Raises `SessionNotFound`. Cancellation: nothing has changed.
        """
        sender = await self.sender(key)
        if self.book.durable and not sender.busy:
            await sender.between(sender.session.refresh)
        return sender

    async def view(self, key: SessionKey) -> Session:
        """The session as it is now, to look at, also if another process has changed it since.

        Raises `SessionNotFound`. Cancellation: nothing has changed.
        """
        sender = await self.sender(key)
        if sender.busy or not self.book.durable:
            return sender.session
        return Session(self.store, key.stored_as, await self.store.load(key.stored_as))

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
        await self.store.delete(key.stored_as)
        await self.book.forget(key.stored_as)
        await self.shelf.forget(key.stored_as)

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
        await share(self.shelf, key, kept)
        now = time.time()
        await self.shelf.note(key.stored_as, Note(now, {"id": f"p-{uuid.uuid4()}", "stateDelta": kept}))
        await self.book.touch(key.stored_as, now)

    # -- running -------------------------------------------------------------------------------------------------------

    async def submit(self, who: Principal, key: SessionKey, request: RunRequest) -> HostedRun | RunRecord:
        """Accept a message; a repeated idempotency key gives the run that it belongs to.

        Raises `SessionBusy`, `Draining`, `TooMany`, `NoSuchApp`, `SessionNotFound`, `NothingToAnswer`, `ValueError`.
        Cancellation: it was accepted, or it was not.
        """
        agent, sender = self.agent(key.app), await self.sender(key)
        if (known := await self._repeated(key, request)) is not None:
            return known
        if request.continues:
            sender = await self.up_to_date(key)
        others = await self._others.of(key.stored_as, request.if_busy)
        waits = sender.busy or bool(others)
        self._admit(who, request.if_busy, waits=waits)
        # Counted from here on, not from when its record is stored: many may come at once.
        place = (who.name, waits)
        self._arriving.append(place)
        try:
            begun = start(agent, sender.session, request, self.config.ladder)
            try:
                scene = await self.scene(begun, sender.session, request)
            except BaseException:
                begun.run.discard()
                raise
            hosted = HostedRun(key, begun.run, begun.prompt, scene, by=who.name)
            hosted.leaving.policy = request.on_disconnect
            if self._others.matter(request.if_busy):
                hosted.queued = True
                hosted.others_over = partial(self._others.make_way, request.if_busy, key.stored_as, hosted.id)
            return await self.accept(hosted, sender, request)
        finally:
            self._arriving.remove(place)

    async def scene(self, begun: Start, session: Session, request: RunRequest) -> Scene:
        """A run that goes on keeps the name and the marks of the turn that it belongs to. Cancellation: no change."""
        agent, metadata = begun.run.agent, request.custom_metadata
        if not begun.continued:
            return Scene.of(begun.run.id, agent, metadata)
        origin = session.runs[-1].origin
        record = await self.book.get(origin)
        before: dict[str, Any] = record.request.get("customMetadata", {}) if record is not None else {}  # Any: JSON
        return Scene.of(origin, agent, {**before, **(metadata or {})})

    async def accept(self, hosted: HostedRun, sender: Sender, request: RunRequest) -> HostedRun | RunRecord:
        """Store its record, then let it run, or wait for its turn. Cancellation: it was accepted, or it was not."""
        hosted.queued, now = hosted.queued or sender.busy, hosted.accepted_at
        record = RunRecord(
            hosted.id,
            hosted.key.stored_as,
            RunState.QUEUED if hosted.queued else RunState.LIVE,
            now,
            self.owner,
            request.model_dump(mode="json", by_alias=True, exclude_none=True),
            request.idempotency_key,
            digest_of(request) if request.idempotency_key is not None else None,
            started_at=None if hosted.queued else now,
            renewed=now,
            by=hosted.by,
        )
        try:
            known = await self.book.accept(record, since=now - _DAY)
        except BaseException:
            hosted.run.discard()
            raise
        if known.run_id != hosted.id:  # its twin was faster
            hosted.run.discard()
            return self.runs.get(known.run_id) or known
        if self.draining:  # it began to, while the record was stored
            hosted.run.discard()
            await self.book.move(hosted.id, RunState.ENDED, epoch=0, ended_at=now, **REFUSED)
            self._refuse_if_draining()
        hosted.state_delta = request.state_delta or {}
        self.serve(hosted, sender, request.if_busy)
        return hosted

    async def _repeated(self, key: SessionKey, request: RunRequest) -> HostedRun | RunRecord | None:
        """The run of the same idempotency key. Raises `KeyTaken`. Cancellation: nothing has changed."""
        if request.idempotency_key is None:
            return None
        known = await self.book.by_key(key.stored_as, request.idempotency_key, since=time.time() - _DAY)
        if known is None:
            return None
        same_request(known, digest_of(request))
        return self.runs.get(known.run_id) or known

    def _admit(self, who: Principal, if_busy: IfBusy, *, waits: bool) -> None:
        self._refuse_if_draining()
        if waits and if_busy == "reject":
            raise SessionBusy("a run of this session is live: wait for it, stop it, or send ifBusy")
        queued = [run.state is RunState.QUEUED for run in self.live() if run.by == who.name]
        queued += [is_queued for name, is_queued in self._arriving if name == who.name]
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
        turn = TurnState(self.book, self.shelf, hosted, sender.session)
        hosted.bring_state, hosted.keep_state = turn.bring, turn.keep
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
            await hosted.serve(sender, if_busy, self.book, joined)
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
