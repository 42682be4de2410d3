"""Accepted items, and the buffer in which they wait for a turn.

Every accepted item gets a number in the order of acceptance and keeps it for life. It lives in exactly one place: the
buffer, a turn, a turn that can go on, or nowhere any more because a turn has dealt with it. Going back is therefore
never a question of order: whatever returns is sorted in by its number, in front of everything that came later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Item(Generic[T]):
    """One accepted item. Two items are the same only if they are the same object; their values may well be equal."""

    number: int
    value: T


def in_order(items: Iterable[Item[T]]) -> list[Item[T]]:
    """The items as they were accepted."""
    return sorted(items, key=lambda item: item.number)


def values(items: Iterable[Item[T]]) -> list[T]:
    return [item.value for item in items]


class Buffer(Generic[T]):
    """Items that no turn has taken. `fresh` is false while a plan waits for something new."""

    def __init__(self) -> None:
        self._items: list[Item[T]] = []
        self.fresh = False

    def append(self, item: Item[T]) -> None:
        self._items.append(item)
        self.fresh = True

    def take_all(self) -> list[Item[T]]:
        taken, self._items, self.fresh = self._items, [], False
        return taken

    def put_back(self, items: Iterable[Item[T]]) -> None:
        """In front, in their old order."""
        returned = list(items)
        if returned:
            self._items = in_order([*returned, *self._items])
            self.fresh = True

    def keep(self, items: Iterable[Item[T]]) -> None:
        """As `put_back`, but they alone are no reason to plan: only something new is."""
        fresh = self.fresh
        self.put_back(items)
        self.fresh = fresh

    def __iter__(self) -> Iterator[Item[T]]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Taken(Generic[T]):
    """What a callback was given, and how it divides that up. Each item can be named once."""

    def __init__(self, items: Sequence[Item[T]]) -> None:
        self._left = {item.number: item for item in items}
        self._by_identity: dict[int, list[int]] = {}
        for item in reversed(items):
            self._by_identity.setdefault(id(item.value), []).append(item.number)

    def claim(self, named: Sequence[T], what: str) -> list[Item[T]]:
        """The items of these values: the very objects first, equal ones otherwise."""
        if isinstance(named, str) or not isinstance(named, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise TypeError(f"{what}={named!r}: write a list of the items that the plan was given")
        return [self._claim_one(value, what) for value in named]

    def _claim_one(self, value: T, what: str) -> Item[T]:
        same = self._by_identity.get(id(value), [])
        while same:
            item = self._left.pop(same.pop(), None)
            if item is not None:
                return item
        for number, item in self._left.items():
            if item.value == value:
                return self._left.pop(number)
        raise ValueError(f"{what} has {value!r}, which the plan was not given, or which it has named before")

    @property
    def left(self) -> list[Item[T]]:
        """What nobody has named."""
        return list(self._left.values())
