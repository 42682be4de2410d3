"""Asks in the order in which they were made, and what they amount to together. Any of them can be taken out again.

The asks are the leaves of perfect binary trees, the largest first, as the digits of a binary number. Each branch knows
what the asks below it amount to. One more ask makes one new branch on average; one fewer makes a new way from its leaf
to the root of its tree. Nothing is ever changed in place, so any thread can read one sequence while another makes the
next.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from safepoint._core.asks import Ask, Request, earlier, stronger_at
from safepoint._core.points import SafePoint


class Amount(NamedTuple):
    """What asks amount to together, apart from their reasons."""

    at: SafePoint
    deadline: float | None
    recursive: bool

    @staticmethod
    def of(one: Ask | Request) -> Amount:
        return Amount(one.at, one.deadline, one.recursive)

    def plus(self, ask: Ask) -> Amount:
        recursive = self.recursive or ask.recursive
        return Amount(stronger_at(self.at, ask.at), earlier(self.deadline, ask.deadline), recursive)


class _Branch(NamedTuple):
    amount: Amount | None
    left: _Tree
    right: _Tree


# None: a leaf whose ask was taken out.
_Tree: TypeAlias = _Branch | Ask | None


class AskSequence:
    """`count`: how many asks it has ever had, which is the place of the next one.

    `alike`: all it has ever had were for the same place, without a deadline.
    """

    __slots__ = ("_asks", "_first", "_ids", "_trees", "alike", "count")

    def __init__(
        self, trees: tuple[tuple[int, _Tree], ...] = (), count: int = 0, first: Ask | None = None, *, alike: bool = True
    ) -> None:
        # Each with the number of its leaves.
        self._trees = trees
        self.count = count
        self._first = first
        self.alike = alike
        # Listed once. Two threads may both do so; they come to the same.
        self._asks: tuple[Ask, ...] | None = None
        self._ids: frozenset[str] | None = None

    def plus(self, ask: Ask) -> AskSequence:
        """With one more ask, at the place `count`."""
        trees, leaves = self._trees, 1
        tree: _Tree = ask
        while trees and trees[-1][0] == leaves:
            tree = _branch(trees[-1][1], tree)
            trees, leaves = trees[:-1], 2 * leaves
        first = self._first or ask
        alike = self.alike and ask.deadline is None and ask.at is first.at
        return AskSequence((*trees, (leaves, tree)), self.count + 1, first, alike=alike)

    def minus(self, place: int) -> AskSequence:
        """Without the ask at that place."""
        number = 0
        while place >= self._trees[number][0]:
            place -= self._trees[number][0]
            number += 1
        leaves, tree = self._trees[number]
        smaller = (leaves, _without(tree, leaves, place))
        trees = (*self._trees[:number], smaller, *self._trees[number + 1 :])
        return AskSequence(trees, self.count, self._first, alike=self.alike)

    def amount(self) -> Amount | None:
        """What all of them amount to; None if there is none."""
        total: Amount | None = None
        for _, tree in self._trees:
            total = _together(total, _amount(tree))
        return total

    def asks(self) -> tuple[Ask, ...]:
        """All that were not taken out, in their order."""
        asks = self._asks
        if asks is None:
            found: list[Ask] = []
            for _, tree in self._trees:
                _gather(tree, found)
            asks = self._asks = tuple(found)
        return asks

    def ids(self) -> frozenset[str]:
        """The ids of these."""
        ids = self._ids
        if ids is None:
            ids = self._ids = frozenset([ask.id for ask in self.asks()])
        return ids


def _gather(tree: _Tree, found: list[Ask]) -> None:
    if isinstance(tree, _Branch):
        _gather(tree.left, found)
        _gather(tree.right, found)
    elif tree is not None:
        found.append(tree)


def _branch(left: _Tree, right: _Tree) -> _Branch:
    return _Branch(_together(_amount(left), _amount(right)), left, right)


def _without(tree: _Tree, leaves: int, place: int) -> _Tree:
    if not isinstance(tree, _Branch):
        return None
    half = leaves // 2
    if place < half:
        return _branch(_without(tree.left, half, place), tree.right)
    return _branch(tree.left, _without(tree.right, half, place - half))


def _amount(tree: _Tree) -> Amount | None:
    if isinstance(tree, Ask):
        return Amount.of(tree)
    return tree.amount if tree is not None else None


def _together(one: Amount | None, other: Amount | None) -> Amount | None:
    if one is None or other is None:
        return other if one is None else one
    recursive = one.recursive or other.recursive
    return Amount(stronger_at(one.at, other.at), earlier(one.deadline, other.deadline), recursive)
