"""`check_storage`: our own storages keep every rule, and a storage that breaks one is told which."""

from __future__ import annotations

import re
import sqlite3
from itertools import count
from pathlib import Path

import pytest

from safepoint.storage.memory import MemoryStorage
from safepoint.storage.protocol import Storage
from safepoint.storage.sqlite.storage import SqliteStorage
from safepoint.testing import check_storage
from safepoint.testing.conformance import storage_leases, storage_parts, storage_runs, storage_units
from safepoint.testing.conformance.storage_maker import StorageMaker
from tests.testing.broken_leases import BROKEN_LEASES, LeasedStorage
from tests.testing.broken_storages import BROKEN


def broken_rules(error: pytest.ExceptionInfo[AssertionError]) -> list[str]:
    return re.findall(r"^- (.*?): ", str(error.value), re.MULTILINE)


def test_the_memory_storage_keeps_every_rule() -> None:
    check_storage(MemoryStorage)


def test_the_sqlite_storage_keeps_every_rule(tmp_path: Path) -> None:
    numbers = count()
    paths: dict[int, Path] = {}

    def make() -> Storage:
        path = tmp_path / f"{next(numbers)}.db"
        storage = SqliteStorage(path)
        paths[id(storage)] = path
        return storage

    def reopen(storage: Storage) -> Storage:
        return SqliteStorage(paths[id(storage)])

    async def spoil(storage: Storage, session_id: str) -> None:
        with sqlite3.connect(paths[id(storage)]) as db:
            db.execute("UPDATE messages SET body = '{' WHERE session = ?", (session_id,))
        db.close()

    async def lapse(storage: Storage) -> None:
        with sqlite3.connect(paths[id(storage)]) as db:
            db.execute("DELETE FROM workers WHERE id = ?", (storage.worker,))
        db.close()

    check_storage(make, reopen=reopen, spoil=spoil, lapse=lapse)


@pytest.mark.parametrize(("rule", "storage"), BROKEN.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_storage_that_breaks_one_rule_is_told_that_one(rule: str, storage: type[MemoryStorage]) -> None:
    with pytest.raises(AssertionError) as told:
        check_storage(storage)
    assert broken_rules(told) == [rule]


def test_every_rule_of_the_parts_has_a_storage_that_breaks_it() -> None:
    parts = (storage_units, storage_runs, storage_parts)
    assert [rule.name for part in parts for rule in part.RULES.all] == list(BROKEN)


def test_a_session_store_lacks_parts_and_is_told_which() -> None:
    from tests.testing.plain_store import PlainStore

    with pytest.raises(AssertionError, match="it lacks sessions, runs, shared, freezes, audit, loops, changes, commit"):
        check_storage(PlainStore)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what is refused


@pytest.mark.parametrize(("rule", "kind"), BROKEN_LEASES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_storage_that_mistakes_a_lease_is_told_so(rule: str, kind: type[LeasedStorage], tmp_path: Path) -> None:
    numbers = count()

    def maker(kind: type[LeasedStorage]) -> StorageMaker:
        def reopen(storage: Storage) -> Storage:
            assert isinstance(storage, LeasedStorage)
            return kind(storage.path)

        async def lapse(storage: Storage) -> None:
            assert isinstance(storage, LeasedStorage)
            storage.end_lease()

        return StorageMaker(lambda: kind(tmp_path / f"{next(numbers)}.db"), reopen, lapse)

    storage_leases.LAPSED.hold("storage", maker(LeasedStorage), virtual=True)
    with pytest.raises(AssertionError) as told:
        storage_leases.LAPSED.hold("storage", maker(kind), virtual=True)
    assert broken_rules(told) == [rule]


def test_every_rule_about_leases_has_a_storage_that_breaks_it() -> None:
    assert [rule.name for rule in storage_leases.LAPSED.all] == list(BROKEN_LEASES)
