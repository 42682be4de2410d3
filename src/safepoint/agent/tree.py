"""The live tree of a run, for people who want to stop one part of it."""

from __future__ import annotations

from collections.abc import Iterator

from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason
from safepoint._core.receipts import Receipt
from safepoint._core.tree import Node


class RunTree:
    """`walk()` lists live nodes; each has `kind`, `name`, `path` and `cancel(…)`."""

    def __init__(self, root: Node) -> None:
        self._root = root

    def walk(self) -> Iterator[Node]:
        """All live nodes, parents first."""
        return iter([node for node in self._root.walk() if not node.ended.is_set])

    def cancel_all_but(self, keep: Node, *, reason: str | Reason | None = None) -> list[Receipt]:
        """Stop every node now except this one, what is below it, and what it is part of."""
        if not self._root.holds(keep):
            raise ValueError(f"{keep!r} is not a node of this run: take one from run.tree.walk()")
        receipts: list[Receipt] = []
        branch: Node | None = self._root
        while branch is not None and branch is not keep:
            inside = next((child for child in branch.children if child.holds(keep)), None)
            others = [child for child in branch.children if child is not inside]
            receipts += [child.cancel(SafePoint.NOW, reason=reason) for child in others]
            branch = inside  # None: it has ended meanwhile, and there is nothing left to keep
        return receipts

    def __repr__(self) -> str:
        return "\n".join(repr(node) for node in self.walk())
