"""Messages that join a running conversation, before its next model call, without stopping anything.

Any thread adds messages; the run takes them. A message that no further model call follows is reported as too late; none
is dropped in silence. Like an ask, adding takes no lock: append first, then check whether the queue was closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum

from safepoint._core.asks import is_seconds
from safepoint._core.latch import Latch
from safepoint._core.points import Condition, Level, SafePoint, check_point
from safepoint._core.receipts import check_thread, check_wait
from safepoint._core.tree import Node
from safepoint.history.parts import Message


class SteerOutcome(StrEnum):
    """The outcome of a message."""

    JOINED = "joined"
    # It joined sooner than it could have: calls of the reply before it gave way.
    PREEMPTED = "preempted"
    TOO_LATE = "too_late"
    WITHDRAWN = "withdrawn"


_ROADS = frozenset({SteerOutcome.JOINED, SteerOutcome.PREEMPTED})


class SteerReceipt:
    """The receipt of one message: `await receipt.wait()` says whether it joined."""

    def __init__(self, message: Message, node: Node | None = None, at: SafePoint | None = None) -> None:
        self.message = message
        # The point that the run has to reach first, until it has; and whether the message can wait no longer.
        self._at = at
        self.presses = False
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

    @property
    def at(self) -> SafePoint | None:
        """The point that the run has to reach before the message may join; None once it has."""
        return self._at

    @property
    def ready(self) -> bool:
        """Whether it may join the next model call."""
        return self._at is None and not self.withdrawn

    def reach(self, places: Sequence[str]) -> None:
        """The run stands at these places."""
        if self._at is not None and any(self._at.covers(place) for place in places):
            self._at = None

    def when_late(self, deadline: float, press: Callable[[SteerReceipt], object]) -> None:
        """Call `press` at that time, in the run's loop, if the message still waits then."""
        node = self._node
        assert node is not None
        if self.outcome is None:
            timer = node.clock.call_at(deadline, lambda: press(self))
            self.when_settled(lambda: node.call_soon(timer.cancel))

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
        self._too_late: tuple[SteerReceipt, ...] = ()
        # Calls gave way to a message that could not wait.
        self.has_room = False

    def add(self, message: Message, at: SafePoint | None = None) -> SteerReceipt:
        receipt = SteerReceipt(message, self._node, at)
        if at is not None and self._node is not None:
            self._node.log.is_quiet = False  # first: from now on the run looks about at its safe points
        self._waiting.append(receipt)
        if self._closed:
            self.close()
        return receipt

    @property
    def waiting(self) -> bool:
        has_messages = any(receipt.ready for receipt in tuple(self._waiting))
        return has_messages or (self._above is not None and self._above.has_for(self))

    @property
    def presses(self) -> bool:
        """Whether a message waits that can wait no longer."""
        has_messages = any(receipt.presses and receipt.ready for receipt in tuple(self._waiting))
        return has_messages or (self._above is not None and self._above.presses)

    def conditions(self) -> tuple[Condition, ...]:
        """The tests that messages wait for."""
        above = self._above.conditions() if self._above is not None else ()
        points = [receipt.at for receipt in tuple(self._waiting)]
        return (*above, *[each for point in points if point is not None for each in point.conditions])

    def reach(self, places: Sequence[str]) -> None:
        """The run stands at these places: messages that wait for one of them may join."""
        if self._above is not None:
            self._above.reach(places)
        for receipt in tuple(self._waiting):
            receipt.reach(places)

    def has_for(self, child: Steering) -> bool:
        if not self._to_all:
            return self.waiting
        has_messages = any(receipt.ready and receipt not in child._heard for receipt in tuple(self._waiting))
        return has_messages or (self._above is not None and self._above.has_for(self))

    def take(self) -> list[Message]:
        """Take all waiting messages, in order; they have joined."""
        if not self._waiting and self._above is None:
            return []
        above = self._above.take_for(self) if self._above is not None else []
        new = [*above, *self._take_ready()]
        self._joined.update(dict.fromkeys(new))
        return [receipt.message for receipt in new]

    def take_for(self, child: Steering) -> list[SteerReceipt]:
        new = self._above.take_for(self) if self._above is not None else []
        if self._to_all:
            self._waiting += new
            unheard = [each for each in tuple(self._waiting) if each.ready and each not in child._heard]
            new = [each for each in unheard if each.settle(child._road(each)) in _ROADS]
            child._heard.update(new)
        else:
            new = [*new, *self._take_ready(child)]
        self._joined.update(dict.fromkeys(new))
        return new

    def joined_messages(self) -> list[Message]:
        """The messages that have joined, here or through a child: those are messages to this run too."""
        return [receipt.message for receipt in self._joined]

    def unheard(self) -> tuple[str, ...]:
        """The words of the messages that came too late."""
        return tuple([receipt.message.text for receipt in self._too_late])

    def close(self) -> None:
        """No model call follows: waiting and later messages are too late."""
        self._closed = True
        while self._waiting:
            try:
                receipt = self._waiting.pop(0)
            except IndexError:  # another thread is emptying the list too
                break
            if receipt.settle(SteerOutcome.TOO_LATE) is SteerOutcome.TOO_LATE:
                self._too_late = (*self._too_late, receipt)

    def _take_ready(self, child: Steering | None = None) -> list[SteerReceipt]:
        """Take those that may join, for a child of this one if it is named."""
        done = [receipt for receipt in tuple(self._waiting) if receipt.ready or receipt.withdrawn]
        for receipt in done:
            with suppress(ValueError):  # another thread is emptying the list too
                self._waiting.remove(receipt)
        road = (child or self)._road
        return [receipt for receipt in done if receipt.settle(road(receipt)) in _ROADS]

    def _road(self, receipt: SteerReceipt) -> SteerOutcome:
        """By which road it joins the next model call of this run."""
        return SteerOutcome.PREEMPTED if receipt.presses and self.has_room else SteerOutcome.JOINED


def check_steer(at: SafePoint | None, within: float | None) -> None:
    """Refuse a contradiction at the call."""
    if at is not None and check_point(at).level is not Level.SAFE:
        raise ValueError(f"a message waits for a safe point, and {at!r} is none: write SafePoint.ANY, or leave at out")
    if within is not None and not is_seconds(within):
        raise ValueError(f"within={within!r}: write a number of seconds above 0")
    if at is not None and within is not None:
        raise ValueError("at= says where the message joins, within= how long it may wait: write one of them")


def joined(messages: list[Message], new: list[Message]) -> list[Message]:
    """The conversation with the user's new messages; two in a row become one, as providers require."""
    result = list(messages)
    for message in new:
        if result and result[-1].role == "user":
            result[-1] = Message("user", (*result[-1].parts, *message.parts))
        else:
            result.append(message)
    return result
