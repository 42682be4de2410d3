"""What is kept beside conversations: both shelves mean the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from safepoint.history.parts import Message, Text, ToolCall, ToolResult
from safepoint.sessions import MemoryStore, Session
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.shared_state import Note, SharedState
from safepoint.storage.sqlite.storage import SqliteStorage
from tests.virtual import virtual


def on_both(folder: Path, check: Callable[[SharedState], Awaitable[None]]) -> None:
    async def main() -> None:
        store = SqliteStorage(folder / "shelf.db")
        await check(MemoryStorage().shared)
        await check(store.shared)
        await store.aclose()

    asyncio.run(main())


def test_values_are_set_replaced_and_taken_away_in_their_place_only(tmp_path: Path) -> None:
    async def check(shelf: SharedState) -> None:
        await shelf.share("app", {"app:a": 1, "app:b": {"c": [2]}})
        await shelf.share("app/ann", {"user:a": "x"})
        assert await shelf.shared(["app", "app/ann"]) == {"app:a": 1, "app:b": {"c": [2]}, "user:a": "x"}
        await shelf.share("app", {"app:a": None, "app:b": 3})
        assert await shelf.shared(["app"]) == {"app:b": 3}
        assert await shelf.shared(["app/bob"]) == {}

    on_both(tmp_path, check)


def test_notes_of_a_session_come_in_order_and_go_with_it(tmp_path: Path) -> None:
    async def check(shelf: SharedState) -> None:
        await shelf.note("s", Note(2.0, {"id": "first"}))
        await shelf.note("s", Note(1.0, {"id": "second"}))
        await shelf.note("other", Note(3.0, {}))
        assert [note.body["id"] for note in await shelf.notes("s")] == ["first", "second"]
        await shelf.forget("s")
        assert await shelf.notes("s") == []
        assert await shelf.notes("other") == [Note(3.0, {})]

    on_both(tmp_path, check)


@virtual
async def test_temporary_values_are_never_stored() -> None:
    store = MemoryStore()
    session = await Session.create(store, "s", state={"a": 1, "temp:b": 2})
    assert (await store.load("s")).state == {"a": 1}
    session.state |= {"temp:c": 3, "d": 4}
    await session.save_state()
    assert (await store.load("s")).state == {"a": 1, "d": 4}
    assert session.state["temp:c"] == 3


@virtual
async def test_a_session_may_begin_with_a_conversation_from_elsewhere() -> None:
    store = MemoryStore()
    history = [
        Message("user", (Text("hi"),)),
        Message("assistant", (ToolCall("c", "look", {}),)),
        Message("tool", (ToolResult("c", "look", "seen"),)),
        Message("assistant", (Text("done"),)),
    ]
    await Session.create(store, "s", history=history)
    loaded = await Session.load(store, "s")
    assert (list(loaded.messages), loaded.runs, loaded.checkpoint) == (history, (), None)
    with pytest.raises(ValueError, match="results"):
        await Session.create(store, "open", history=history[:2])
    assert await store.list_ids() == ["s"]
