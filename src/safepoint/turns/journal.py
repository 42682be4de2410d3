"""How a loop's record in the storage stays true while the loop lives.

Every decision about an item queues its changes; `touch` writes the queue, in a piece of work of its own. At most one
write is under way, and changes that arrive meanwhile go into the next one. So a burst of pushes costs a few writes, and
each write replaces one true record by a later one: the only copy is never lost.

Nothing is written before the record was read: a record that could not be read is never replaced. Nor is a record that
another loop uses: the record is claimed before it is read, and released at the end. Items are encoded and decoded off
the event loop, unless they are few and short.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

from safepoint._core.threads import off_loop
from safepoint._core.work import Failed, Returned, Work
from safepoint.errors import StoreCorrupt, StoreError
from safepoint.history.parts import Message, common
from safepoint.storage.loop_data import (
    HistorySet,
    ItemsAdded,
    ItemsMoved,
    ItemsRemoved,
    LoopChange,
    LoopStorage,
    StoredItem,
    StoredLoop,
)
from safepoint.turns.codec import ItemCodec, write_item
from safepoint.turns.exit import Saved, SavedState
from safepoint.turns.items import Item

T = TypeVar("T")

# This many short items are encoded, or decoded, in less than a millisecond.
_FEW = 100


class Begin(Protocol):
    """Starts a piece of work of the loop."""

    def __call__(self, make: Callable[[], Awaitable[None]], name: str, on_end: Callable[[], object]) -> Work[None]: ...


@dataclass(frozen=True, slots=True)
class LoadedLoop(Generic[T]):
    """The record of an earlier loop, and its items by their stored numbers."""

    stored: StoredLoop
    items: Mapping[int, Item[T]]


@dataclass(slots=True)
class _Batch(Generic[T]):
    """The changes of one write."""

    added: dict[int, Item[T]] = field(default_factory=dict[int, Item[T]])
    changes: list[LoopChange] = field(default_factory=list[LoopChange])
    then: list[Callable[[], object]] = field(default_factory=list[Callable[[], object]])
    lost: dict[int, StoreError] = field(default_factory=dict[int, StoreError])

    def before(self, later: _Batch[T]) -> _Batch[T]:
        """Both batches as one."""
        return _Batch({**self.added, **later.added}, self.changes + later.changes, self.then + later.then)


class Journal(Generic[T]):
    """Without a storage it does nothing, and reports that."""

    def __init__(self, storage: LoopStorage | None, id: str, codec: ItemCodec[T]) -> None:
        self._storage = storage
        self._id = id
        self._codec = codec
        self._claimant = uuid.uuid4().hex
        self._epoch = 0
        # Whether a claim was begun: from then on the record may be ours.
        self.claimed = False
        self.error: BaseException | None = None
        self._begin: Begin | None = None
        self._on_lost: Callable[[Item[T], StoreError], object] | None = None
        self._work: Work[None] | None = None
        self._next: _Batch[T] = _Batch()
        # The difference between an item's number in the storage and its number in this loop.
        self._base = 0
        self._history: Sequence[Message] = ()
        self._lost: StoreError | None = None

    @property
    def enabled(self) -> bool:
        return self._storage is not None

    @property
    def busy(self) -> bool:
        """Whether there are changes that the storage does not have."""
        return self._work is not None or (self._dirty and self._begin is not None)

    @property
    def has_history(self) -> bool:
        return len(self._history) > 0

    @property
    def writing(self) -> bool:
        return self._work is not None

    @property
    def _dirty(self) -> bool:
        return bool(self._next.added or self._next.changes)

    async def load(self) -> LoadedLoop[T]:
        """Read the record of an earlier loop. Raises the storage's errors, or `StoreCorrupt`.

        Cancellation: the record may be claimed; it is unchanged.
        """
        assert self._storage is not None
        self.claimed = True
        opened = await self._storage.open(self._id, self._claimant)
        stored = opened.stored
        self._epoch, self._base, self._history = opened.epoch, stored.last, stored.history
        read = partial(_read_items, stored.items, self._codec, stored.last)
        is_quick = len(stored.items) < _FEW and all(self._codec.is_quick_to_read(item.text) for item in stored.items)
        return LoadedLoop(stored, read() if is_quick else await off_loop(read, "read items"))

    async def release(self) -> None:
        """Let another loop use the record. Cancellation: it is released or it is not."""
        assert self._storage is not None
        await self._storage.release(self._id, self._claimant)

    def open(self, begin: Begin, on_lost: Callable[[Item[T], StoreError], object]) -> None:
        """The record was read; keep it up to date from now on. `on_lost`: called for an item that cannot be written."""
        self._begin, self._on_lost = begin, on_lost
        self._write()

    # -- what is to be written: plain functions that queue a change ----------------------------------------------------

    def add(self, item: Item[T]) -> None:
        if self.enabled:
            self._next.added[item.number] = item

    def remove(self, items: Iterable[Item[T]]) -> None:
        known = [item for item in items if self._next.added.pop(item.number, None) is None]
        if known:
            self.record(ItemsRemoved(self._numbers(known)))

    def move(self, items: Iterable[Item[T]], turn: str | None, *, joining: bool = False) -> None:
        if numbers := self._numbers(items):
            self.record(ItemsMoved(numbers, turn, joining))

    def set_history(self, messages: Sequence[Message]) -> None:
        """Set the conversation; only the difference to the known one is written."""
        known = self._history
        # One comparison in C covers the usual case: the conversation has grown.
        grown = list(messages[: len(known)]) == list(known)
        index = len(known) if grown else common(known, messages)
        if index < len(known) or index < len(messages):
            self.record(HistorySet(index, tuple(messages[index:])))
        self._history = messages

    def record(self, *changes: LoopChange) -> None:
        if self.enabled:
            self._next.changes += changes

    def after(self, call: Callable[[], object]) -> None:
        """Call it once everything recorded so far is stored; at once if nothing is to be stored."""
        if self.enabled and (self._work is not None or self._dirty):
            self._next.then.append(call)
        else:
            call()

    def _numbers(self, items: Iterable[Item[T]]) -> tuple[int, ...]:
        return tuple([item.number + self._base for item in items])

    # -- writing -------------------------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Write the queue, unless a write failed: then the loop ends, and `write_last` tries again."""
        if self.error is None:
            self._write()

    def write_last(self) -> None:
        """Write once more, also after a failure; no change follows."""
        self._write()

    def hurry(self, until: float) -> None:
        """A write that is under way must be over by then."""
        if self._work is not None:
            self._work.stop_at(until)

    def saved(self, *, empty: bool) -> Saved:
        """The state of the record at the end. `empty`: nothing is left to store."""
        error = self.error or self._lost
        if error is not None:
            return Saved(SavedState.FAILED, error)
        return Saved(SavedState.NONE if empty else SavedState.SAVED)

    def end(self, saved: Saved) -> None:
        """No more writes follow: wake the callers that still wait for an item to be saved."""
        last, self._next = self._next, _Batch()
        for item in last.added.values():
            if item.receipt is not None:
                why = saved.error or StoreError(f"the loop ended, and this was {saved.state}")
                item.receipt.settle_saved(why)
        for call in last.then:
            call()

    def _write(self) -> None:
        if self._begin is None or self._work is not None or not (self._dirty or self._next.then):
            return
        batch, self._next = self._next, _Batch()
        self._work = self._begin(partial(self._put, batch), "record", partial(self._wrote, batch))

    async def _put(self, batch: _Batch[T]) -> None:
        assert self._storage is not None
        write = partial(_written, batch.added.values(), self._codec)
        is_quick = len(batch.added) < _FEW and all(self._codec.is_quick(item.value) for item in batch.added.values())
        texts, batch.lost = write() if is_quick else await off_loop(write, "write items")
        rows = tuple(StoredItem(number + self._base, text) for number, text in texts.items())
        changes: list[LoopChange] = [ItemsAdded(rows), *batch.changes] if rows else batch.changes
        if changes:
            await self._storage.apply(self._id, self._epoch, changes)

    def _wrote(self, batch: _Batch[T]) -> None:
        assert self._work is not None
        outcome, self._work = self._work.outcome, None
        if not isinstance(outcome, Returned):
            # It is unknown whether the write happened. If it did, the next write repeats it harmlessly.
            self.error = (
                outcome.error if isinstance(outcome, Failed) else StoreError("the record was not saved in time")
            )
            self._next = batch.before(self._next)
            return
        self.error = None
        for number, item in batch.added.items():
            if item.receipt is not None:
                item.receipt.settle_saved(batch.lost.get(number))
            if number in batch.lost and self._on_lost is not None:
                self._lost = self._lost or batch.lost[number]
                self._on_lost(item, batch.lost[number])
        for call in batch.then:
            call()
        self._write()


def _written(items: Iterable[Item[T]], codec: ItemCodec[T]) -> tuple[dict[int, str], dict[int, StoreError]]:
    """The texts, and the errors of items without one, by number."""
    texts: dict[int, str] = {}
    lost: dict[int, StoreError] = {}
    for item in items:
        try:
            texts[item.number] = write_item(codec, item.value)
        except StoreError as error:
            lost[item.number] = error
    return texts, lost


def _read_items(items: Sequence[StoredItem], codec: ItemCodec[T], base: int) -> dict[int, Item[T]]:
    try:
        return {item.number: Item(item.number - base, codec.decode(item.text)) for item in items}
    except Exception as error:  # the user's codec may raise anything
        raise StoreCorrupt(f"the loop's record can't be read: {error!r}; it was left as it is") from error
