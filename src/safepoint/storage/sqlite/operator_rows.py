"""What operators have ordered, as rows of a SQLite file: freezes, and the audit trail."""

from __future__ import annotations

import json

from msgspec import convert, to_builtins
from msgspec.structs import replace

from safepoint.agent.freeze import Freeze
from safepoint.storage import operations as op
from safepoint.storage.audit import AuditEntry
from safepoint.storage.codec import dump_json
from safepoint.storage.sqlite.unit import Statements, Unit


def _freeze(unit: Unit, add: op.AddFreeze) -> None:
    row = (add.freeze.id, add.freeze.at, dump_json(to_builtins(add.freeze)))
    unit.db.execute("INSERT OR REPLACE INTO freezes (id, at, body) VALUES (?, ?, ?)", row)


def _thaw(unit: Unit, remove: op.RemoveFreeze) -> bool:
    return unit.db.execute("DELETE FROM freezes WHERE id = ?", (remove.id,)).rowcount > 0


def _freezes(unit: Unit, query: op.ListFreezes) -> list[Freeze]:
    rows = unit.db.execute("SELECT body FROM freezes ORDER BY at, id")
    return [convert(json.loads(body), Freeze) for (body,) in rows]


def _audit(unit: Unit, add: op.AddAudit) -> int:
    row = (add.entry.run_id, dump_json(to_builtins(add.entry)))
    return unit.db.execute("INSERT INTO audit (run_id, body) VALUES (?, ?)", row).lastrowid or 0


def _trail(unit: Unit, read: op.ReadAudit) -> list[AuditEntry]:
    where, given = ("number > ?", [read.after]) if read.run_id is None else ("number > ? AND run_id = ?", [read.after])
    values = [*given, *([read.run_id] if read.run_id is not None else []), read.limit]
    rows = unit.db.execute(f"SELECT number, body FROM audit WHERE {where} ORDER BY number LIMIT ?", values)
    return [replace(convert(json.loads(body), AuditEntry), number=number) for number, body in rows]


STATEMENTS: Statements = {
    op.AddFreeze: _freeze,
    op.RemoveFreeze: _thaw,
    op.ListFreezes: _freezes,
    op.AddAudit: _audit,
    op.ReadAudit: _trail,
}
