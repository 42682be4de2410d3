"""What a turn costs: the rows that it writes, counted; and that nothing long is encoded on the event loop."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from safepoint import Agent, TurnLoop
from safepoint.history.parts import Message, Text
from safepoint.sessions import MemoryStore, Session
from safepoint.storage import operations as op
from safepoint.storage.lease import Lease
from safepoint.storage.loop_codec import encode
from safepoint.storage.loop_data import (
    HistorySet,
    ItemsAdded,
    ItemsMoved,
    ItemsRemoved,
    LoopChange,
    StoredItem,
    StoredLoop,
    TurnBegun,
    TurnOver,
)
from safepoint.storage.sqlite.loop_rows import STATEMENTS
from safepoint.storage.sqlite.schema import prepare
from safepoint.storage.sqlite.unit import Unit
from safepoint.testing import ScriptedModel, say
from safepoint.turns import ItemCodec, MemoryTurnStore, Plan, PlanContext, SqliteTurnStore
from tests.turns.parts import ByteStore, TroubledStore
from tests.virtual import virtual

KEY: dict[str, Any] = {"checkpoint_id": "loop"}
# Encoding the conversation below takes several times as long.
CEILING = 0.02


def talker() -> Agent:
    return Agent("talker", model=ScriptedModel(say("ok"), repeat=True))


def shape(changes: Sequence[LoopChange]) -> list[tuple[str, int]]:
    """Each change and how many rows it has."""
    found: list[tuple[str, int]] = []
    for change in changes:
        match change:
            case ItemsAdded(rows) | ItemsRemoved(rows) | ItemsMoved(rows):
                found.append((type(change).__name__, len(rows)))
            case HistorySet(_, messages):
                found.append(("HistorySet", len(messages)))
            case _:
                found.append((type(change).__name__, 1))
    return found


@pytest.mark.parametrize("waiting", [10, 1000])
def test_a_turn_writes_the_same_rows_whatever_waits(waiting: int) -> None:
    @virtual
    async def body() -> None:
        def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
            return Plan(items[0], items[:1], keep_rest=True)

        store = TroubledStore()
        loop = TurnLoop(talker(), plan=plan, store=store, **KEY)
        for number in range(waiting):
            loop.push(f"item {number}")
        async with loop:
            pass
        assert shape(store.writes[0]) == [("ItemsAdded", waiting)]
        assert len(store.writes) == 1 + waiting
        for write in store.writes[1:]:
            assert shape(write) == [("ItemsRemoved", 1), ("HistorySet", 2)]

    body()


@virtual
async def test_a_turn_in_a_session_says_so_first_and_writes_two_times() -> None:
    session = await Session.create(MemoryStore())

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        return Plan(items[0], items[:1], session=session, keep_rest=True)

    store = TroubledStore()
    loop = TurnLoop(talker(), plan=plan, store=store, **KEY)
    for number in range(3):
        loop.push(f"item {number}")
    async with loop:
        pass
    begins, ends = [("TurnBegun", 1), ("ItemsMoved", 1)], [("ItemsRemoved", 1), ("TurnOver", 1)]
    assert [shape(write) for write in store.writes] == [[("ItemsAdded", 3)], *[begins, ends] * 3]


def test_sqlite_changes_as_many_rows_as_a_change_has(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "loop.db", isolation_level=None)
    prepare(db)
    unit = Unit(db, Lease())
    epoch = STATEMENTS[op.OpenLoop](unit, op.OpenLoop("loop", "me")).epoch

    def rows(*changes: LoopChange) -> int:
        before = db.total_changes
        db.execute("BEGIN IMMEDIATE")
        STATEMENTS[op.ChangeLoop](unit, op.ChangeLoop("loop", epoch, changes))
        db.execute("COMMIT")
        return db.total_changes - before

    message = Message("user", (Text("hi"),))
    assert rows(ItemsAdded(tuple(StoredItem(number, "x") for number in range(1, 5001)))) == 5000
    assert rows(TurnBegun("turn", "run_1"), ItemsMoved((1,), "turn")) == 2
    assert rows(ItemsRemoved((1,)), TurnOver("turn"), HistorySet(0, (message, message))) == 4
    assert rows(ItemsRemoved((2,)), HistorySet(2, (message, message))) == 3
    db.close()


class Watched:
    """A codec that notes in which threads it works."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def encode(self, item: str) -> str:
        self.threads.append(threading.get_ident())
        return item

    def decode(self, text: str) -> str:
        self.threads.append(threading.get_ident())
        return text


@pytest.mark.parametrize("items", [2, 200])
def test_a_codec_of_the_users_own_never_works_on_the_event_loop(items: int) -> None:
    watched = Watched()
    codec = ItemCodec(watched.encode, watched.decode)

    async def main() -> None:
        store = MemoryTurnStore()
        for _ in range(2):
            loop = TurnLoop(talker(), store=store, codec=codec, **KEY)
            for number in range(items):
                loop.push(str(number))
            loop.stop()
            loop.start()
            assert (await loop.wait()).checkpoint == "saved"

    asyncio.run(main())
    assert len(watched.threads) >= 2 * items
    assert threading.get_ident() not in watched.threads


def test_only_short_items_in_plain_json_are_read_on_the_event_loop() -> None:
    long, short = json.dumps("x" * 3_000), json.dumps("short")
    assert [ItemCodec.plain().is_quick_to_read(text) for text in (long, short)] == [False, True]
    assert not ItemCodec.of(str).is_quick_to_read(short)


def test_long_items_a_long_conversation_and_a_whole_record_are_encoded_off_the_event_loop(tmp_path: Path) -> None:
    """What a bystander would notice: a loop that encodes 8 MB answers nobody for a long time."""
    long = [Message("user", (Text("x" * 80_000),)), Message("assistant", (Text("y" * 80_000),))] * 50
    kept = encode(StoredLoop((StoredItem(1, '"first"'),), (), tuple(long), 1))

    async def slowest(store: Any) -> float:
        """The most that the event loop's own thread has computed in one round, in seconds of its processor time."""
        late, worst = asyncio.Event(), 0.0

        async def bystander() -> None:
            nonlocal worst
            while not late.is_set():
                before = time.thread_time()
                await asyncio.sleep(0)
                worst = max(worst, time.thread_time() - before)

        watching = asyncio.create_task(bystander())
        async with TurnLoop(talker(), store=store, **KEY) as loop:
            loop.push("z" * 1_000_000)
        late.set()
        await watching
        assert (await loop.wait()).checkpoint == "saved"
        return worst

    async def main() -> None:
        rows = SqliteTurnStore(tmp_path / "loop.db")
        await rows.save("loop", kept)
        assert await slowest(rows) < CEILING
        await rows.aclose()
        whole = ByteStore()
        whole.records["loop"] = kept
        assert await slowest(whole) < CEILING

    asyncio.run(main())
