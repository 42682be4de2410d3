"""What a storage is: one object with parts that share one transaction, one lease scheme and one signal of changes.

    sessions   conversations, claimed by one run at a time
    runs       accepted runs, their owners, requests to cancel them
    shared     values that sessions share, and notes
    freezes    what may not begin now
    audit      who asked for what, and what came of it
    loops      the items and turns of turn loops
    changes    "something about this run or session changed: look again"

A run claims a session and gets an epoch; every later write carries it. A write with an old epoch is refused, so a run
that was taken for dead and comes back cannot spoil what its successor has written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from safepoint.agent.freeze import FreezeList
from safepoint.storage.audit import AuditTrail
from safepoint.storage.loop_data import LoopRecords
from safepoint.storage.operations import Statement
from safepoint.storage.run_records import RunRegistry
from safepoint.storage.session_data import Change, LateResult, Stored
from safepoint.storage.shared_state import SharedState

PARTS = ("sessions", "runs", "shared", "freezes", "audit", "loops", "changes", "commit")


class SessionCalls(Protocol):
    """What a session needs of a store. Every method is atomic: it happens whole or raises, also if it is cancelled."""

    async def create(self, session_id: str, state: Mapping[str, Any]) -> None:  # Any: JSON values
        """A new, empty session. Raises `SessionExists`."""
        ...

    async def load(self, session_id: str) -> Stored:
        """Everything. Raises `SessionNotFound`, or `StoreCorrupt` and changes nothing."""
        ...

    async def claim(self, session_id: str, claimant: str) -> int:
        """Take the session; returns the epoch of its writes. Raises `SessionBusy` while another claimant has it."""
        ...

    async def release(self, session_id: str, claimant: str) -> None:
        """Give it back. Does nothing if another owner has it by now."""
        ...

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        """All of these changes, or none. Raises `Superseded` for an old epoch, `SessionNotFound` after a delete."""
        ...

    async def add_late(self, session_id: str, late: LateResult) -> None:
        """A late result, from outside any run."""
        ...

    async def delete(self, session_id: str) -> None:
        """Forget it. Deleting what is not there is no error."""
        ...


class Store(SessionCalls, Protocol):
    """Every method is atomic: it happens whole or raises. Cancellation of any of them: likewise.

    A user may write one: `Session.create(my_store)` works with anything that has these methods.
    """

    async def list_ids(self, prefix: str = "") -> list[str]:
        """The ids of all sessions that begin so, sorted."""
        ...

    async def states(self, prefix: str = "") -> dict[str, Mapping[str, Any]]:  # Any: JSON values
        """The state of every session whose id begins so, in the order of `list_ids`, without its conversation."""
        ...

    async def aclose(self) -> None:
        """Close the store; it can't be used any more."""
        ...


class SessionCommits(Protocol):
    """What a session needs: to load itself, and to commit operations on sessions."""

    @property
    def sessions(self) -> SessionCalls: ...

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: a result for each
        """One unit of work. Cancellation: only the waiting ends; the unit still happens whole, or not at all."""
        ...


class Storage(SessionCommits, Protocol):
    """`durable`: whether what it holds outlives the process. `worker`: the owner of what this object claims."""

    durable: bool
    worker: str

    @property
    def sessions(self) -> Store: ...

    @property
    def runs(self) -> RunRegistry: ...

    @property
    def shared(self) -> SharedState: ...

    @property
    def freezes(self) -> FreezeList: ...

    @property
    def audit(self) -> AuditTrail: ...

    @property
    def loops(self) -> LoopRecords: ...

    def changes(
        self,
        *,
        run: str | None = None,
        session: str | None = None,
        worker: str | None = None,
        topic: str | None = None,
        every: float = 0.05,
    ) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        """Yields once at once, and then whenever something about that run or session may have changed.

        `worker`: also when a request for a run of that worker, which is this storage's own, may have come. `topic`:
        also when that kind of thing may have changed, as `"freezes"`. It never says what: read it. `every`: how often a
        storage looks that is not told by others.
        """
        ...

    async def check(self) -> None:
        """Raise `StoreError` if the storage cannot be read and written now. Cancellation: nothing has changed."""
        ...

    async def aclose(self) -> None: ...


def missing_parts(storage: object) -> list[str]:
    """What an object lacks to be a storage."""
    return [part for part in PARTS if not hasattr(storage, part)]
