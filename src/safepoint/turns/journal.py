"""How a loop's record stays true in the store while the loop lives.

Whatever changes the record touches the journal; the journal writes the record as it is then, in a piece of work of its
own. At most one write is under way, and what changes meanwhile is in the next one. So a burst of pushes costs a few
writes, and each write replaces one truth by a later one: at no time is the only copy gone.

Nothing is written before the record was read: what could not be read is never replaced. Nor is what another loop uses:
where the store can tell, the record is claimed before it is read, and given back at the end.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from safepoint._core.work import Done, Failed, Work
from safepoint.errors import StoreError
from safepoint.turns.exit import Saved, SavedState
from safepoint.turns.items import Item
from safepoint.turns.receipts import PushReceipt
from safepoint.turns.record import ItemCodec, LoadedRecord, LoopRecord, decode, encode
from safepoint.turns.store import ClaimingStore, TurnStore

T = TypeVar("T")


class Begin(Protocol):
    """Starts a piece of work of the loop."""

    def __call__(self, make: Callable[[], Awaitable[None]], name: str, on_end: Callable[[], object]) -> Work[None]: ...


class Journal(Generic[T]):
    """Without a store it does nothing, and says so."""

    def __init__(self, store: TurnStore | None, id: str, codec: ItemCodec[T]) -> None:
        self._store = store
        self._id = id
        self._codec = codec
        self._claimant = uuid.uuid4().hex
        # A claim was begun: from then on the record may be ours.
        self.claimed = False
        self.error: BaseException | None = None
        self._begin: Begin | None = None
        self._snapshot: Callable[[], LoopRecord[T]] = LoopRecord
        self._work: Work[None] | None = None
        self._dirty = False
        # Is there a record in the store?
        self._stored = False
        self._unsaved: dict[int, PushReceipt] = {}
        self._lost: dict[int, StoreError] = {}

    @property
    def enabled(self) -> bool:
        return self._store is not None

    @property
    def busy(self) -> bool:
        """Is anything known that the store does not know?"""
        return self._work is not None or (self._dirty and self._begin is not None)

    @property
    def writing(self) -> bool:
        return self._work is not None

    async def load(self) -> LoadedRecord[T] | None:
        """What an earlier loop has left. Raises what the store raises, or `StoreCorrupt`.

        Cancellation: the record may be claimed, and is as it was.
        """
        assert self._store is not None
        if isinstance(self._store, ClaimingStore):
            self.claimed = True
            await self._store.claim(self._id, self._claimant)
        data = await self._store.load(self._id)
        self._stored = data is not None
        return None if data is None else decode(data, self._codec)

    async def release(self) -> None:
        """Let another loop use the record. Cancellation: it is free or it is not."""
        assert isinstance(self._store, ClaimingStore)
        await self._store.release(self._id, self._claimant)

    def open(self, snapshot: Callable[[], LoopRecord[T]], begin: Begin) -> None:
        """The record was read; from now on it is kept up to date."""
        self._snapshot, self._begin = snapshot, begin
        self._write()

    def accepted(self, item: Item[T], receipt: PushReceipt) -> None:
        if self.enabled:
            self._unsaved[item.number] = receipt
            self.touch()

    def touch(self) -> None:
        """The record has changed."""
        if self.enabled:
            self._dirty = True
            if self.error is None:
                self._write()

    def write_last(self) -> None:
        """Once more, also after a failure; nothing changes any more."""
        self._dirty = self._dirty or self.error is not None
        self._write()

    def hurry(self, until: float) -> None:
        """A write that is under way must be over by then."""
        if self._work is not None:
            self._work.stop_at(until)

    def saved(self) -> Saved:
        """What is to be said of the record at the end."""
        error = self.error or next(iter(self._lost.values()), None)
        if error is not None:
            return Saved(SavedState.FAILED, error)
        return Saved(SavedState.SAVED if self._stored else SavedState.NONE)

    def end(self, saved: Saved) -> None:
        """Nothing is written any more: whoever still waits for an item to be saved is told."""
        unsaved, self._unsaved = self._unsaved, {}
        for number, receipt in unsaved.items():
            why = self._lost.get(number) or saved.error or StoreError(f"the loop ended, and this was {saved.state}")
            receipt.settle_saved(why)

    # -- one write -----------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        if self._begin is None or self._work is not None or not self._dirty:
            return
        record = self._snapshot()
        self._dirty = False
        batch, self._unsaved = self._unsaved, {}
        if record.empty:
            data, self._lost = None, {}
        else:
            data, self._lost = encode(record, self._codec)
        self._work = self._begin(
            partial(self._put, data), "record", partial(self._wrote, batch, stored=not record.empty)
        )

    async def _put(self, data: bytes | None) -> None:
        assert self._store is not None
        if data is not None:
            await self._store.save(self._id, data)
        elif self._stored:
            await self._store.delete(self._id)

    def _wrote(self, batch: dict[int, PushReceipt], *, stored: bool) -> None:
        assert self._work is not None
        outcome, self._work = self._work.outcome, None
        if isinstance(outcome, Done):
            self._stored, self.error = stored, None
            for number, receipt in batch.items():
                receipt.settle_saved(self._lost.get(number))
            self._write()
            return
        # Nobody knows whether it happened. If it did, the next write replaces it; if not, the old record is there.
        self.error = outcome.error if isinstance(outcome, Failed) else StoreError("the record was not saved in time")
        self._stored, self._dirty = True, True
        self._unsaved = {**batch, **self._unsaved}
