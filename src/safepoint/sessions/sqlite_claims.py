"""Who holds which session of a SQLite file.

A claim lasts until it is given back, or its process is gone; for a process of another host that means: was not renewed
for a while. A run may be silent for longer than that, so the store's writer renews what is held here at every beat.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import NamedTuple

from safepoint.errors import SessionNotFound, StoreCorrupt, Superseded
from safepoint.sessions.owners import Owner
from safepoint.sessions.store import taken_by


class Row(NamedTuple):
    """A session, without what was said in it."""

    state: str
    epoch: int
    owner: str | None
    renewed: float | None
    claimant: str | None


def session_row(db: sqlite3.Connection, session_id: str) -> Row:
    query = "SELECT state, epoch, owner, renewed, claimant FROM sessions WHERE id = ?"
    found = db.execute(query, (session_id,)).fetchone()
    if found is None:
        raise SessionNotFound(f"there is no session {session_id!r}: create it first")
    return Row(*found)


def check_epoch(db: sqlite3.Connection, session_id: str, epoch: int) -> None:
    if session_row(db, session_id).epoch != epoch:
        raise Superseded(f"the session {session_id!r} was taken over by another run")


class Claims:
    """Those of this process. Used by the store's writer alone, in its transactions."""

    def __init__(self) -> None:
        self._owner = str(Owner.this_process())
        # Which session each claimant holds.
        self._held: dict[str, str] = {}

    def claim(self, db: sqlite3.Connection, session_id: str, claimant: str) -> int:
        row = session_row(db, session_id)
        holder = _owner(session_id, row.owner) if row.owner is not None else None
        if holder is not None and row.claimant != claimant and not holder.is_gone(row.renewed or 0.0):
            where = "in this process" if row.owner == self._owner else f"in process {holder.pid}"
            raise taken_by(row.claimant, f"a run of the session {session_id!r} is live {where}")
        change = (self._owner, claimant, time.time(), row.epoch + 1, session_id)
        db.execute("UPDATE sessions SET owner = ?, claimant = ?, renewed = ?, epoch = ? WHERE id = ?", change)
        self._held[claimant] = session_id
        return row.epoch + 1

    def release(self, db: sqlite3.Connection, session_id: str, claimant: str) -> None:
        db.execute("UPDATE sessions SET owner = NULL WHERE id = ? AND claimant = ?", (session_id, claimant))
        self._held.pop(claimant, None)

    def beat(self) -> Callable[[sqlite3.Connection], object] | None:
        """What renews them; nothing if there are none."""
        rows = [(time.time(), session_id, claimant) for claimant, session_id in self._held.items()]
        renew = "UPDATE sessions SET renewed = ? WHERE id = ? AND claimant = ? AND owner IS NOT NULL"
        return (lambda db: db.executemany(renew, rows)) if rows else None


def _owner(session_id: str, text: str) -> Owner:
    try:
        return Owner.parse(text)
    except ValueError as error:
        raise StoreCorrupt(f"the owner of the session {session_id!r} can't be read: {text!r}") from error
