"""Every scenario there is, by name.

A scenario is a public async function in one of these modules. One that takes a store is run with each kind of store.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from safepoint import check_history
from safepoint.errors import SessionBusy
from safepoint.sessions import MemoryStore, SqliteStore, Store
from safepoint.sessions.stores import StorageSessions
from tests.injection import (
    answers,
    asking,
    callers,
    composed,
    corners,
    foreign,
    going_back,
    holding,
    hooked,
    mcp_parts,
    processes,
    resuming,
    stored,
    switched,
    tool_calls,
    turned,
)
from tests.injection.parts import SlowStorage, SlowStore

Scenario: TypeAlias = Callable[[], Coroutine[Any, Any, None]]  # Any: what a coroutine yields

MODULES = (
    answers,
    tool_calls,
    hooked,
    asking,
    holding,
    callers,
    resuming,
    composed,
    stored,
    corners,
    processes,
    mcp_parts,
    switched,
    foreign,
    going_back,
    turned,
)


class Shelf:
    """The stores that scenarios have used, until somebody has looked at what they contain."""

    def __init__(self) -> None:
        self._memory: list[MemoryStore] = []
        self._storages: list[SlowStorage] = []
        self._folders: list[tempfile.TemporaryDirectory[str]] = []

    async def in_memory(self, scenario: Callable[[Store], Awaitable[None]]) -> None:
        store = MemoryStore()
        self._memory.append(store)
        await scenario(SlowStore(store))

    async def in_storage(self, scenario: Callable[[Store], Awaitable[None]]) -> None:
        storage = SlowStorage()
        self._storages.append(storage)
        await scenario(StorageSessions(storage))

    async def in_sqlite(self, scenario: Callable[[Store], Awaitable[None]]) -> None:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._folders.append(folder)
        store = SqliteStore(Path(folder.name) / "sessions.db")
        try:
            await scenario(store)
        finally:
            await store.aclose()

    def is_sound(self) -> None:
        """The oracle: every session has a valid conversation, no open run, and is free for the next one."""
        storages, self._storages = self._storages, []
        for storage in storages:
            storage.is_slow = False
        memory: list[StorageSessions] = [*self._memory, *map(StorageSessions, storages)]
        self._memory = []
        folders, self._folders = self._folders, []
        for store in memory:
            with suppress(StopIteration):
                _is_sound(store).send(None)  # nothing in memory ever waits, so no loop is needed
        for folder in folders:
            asyncio.run(_is_sound_in(Path(folder.name)))
            folder.cleanup()


async def _is_sound_in(folder: Path) -> None:
    store = SqliteStore(folder / "sessions.db")
    try:
        await _is_sound(store)
    finally:
        await store.aclose()


async def _is_sound(store: Store) -> None:
    for id in await store.list_ids():
        found = await store.load(id)
        open_runs = {run.run_id for run in found.runs if not run.ended}
        assert open_runs <= {stored.DEAD}, f"the session {id} has open runs: {open_runs}"
        if found.messages and not open_runs:
            check_history(found.messages)
        assert await _is_free(store, id), f"the session {id} is still claimed"


async def _is_free(store: Store, id: str) -> bool:
    for claimant in ("somebody else", stored.DEAD):
        with suppress(SessionBusy):
            await store.claim(id, claimant)
            return True
    return False


SHELF = Shelf()


def scenarios_of(module: ModuleType) -> dict[str, Scenario]:
    return dict(_found(module))


def _found(module: ModuleType) -> Iterator[tuple[str, Scenario]]:
    for name, value in vars(module).items():
        # Functions only: for Python 3.12 the module `inspect` is a coroutine function too, because it holds their mark.
        is_scenario = inspect.isfunction(value) and inspect.iscoroutinefunction(value)
        if name.startswith("_") or not is_scenario or value.__module__ != module.__name__:
            continue
        parameters = list(inspect.signature(value).parameters)
        if not parameters:
            yield name, value
        elif parameters == ["store"]:
            yield f"{name}_in_memory", _renamed(functools.partial(SHELF.in_memory, value), f"{name}_in_memory")
            yield f"{name}_in_storage", _renamed(functools.partial(SHELF.in_storage, value), f"{name}_in_storage")
            yield f"{name}_in_sqlite", _renamed(functools.partial(SHELF.in_sqlite, value), f"{name}_in_sqlite")


def _renamed(scenario: Scenario, name: str) -> Scenario:
    async def renamed() -> None:
        await scenario()

    renamed.__name__ = renamed.__qualname__ = name
    return renamed


# Entries in which the caller has no business, each with the reason.
WITHOUT_A_CALLER = {
    "wound_down": "what ends a loop of our own is called from outside that loop",
    "late_result_is_stored_in_memory": "what comes back late is written down for nobody who waits",
    "late_result_is_stored_in_storage": "likewise",
    "late_result_is_stored_in_sqlite": "likewise",
}

ENTRIES = {name: scenario for module in MODULES for name, scenario in scenarios_of(module).items()}
