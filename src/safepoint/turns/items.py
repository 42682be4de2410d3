"""Accepted items, and the queue in which they wait for a turn.

Every accepted item gets a number in the order of acceptance and keeps it for life. It lives in exactly one place: the
queue, a turn, a turn that is not over, a failed turn, or nowhere once a turn has handled it. So putting items back
needs no decision about order: an item that returns is sorted in by its number, in front of all later ones.

The queue is a sorted list with an index by identity. The cost of taking items out depends only on their number, and a
plan reads the queue without a copy: so a turn costs the same whether ten items wait or ten thousand.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar, overload

from safepoint._values import Value
from safepoint.turns.receipts import PushReceipt

T = TypeVar("T")

# Up to this many items are inserted or removed one by one: that moves the others in memory, which is quick for a few.
_MANY = 30


class Item(Value, Generic[T], frozen=True, eq=False):
    """One accepted item. Two items are the same only if they are the same object; their values may be equal.

    `receipt`: of the push that brought it; None for an item that an earlier loop left.
    """

    number: int
    value: T
    receipt: PushReceipt | None = None


def in_order(items: Iterable[Item[T]]) -> list[Item[T]]:
    """The items in the order in which they were accepted."""
    return sorted(items, key=_number)


def values(items: Iterable[Item[T]]) -> list[T]:
    return [item.value for item in items]


def _number(item: Item[T]) -> int:
    return item.number


class ItemsView(Sequence[T]):
    """The values of the items up to the number `last`, read-only and without a copy. A slice of it is a list.

    A plan that keeps the view keeps what it saw: the view becomes a copy before the queue changes.
    """

    __slots__ = ("__weakref__", "_items", "_last")

    def __init__(self, items: list[Item[T]], last: int) -> None:
        self._items = items
        self._last = last

    def __len__(self) -> int:
        return bisect_right(self._items, self._last, key=_number)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        places = range(len(self))[index]
        if isinstance(places, int):
            return self._items[places].value
        return [self._items[place].value for place in places]

    def __iter__(self) -> Iterator[T]:
        return iter(self[:])

    def detach(self) -> None:
        """The list is about to change."""
        self._items = self._items[: len(self)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and not isinstance(other, str) and self[:] == list(other)  # pyright: ignore[reportUnknownArgumentType]  # of anything

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        return repr(self[:])


class Buffer(Generic[T]):
    """Items that no turn has taken. `fresh` is false while a plan waits for something new."""

    def __init__(self) -> None:
        self._items: list[Item[T]] = []
        self._by_identity: dict[int, list[Item[T]]] = {}
        self._views: list[weakref.ref[ItemsView[T]]] = []
        self.fresh = False

    def append(self, item: Item[T]) -> None:
        self._items.append(item)
        self._by_identity.setdefault(id(item.value), []).append(item)
        self.fresh = True

    def put_back(self, items: Iterable[Item[T]]) -> None:
        """Sort them in by their numbers, in front of all later ones."""
        returned = list(items)
        self._detach_views()
        if len(returned) > _MANY:
            self._items += returned
            self._items.sort(key=_number)
        for item in returned:
            if len(returned) <= _MANY:
                insort(self._items, item, key=_number)
            insort(self._by_identity.setdefault(id(item.value), []), item, key=_number)
        self.fresh = self.fresh or bool(returned)

    def remove(self, items: Iterable[Item[T]]) -> None:
        removed = list(items)
        self._detach_views()
        if len(removed) > _MANY:
            gone = set(map(id, removed))
            self._items[:] = [item for item in self._items if id(item) not in gone]
        for item in removed:
            if len(removed) <= _MANY:
                del self._items[self._place(item)]
            same = self._by_identity[id(item.value)]
            same.remove(item)
            if not same:
                del self._by_identity[id(item.value)]

    def _place(self, item: Item[T]) -> int:
        place = bisect_left(self._items, item.number, key=_number)
        if place == len(self._items) or self._items[place] is not item:
            raise ValueError(f"{item!r} does not wait")
        return place

    def __contains__(self, item: Item[T]) -> bool:
        return any(item is other for other in self._by_identity.get(id(item.value), ()))

    @property
    def last(self) -> int | None:
        """The number of the last one."""
        return self._items[-1].number if self._items else None

    def up_to(self, last: int) -> list[Item[T]]:
        return self._items[: bisect_right(self._items, last, key=_number)]

    def find(self, number: int) -> Item[T] | None:
        place = bisect_left(self._items, number, key=_number)
        found = self._items[place] if place < len(self._items) else None
        return found if found is not None and found.number == number else None

    def view(self, last: int) -> ItemsView[T]:
        view = ItemsView(self._items, last)
        self._views.append(weakref.ref(view))
        return view

    def _detach_views(self) -> None:
        views, self._views = self._views, []
        for reference in views:
            if (view := reference()) is not None:
                view.detach()

    def alike(self, value: T) -> Sequence[Item[T]]:
        """The items whose value is this very object."""
        return self._by_identity.get(id(value), ())

    def snapshot(self) -> list[Item[T]]:
        """A copy, safe in any thread."""
        return self._items.copy()

    def __iter__(self) -> Iterator[Item[T]]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Claims(Generic[T]):
    """The items that a callback was given, and how it divides them. Each item can be named once.

    It was given `apart`, items that do not wait, and the waiting ones up to the number `last`.
    """

    def __init__(self, buffer: Buffer[T], last: int, apart: Sequence[Item[T]] = ()) -> None:
        self._buffer = buffer
        self._last = last
        self._apart = apart
        self._named: set[int] = set()
        # For each object that waits more than once: how many of its items were used.
        self._looked_at: dict[int, int] = {}

    def claim(self, named: Sequence[T], what: str) -> list[Item[T]]:
        """The items with these values: identical objects first, equal ones otherwise."""
        if isinstance(named, str) or not isinstance(named, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise TypeError(f"{what}={named!r}: write a list of the items that the plan was given")
        return [self._claim_one(value, what) for value in named]

    def _claim_one(self, value: T, what: str) -> Item[T]:
        item = self._same(value) or self._equal(value)
        if item is None:
            raise ValueError(f"{what} has {value!r}, which the plan was not given, or which it has named before")
        self._named.add(item.number)
        return item

    def _same(self, value: T) -> Item[T] | None:
        for item in self._apart:
            if item.value is value and item.number not in self._named:
                return item
        alike = self._buffer.alike(value)
        for place in range(self._looked_at.get(id(value), 0), len(alike)):
            self._looked_at[id(value)] = place + 1
            item = alike[place]
            if item.number not in self._named and item.number <= self._last:
                return item
        return None

    def _equal(self, value: T) -> Item[T] | None:
        return next((item for item in self._given() if item.number not in self._named and item.value == value), None)

    def _given(self) -> Iterator[Item[T]]:
        yield from self._apart
        yield from self._buffer.up_to(self._last)

    @property
    def left(self) -> list[Item[T]]:
        """The items that the plan has not named."""
        return [item for item in self._given() if item.number not in self._named]
