"""What every ask returns: the ask, whether it was in time, and its outcome.

`accepted` is known at once; only the order of the node's log decides it. The outcome is known when the node has ended
and its end is recorded; `wait` returns no earlier.
"""

from __future__ import annotations

import asyncio
import math
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING

from safepoint._core.asklog import Withdrawn
from safepoint._core.asks import Ask, Request
from safepoint._core.endings import Ending, Touched
from safepoint._core.latch import Latch
from safepoint.errors import AskNotTaken, NotEnded, UsageError, WaitInsideRun

if TYPE_CHECKING:
    from safepoint._core.orphans import Orphan
    from safepoint._core.tree import Node

# The node whose work the current task or thread is doing.
current_node: ContextVar[Node | None] = ContextVar("safepoint_current_node", default=None)


class Outcome(StrEnum):
    """The outcome of an ask."""

    STOPPED = "stopped"
    ESCALATED = "escalated"
    FINISHED_FIRST = "finished_first"
    WITHDRAWN = "withdrawn"


class Receipt:
    """The receipt of one ask of one node."""

    def __init__(self, node: Node, ask: Ask, *, reachable: bool = True) -> None:
        self.asked = ask
        self.node = node
        # A node whose loop was closed before it sealed never reads its log again: it counts as ended.
        self.accepted = reachable and not node.log.standing().was_refused(ask.id)
        self._settled = Latch()
        self._is_listening = False

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        return (self,)

    @property
    def effective(self) -> Request | None:
        """The fold of all asks that stand for the node now; after its end, of the asks that stopped it."""
        if self.node.stop is not None:
            return self.node.stop.request
        return self.node.request()

    @property
    def contributed(self) -> bool:
        """Whether this ask took part in the outcome. Known after `wait`."""
        if (heir := self._heir) is not None:
            return heir.contributed
        ending, stop = self._ending(), self.node.stop
        return ending.cancelled and stop is not None and stop.took_part(self.asked)

    @property
    def outcome(self) -> Outcome:
        """The value that `wait` returns. Known after `wait`."""
        if (heir := self._heir) is not None:
            return heir.outcome
        if self._withdrawn():
            return Outcome.WITHDRAWN
        if not self.accepted:
            return Outcome.FINISHED_FIRST
        stop = self.node.stop
        if not self._ending().cancelled or stop is None:
            return Outcome.FINISHED_FIRST
        return Outcome.ESCALATED if stop.timed_out else Outcome.STOPPED

    @property
    def acted_on(self) -> bool:
        """Whether a node has acted on this ask. Then it cannot be withdrawn."""
        return self.node.log.standing().was_acted_on(self.asked.id)

    @property
    def stopped_at(self) -> float:
        return self._ending().stopped_at

    @property
    def touched(self) -> tuple[Touched, ...]:
        return self._ending().touched

    @property
    def queued(self) -> tuple[str, ...]:
        """The tool calls that the model requested and that never started."""
        return self._ending().queued

    @property
    def orphans(self) -> tuple[Orphan, ...]:
        return self._ending().orphans

    @property
    def save_error(self) -> BaseException | None:
        """The error because of which the end of the run could not be saved, if there was one."""
        return self._ending().save_error

    @property
    def usage(self) -> object:
        return self._ending().usage

    @property
    def unheard(self) -> tuple[str, ...]:
        """The messages given to the run with `steer` that no model call has seen."""
        return self._ending().unheard

    @property
    def late(self) -> tuple[Orphan, ...]:
        """Those of the orphans that have returned a value since."""
        return tuple([orphan for orphan in self.orphans if orphan.returned])

    @property
    def cut_usage(self) -> object:
        """What the model call that was cut has used, its share of `usage`; None if none was cut."""
        return self._ending().cut_usage

    @property
    def next_usage(self) -> object:
        """An estimate of what the next model call would use at least if the run went on; None if it has ended."""
        estimate = self._ending().next_usage
        return estimate() if estimate is not None else None

    def withdraw(self) -> bool:
        """Withdraw this ask. False if a node has acted on it or it was not accepted; then it stands."""
        if self.accepted:
            # Append first and look then: the order of the log decides whether a node acted on the ask before.
            self.node.log.append(Withdrawn(self.asked.id))
            self.node.wake()
        if self._withdrawn():
            self._settled.set()
            return True
        return False

    async def wait(self, timeout: float | None = None) -> Outcome:
        """Wait until the ask's outcome has come true and is recorded. Raises TimeoutError after `timeout` seconds.

        Cancellation: only the waiting ends; the ask stands.
        """
        async with asyncio.timeout(timeout):
            if self._must_wait():
                await self._settled.wait()
            if (heir := self._heir) is not None:
                await heir.wait()
        return self.outcome

    def wait_sync(self, timeout: float | None = None) -> Outcome:
        """As `wait`, from a thread that runs no event loop."""
        if self._must_wait():
            check_thread(self.node)
            if not self._settled.wait_sync(timeout):
                raise TimeoutError(f"{self.node.path} has not ended within {timeout} s")
        if (heir := self._heir) is not None:
            heir.wait_sync(timeout)
        return self.outcome

    @property
    def _heir(self) -> Receipt | None:
        """The receipt in the run that this node's end started, if the ask was handed on to that run."""
        return self.node.handed_on.get(self.asked.id)

    def _must_wait(self) -> bool:
        if not self.accepted or self._withdrawn() or self.node.ended.is_set:
            return False
        check_wait(self.node)
        if not self._is_listening:  # once, however often a caller waits: each callback is kept until the end
            self._is_listening = True
            self.node.ended.when_set(self._settled.set)
        return True

    def _withdrawn(self) -> bool:
        return self.node.log.standing().was_withdrawn(self.asked.id)

    def _ending(self) -> Ending:
        ending = self.node.ending
        if ending is None:
            if not self.accepted:
                return Ending(cancelled=False, stopped_at=math.nan)
            raise NotEnded(f"{self.node.path} has not ended: write `await receipt.wait()` first")
        return ending

    def __repr__(self) -> str:
        return f"<Receipt {self.asked.id} for {self.node.path}, {'accepted' if self.accepted else 'too late'}>"


def check_wait(node: Node) -> None:
    """Refuse to wait for a node where the wait would never end."""
    inside = current_node.get()
    if inside is not None and node.holds(inside):
        raise WaitInsideRun(f"{inside.path} waits for {node.path}, which it is part of: return, and wait from outside")
    if not node.started:
        raise AskNotTaken(f"{node.path} has not started, so waiting would never end: start the run first")
    if node.lost:
        raise NotEnded(
            f"{node.path} never ended, its event loop was closed first: let asyncio.run(…) close it, which ends runs"
        )


def check_thread(node: Node) -> None:
    """Refuse to block the loop that the run needs."""
    if node.runs_in_this_thread():
        raise UsageError("wait_sync() would block the loop that the run needs: write `await receipt.wait()`")
