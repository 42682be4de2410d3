"""Shared values and notes, as rows of a SQLite file."""

from __future__ import annotations

import json
from typing import Any

from safepoint.storage import operations as op
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


STATEMENTS: Statements = {
    op.Share: _share,
    op.ReadShared: _shared,
    op.AddNote: _note,
    op.ReadNotes: _notes,
    op.ForgetNotes: _forget,
}
