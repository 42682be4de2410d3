"""A stored conversation: its messages, its state, one live run at a time.

A session object is a view of what the store has, kept up to date by the runs that go through it. Everything durable
goes through the run's journal or one atomic append, so two objects for one session never disagree about what happened;
the store decides who may write.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from safepoint._core.border import outlast
from safepoint._core.clock import current_clock
from safepoint._core.orphans import Orphan
from safepoint._core.supervisor import Supervisor
from safepoint.agent.conversation import Entered
from safepoint.agent.journal import Ended, Fact, Opened, Said
from safepoint.errors import SessionBusy, SessionNotFound
from safepoint.history.check import check_history
from safepoint.history.encoding import decode_value, encode_values
from safepoint.history.parts import Message
from safepoint.sessions.applying import apply
from safepoint.sessions.late import completed, late_change, late_result, with_late_notes
from safepoint.sessions.recovery import sealed
from safepoint.sessions.rewinding import Rewound, last_turn_taken_back
from safepoint.sessions.store import (
    CHANGE,
    Change,
    LateResult,
    LateSet,
    Released,
    SessionChanging,
    StateSet,
    Store,
    Stored,
    StoredRun,
)

if TYPE_CHECKING:
    from safepoint.agent.checkpoint import Checkpoint
    from safepoint.agent.run import Run

_PATIENCE = 10.0  # seconds for a release
_A_MOMENT = 2.0  # for which others may have a session to change it
_LOOK = 0.01


class Session:
    """Use `await Session.create(store)` or `await Session.load(store, id)`; then `agent.run(…, session=session)`.

    `state` is a plain dict for the user and for tools. Changes made during a run are saved with the run's facts, others
    by `save_state`. What has a name that begins with `temp:` is never saved.
    """

    def __init__(self, store: Store, id: str, stored: Stored) -> None:
        self.id = id
        self.store = store
        self.state: dict[str, Any] = _plain(stored.state)  # Any: JSON values
        self.live: Run[Any, Any] | None = None
        self._stored = stored
        self._call_ids = _call_ids(stored.messages)
        # Who has claimed it for us, set before a claim and cleared after a release: in between we may hold it. Each
        # claim has a name of its own, so that a release that comes late can't give away the next one.
        self._claimant: str | None = None
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
        plain = _lasting(state or {})
        await store.create(id, plain)
        session = Session(store, id, Stored((), plain))
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
                await session._give_back()
        return session

    async def fork(self, id: str | None = None) -> Session:
        """A session of its own with the same messages and state. Raises `SessionBusy` if a run of it is live anywhere.

        Cancellation: it may exist, empty.
        """
        self._refuse_live("fork")
        await self._change(list)  # changes nothing: what others have said meanwhile is known, and all of it closed
        other = await Session.create(self.store, id, state=self.state)
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
            self.state = _plain(self._stored.state)
            self._call_ids -= _call_ids(rewound.messages)
        return rewound

    async def delete(self) -> None:
        """Forget it; a live run is cancelled first. Cancellation: the session may still be there."""
        if self.live is not None:
            await self.live.cancel(reason="its session is deleted").wait()
        await self.store.delete(self.id)

    async def save_state(self) -> None:
        """Make changes of `state` durable that were made outside a run. Cancellation: saved or not."""
        self._refuse_live("save the state of")
        await self._change(self._state_change)

    async def refresh(self) -> None:
        """Learn what others have written since; nothing is stored. Cancellation: nothing has changed.

        Raises `SessionBusy` if a run of this object is live, which has written it all.
        """
        self._refuse_live("refresh")
        self._see(await self.store.load(self.id))
        self._glimpsed = True

    # -- looking -------------------------------------------------------------------------------------------------------

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
            await self._give_back()
            raise
        resumed = continues is not None and bool(self._stored.runs)
        index = self._stored.runs[-1].index if resumed else len(self.messages)
        return Entered(with_late_notes(self._stored), SessionJournal(self), index, self._call_ids)

    async def write(self, *facts: Fact) -> None:
        """The facts of the live run, with the state as it is now. Cancellation: written whole or not at all."""
        changes: list[Change] = [*self._state_change(), *facts]
        if isinstance(facts[0], Opened):
            # What was changed before the run is not the run's own change: a rewind keeps it.
            changes += late_change(self._stored, facts[0])
            self._opening = changes
        last = facts[-1]
        if isinstance(last, Ended):
            changes += self._back_already()
            changes += [Released(self._claimant)] if self._claimant is not None else []
        if self._open and (isinstance(facts[0], Opened) or isinstance(last, Ended)):
            self._see(await self.store.load(self.id), keep_state=True)
            changes = self._still_needed(changes)
        try:
            await self._append(*changes)
        except Exception:
            if isinstance(facts[0], Opened):  # the run ends without ever having begun here, and writes nothing more
                await self._give_back()
            raise
        else:
            for listener in self._listeners:
                listener(facts)
        finally:
            if isinstance(last, Ended):
                await self._give_back()

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
        if self.live is None and not self._changing and self._claimant is not None:
            # The store did not answer in time.
            self._releasing(self._claimant)
        known = {late.call_id for late in self.late}
        for orphan in run.result.orphans:
            if orphan.still_running:
                orphan.when_late(self._came_back)
            elif (late := late_result(orphan)) is not None and late.call_id not in known:
                # It came back while the end was written. Nobody would wait for another write now: it waits in memory.
                self._stored = replace(self._stored, late=(*self.late, late))

    # -- the store -----------------------------------------------------------------------------------------------------

    async def _claim(self, kind: str = "") -> None:
        """Take the session, learn what others have written meanwhile, and seal a run that nobody will end."""
        await self._give_back()
        # What could not be given back is still ours, under the name it was claimed with.
        claimant = self._claimant = self._claimant or f"{kind}{uuid.uuid4().hex}"
        try:
            epoch = await self._after_changes(claimant)
        except (SessionBusy, SessionNotFound):
            self._claimant = None  # certainly not ours; after any other error it may be
            raise
        if epoch != self._stored.epoch + 1 or self._open or self._glimpsed:
            self._see(await self.store.load(self.id))
        self._stored = self._stored.claimed(epoch)
        if self._has_open_run():
            run, owed = self._stored.runs[-1], self._owed
            await self._append(owed if owed is not None and owed.run_id == run.run_id else sealed(self._stored, run))
        self._owed = None

    async def _after_changes(self, claimant: str) -> int:
        """The epoch of the claim. Whoever only changes something is waited for; nobody tells when, so we look again."""
        until = asyncio.get_running_loop().time() + _A_MOMENT
        while True:
            try:
                return await self.store.claim(self.id, claimant)
            except SessionChanging:
                if asyncio.get_running_loop().time() >= until:
                    raise
            await asyncio.sleep(_LOOK)

    async def _give_back(self) -> None:
        """Release what a claim has taken, or may have. Cancellation: put off until that is done, within limits."""
        if self._claimant is not None:
            await outlast(self._releasing(self._claimant))

    def _releasing(self, claimant: str) -> asyncio.Task[None]:
        """In a task of its own: whoever is cancelled in the middle of a change still owes this."""
        return Supervisor.current().spawn(self._release(claimant), f"release of {self.id}", copy_context())

    async def _release(self, claimant: str) -> None:
        """Bounded. If it fails, this process keeps the session and may use it. Cancellation: likewise."""
        with suppress(Exception):  # whatever a store may raise
            async with asyncio.timeout(_PATIENCE):
                await self.store.release(self.id, claimant)
            if self._claimant == claimant:  # not claimed again meanwhile
                self._claimant = None

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
            await self._give_back()

    async def _append(self, *changes: Change) -> None:
        mine = object()
        self._open.add(mine)
        await self.store.append(self.id, self._stored.epoch, changes)
        if mine not in self._open:
            return  # given up long ago; whoever came after has looked for itself
        self._open.remove(mine)
        for change in changes:
            self._stored = apply(self._stored, change)
            if isinstance(change, Released) and self._claimant == change.claimant:  # not claimed again meanwhile
                self._claimant = None

    def _see(self, stored: Stored, *, keep_state: bool = False) -> None:
        """Take over what is stored. Values of the state that were changed here and not saved yet stay as they are."""
        if not keep_state and dict(stored.state) != dict(self._stored.state):
            self.state = _rebased(self.state, self._stored.state, stored.state)
        self._stored = stored.claimed(self._stored.epoch)
        self._open.clear()
        self._glimpsed = False
        self._call_ids = _call_ids(stored.messages)

    def _has_open_run(self) -> bool:
        return bool(self._stored.runs) and not self._stored.runs[-1].ended

    def _state_change(self) -> list[Change]:
        state = _lasting(self.state)
        return [StateSet(state)] if self._open or state != dict(self._stored.state) else []

    def _refuse_live(self, what: str) -> None:
        if self.live is not None:
            raise SessionBusy(f"can't {what} the session {self.id!r} while a run of it is live")

    # -- late results --------------------------------------------------------------------------------------------------

    def _back_already(self) -> list[Change]:
        """What the live run has left behind and what has come back since is stored with its end."""
        record = self.live.record if self.live is not None else None
        orphans = record.orphans if record is not None else ()
        came = [late for orphan in orphans if (late := late_result(orphan)) is not None]
        return [LateSet((*self.late, *came))] if came else []

    def _came_back(self, orphan: Orphan) -> None:
        """An orphan has ended; keep what it brought for the next run, and store it if a loop is there to do it."""
        late = late_result(orphan)
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
            await self.store.add_late(self.id, late)

    def __repr__(self) -> str:
        return f"<Session {self.id!r}, {len(self.messages)} messages>"


class SessionJournal:
    """A session, as the journal of its live run."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def write(self, *facts: Fact) -> None:
        """Cancellation: written whole or not at all."""
        await self._session.write(*facts)


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:  # Any: values of the user's own
    """A copy, in values that every store can keep; what has no such form becomes its description."""
    return cast("dict[str, Any]", decode_value(encode_values(state)))


def _lasting(state: Mapping[str, Any]) -> dict[str, Any]:  # Any: as above
    return _plain({name: value for name, value in state.items() if not str(name).startswith("temp:")})


def _rebased(
    state: Mapping[str, Any],
    before: Mapping[str, Any],
    now: Mapping[str, Any],  # Any: as above
) -> dict[str, Any]:
    """What is stored now, with what was done to the state since it was as `before`: two may change two values."""
    kept, found = _lasting(state), _plain(now)
    for name in before:
        if name not in kept:
            found.pop(name, None)
    mine = {name: value for name, value in state.items() if name not in before or kept.get(name) != before[name]}
    return {**found, **mine}


def _call_ids(messages: tuple[Message, ...]) -> set[str]:
    return {call.id for message in messages for call in message.tool_calls}
