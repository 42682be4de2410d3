"""A stored conversation: its messages, its state, one live run at a time.

A session object is a view of what the store has, kept up to date by the runs that go through it. Everything durable
goes through the run's journal or one atomic append, so two objects for one session never disagree about what happened;
the store decides who may write.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from safepoint._core.orphans import Orphan
from safepoint._core.supervisor import Supervisor
from safepoint.agent.conversation import Entered
from safepoint.agent.journal import Ended, Fact, Opened, Said
from safepoint.agent.ledger import LedgerEntry
from safepoint.errors import SessionBusy, StoreError
from safepoint.history.closing import quoted
from safepoint.history.encoding import decode_value, encode_value
from safepoint.history.parts import Message, Notice
from safepoint.history.states import LedgerState
from safepoint.sessions.applying import apply
from safepoint.sessions.recovery import sealed
from safepoint.sessions.store import Change, LateResult, LateSet, StateSet, Store, Stored, Truncated
from safepoint.tools.options import Effect
from safepoint.tools.rendering import render_error, render_result

if TYPE_CHECKING:
    from safepoint.agent.checkpoint import Checkpoint
    from safepoint.agent.run import Run

_HAPPENED = frozenset({LedgerState.FINISHED, LedgerState.FAILED, LedgerState.CUT, LedgerState.STOPPED})


@dataclass(frozen=True, slots=True)
class Rewound:
    """What a rewind took back, and which effects of tools remain in the world all the same."""

    messages: tuple[Message, ...]
    effects: tuple[LedgerEntry, ...]


class Session:
    """Use `await Session.create(store)` or `await Session.load(store, id)`; then `agent.run(…, session=session)`.

    `state` is a plain dict for the user and for tools. Changes made during a run are saved with the run's facts, others
    by `save_state`.
    """

    def __init__(self, store: Store, id: str, stored: Stored) -> None:
        self.id = id
        self.store = store
        self.state: dict[str, Any] = _plain(stored.state)  # Any: JSON values
        self.live: Run[Any, Any] | None = None
        self._stored = stored
        self._call_ids = _call_ids(stored.messages)
        self._claimant = uuid.uuid4().hex
        # Set before a claim and cleared after a release: whatever happens in between, we may hold it.
        self._may_hold = False

    # -- making, loading, ending ---------------------------------------------------------------------------------------

    @staticmethod
    async def create(store: Store, id: str | None = None, *, state: Mapping[str, Any] | None = None) -> Session:
        """A new session. Cancellation: it is made or it is not."""
        id = id or f"session_{uuid.uuid4().hex}"
        plain = _plain(state or {})
        await store.create(id, plain)
        return Session(store, id, Stored((), plain))

    @staticmethod
    async def load(store: Store, id: str) -> Session:
        """A stored session. A run whose process died is sealed first, as if it had been stopped.

        Cancellation: the session is as it was, or sealed.
        """
        session = Session(store, id, await store.load(id))
        if session._has_open_run():
            try:
                await session._claim()
            except SessionBusy:
                return session  # nobody died: a run of it is live somewhere
            await session._release()
        return session

    async def fork(self, id: str | None = None) -> Session:
        """A session of its own with the same messages and state. Cancellation: it may exist, empty."""
        self._refuse_live("fork")
        other = await Session.create(self.store, id, state=self.state)
        await other._change(*[Said(place, message) for place, message in enumerate(self.messages)])
        other._call_ids = set(self._call_ids)
        return other

    async def rewind(self) -> Rewound:
        """Take the last turn back: its messages and its changes of state. What tools did stays done, and is listed.

        Cancellation: it happens whole or not at all.
        """
        self._refuse_live("rewind")
        if not self._stored.runs:
            return Rewound((), ())
        last = self._stored.runs[-1]
        dropped = self.messages[last.index :]
        await self._change(Truncated(last.index), StateSet(last.state_before))
        self.state = _plain(self._stored.state)
        self._call_ids -= _call_ids(dropped)
        effects = [entry for entry in last.ledger if entry.state in _HAPPENED and entry.effect is not Effect.PURE]
        return Rewound(dropped, tuple(effects))

    async def delete(self) -> None:
        """Forget it; a live run is cancelled first. Cancellation: the session may still be there."""
        if self.live is not None:
            await self.live.cancel(reason="its session is deleted").wait()
        await self.store.delete(self.id)

    async def save_state(self) -> None:
        """Make changes of `state` durable that were made outside a run. Cancellation: saved or not."""
        self._refuse_live("save the state of")
        await self._change(*self._state_change())

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation, a valid one at any time but while a run is live."""
        return self._stored.messages

    @property
    def checkpoint(self) -> Checkpoint | None:
        """From where the last run can go on, if it was stopped: `agent.resume(session.checkpoint, session=session)`."""
        return self._stored.runs[-1].checkpoint if self._stored.runs else None

    @property
    def late(self) -> tuple[LateResult, ...]:
        """Results of calls that were cut and came back after their run; the next run is told."""
        return self._stored.late

    # -- what a run needs (`Conversation`) -----------------------------------------------------------------------------

    async def enter(self, run: Run[Any, Any], continues: str | None) -> Entered:  # Any: a run of any agent
        """Take the session for a run. Raises `SessionBusy` if another run has it. Cancellation: it is not taken."""
        if self.live is not None:
            raise SessionBusy(f"a run of the session {self.id!r} is live: wait for it, or use send(…, if_busy=…)")
        self.live = run
        try:
            await self._claim()
        except BaseException:
            self.live = None
            raise
        resumed = continues is not None and bool(self._stored.runs)
        index = self._stored.runs[-1].index if resumed else len(self.messages)
        return Entered(self._with_late_notes(), SessionJournal(self), index, self._call_ids)

    async def write(self, *facts: Fact) -> None:
        """The facts of the live run, with the state as it is now. Cancellation: written whole or not at all."""
        changes: list[Change] = [*facts, *self._state_change()]
        if self.late and isinstance(facts[0], Opened):
            place = facts[0].index - 1
            changes += [Said(place, self._with_late_notes()[place]), LateSet(())] if place >= 0 else []
        await self._append(*changes)
        if any(isinstance(fact, Ended) for fact in facts):
            await self._release()

    def left(self, run: Run[Any, Any]) -> None:  # Any: as above
        """The run has ended; what it left behind reports here if it comes back."""
        if self.live is run:
            self.live = None
            if self._may_hold:  # its end could not be saved, or it was cut while it took the session
                Supervisor.current().spawn(self._release(), f"release of {self.id}", copy_context())
        for orphan in run.result.orphans:
            orphan.when_late(self._came_back)

    # -- the store -----------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        """Take the session, learn what others have written meanwhile, and seal a run that nobody will end."""
        self._may_hold = True
        try:
            epoch = await self.store.claim(self.id, self._claimant)
        except StoreError:
            self._may_hold = False
            raise
        if epoch != self._stored.epoch + 1:
            self._see(await self.store.load(self.id))
        self._stored = replace(self._stored, epoch=epoch)
        if self._has_open_run():
            await self._append(sealed(self._stored, self._stored.runs[-1]))

    async def _release(self) -> None:
        await self.store.release(self.id, self._claimant)
        self._may_hold = False

    async def _change(self, *changes: Change) -> None:
        """Changes from outside any run."""
        await self._claim()
        try:
            await self._append(*changes)
        finally:
            await self._release()

    async def _append(self, *changes: Change) -> None:
        await self.store.append(self.id, self._stored.epoch, changes)
        for change in changes:
            self._stored = apply(self._stored, change)

    def _see(self, stored: Stored) -> None:
        self._stored = stored
        self._call_ids = _call_ids(stored.messages)
        self.state = _plain(stored.state)

    def _has_open_run(self) -> bool:
        return bool(self._stored.runs) and not self._stored.runs[-1].ended

    def _state_change(self) -> list[Change]:
        state = _plain(self.state)
        return [StateSet(state)] if state != dict(self._stored.state) else []

    def _refuse_live(self, what: str) -> None:
        if self.live is not None:
            raise SessionBusy(f"can't {what} the session {self.id!r} while a run of it is live")

    # -- late results --------------------------------------------------------------------------------------------------

    def _with_late_notes(self) -> list[Message]:
        """The conversation, its last remark completed with what came back late."""
        messages = list(self.messages)
        if not self.late or not messages or messages[-1].role != "assistant":
            return messages
        told = " ".join(f"The call {late.name} finished after all: {quoted(late.content, 2000)}." for late in self.late)
        before = " ".join(part.text for part in messages[-1].parts if isinstance(part, Notice))
        others = tuple(part for part in messages[-1].parts if not isinstance(part, Notice))
        messages[-1] = Message("assistant", (*others, Notice(f"{before} {told}".strip())))
        return messages

    def _came_back(self, orphan: Orphan) -> None:
        """An orphan has ended; keep what it brought for the next run, and store it if a loop is there to do it."""
        failed = orphan.error is not None
        content = f"it failed: {render_error(orphan.error)}" if orphan.error else render_result(orphan.result).text
        if failed and isinstance(orphan.error, asyncio.CancelledError):
            return  # it stopped after all, and brings nothing
        late = LateResult(orphan.path.rpartition(":")[2], orphan.name, content)
        self._stored = replace(self._stored, late=(*self._stored.late, late))
        try:
            supervisor = Supervisor.current()
        except RuntimeError:
            return  # no loop in this thread: it waits in memory for the next run
        supervisor.spawn(self.store.add_late(self.id, late), f"late result of {orphan.name}", copy_context())

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
    return cast("dict[str, Any]", decode_value(encode_value(dict(state))))


def _call_ids(messages: tuple[Message, ...]) -> set[str]:
    return {call.id for message in messages for call in message.tool_calls}
