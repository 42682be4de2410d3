"""What the tests of loops are made of: a turn that stands at a gate, and a store that can fail or wait."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from safepoint import Agent, TurnLoop, tool
from safepoint.sessions import MemoryStore
from safepoint.storage.loop_data import LoopChange, LoopTable, OpenedLoop, StoredLoop, StoredState
from safepoint.storage.memory import MemoryStorage
from safepoint.testing import ScriptedModel, call, say
from safepoint.testing.models import Reply
from safepoint.turns import LoopEvent, MemoryTurnStore, Plan, PlanContext
from safepoint.turns.store import StorageTurnStore

T = TypeVar("T")


class Gate:
    """A tool that waits until it is let through. `reached` is set each time somebody stands at it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

        @tool
        async def gate() -> str:
            """Wait at the gate."""
            self.reached.set()
            await self.opened.wait()
            return "through"

        self.tool = gate

    def agent(self, *replies: Reply, name: str = "desk") -> Agent:
        """Goes to the gate in its first step; the replies follow."""
        return Agent(name, model=ScriptedModel(call("gate"), *(replies or (say("done"),))), tools=[self.tool])


def talker(*words: str) -> Agent:
    """Says these, one in each turn; the last one again and again."""
    return Agent("talker", model=ScriptedModel(*(say(word) for word in words or ("ok",)), repeat=True))


def one_each(ctx: PlanContext[T], items: list[T]) -> Plan[T]:
    """Every item is a turn of its own."""
    return Plan(str(items[0]), items[:1], items[1:])


def all_at_once(ctx: PlanContext[T], items: list[T]) -> Plan[T]:
    return Plan(" ".join(map(str, items)), items)


def in_a_thread(act: Callable[[], T]) -> T:
    """What another thread brings back; the loop stands still meanwhile."""
    found: list[T] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(act())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


async def until(loop: TurnLoop[Any], condition: Callable[[], bool]) -> None:
    """Let the event loop go round until it is so; the loop's end is the latest time."""
    while not condition():
        assert not loop.ended, "the loop ended before that"
        await asyncio.sleep(0)


async def told(loop: TurnLoop[T], into: list[LoopEvent[T]]) -> None:
    async for event in loop.events():
        into.append(event)


class TroubledStore(MemoryTurnStore):
    """A storage that can be told to fail, or to wait; it counts what it was asked, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: BaseException | None = None
        self.gate: asyncio.Event | None = None
        self.waiting = asyncio.Event()
        self.writes: list[tuple[LoopChange, ...]] = []

    async def _trouble(self) -> None:
        if self.gate is not None:
            self.waiting.set()
            await self.gate.wait()
        if self.fails is not None:
            raise self.fails

    async def open(self, id: str, claimant: str) -> OpenedLoop:
        await self._trouble()
        return await super().open(id, claimant)

    async def apply(self, id: str, epoch: int, changes: Sequence[LoopChange]) -> None:
        await self._trouble()
        self.writes.append(tuple(changes))
        await super().apply(id, epoch, changes)

    def peek(self, id: str) -> StoredLoop | None:
        """What is stored now, without asking anybody."""
        table = tables_of(self).get(id)
        return None if table is None else table.read()

    def copy(self) -> TroubledStore:
        """Another storage with the same records, and no trouble."""
        other = TroubledStore()
        tables_of(other).update((id, LoopTable(table.read())) for id, table in tables_of(self).items())
        return other


def tables_of(store: StorageTurnStore) -> dict[str, LoopTable]:
    """What a store in memory has, without waiting for anything."""
    storage = store.storage
    assert isinstance(storage, MemoryStorage)
    return storage._tables.loops  # pyright: ignore[reportPrivateUsage]  # every public way waits


def copy_of(sessions: MemoryStore) -> MemoryStore:
    """The sessions as they are at this moment: what a process that dies now leaves behind."""
    other = MemoryStore()
    other.storage._tables.sessions.update(sessions.storage._tables.sessions)  # pyright: ignore[reportPrivateUsage]  # likewise
    return other


class ByteStore:
    """A store of a user's own: bytes, three methods, nothing else. It can be told to fail."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}
        self.fails: BaseException | None = None
        self.saves = 0
        self.deletes = 0

    def _trouble(self) -> None:
        if self.fails is not None:
            raise self.fails

    async def load(self, id: str) -> bytes | None:
        self._trouble()
        return self.records.get(id)

    async def save(self, id: str, record: bytes) -> None:
        self._trouble()
        self.saves += 1
        self.records[id] = record

    async def delete(self, id: str) -> None:
        self._trouble()
        self.deletes += 1
        self.records.pop(id, None)


def texts(stored: StoredLoop | None, *, of_turns: bool = False) -> list[str]:
    """The items of a record as they are written: those that wait, or those of turns that are not over."""
    items = stored.items if stored is not None else ()
    return [item.text for item in items if (item.turn is not None) == of_turns]


def stored_places(stored: StoredLoop | None) -> tuple[list[str], list[str], list[str]]:
    """The items of turns that can go on, those that wait, and those of failed turns."""
    stored = stored or StoredLoop()
    turns = {turn.key: turn for turn in stored.turns}
    interrupted, unhandled, failed = list[str](), list[str](), list[str]()
    for item in stored.items:
        turn = turns.get(item.turn or "")
        if turn is None or (turn.checkpoint is None and turn.state is not StoredState.FAILED):
            unhandled.append(json.loads(item.text))
        elif turn.state is StoredState.FAILED:
            failed.append(json.loads(item.text))
        else:
            interrupted.append(json.loads(item.text))
    return interrupted, unhandled, failed
