"""One unit of work on a SQLite connection, inside a transaction: what its statements share."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from safepoint.errors import SessionNotFound, StoreCorrupt
from safepoint.storage.lease import Lease


@dataclass(slots=True)
class SessionRow:
    """A session, without what was said in it. `changed`: it differs from what the file has."""

    state: str
    epoch: int
    number: int
    owner: str | None
    claimant: str | None
    changed: bool = False


@dataclass(slots=True)
class Unit:
    """`epochs`: of the claims that it has made.

    The row of a session is read once and written once, by `flush`, however many statements change it.
    """

    db: sqlite3.Connection
    lease: Lease
    epochs: dict[str, int] = field(default_factory=dict[str, int])
    _sessions: dict[str, SessionRow] = field(default_factory=dict[str, SessionRow])
    _registered: bool = False

    def session(self, session_id: str) -> SessionRow:
        """Set `changed` after a change. Raises `SessionNotFound`."""
        found = self.find_session(session_id)
        if found is None:
            raise SessionNotFound(f"there is no session {session_id!r}: create it first")
        return found

    def find_session(self, session_id: str) -> SessionRow | None:
        known = self._sessions.get(session_id)
        if known is None:
            query = "SELECT state, epoch, number, owner, claimant FROM sessions WHERE id = ?"
            row = self.db.execute(query, (session_id,)).fetchone()
            if row is not None:
                known = self._sessions[session_id] = SessionRow(*row)
        return known

    def forget_session(self, session_id: str) -> None:
        """It was deleted."""
        self._sessions.pop(session_id, None)

    def flush(self) -> None:
        """Write the rows that were changed: before they are queried, and at the end."""
        for id, row in self._sessions.items():
            if row.changed:
                row.changed = False
                change = "UPDATE sessions SET state = ?, epoch = ?, number = ?, owner = ?, claimant = ? WHERE id = ?"
                self.db.execute(change, (row.state, row.epoch, row.number, row.owner, row.claimant, id))

    def register(self) -> None:
        """What this worker owns names its row, so the row is there first."""
        if not self._registered:
            row = (self.lease.worker, str(self.lease.process), self.lease.peer)
            self.db.execute(
                "INSERT INTO workers (id, process, counter, peer) VALUES (?, ?, 0, ?) "
                "ON CONFLICT (id) DO UPDATE SET peer = excluded.peer WHERE peer IS NOT excluded.peer",
                row,
            )
            self._registered = True

    def is_dead(self, owner: str, what: str) -> bool:
        """Raises `StoreCorrupt` if the owner cannot be read."""
        try:
            if not isinstance(owner, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # the row may hold a value of any type
                raise ValueError(f"{type(owner).__name__} is no name")
            return self.lease.is_dead(owner, worker_row(self.db, owner))
        except ValueError as error:
            raise StoreCorrupt(f"the owner of {what} can't be read: {owner!r}") from error

    def where(self, owner: str) -> str:
        return self.lease.where(owner, worker_row(self.db, owner))


# Any: a statement of that type, and its result.
Statements: TypeAlias = Mapping[type, Callable[[Unit, Any], Any]]


def worker_row(db: sqlite3.Connection, owner: str) -> tuple[str, int] | None:
    found: tuple[str, int] | None = db.execute("SELECT process, counter FROM workers WHERE id = ?", (owner,)).fetchone()
    return found


def renew(db: sqlite3.Connection, lease: Lease) -> None:
    """Raise the counter, if this worker owns anything: no process asks about a worker that owns nothing."""
    owns = (
        "EXISTS (SELECT 1 FROM sessions WHERE owner = :me) OR EXISTS (SELECT 1 FROM turn_claims WHERE owner = :me) "
        "OR EXISTS (SELECT 1 FROM run_records WHERE owner = :me AND state != 'ended')"
    )
    db.execute(f"UPDATE workers SET counter = counter + 1 WHERE id = :me AND ({owns})", {"me": lease.worker})


def forget_workers(db: sqlite3.Connection) -> None:
    """Those that own nothing. A live worker writes its row again as soon as it owns something."""
    db.execute(
        "DELETE FROM workers WHERE id NOT IN (SELECT owner FROM sessions WHERE owner IS NOT NULL UNION "
        "SELECT owner FROM turn_claims UNION SELECT owner FROM run_records WHERE state != 'ended')"
    )
