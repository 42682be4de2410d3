"""What the threads of a SQLite storage are given to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from safepoint.storage.reply import Reply

T = TypeVar("T")


class Job(Reply[T]):
    """One function of a connection, and the reply that its caller waits for.

    `in_transaction`: if not, the function is called without a connection, in the thread that owns one.
    """

    def __init__(self, function: Callable[[Any], T], name: str, *, in_transaction: bool = True) -> None:
        super().__init__(name)
        self.in_transaction = in_transaction
        self.function = function
