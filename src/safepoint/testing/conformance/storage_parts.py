"""Rules for storages: shared state, notes, loops, and the signal of changes."""

from __future__ import annotations

import asyncio
from typing import Any

from safepoint.agent.freeze import TOPIC as FREEZES
from safepoint.agent.freeze import Freeze
from safepoint.errors import StoreError, Superseded
from safepoint.history.parts import user_message
from safepoint.storage.audit import AuditEntry
from safepoint.storage.loop_data import (
    HistorySet,
    ItemsAdded,
    ItemsMoved,
    ItemsRemoved,
    StoredItem,
    StoredLoop,
    StoredState,
    StoredTurn,
    TurnBegun,
    TurnFailed,
    TurnOver,
)
from safepoint.storage.protocol import Storage
from safepoint.storage.run_records import RunState
from safepoint.storage.shared_state import Note
from safepoint.testing.conformance.rules import Rules
from safepoint.testing.conformance.storage_maker import StorageMaker, record
from safepoint.testing.conformance.store_maker import refused

RULES: Rules[StorageMaker] = Rules()
SHARED: Rules[StorageMaker] = Rules()

_SAID = user_message("hello")
_PATIENCE = 30.0


@RULES.rule("shared values are set, replaced and deleted in their place only", "keep them by place and name")
async def _values(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        shared = storage.shared
        await shared.share("app", {"app:a": 1, "app:b": {"c": [2]}})
        await shared.share("app/ann", {"user:a": "\ud800 \0"})
        found = await shared.shared(["app", "app/ann"])
        assert found == {"app:a": 1, "app:b": {"c": [2]}, "user:a": "\ud800 \0"}, f"it gives {found}"
        await shared.share("app", {"app:a": None, "app:b": 3})
        assert await shared.shared(["app"]) == {"app:b": 3}, "None does not delete, or a value is not replaced"
        assert await shared.shared(["app/bob"]) == {}, "another place has values"


@RULES.rule("shared values are copies", "copy what you are given and what you give")
async def _copies(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        given = {"app:a": [1]}
        await storage.shared.share("app", given)
        given["app:a"].append(2)
        (await storage.shared.shared(["app"]))["app:a"].append(3)
        found = await storage.shared.shared(["app"])
        assert found == {"app:a": [1]}, f"it is now {found}"


@RULES.rule("notes of a session come in order and go with it", "number them; forget() deletes those of one session")
async def _notes(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        shared = storage.shared
        for session, at in (("s", 2.0), ("s", 1.0), ("t", 3.0)):
            await shared.note(session, Note(at, {"at": at}))
        found = [note.at for note in await shared.notes("s")]
        assert found == [2.0, 1.0], f"the notes are {found}"
        await shared.forget("s")
        assert await shared.notes("s") == [], "they are still there"
        assert await shared.notes("t") == [Note(3.0, {"at": 3.0})], "the notes of another session are gone"


@RULES.rule("freezes are there until they are removed", "keep them by their id; list them by time, then by id")
async def _freezes(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        freezes = storage.freezes
        assert await freezes.all() == [], "there is one before one was added"
        first = Freeze("\ud800 \0", app="a", at=1.0, id="b")
        second = Freeze("why", tool="pay", stops_at=("any",), within=2.5, by="ops", at=1.0, id="c")
        await freezes.add(second)
        await freezes.add(first)
        assert await freezes.all() == [first, second], f"they are {await freezes.all()}"
        changed = Freeze("another reason", at=3.0, id="b")
        await freezes.add(changed)
        assert await freezes.all() == [second, changed], "one with the same id is not replaced"
        assert await freezes.remove("c"), "remove() of one that is there gives no True"
        assert not await freezes.remove("c"), "remove() of one that is gone gives no False"
        assert await freezes.all() == [changed], "it is still there, or another one is gone"


@RULES.rule("the audit trail keeps what is added, in order", "number the entries, and never change one")
async def _trail(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        audit = storage.audit
        assert await audit.read() == [], "there is an entry before one was added"
        asked: dict[str, Any] = {"at": ["now"], "why": "\ud800 \0"}  # Any: JSON
        one = AuditEntry(1.0, "ops", "cancel", "127.0.0.1", "run_1", "app", "ann", "s", asked)
        numbers = [await audit.add(one), await audit.add(AuditEntry(0.5, "local", "freeze"))]
        numbers.append(await audit.add(AuditEntry(2.0, "ops", "answer", run_id="run_1", about=numbers[0])))
        assert numbers == sorted(set(numbers)), f"the numbers are {numbers}"
        found = await audit.read()
        assert [each.number for each in found] == numbers, f"they are {found}"
        asked["at"].append("later")
        assert (found[0].asked, found[0].who, found[0].at) == ({"at": ["now"], "why": "\ud800 \0"}, "ops", 1.0), (
            f"the first is {found[0]}"
        )
        assert [each.number for each in await audit.read(run="run_1")] == [numbers[0], numbers[2]], "of one run"
        assert [each.number for each in await audit.read(after=numbers[0], limit=1)] == [numbers[1]], "of one page"


@RULES.rule("the record of a loop is replaced whole", "in replace(), delete the rows of the record first")
async def _records(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        loops = storage.loops
        assert (await loops.read("loop")).empty, "there is a record before one was saved"
        await loops.replace("loop", StoredLoop((StoredItem(1, "old"),), last=1))
        new = StoredLoop((StoredItem(2, "é", "t"),), (StoredTurn("t", runs=("r",)),), (_SAID,), 2)
        await loops.replace("loop", new)
        assert await loops.read("loop") == new, "it is another record"
        for _ in range(2):
            await loops.replace("loop", StoredLoop())
        assert (await loops.read("loop")).empty, "it is still there"


@RULES.rule("a change of a loop is written, in its order", "apply the changes of one call in order, and only those")
async def _loop_changes(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        loops = storage.loops
        epoch = (await loops.open("loop", "me")).epoch
        items = tuple(StoredItem(number, f"item {number}") for number in (1, 2, 3))
        await loops.apply("loop", epoch, [ItemsAdded(items), HistorySet(0, (_SAID, _SAID))])
        await loops.apply("loop", epoch, [TurnBegun("t", "r1"), ItemsMoved((1, 2), "t"), ItemsRemoved((3,))])
        await loops.apply("loop", epoch, [TurnBegun("t", "r2"), HistorySet(1, ())])
        found = await loops.read("loop")
        assert [(item.number, item.turn) for item in found.items] == [(1, "t"), (2, "t")], (
            f"the items are {found.items}"
        )
        assert found.turns == (StoredTurn("t", StoredState.BEGUN, ("r1", "r2")),), f"the turns are {found.turns}"
        assert found.history == (_SAID,), "the conversation is another one"
        await loops.apply("loop", epoch, [TurnFailed("t", ("r1", "r2"), "down"), ItemsMoved((2,), None)])
        (failed,) = (await loops.read("loop")).turns
        assert (failed.state, failed.error) == (StoredState.FAILED, "down"), f"the failed turn is {failed}"
        await loops.apply("loop", epoch, [TurnOver("t"), ItemsRemoved((1,))])
        left = await loops.read("loop")
        assert (left.turns, [item.number for item in left.items]) == ((), [2]), f"what is left is {left}"


@RULES.rule("a loop that was replaced cannot write", "in apply(), raise Superseded for an old epoch")
async def _loop_epochs(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        loops = storage.loops
        old = (await loops.open("loop", "me")).epoch
        await loops.release("loop", "me")
        new = (await loops.open("loop", "another")).epoch
        added = ItemsAdded((StoredItem(1, "mine"),))
        await refused(Superseded, "a write of the loop before", loops.apply("loop", old, [added]))
        assert (await loops.read("loop")).empty, "it was written all the same"
        await loops.apply("loop", new, [added])


@RULES.rule("a loop has one claimant at a time", "raise StoreError in open() until the claimant has released it")
async def _claims(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        loops = storage.loops
        await loops.open("loop", "me")
        await loops.open("loop", "me")
        await refused(StoreError, "a claim by another", loops.open("loop", "another"))
        await loops.release("loop", "another")
        await refused(StoreError, "after a release by another, a claim", loops.open("loop", "another"))
        await loops.release("loop", "me")
        await loops.open("loop", "another")


@RULES.rule(
    "a commit wakes those who wait for its run or session", "after a commit, wake the subscriptions of what it changed"
)
async def _woken(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        await _wakes(storage, storage)


@SHARED.rule(
    "a commit of another storage wakes those who wait for its run", "listen, or look again and again: see changes()"
)
async def _woken_by_others(maker: StorageMaker) -> None:
    async with maker.opened() as storage, maker.reopened(storage) as other:
        await _wakes(storage, other)


async def _wakes(waiting: Storage, writing: Storage) -> None:
    await writing.sessions.create("a/u/s", {})
    seen: list[RunState | None] = []
    first = asyncio.Event()

    async def watch() -> None:
        async with waiting.changes(run="run_1", session="a/u/s") as changes:
            async for _ in changes:
                found = await waiting.runs.get("run_1")
                seen.append(found.state if found is not None else None)
                first.set()
                if found is not None and found.ended:
                    return

    watcher = asyncio.ensure_future(watch())
    try:
        await first.wait()
        assert seen == [None], f"the first round comes at once; it saw {seen}"
        await writing.runs.accept(record(writing), since=0)
        await writing.runs.move("run_1", RunState.ENDED, epoch=0)
        async with asyncio.timeout(_PATIENCE):
            await watcher
    except TimeoutError:
        raise AssertionError("a run has ended, and those who wait for it were not woken") from None
    finally:
        watcher.cancel()
        await asyncio.wait({watcher})


@SHARED.rule(
    "a freeze of another storage wakes those who wait for freezes", "listen, or look again and again: see changes()"
)
async def _woken_by_freezes(maker: StorageMaker) -> None:
    async with maker.opened() as storage, maker.reopened(storage) as other:
        freeze, known = Freeze("why", id="f"), asyncio.Event()
        there = asyncio.Event()

        async def watch() -> None:
            async with storage.changes(topic=FREEZES) as changes:
                async for _ in changes:
                    known.set()
                    if await storage.freezes.all():
                        there.set()
                    elif there.is_set():
                        return

        watcher = asyncio.ensure_future(watch())
        try:
            await known.wait()
            await other.freezes.add(freeze)
            async with asyncio.timeout(_PATIENCE):
                await there.wait()
                await other.freezes.remove("f")
                await watcher
        except TimeoutError:
            raise AssertionError("a freeze was added or removed, and those who wait were not woken") from None
        finally:
            watcher.cancel()
            await asyncio.wait({watcher})


@SHARED.rule("another storage sees shared values, notes and loops", "make a commit durable before it returns")
async def _seen(maker: StorageMaker) -> None:
    async with maker.opened() as storage, maker.reopened(storage) as other:
        await storage.shared.share("app", {"x": 1})
        await storage.shared.note("s", Note(1.0, {}))
        stored = StoredLoop((StoredItem(1, "item"),), last=1)
        await storage.loops.replace("loop", stored)
        await storage.loops.open("loop", "me")
        await storage.freezes.add(Freeze("why", id="f"))
        number = await storage.audit.add(AuditEntry(1.0, "ops", "freeze"))
        assert [each.id for each in await other.freezes.all()] == ["f"], "the freeze is not there"
        assert [each.number for each in await other.audit.read()] == [number], "the entry is not there"
        assert await other.shared.shared(["app"]) == {"x": 1}, "the shared value is not there"
        assert await other.shared.notes("s") == [Note(1.0, {})], "the note is not there"
        assert await other.loops.read("loop") == stored, "the record of the loop is not there"
        await refused(StoreError, "a claim of the loop through it", other.loops.open("loop", "another"))
