"""What was found out about long conversations, for the next reader of one that begins with the same messages.

Messages are immutable, so a conversation that was read before is recognised by the identity of its messages. That costs
a hundredth of reading it. The cache keeps the messages alive, so it holds few conversations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

from safepoint.history.parts import Message

T = TypeVar("T")

# Shorter conversations are read faster than they are looked up.
LONG: Final = 64


class Prefix(NamedTuple, Generic[T]):
    """The first messages of a conversation, and what was found out about them."""

    messages: tuple[Message, ...]
    found: T


class PrefixCache(Generic[T]):
    """Safe in any thread: two readers may both read a conversation, and find out the same."""

    def __init__(self) -> None:
        self._known: deque[Prefix[T]] = deque(maxlen=4)

    def longest(self, messages: Sequence[Message]) -> Prefix[T] | None:
        """A prefix of this conversation that was read before; of several the one that was kept last."""
        if len(messages) < LONG:
            return None
        return next((each for each in reversed(tuple(self._known)) if _begins_with(messages, each.messages)), None)

    def keep(self, messages: Sequence[Message], found: T, *, instead: Prefix[T] | None) -> None:
        """Keep what was found out about all messages but the last: the conversation may continue in several ways."""
        if len(messages) < LONG or (instead is not None and len(instead.messages) == len(messages) - 1):
            return
        if instead is not None:
            with suppress(ValueError):  # another thread may have replaced it
                self._known.remove(instead)
        self._known.append(Prefix(tuple(messages[:-1]), found))


def _begins_with(messages: Sequence[Message], known: tuple[Message, ...]) -> bool:
    last = len(known) - 1
    return last < len(messages) and messages[last] is known[last] and tuple(messages[: last + 1]) == known
