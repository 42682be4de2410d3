"""How the rules for stores make their stores and inspect them.

`storage.reducer` alone defines what a change means; the rules compare what a store loads with that.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from msgspec.structs import replace

from safepoint.agent.journal import Said
from safepoint.sessions.store import Change, LateResult, Store, Stored
from safepoint.storage.reducer import apply
from safepoint.testing.conformance.store_samples import said

MakeStore: TypeAlias = Callable[[], "Store | Awaitable[Store]"]
Reopen: TypeAlias = Callable[[Store], "Store | Awaitable[Store]"]
Spoil: TypeAlias = Callable[[Store, str], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class StoreMaker:
    """Makes a new, empty store for each rule."""

    make: MakeStore
    reopen: Reopen | None = None
    spoil: Spoil | None = None

    async def made(self) -> Store:
        return await _awaited(self.make())

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Store]:
        store = await self.made()
        try:
            yield store
        finally:
            await store.aclose()

    @asynccontextmanager
    async def claimed(self, *changes: Change) -> AsyncGenerator[tuple[Store, int]]:
        """A store with the session `s`, claimed by `me`, after these changes; and the epoch."""
        async with self.opened() as store:
            await store.create("s", {})
            epoch = await store.claim("s", "me")
            if changes:
                await store.append("s", epoch, changes)
            yield store, epoch

    @asynccontextmanager
    async def reopened(self, store: Store) -> AsyncGenerator[Store]:
        assert self.reopen is not None
        other = await _awaited(self.reopen(store))
        try:
            yield other
        finally:
            await other.aclose()


async def _awaited(made: Store | Awaitable[Store]) -> Store:
    return await made if inspect.isawaitable(made) else made


def uses(store: Store, id: str, epoch: int) -> list[tuple[str, Callable[[], Coroutine[Any, Any, object]]]]:
    return [
        ("load", lambda: store.load(id)),
        ("claim", lambda: store.claim(id, "me")),
        ("append", lambda: store.append(id, epoch, [Said(0, said("hi"))])),
        ("add_late", lambda: store.add_late(id, LateResult("call_1", "look", "dust"))),
    ]


async def refused(kind: type[Exception], what: str, wait: Coroutine[Any, Any, object]) -> None:
    try:
        await wait
    except kind:
        return
    except Exception as error:
        raise AssertionError(f"{what} raised {error!r}, not {kind.__name__}") from error
    raise AssertionError(f"{what} did not raise {kind.__name__}")


async def compare(maker: StoreMaker, changes: Sequence[Change], *aspects: str) -> None:
    """Make the changes one by one, and all at once; the store must load what they mean."""
    expected = Stored((), {})
    for change in changes:
        expected = apply(expected, change)
    async with maker.claimed() as (store, epoch):
        for change in changes:
            await store.append("s", epoch, [change])
        same(await store.load("s"), expected, *aspects)
    async with maker.claimed(*changes) as (store, _):
        same(await store.load("s"), expected, *aspects)


def same(found: Stored, expected: Stored, *aspects: str) -> None:
    got, wanted = plain(found), plain(expected)
    for aspect in aspects:
        one, other = getattr(got, aspect), getattr(wanted, aspect)
        assert one == other, f"the stored {aspect}: {_short(one)}; it should be {_short(other)}"


def plain(stored: Stored) -> Stored:
    """The same with containers of one type: a store may load lists and mappings of its own."""
    return replace(
        stored,
        messages=tuple(stored.messages),
        state=dict(stored.state),
        runs=tuple(
            replace(run, memories=dict(run.memories), state_before=dict(run.state_before)) for run in stored.runs
        ),
        late=tuple(stored.late),
        epoch=0,
        number=None,
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 400 else f"{text[:400]}…"
