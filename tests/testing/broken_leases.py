"""Storages that each break one rule about leases that are over, by the name of the rule."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, TypeVar, cast

from safepoint.errors import SessionBusy, StoreError
from safepoint.storage import operations as op
from safepoint.storage.operations import Query, Statement
from safepoint.storage.sqlite.storage import SqliteStorage

T = TypeVar("T")
Results = tuple[Any, ...]  # Any: of every statement


class LeasedStorage(SqliteStorage):
    """One that breaks no rule, and whose lease can be ended."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def end_lease(self) -> None:
        self.execute("DELETE FROM workers WHERE id = ?", self.worker)

    def execute(self, sql: str, *given: str) -> list[Any]:  # Any: rows
        db = sqlite3.connect(self.path, isolation_level=None)
        try:
            return db.execute(sql, given).fetchall()
        finally:
            db.close()


class KnowsNoOrphans(LeasedStorage):
    async def read(self, query: Query[T]) -> T:
        return cast("T", []) if isinstance(query, op.OrphanedRuns) else await super().read(query)


class WaitsForTheDead(LeasedStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        for each in statements:
            held = "SELECT 1 FROM sessions WHERE id = ? AND owner NOT NULL AND owner NOT IN (SELECT id FROM workers)"
            if isinstance(each, op.ClaimSession) and self.execute(held, each.session_id):
                raise SessionBusy("its owner may come back")
        return await super().commit(*statements)


class KeepsLoopsOfTheDead(LeasedStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        for each in statements:
            held = "SELECT 1 FROM turn_claims WHERE id = ? AND owner NOT IN (SELECT id FROM workers)"
            if isinstance(each, op.OpenLoop) and self.execute(held, each.id):
                raise StoreError("its owner may come back")
        return await super().commit(*statements)


BROKEN_LEASES: dict[str, type[LeasedStorage]] = {
    "the runs of a worker whose lease is over are orphans, and taken by one": KnowsNoOrphans,
    "the session of a worker whose lease is over can be claimed, and its old claimant is refused": WaitsForTheDead,
    "the loop of a worker whose lease is over can be opened, and its old claimant is refused": KeepsLoopsOfTheDead,
}
