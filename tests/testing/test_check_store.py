"""`check_store`: our own stores keep every rule, and a store that breaks one is told which."""

from __future__ import annotations

import re
import sqlite3
from itertools import count
from pathlib import Path

import pytest

from safepoint.errors import StoreCorrupt, UsageError
from safepoint.sessions import MemoryStore, SqliteStore, Store, Stored
from safepoint.testing import check_store, run_virtual
from safepoint.testing.conformance import store_cancels, store_claims, store_writes
from tests.testing.broken_stores import BROKEN, ClaimsForItself, OnePlace, ShowsNothing
from tests.testing.plain_store import PlainStore


def broken_rules(error: pytest.ExceptionInfo[AssertionError]) -> list[str]:
    return re.findall(r"^- (.*?): ", str(error.value), re.MULTILINE)


def test_the_memory_store_keeps_every_rule() -> None:
    check_store(MemoryStore)


def test_the_sqlite_store_keeps_every_rule(tmp_path: Path) -> None:
    numbers = count()
    paths: dict[Store, Path] = {}

    def opened(path: Path) -> SqliteStore:
        store = SqliteStore(path)
        paths[store] = path
        return store

    async def spoil(store: Store, session_id: str) -> None:
        with sqlite3.connect(paths[store]) as db:
            db.execute("UPDATE messages SET body = 'nonsense' WHERE session = ?", (session_id,))
        db.close()

    check_store(
        lambda: opened(tmp_path / f"{next(numbers)}.db"), reopen=lambda store: opened(paths[store]), spoil=spoil
    )


@pytest.mark.parametrize("store", BROKEN)
def test_a_store_that_breaks_one_rule_is_told_that_one(store: type[PlainStore]) -> None:
    with pytest.raises(AssertionError) as error:
        check_store(store)
    assert broken_rules(error) == [store.__doc__], error.value
    assert "what to do: " in str(error.value)


@pytest.mark.parametrize("store", [ShowsNothing, ClaimsForItself])
def test_a_store_that_does_not_share_its_place_is_told(store: type[OnePlace]) -> None:
    check_store(OnePlace, reopen=lambda one: OnePlace(one if isinstance(one, OnePlace) else None))
    with pytest.raises(AssertionError) as error:
        check_store(store, reopen=lambda one: store(one if isinstance(one, OnePlace) else None))
    assert broken_rules(error) == [store.__doc__]


class Spoilt(PlainStore):
    """Can be spoilt; told or not."""

    def __init__(self, *, tells: bool) -> None:
        super().__init__()
        self.tells = tells
        self.spoilt: set[str] = set()

    async def load(self, session_id: str) -> Stored:
        if session_id in self.spoilt:
            if self.tells:
                raise StoreCorrupt(f"the session {session_id!r} can't be read")
            return Stored((), {})
        return await super().load(session_id)


def test_a_store_that_hides_what_was_spoilt_is_told() -> None:
    async def spoil(store: Store, session_id: str) -> None:
        assert isinstance(store, Spoilt)
        store.spoilt.add(session_id)

    check_store(lambda: Spoilt(tells=True), spoil=spoil)
    with pytest.raises(AssertionError) as error:
        check_store(lambda: Spoilt(tells=False), spoil=spoil)
    assert broken_rules(error) == ["what can't be read is told, and left as it is"]


def test_every_rule_is_broken_by_some_store() -> None:
    rules = [*store_claims.RULES.all, *store_writes.RULES.all, *store_cancels.RULES.all, *store_claims.SHARED.all]
    docs = {store.__doc__ for store in (*BROKEN, ShowsNothing, ClaimsForItself)}
    assert {rule.name for rule in rules} == docs


def test_every_broken_rule_is_in_one_report() -> None:
    class Hopeless(PlainStore):
        async def list_ids(self, prefix: str = "") -> list[str]:
            raise RuntimeError("no idea")

        async def release(self, session_id: str, claimant: str) -> None:
            pass

    with pytest.raises(AssertionError, match="RuntimeError: no idea") as error:
        check_store(Hopeless)
    assert {"the ids are complete and sorted", "a session has one claimant at a time"} <= set(broken_rules(error))


def test_it_runs_on_the_real_clock_too() -> None:
    check_store(MemoryStore, virtual=False)


def test_a_store_may_be_made_by_an_async_function() -> None:
    async def make() -> Store:
        return MemoryStore()

    check_store(make)


def test_inside_a_running_loop_it_says_where_to_call_it() -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="call it from a plain function"):
            check_store(MemoryStore)

    run_virtual(main)
