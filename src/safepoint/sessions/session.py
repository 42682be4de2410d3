"""A stored conversation: its messages, its state, one live run at a time.

A session object is a view of what the storage has, kept up to date by the runs that go through it. Everything durable
is one unit of work of the storage, so two objects for one session never disagree about what happened; the storage
decides who may write. A run on a free session writes twice: it claims the session and opens in one unit of work, and
ends and gives the session back in another.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from safepoint._core.asks import make_ask
from safepoint._core.clock import current_clock
from safepoint._core.orphans import Orphan
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason
from safepoint._core.receipts import Receipt
from safepoint._core.supervisor import Supervisor
from safepoint._core.tree import Node, Propagation
from safepoint.agent.journal import Ended, Fact, Opened, Said
from safepoint.agent.pause import Clearing, PauseReceipt
from safepoint.agent.session_protocol import ConversationMoved, Entered
from safepoint.errors import SessionBusy, SessionNotFound, StoreCorrupt, StoreError
from safepoint.history.check import check_history
from safepoint.history.parts import Message
from safepoint.sessions.clearing import PauseClearer, refuse_cleared
from safepoint.sessions.late_results import (
    back_already,
    completed,
    ids_inside,
    late_change,
    late_result,
    with_late_notes,
)
from safepoint.sessions.lease import SessionLease
from safepoint.sessions.pending_ends import REFUSED, PendingEnd, pending_ends, still_needed
from safepoint.sessions.rewind import Rewound, last_turn_taken_back, messages_up_to
from safepoint.sessions.run_writes import RunWrites
from safepoint.sessions.sealing import NOT_ENDED, sealed
from safepoint.sessions.state import TEMPORARY, lasting, plain, rebased
from safepoint.sessions.stores import storage_of
from safepoint.storage.operations import AppendChanges, ClaimSession, CreateSession, Statement
from safepoint.storage.protocol import SessionCommits, Store
from safepoint.storage.reducer import apply, mark_known
from safepoint.storage.session_data import (
    CHANGE,
    Change,
    LateResult,
    Released,
    SessionOutdated,
    StateSet,
    Stored,
    StoredRun,
)

if TYPE_CHECKING:
    from safepoint.agent.checkpoint import Checkpoint
    from safepoint.agent.run import Run


class Session:
    """Use `await Session.create(store)` or `await Session.load(store, id)`; then `agent.run(…, session=session)`.

    `state` is a plain dict for the user and for tools. Changes made during a run are saved with the run's facts, others
    by `save_state`. What has a name that begins with `temp:` is never saved.
    """

    def __init__(self, store: Store | SessionCommits, id: str, stored: Stored) -> None:
        self.id = id
        self._given = store
        self._storage = storage_of(store)
        self._pending = pending_ends(self._storage)
        self._not_stored: tuple[str, ...] = (TEMPORARY,)  # how the names of such values begin
        self.state: dict[str, Any] = plain(stored.state)  # Any: JSON values
        self.live: Run[Any, Any] | None = None
        self._stored = stored
        self._call_ids = _call_ids(stored.messages)
        self._lease = SessionLease(self._storage.sessions, id)
        self._changing = False
        # Appends that were begun and of which it is not known yet whether they happened. Calls that run side by side
        # write side by side; but a claim, and the beginning and the end of a run, load the session first.
        self._open: set[object] = set()
        # It was loaded from a store that does not count its writes: the claimant of then may have written more.
        self._glimpsed = False
        self._listeners: list[Callable[[tuple[Fact, ...]], object]] = []
        self._writes: dict[str, RunWrites] = {}
        # How the live run began, in case it is not known whether that was written.
        self._opening: list[Change] = []
        load = partial(self._storage.sessions.load, id)
        self._pauses = PauseClearer(id, load, lambda: self._stored, self._change_pause)

    # -- making, loading, ending ---------------------------------------------------------------------------------------

    @staticmethod
    async def create(
        store: Store | SessionCommits,
        id: str | None = None,
        *,
        state: Mapping[str, Any] | None = None,  # Any: JSON values
        history: Sequence[Message] = (),
    ) -> Session:
        """A new session; with a `history` from elsewhere, which no run of it has said.

        Cancellation: it is made or it is not; with a history it may be there without.
        """
        check_history(history)
        if id is None:
            id = f"session_{uuid.uuid4().hex}"
        elif not isinstance(id, str) or not id:  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"id={id!r}: write a str that is not empty, or leave it out")
        kept = lasting(state or {})
        (version,) = await storage_of(store).commit(CreateSession(id, kept))
        epoch, number = version or (0, None)  # a store of the user's own does not say
        session = Session(store, id, Stored((), kept, epoch=epoch, number=number))
        if history:
            now = current_clock().wall()
            await session._change(lambda: [Said(place, message, now) for place, message in enumerate(history)])
            session._call_ids = _call_ids(session.messages)
        return session

    @staticmethod
    async def load(store: Store | SessionCommits, id: str) -> Session:
        """A stored session. A run whose process died is sealed first, as if it had been stopped.

        If a run of it is live elsewhere, or the end of its last run could not be stored yet, `messages` is a valid
        history that says what is known. Cancellation: the session is as it was, or sealed.
        """
        storage = storage_of(store)
        session = Session(store, id, await storage.sessions.load(id))
        await session._close_what_is_open()
        return session

    async def _close_what_is_open(self) -> None:
        """Cancellation: the session is as it was, or sealed."""
        self._glimpsed = self._stored.number is None
        with suppress(StoreError):  # then it is shown as it is known here
            await self._pending.settle(self.id)
        if self._pending.get(self.id) is not None:
            return self._show_pending()
        if not self._has_open_run():
            return
        try:
            await self._claim(CHANGE)
        except (StoreCorrupt, SessionNotFound):
            raise
        except StoreError:  # a run of it is live elsewhere; or the storage can be read, and not written
            self._show_closed(sealed(self._stored, self._stored.runs[-1], NOT_ENDED))
        finally:
            await self._lease.give_back()

    def _show_pending(self) -> None:
        """How the last run ended is known in this process only."""
        pending = self._pending.get(self.id)
        if pending is not None and self._has_open_run():
            self._show_closed(*pending.append.changes)

    def _show_closed(self, *changes: Change) -> None:
        """Show these as if they were stored; the next claim looks for itself."""
        self._stored = reduce(apply, changes, self._stored)
        self._call_ids = _call_ids(self._stored.messages)
        self._open.add(object())

    async def fork(self, id: str | None = None, *, at: Checkpoint | None = None) -> Session:
        """A session of its own with the same messages and state. Raises `SessionBusy` if a run of it is live anywhere.

        `at`: only up to an earlier step, `result.at(step)`, of its last run. Cancellation: it may exist, empty.
        """
        self._refuse_live("fork")
        await self._change(list)  # changes nothing: what others have said meanwhile is known, and all of it closed
        other = await Session.create(self._given, id, state=self.state)
        said = messages_up_to(self._stored, at)
        await other._change(lambda: [*said])
        other._call_ids = set(self._call_ids)
        return other

    async def rewind(self, *, turn: str | None = None) -> Rewound:
        """Take the last turn back: its messages and its changes of state. What tools did stays done, and is listed.

        `turn`: the id of the run that is meant; if another one came after it, nothing is taken back.
        Cancellation: it happens whole or not at all.
        """
        self._refuse_live("rewind")
        rewound = Rewound((), ())

        def take_back() -> list[Change]:
            nonlocal rewound
            rewound, changes = last_turn_taken_back(self._stored, turn)
            return changes

        await self._change(take_back)
        if rewound.messages:
            self.state = plain(self._stored.state)
            self._call_ids -= _call_ids(rewound.messages)
        return rewound

    async def delete(self) -> None:
        """Forget it; a live run is cancelled first. Cancellation: the session may still be there."""
        if self.live is not None:
            await self.live.cancel(reason="its session is deleted").wait()
        await self._storage.sessions.delete(self.id)

    async def save_state(self) -> None:
        """Make changes of `state` durable that were made outside a run. Cancellation: saved or not."""
        self._refuse_live("save the state of")
        await self._change(self._state_change)

    async def refresh(self) -> None:
        """Learn what others have written since; nothing is stored. Cancellation: nothing has changed.

        Raises `SessionBusy` if a run of this object is live, which has written it all.
        """
        self._refuse_live("refresh")
        self._see(await self._storage.sessions.load(self.id))
        self._glimpsed = self._stored.number is None
        self._show_pending()

    # -- asking --------------------------------------------------------------------------------------------------------

    def cancel(
        self,
        at: SafePoint = SafePoint.NOW,
        *,
        within: float | None = None,
        recursive: bool = False,
        reason: str | Reason | None = None,
    ) -> Receipt:
        """Ask its live run to stop; if the last run waits for a person, clear that pause, and store it.

        As `run.cancel(…)`, also for a pause that another process has left. A run that is live in another process is
        not reached. Call it on the event loop.
        """
        if self.live is not None:
            return self.live.cancel(at, within=within, recursive=recursive, reason=reason)
        clock, last = current_clock(), self._stored.runs[-1] if self._stored.runs else None
        ask = make_ask(at, within=within, recursive=recursive, reason=reason, now=clock.now(), wall=clock.wall())
        name, id = (last.agent, last.run_id) if last is not None else (self.id, self.id)
        node, checkpoint = Node(id, name, "run", propagation=Propagation.NOTHING), self.checkpoint
        return PauseReceipt(node, ask, self.clear_pause(checkpoint, ask.reason) if checkpoint is not None else None)

    def clear_pause(self, checkpoint: Checkpoint, reason: Reason) -> Clearing | None:
        """Begin to clear a pause, or join who has begun; None if it was answered or cleared."""
        return self._pauses.clear(checkpoint, reason)

    async def _change_pause(self, make: Callable[[Stored], list[Change]]) -> Stored:
        """Cancellation: changed or not."""
        self._refuse_live("cancel")
        await self._change(lambda: make(self._stored))
        return self._stored

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """Where it lives, for as long as this object does."""
        return cast("Store", self._given if hasattr(self._given, "load") else self._storage.sessions)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation, a valid one at any time but while a run is live."""
        return self._stored.messages

    @property
    def times(self) -> tuple[float, ...]:
        """When each message was said, in seconds since 1970."""
        return self._stored.times

    @property
    def stored_state(self) -> Mapping[str, Any]:  # Any: JSON values
        """The state as it was stored last: the same object until that changes."""
        return self._stored.state

    @property
    def checkpoint(self) -> Checkpoint | None:
        """From where the last run can go on, if it was stopped: `agent.resume(session.checkpoint, session=session)`."""
        checkpoint = self._stored.runs[-1].checkpoint if self._stored.runs else None
        if checkpoint is None or checkpoint.dropped:  # a rewind does not bring back what a message has dropped
            return None
        return completed(checkpoint, self.late) if self.late else checkpoint

    @property
    def runs(self) -> tuple[StoredRun, ...]:
        """The turns so far, oldest first; the last one may be live."""
        return self._stored.runs

    @property
    def late(self) -> tuple[LateResult, ...]:
        """Results of calls that were cut and came back after their run; the next run is told."""
        return self._stored.late

    # -- what a run needs (`Conversation`) -----------------------------------------------------------------------------

    async def enter(self, run: Run[Any, Any], continues: str | None) -> Entered:  # Any: a run of any agent
        """Take the session for a run. Raises `SessionBusy` if another run has it. Cancellation: it is not taken."""
        await self._pauses.wait()
        is_held = self.live not in (None, run)  # a run enters again if others wrote before it began
        if is_held or self._changing:
            what = "a run" if is_held else "a change"
            raise SessionBusy(
                f"{what} of the session {self.id!r} is live: wait for it, or use SessionDispatcher(…).send(…)"
            )
        self.live = run
        try:
            if not self._is_current():
                await self._claim()
            refuse_cleared(self._stored, continues)
        except BaseException:
            self.live = None
            await self._lease.give_back()
            raise
        resumed = continues is not None and bool(self._stored.runs)
        # A history from elsewhere may end with the user's words: what is asked now becomes one message with them.
        unanswered = bool(self.messages) and self.messages[-1].role == "user"
        index = self._stored.runs[-1].index if resumed else len(self.messages) - unanswered
        return Entered(with_late_notes(self._stored), self, index, self._call_ids)

    def _is_current(self) -> bool:
        """Can the claim wait for the beginning of the run, and find out there whether more was written since?"""
        unknown = self._open or self._glimpsed or self._has_open_run() or self._pending.get(self.id) is not None
        return self._stored.version is not None and not unknown and self._lease.claimant is None

    async def write(self, *facts: Fact) -> None:
        """The facts of the live run, with the state as it is now. Cancellation: written whole or not at all."""
        first, last = facts[0], facts[-1]
        if isinstance(first, Opened):
            await self._write_opening(first, facts)
        elif isinstance(last, Ended):
            await self._write_end(last, facts)
        else:
            await self._append(*self._state_change(), *facts)
        for listener in self._listeners:
            listener(facts)

    async def store_end(self) -> None:
        """Store the end of the last run now, if that is pending. Raises `StoreError`. Cancellation: it is kept."""
        await self._pending.settle(self.id)

    @property
    def end_is_pending(self) -> bool:
        """Does this process know of an end that the storage does not?"""
        return self._pending.get(self.id) is not None

    def keep_elsewhere(self, *prefixes: str) -> None:
        """Values whose names begin so are for runs to find in `state`, and are not stored with this session."""
        self._not_stored = (TEMPORARY, *prefixes)

    def attach(self, run_id: str, writes: RunWrites) -> None:
        """Write these with the beginning and the end of that run, until it has left."""
        self._writes[run_id] = writes

    async def _write_opening(self, opened: Opened, facts: tuple[Fact, ...]) -> None:
        writes = self._writes.get(opened.run_id)
        more = writes.opening() if writes is not None else ()
        # What was changed before the run is not the run's own change: a rewind keeps it.
        changes: list[Change] = [*self._state_change(), *facts, *late_change(self._stored, opened)]
        self._opening = changes
        try:
            if self._lease.is_certain:
                results = await self._open_claimed(changes, more)
            else:
                results = await self._claim_and_open(opened, changes, more)
        except BaseException as error:
            if writes is not None:
                writes.not_opened()
            if isinstance(error, Exception):  # the run ends without having begun here, and writes nothing more
                await self._leave_unopened(opened.run_id, error)
            raise
        if writes is not None:
            writes.opened(results)

    async def _leave_unopened(self, run_id: str, error: Exception) -> None:
        """A store without units of work may have kept the beginning although it failed: then that run ends here.

        Cancellation: it is given back when the run has left.
        """
        self._pending.never_began(run_id, error)
        if self._stored.number is None and self._lease.is_certain:
            with suppress(StoreError):  # then the next claim ends it
                found = await self._storage.sessions.load(self.id)
                if found.runs and found.runs[-1].run_id == run_id:
                    end = sealed(found, found.runs[-1], self._pending.why_unended(run_id))
                    await self._storage.sessions.append(self.id, self._stored.epoch, [end])
        await self._lease.give_back()

    async def _open_claimed(self, changes: list[Change], more: Sequence[Statement[Any]]) -> Sequence[Any] | None:
        """The results of `more`, None if an earlier try has written it all. Cancellation: it may happen."""
        if self._open:
            self._see(await self._storage.sessions.load(self.id), keep_state=True)
            changes = still_needed(changes, self._stored, self._opening)
            if not changes:
                return None
        return await self._append(*changes, more=more)

    async def _claim_and_open(
        self, opened: Opened, changes: list[Change], more: Sequence[Statement[Any]]
    ) -> Sequence[Any] | None:
        """As `_open_claimed`, and the claim, in one unit of work. Raises `ConversationMoved` if others have written."""
        stored, mine = self._stored, object()
        unit = (
            ClaimSession(self.id, self._lease.name(""), stored.version),
            AppendChanges(self.id, None, mark_known(stored, changes), 1),
            *more,
        )
        self._open.add(mine)
        try:
            epoch, _, *results = await self._lease.after_changes(lambda: self._storage.commit(*unit))
        except SessionOutdated as error:
            found = await self._storage.sessions.load(self.id)
            if not found.runs or found.runs[-1].run_id != opened.run_id:
                self._lease.lost()
                self._see(found)
                self._glimpsed = True
                raise ConversationMoved(str(error)) from error
            self._see(found, keep_state=True)  # it was written by an earlier try, whose answer was not waited for
            self._lease.won(number=1)
            return None
        except SessionBusy:
            self._open.discard(mine)
            self._lease.lost()
            raise
        if mine in self._open:  # else it was given up, and found by the next try
            self._open.discard(mine)
            self._stored = reduce(apply, changes, stored).claimed(epoch, 1)
            self._lease.won(number=1)
        return results

    async def _write_end(self, ended: Ended, facts: tuple[Fact, ...]) -> None:
        """Tried again by `PendingEnds` until it is stored. Cancellation: only the waiting ends."""
        record = self.live.record if self.live is not None else None
        changes: list[Change] = [*self._state_change(), *facts, *back_already(record, ended.checkpoint, self.late)]
        changes += [Released(self._lease.claimant)] if self._lease.claimant is not None else []
        if self._open:
            self._see(await self._storage.sessions.load(self.id), keep_state=True)
            changes = still_needed(changes, self._stored, self._opening)
        try:
            await self._pending.store(self._end_of(ended, changes))
        except BaseException:
            self._open.add(object())
            raise

    def _end_of(self, ended: Ended, changes: list[Change]) -> PendingEnd:
        writes = self._writes.get(ended.run_id)
        state = next((change.state for change in changes if isinstance(change, StateSet)), self._stored.state)
        append = AppendChanges(self.id, self._stored.epoch, mark_known(self._stored, changes), self._lease.next_write())
        unit = (append, *(writes.ending(ended, state) if writes is not None else ()))

        def stored() -> None:
            last = self._stored.runs[-1] if self._stored.runs else None
            if last is not None and last.run_id == ended.run_id and last.ended:
                self._release_with(changes)  # the end was shown before it was stored
            else:
                self._apply(changes, append.number)
            if writes is not None:
                writes.ended()

        return PendingEnd(ended.run_id, append, unit, stored)

    def listen(self, listener: Callable[[tuple[Fact, ...]], object]) -> Callable[[], None]:
        """Call it with the facts of every run of this session, once they are stored. Call what it returns to end that.

        It must not wait and must not raise.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def left(self, run: Run[Any, Any]) -> None:  # Any: as above
        """The run has ended; what it left behind reports here if it comes back."""
        if self.live is run:
            self.live = None
            last = self._stored.runs[-1] if self._has_open_run() else None
            if run.result.save_error is not None and last is not None and last.run_id == run.id:
                self._keep_end(run, last)
        self._writes.pop(run.id, None)
        if self.live is None and not self._changing and self._pending.get(self.id) is None:
            self._lease.begin_release()  # nothing, unless the run never began; its end gives the session back
        known = {late.call_id for late in self.late}
        ids = ids_inside(run.result.checkpoint, run.node.path) if run.result.orphans else {}
        for orphan in run.result.orphans:
            if orphan.still_running:
                orphan.when_late(partial(self._came_back, ids))
            elif (late := late_result(orphan, ids)) is not None and late.call_id not in known:
                # It came back while the end was written. No caller would wait for another write now: keep it in memory.
                self._stored = replace(self._stored, late=(*self.late, late))

    def _keep_end(self, run: Run[Any, Any], last: StoredRun) -> None:  # Any: as above
        """The storage does not know the end of the run: this object shows it, and it is stored as soon as it can be."""
        pending = self._pending.get(self.id)
        refused = isinstance(run.result.save_error, REFUSED)
        if pending is None and not refused and self._lease.is_certain:
            ended = Ended.of(run.result, last.index, current_clock().wall())
            released = [Released(self._lease.claimant)] if self._lease.claimant is not None else []
            pending = self._end_of(ended, [ended, *released])
            self._pending.begin(pending)
        if pending is not None and pending.run_id == run.id:
            self._show_closed(*pending.append.changes)

    # -- the store -----------------------------------------------------------------------------------------------------

    async def _claim(self, kind: str = "") -> None:
        """Claim the session, load what other processes have written, and seal a run whose process has died."""
        if self._pending.get(self.id) is not None:
            await self._pending.settle(self.id)
            self._open.add(object())
        epoch = await self._lease.take(kind)
        if epoch != self._stored.epoch + 1 or self._open or self._glimpsed:
            self._see(await self._storage.sessions.load(self.id))
        self._stored = self._stored.claimed(epoch, None if self._stored.number is None else 0)
        if self._has_open_run():
            run = self._stored.runs[-1]
            await self._append(sealed(self._stored, run, self._pending.why_unended(run.run_id)))

    async def _change(self, make: Callable[[], list[Change]]) -> None:
        """Changes from outside any run, made from what is stored once the session is ours."""
        if self._changing:
            raise SessionBusy(f"another change of the session {self.id!r} is under way: wait for it")
        self._changing = True
        try:
            await self._claim(CHANGE)
            if changes := make():
                await self._append(*changes)
        finally:
            self._changing = False
            await self._lease.give_back()

    async def _append(self, *changes: Change, more: Sequence[Statement[Any]] = ()) -> Sequence[Any]:  # Any: results
        """One unit of work; the results of `more`. Cancellation: only the waiting ends."""
        mine, number = object(), self._lease.next_write()
        self._open.add(mine)
        append = AppendChanges(self.id, self._stored.epoch, mark_known(self._stored, changes), number)
        _, *results = await self._storage.commit(append, *more)
        if mine in self._open:  # else it was given up long ago, and the session was loaded since
            self._open.remove(mine)
            self._apply(changes, number)
        return results

    def _apply(self, changes: Sequence[Change], number: int) -> None:
        stored = reduce(apply, changes, self._stored)
        counted = None if stored.number is None else max(number, stored.number)  # None: the store does not count
        self._stored = stored.claimed(stored.epoch, counted)
        self._release_with(changes)

    def _release_with(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, Released):
                self._lease.released(change.claimant)

    def _see(self, stored: Stored, *, keep_state: bool = False) -> None:
        """Take over what is stored. Values of the state that were changed here and not saved yet stay as they are."""
        if not keep_state and dict(stored.state) != dict(self._stored.state):
            self.state = rebased(self.state, self._stored.state, stored.state)
        # Under a claim of ours the epoch stays: a process that took the session over since must not be overwritten.
        self._stored = stored.claimed(self._stored.epoch if self._lease.is_certain else stored.epoch, stored.number)
        self._open.clear()
        self._glimpsed = False
        self._call_ids = _call_ids(stored.messages)

    def _has_open_run(self) -> bool:
        return bool(self._stored.runs) and not self._stored.runs[-1].ended

    def _state_change(self) -> list[Change]:
        kept_state = {name: value for name, value in self.state.items() if not str(name).startswith(self._not_stored)}
        state = plain(kept_state) if kept_state else kept_state
        return [StateSet(state)] if self._open or state != dict(self._stored.state) else []

    def _refuse_live(self, what: str) -> None:
        if self.live is not None:
            raise SessionBusy(f"can't {what} the session {self.id!r} while a run of it is live")

    # -- late results --------------------------------------------------------------------------------------------------

    def _came_back(self, ids: Mapping[str, str], orphan: Orphan) -> None:
        """An orphan has ended; keep what it brought for the next run, and store it if a loop is there to do it."""
        late = late_result(orphan, ids)
        if late is None:
            return
        self._stored = replace(self._stored, late=(*self._stored.late, late))
        try:
            supervisor = Supervisor.current()
        except RuntimeError:
            return  # no loop in this thread: it waits in memory for the next run
        supervisor.spawn(self._store_late(late), f"late result of {orphan.name}", copy_context())

    async def _store_late(self, late: LateResult) -> None:
        with suppress(Exception):  # then it waits in memory for the next run; or the session was deleted
            await self._storage.sessions.add_late(self.id, late)

    def __repr__(self) -> str:
        return f"<Session {self.id!r}, {len(self.messages)} messages>"


def _call_ids(messages: tuple[Message, ...]) -> set[str]:
    return {call.id for message in messages for call in message.tool_calls}
