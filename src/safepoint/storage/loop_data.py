"""How turn loops are stored: items are rows, and a write says what changed.

A storage lets one loop at a time use a record. `open` claims the record and returns an epoch; every later write carries
the epoch, and a write with an old one is refused. So a loop that was taken for dead, and comes back, cannot spoil what
its successor has stored. `apply` stores several changes in one step. Every change sets something to a given value, so
a write whose outcome is unknown may be repeated together with what came after it.

    items     one row each: number, text, the turn that has it, and whether it was about to join that turn
    turns     one row for each turn that is not over: begun (in a session), stopped with a checkpoint, or failed
    history   the conversation between turns, one row for each message, unless a session has it
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol, TypeAlias, runtime_checkable

from msgspec.structs import replace

from safepoint._values import Value
from safepoint.agent.checkpoint import Checkpoint
from safepoint.errors import StoreError, Superseded
from safepoint.history.parts import Message


class StoredState(StrEnum):
    """Where a turn stands that is not over."""

    BEGUN = "begun"
    STOPPED = "stopped"
    FAILED = "failed"


class StoredItem(Value, frozen=True):
    """One item, in the form that its codec gave it. `joining`: it was about to join the conversation of its turn."""

    number: int
    text: str
    turn: str | None = None
    joining: bool = False


class StoredTurn(Value, frozen=True):
    """A turn that is not over. `runs`: the ids of its runs so far, by which a session knows it.

    `error`: what a failed one has raised.
    """

    key: str
    state: StoredState = StoredState.BEGUN
    runs: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    error: str | None = None


class StoredLoop(Value, frozen=True):
    """Everything that is stored of a loop. `last`: the highest number that an item ever had."""

    items: tuple[StoredItem, ...] = ()
    turns: tuple[StoredTurn, ...] = ()
    history: tuple[Message, ...] = ()
    last: int = 0

    @property
    def empty(self) -> bool:
        return not (self.items or self.turns or self.history)


class OpenedLoop(Value, frozen=True):
    """What `open` found, and the epoch of this loop's writes."""

    epoch: int
    stored: StoredLoop


class ItemsAdded(Value, frozen=True):
    items: tuple[StoredItem, ...]


class ItemsRemoved(Value, frozen=True):
    numbers: tuple[int, ...]


class ItemsMoved(Value, frozen=True):
    """These items belong to that turn from now on, or with None to the queue. Unknown numbers are passed over."""

    numbers: tuple[int, ...]
    turn: str | None
    joining: bool = False


class TurnBegun(Value, frozen=True):
    """A run of that turn is about to begin."""

    key: str
    run_id: str


class TurnStopped(Value, frozen=True):
    """The turn can go on from there."""

    key: str
    runs: tuple[str, ...]
    checkpoint: Checkpoint


class TurnFailed(Value, frozen=True):
    """The turn failed, and its items wait for the user's decision."""

    key: str
    runs: tuple[str, ...]
    error: str
    checkpoint: Checkpoint | None = None


class TurnOver(Value, frozen=True):
    """Nothing is left to be known of that turn. Its items are removed or moved by other changes."""

    key: str


class HistorySet(Value, frozen=True):
    """The conversation from `index` on is this, and nothing else."""

    index: int
    messages: tuple[Message, ...]


LoopChange: TypeAlias = (
    ItemsAdded | ItemsRemoved | ItemsMoved | TurnBegun | TurnStopped | TurnFailed | TurnOver | HistorySet
)


@runtime_checkable
class LoopStorage(Protocol):
    """Every method happens whole, or raises and changes nothing. Cancellation of any of them: likewise."""

    async def open(self, id: str, claimant: str) -> OpenedLoop:
        """Claim the record and read it. Raises `StoreError` while another claimant has it whose process lives."""
        ...

    async def apply(self, id: str, epoch: int, changes: Sequence[LoopChange]) -> None:
        """All of these changes, in this order, or none. Raises `Superseded` for an old epoch."""
        ...

    async def release(self, id: str, claimant: str) -> None:
        """Give the record back. Does nothing if another claimant has it."""
        ...


class LoopRecords(LoopStorage, Protocol):
    """A storage of loops from which a whole record can be carried elsewhere."""

    async def read(self, id: str) -> StoredLoop:
        """An empty record if there is none. Raises `StoreCorrupt`."""
        ...

    async def replace(self, id: str, stored: StoredLoop) -> None:
        """The record is this and nothing else, whichever loop has it. An empty one is deleted."""
        ...


def in_use(id: str, where: str = "in this process") -> StoreError:
    return StoreError(
        f"another loop uses the record {id!r} {where}: wait for its end, or write another checkpoint_id for this one"
    )


def superseded(id: str) -> Superseded:
    return Superseded(f"another loop has taken the record {id!r} over; what this one knows was not saved")


class LoopTable:
    """The rows of one loop, in memory. Applying a change costs what the change is long, however many rows there are."""

    def __init__(self, stored: StoredLoop | None = None) -> None:
        stored = stored or StoredLoop()
        self._items = {item.number: item for item in stored.items}
        self._turns = {turn.key: turn for turn in stored.turns}
        self._history = list(stored.history)
        self._last = stored.last

    def read(self) -> StoredLoop:
        items = tuple(self._items[number] for number in sorted(self._items))
        return StoredLoop(items, tuple(self._turns.values()), tuple(self._history), self._last)

    @property
    def empty(self) -> bool:
        return not (self._items or self._turns or self._history)

    def apply(self, change: LoopChange) -> None:
        match change:
            case ItemsAdded(items):
                self._items.update((item.number, item) for item in items)
                self._last = max(self._last, *(item.number for item in items)) if items else self._last
            case ItemsRemoved(numbers):
                for number in numbers:
                    self._items.pop(number, None)
            case ItemsMoved(numbers, turn, joining):
                for number in numbers:
                    if (item := self._items.get(number)) is not None:
                        self._items[number] = replace(item, turn=turn, joining=joining)
            case TurnBegun(key, run_id):
                known = self._turns.get(key, StoredTurn(key))
                runs = (*known.runs, run_id) if run_id not in known.runs else known.runs
                self._turns[key] = replace(known, runs=runs)
            case TurnStopped(key, runs, checkpoint):
                self._turns[key] = StoredTurn(key, StoredState.STOPPED, runs, checkpoint)
            case TurnFailed(key, runs, error, checkpoint):
                self._turns[key] = StoredTurn(key, StoredState.FAILED, runs, checkpoint, error)
            case TurnOver(key):
                self._turns.pop(key, None)
            case HistorySet(index, messages):
                self._history[index:] = messages
