"""A stored conversation: its messages, its state, one live run at a time.

A session object is a view of what the store has, kept up to date by the runs that go through it. Everything durable
goes through the run's journal or one atomic append, so two objects for one session never disagree about what happened;
the store decides who may write.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from safepoint._core.clock import current_clock
from safepoint._core.orphans import Orphan
from safepoint._core.supervisor import Supervisor
from safepoint.agent.conversation import Entered
from safepoint.agent.journal import Ended, Fact, Opened, Said, as_store_errors
from safepoint.errors import SessionBusy
from safepoint.history.check import check_history
from safepoint.history.parts import Message
from safepoint.sessions.applying import apply, knowing
from safepoint.sessions.hold import Hold
from safepoint.sessions.late import completed, ids_inside, late_change, late_result, with_late_notes
from safepoint.sessions.recovery import sealed
from safepoint.sessions.rewinding import Rewound, last_turn_taken_back
from safepoint.sessions.state import lasting, plain, rebased
from safepoint.sessions.store import (
    CHANGE,
    Change,
    LateResult,
    LateSet,
    Released,
    StateSet,
    Store,
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

    def __init__(self, store: Store, id: str, stored: Stored) -> None:
        self.id = id
        self._store = store
        self.state: dict[str, Any] = plain(stored.state)  # Any: JSON values
        self.live: Run[Any, Any] | None = None
        self._stored = stored
        self._call_ids = _call_ids(stored.messages)
        self._hold = Hold(store, id)
        self._changing = False
        # Appends that were begun and of which nobody knows yet whether they happened. Calls that run side by side write
        # side by side; but a claim, and the beginning and the end of a run, ask the store first.
        self._open: set[object] = set()
        # It was loaded, and whoever held it then may have written more under the claim that was seen.
        self._glimpsed = False
        self._listeners: list[Callable[[tuple[Fact, ...]], object]] = []
        # The end of a run that could not wait until it was stored: written with the next change.
        self._owed: Ended | None = None
        # How the live run began, in case that is what nobody knows.
        self._opening: list[Change] = []

    # -- making, loading, ending ---------------------------------------------------------------------------------------

    @staticmethod
    async def create(
        store: Store,
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
        await store.create(id, kept)
        session = Session(store, id, Stored((), kept))
        if history:
            now = current_clock().wall()
            await session._change(lambda: [Said(place, message, now) for place, message in enumerate(history)])
            session._call_ids = _call_ids(session.messages)
        return session

    @staticmethod
    async def load(store: Store, id: str) -> Session:
        """A stored session. A run whose process died is sealed first, as if it had been stopped.

        Cancellation: the session is as it was, or sealed.
        """
        session = Session(store, id, await store.load(id))
        session._glimpsed = True
        if session._has_open_run():
            try:
                await session._claim(CHANGE)
            except SessionBusy:
                return session  # nobody died: a run of it is live somewhere
            finally:
                await session._hold.give_back()
        return session

    async def fork(self, id: str | None = None) -> Session:
        """A session of its own with the same messages and state. Raises `SessionBusy` if a run of it is live anywhere.

        Cancellation: it may exist, empty.
        """
        self._refuse_live("fork")
        await self._change(list)  # changes nothing: what others have said meanwhile is known, and all of it closed
        other = await Session.create(self._store, id, state=self.state)
        said = [Said(place, *each) for place, each in enumerate(zip(self.messages, self._stored.times, strict=True))]
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
        await self._store.delete(self.id)

    async def save_state(self) -> None:
        """Make changes of `state` durable that were made outside a run. Cancellation: saved or not."""
        self._refuse_live("save the state of")
        await self._change(self._state_change)

    async def refresh(self) -> None:
        """Learn what others have written since; nothing is stored. Cancellation: nothing has changed.

        Raises `SessionBusy` if a run of this object is live, which has written it all.
        """
        self._refuse_live("refresh")
        self._see(await self._store.load(self.id))
        self._glimpsed = True

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """Where it lives, for as long as this object does."""
        return self._store

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
        if self.live is not None or self._changing:
            what = "a run" if self.live is not None else "a change"
            raise SessionBusy(f"{what} of the session {self.id!r} is live: wait for it, or use Sender(…).send(…)")
        self.live = run
        try:
            await self._claim()
        except BaseException:
            self.live = None
            await self._hold.give_back()
            raise
        resumed = continues is not None and bool(self._stored.runs)
        # A history from elsewhere may end with the user's words: what is asked now becomes one message with them.
        unanswered = bool(self.messages) and self.messages[-1].role == "user"
        index = self._stored.runs[-1].index if resumed else len(self.messages) - unanswered
        return Entered(with_late_notes(self._stored), self, index, self._call_ids)

    async def write(self, *facts: Fact) -> None:
        """The facts of the live run, with the state as it is now. Cancellation: written whole or not at all."""
        changes: list[Change] = [*self._state_change(), *facts]
        if isinstance(facts[0], Opened):
            # What was changed before the run is not the run's own change: a rewind keeps it.
            changes += late_change(self._stored, facts[0])
            self._opening = changes
        last = facts[-1]
        if isinstance(last, Ended):
            changes += self._back_already(last)
            changes += [Released(self._hold.claimant)] if self._hold.claimant is not None else []
        if self._open and (isinstance(facts[0], Opened) or isinstance(last, Ended)):
            self._see(await self._store.load(self.id), keep_state=True)
            changes = self._still_needed(changes)
        try:
            await self._append(*changes)
        except Exception:
            if isinstance(facts[0], Opened):  # the run ends without ever having begun here, and writes nothing more
                await self._hold.give_back()
            raise
        else:
            for listener in self._listeners:
                listener(facts)
        finally:
            if isinstance(last, Ended):
                await self._hold.give_back()

    def listen(self, listener: Callable[[tuple[Fact, ...]], object]) -> Callable[[], None]:
        """Call it with the facts of every run of this session, once they are stored. Call what it returns to end that.

        It must not wait and must not raise.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _still_needed(self, changes: list[Change]) -> list[Change]:
        """Nobody knew whether an earlier write had happened: the beginning of a run is written once, and not never."""
        run_id = self._stored.runs[-1].run_id if self._stored.runs else None
        if any(isinstance(change, Opened) and change.run_id == run_id for change in changes):
            return []
        if any(isinstance(change, Ended) and change.run_id != run_id for change in changes):
            return [*self._opening, *changes]
        return changes

    def left(self, run: Run[Any, Any]) -> None:  # Any: as above
        """The run has ended; what it left behind reports here if it comes back."""
        if self.live is run:
            self.live = None
            if run.result.save_error is not None and self._has_open_run():
                self._owed = Ended.of(run.result, self._stored.runs[-1].index, current_clock().wall())
        if self.live is None and not self._changing:
            self._hold.begin_release()  # nothing, unless the store did not answer in time
        known = {late.call_id for late in self.late}
        ids = ids_inside(run.result.checkpoint, run.node.path) if run.result.orphans else {}
        for orphan in run.result.orphans:
            if orphan.still_running:
                orphan.when_late(partial(self._came_back, ids))
            elif (late := late_result(orphan, ids)) is not None and late.call_id not in known:
                # It came back while the end was written. Nobody would wait for another write now: it waits in memory.
                self._stored = replace(self._stored, late=(*self.late, late))

    # -- the store -----------------------------------------------------------------------------------------------------

    async def _claim(self, kind: str = "") -> None:
        """Take the session, learn what others have written meanwhile, and seal a run that nobody will end."""
        with as_store_errors():
            epoch = await self._hold.take(kind)
            if epoch != self._stored.epoch + 1 or self._open or self._glimpsed:
                self._see(await self._store.load(self.id))
        self._stored = self._stored.claimed(epoch)
        if self._has_open_run():
            run, owed = self._stored.runs[-1], self._owed
            await self._append(owed if owed is not None and owed.run_id == run.run_id else sealed(self._stored, run))
        self._owed = None

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
            await self._hold.give_back()

    async def _append(self, *changes: Change) -> None:
        mine = object()
        self._open.add(mine)
        with as_store_errors():
            await self._store.append(self.id, self._stored.epoch, knowing(self._stored, changes))
        if mine not in self._open:
            return  # given up long ago; whoever came after has looked for itself
        self._open.remove(mine)
        for change in changes:
            self._stored = apply(self._stored, change)
            if isinstance(change, Released):
                self._hold.released(change.claimant)

    def _see(self, stored: Stored, *, keep_state: bool = False) -> None:
        """Take over what is stored. Values of the state that were changed here and not saved yet stay as they are."""
        if not keep_state and dict(stored.state) != dict(self._stored.state):
            self.state = rebased(self.state, self._stored.state, stored.state)
        self._stored = stored.claimed(self._stored.epoch)
        self._open.clear()
        self._glimpsed = False
        self._call_ids = _call_ids(stored.messages)

    def _has_open_run(self) -> bool:
        return bool(self._stored.runs) and not self._stored.runs[-1].ended

    def _state_change(self) -> list[Change]:
        state = lasting(self.state)
        return [StateSet(state)] if self._open or state != dict(self._stored.state) else []

    def _refuse_live(self, what: str) -> None:
        if self.live is not None:
            raise SessionBusy(f"can't {what} the session {self.id!r} while a run of it is live")

    # -- late results --------------------------------------------------------------------------------------------------

    def _back_already(self, ended: Ended) -> list[Change]:
        """What the live run has left behind and what has come back since is stored with its end."""
        record = self.live.record if self.live is not None else None
        if record is None or not record.orphans:
            return []
        ids = ids_inside(ended.checkpoint, record.node.path)
        came = [late for orphan in record.orphans if (late := late_result(orphan, ids)) is not None]
        return [LateSet((*self.late, *came))] if came else []

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
            await self._store.add_late(self.id, late)

    def __repr__(self) -> str:
        return f"<Session {self.id!r}, {len(self.messages)} messages>"


def _call_ids(messages: tuple[Message, ...]) -> set[str]:
    return {call.id for message in messages for call in message.tool_calls}
