"""Shared values, notes and the records of turn loops, as rows of a SQLite file."""

from __future__ import annotations

import json
from typing import Any

from safepoint.storage import operations as op
from safepoint.storage.memory import loop_in_use, loop_lost
from safepoint.storage.shared_state import Note
from safepoint.storage.sqlite.unit import Statements, Unit


def _share(unit: Unit, share: op.Share) -> None:
    kept = [(share.place, name, json.dumps(value)) for name, value in share.delta.items() if value is not None]
    gone = [(share.place, name) for name, value in share.delta.items() if value is None]
    unit.db.executemany("INSERT OR REPLACE INTO shared_values (place, name, value) VALUES (?, ?, ?)", kept)
    unit.db.executemany("DELETE FROM shared_values WHERE place = ? AND name = ?", gone)


def _shared(unit: Unit, read: op.ReadShared) -> dict[str, Any]:  # Any: JSON values
    query = f"SELECT name, value FROM shared_values WHERE place IN ({', '.join('?' * len(read.places))})"
    return {str(name): json.loads(value) for name, value in unit.db.execute(query, read.places)}


def _note(unit: Unit, add: op.AddNote) -> None:
    row = (add.session_id, add.note.at, json.dumps(dict(add.note.body)))
    unit.db.execute("INSERT INTO session_notes (session, at, body) VALUES (?, ?, ?)", row)


def _notes(unit: Unit, read: op.ReadNotes) -> list[Note]:
    query = "SELECT at, body FROM session_notes WHERE session = ? ORDER BY number"
    return [Note(float(at), json.loads(body)) for at, body in unit.db.execute(query, (read.session_id,))]


def _forget(unit: Unit, forget: op.ForgetNotes) -> None:
    unit.db.execute("DELETE FROM session_notes WHERE session = ?", (forget.session_id,))


def _claim_loop(unit: Unit, claim: op.ClaimLoop) -> None:
    query = "SELECT owner, claimant FROM turn_claims WHERE id = ?"
    row = unit.db.execute(query, (claim.id,)).fetchone()
    if row is not None and row[1] != claim.claimant and not unit.is_dead(row[0], f"the loop {claim.id!r}"):
        raise loop_in_use(claim.id, unit.where(row[0]))
    unit.register()
    values = (claim.id, unit.lease.worker, claim.claimant)
    unit.db.execute("INSERT OR REPLACE INTO turn_claims (id, owner, claimant) VALUES (?, ?, ?)", values)


def _release_loop(unit: Unit, release: op.ReleaseLoop) -> None:
    unit.db.execute("DELETE FROM turn_claims WHERE id = ? AND claimant = ?", (release.id, release.claimant))


def _save_loop(unit: Unit, save: op.SaveLoop) -> None:
    if save.claimant is not None:
        row = unit.db.execute("SELECT claimant FROM turn_claims WHERE id = ?", (save.id,)).fetchone()
        if row != (save.claimant,):
            raise loop_lost(save.id)
    if save.record is None:
        unit.db.execute("DELETE FROM turn_loops WHERE id = ?", (save.id,))
    else:
        unit.db.execute("INSERT OR REPLACE INTO turn_loops (id, record) VALUES (?, ?)", (save.id, save.record))


def _load_loop(unit: Unit, load: op.LoadLoop) -> bytes | None:
    row = unit.db.execute("SELECT record FROM turn_loops WHERE id = ?", (load.id,)).fetchone()
    return None if row is None else bytes(row[0])


STATEMENTS: Statements = {
    op.Share: _share,
    op.ReadShared: _shared,
    op.AddNote: _note,
    op.ReadNotes: _notes,
    op.ForgetNotes: _forget,
    op.ClaimLoop: _claim_loop,
    op.ReleaseLoop: _release_loop,
    op.SaveLoop: _save_loop,
    op.LoadLoop: _load_loop,
}
