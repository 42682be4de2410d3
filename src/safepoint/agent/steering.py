"""Messages that join a running conversation, before its next model call, without stopping anything.

Any thread adds messages; the run takes them. A message that no further model call follows is reported as too late; none
is dropped in silence. Like an ask, adding takes no lock: append first, then check whether the queue was closed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from safepoint._core.latch import Latch
from safepoint._core.receipts import check_thread, check_wait
from safepoint._core.tree import Node
from safepoint.history.parts import Message


class SteerOutcome(StrEnum):
    """The outcome of a message."""

    JOINED = "joined"
    TOO_LATE = "too_late"
    WITHDRAWN = "withdrawn"


class SteerReceipt:
    """The receipt of one message: `await receipt.wait()` says whether it joined."""

    def __init__(self, message: Message, node: Node | None = None) -> None:
        self.message = message
        # The node of the run that the message is for.
        self._node = node
        self._outcomes: list[SteerOutcome] = []
        self._settled = Latch()

    @property
    def outcome(self) -> SteerOutcome | None:
        """None while the message waits. The first outcome that any thread sets counts."""
        return self._outcomes[0] if self._outcomes else None

    @property
    def withdrawn(self) -> bool:
        return self.outcome is SteerOutcome.WITHDRAWN

    def settle(self, outcome: SteerOutcome) -> SteerOutcome:
        self._outcomes.append(outcome)
        self._settled.set()
        return self._outcomes[0]

    def when_settled(self, call: Callable[[], object]) -> None:
        """Call it once the outcome is known, in the thread that settles it; at once if it is known already."""
        self._settled.when_set(call)

    def withdraw(self) -> bool:
        """Withdraw the message; False if it has joined already, or was too late."""
        return self.outcome is None and self.settle(SteerOutcome.WITHDRAWN) is SteerOutcome.WITHDRAWN

    async def wait(self) -> SteerOutcome:
        """Wait until it has joined, is too late, or was withdrawn. Cancellation: only the waiting ends."""
        self._check_wait()
        await self._settled.wait()
        assert self.outcome is not None
        return self.outcome

    def wait_sync(self, timeout: float | None = None) -> SteerOutcome:
        """As `wait`, from a thread that runs no event loop."""
        self._check_wait()
        if self.outcome is None and self._node is not None:
            check_thread(self._node)
        if not self._settled.wait_sync(timeout):
            raise TimeoutError(f"the message has neither joined nor missed its run within {timeout} s")
        assert self.outcome is not None
        return self.outcome

    def _check_wait(self) -> None:
        """Refuse a tool that waits for its own run: the message joins before the next model call, after the tool."""
        if self.outcome is None and self._node is not None:
            check_wait(self._node)


class Steering:
    """The waiting messages. A child takes those of its composite too: the first child to come, or all of them."""

    def __init__(self, above: Steering | None = None, *, to_all: bool = False, node: Node | None = None) -> None:
        self._waiting: list[SteerReceipt] = []
        self._closed = False
        self._node = node
        self._above = above
        self._to_all = to_all
        # The messages for all children that this child has taken; and each message taken here or by children, once.
        self._heard: set[SteerReceipt] = set()
        self._joined: dict[SteerReceipt, None] = {}

    def add(self, message: Message) -> SteerReceipt:
        receipt = SteerReceipt(message, self._node)
        self._waiting.append(receipt)
        if self._closed:
            self.close()
        return receipt

    @property
    def waiting(self) -> bool:
        has_messages = any(not receipt.withdrawn for receipt in tuple(self._waiting))
        return has_messages or (self._above is not None and self._above.has_for(self))

    def has_for(self, child: Steering) -> bool:
        if not self._to_all:
            return self.waiting
        has_messages = any(not receipt.withdrawn and receipt not in child._heard for receipt in tuple(self._waiting))
        return has_messages or (self._above is not None and self._above.has_for(self))

    def take(self) -> list[Message]:
        """Take all waiting messages, in order; they have joined."""
        if not self._waiting and self._above is None:
            return []
        above = self._above.take_for(self) if self._above is not None else []
        new = [*above, *self._take(SteerOutcome.JOINED)]
        self._joined.update(dict.fromkeys(new))
        return [receipt.message for receipt in new]

    def take_for(self, child: Steering) -> list[SteerReceipt]:
        new = self._above.take_for(self) if self._above is not None else []
        if self._to_all:
            self._waiting += new
            unheard = [receipt for receipt in tuple(self._waiting) if receipt not in child._heard]
            new = [receipt for receipt in unheard if receipt.settle(SteerOutcome.JOINED) is SteerOutcome.JOINED]
            child._heard.update(new)
        else:
            new = [*new, *self._take(SteerOutcome.JOINED)]
        self._joined.update(dict.fromkeys(new))
        return new

    def joined_messages(self) -> list[Message]:
        """The messages that have joined, here or through a child: those are messages to this run too."""
        return [receipt.message for receipt in self._joined]

    def close(self) -> None:
        """No model call follows: waiting and later messages are too late."""
        self._closed = True
        self._take(SteerOutcome.TOO_LATE)

    def _take(self, outcome: SteerOutcome) -> list[SteerReceipt]:
        settled: list[SteerReceipt] = []
        while self._waiting:
            try:
                receipt = self._waiting.pop(0)
            except IndexError:  # another thread is emptying the list too
                break
            if receipt.settle(outcome) is outcome:
                settled.append(receipt)
        return settled


def joined(messages: list[Message], new: list[Message]) -> list[Message]:
    """The conversation with the user's new messages; two in a row become one, as providers require."""
    result = list(messages)
    for message in new:
        if result and result[-1].role == "user":
            result[-1] = Message("user", (*result[-1].parts, *message.parts))
        else:
            result.append(message)
    return result
