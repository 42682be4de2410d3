"""What every hold returns: whether it was in time, who waits for it, and its outcome.

ASKED ──a node stands at its place──▶ HELD ──released──▶ RELEASED
  │ └──released──▶ RELEASED             └──a cancel, or its time is up──▶ STOPPED
  ├──a cancel──▶ STOPPED
  └──the run ends by itself──▶ FINISHED_FIRST
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING

from safepoint._core.holds import Held, Hold
from safepoint._core.receipts import check_thread, check_wait

if TYPE_CHECKING:
    from safepoint._core.holds import Stay
    from safepoint._core.tree import Node


class HoldState(StrEnum):
    """How far a hold is."""

    ASKED = "asked"
    HELD = "held"
    RELEASED = "released"
    STOPPED = "stopped"
    FINISHED_FIRST = "finished_first"


class HoldReceipt:
    """The receipt of one hold: `await receipt.wait()` says whether the run waits, `release()` lets it go on."""

    def __init__(self, node: Node, hold: Hold, *, reachable: bool) -> None:
        self.asked = hold
        self.node = node
        self.accepted = reachable and not node.log.standing().was_refused(hold.id)
        if self.accepted:
            node.ended.when_set(hold.settled.set)
        else:
            hold.settled.set()

    @property
    def state(self) -> HoldState:
        node, standing = self.node, self.node.log.standing()
        if not self.accepted:
            return HoldState.FINISHED_FIRST
        if standing.was_withdrawn(self.asked.id):
            return HoldState.RELEASED
        if node.stop is not None:
            return HoldState.STOPPED
        if node.ended.is_set:
            return HoldState.FINISHED_FIRST
        return HoldState.HELD if self.held else HoldState.ASKED

    @property
    def held(self) -> tuple[Held, ...]:
        """The nodes that wait for this hold now: the run, a tool at a point of its own, runs inside it."""
        stays = [(node, node.stay) for node in self.node.walk()]
        return tuple([stay.held for node, stay in stays if stay is not None and self._keeps(node, stay)])

    def _keeps(self, node: Node, stay: Stay) -> bool:
        return any(hold.id == self.asked.id for hold in node.holds_at(*stay.places))

    def release(self) -> bool:
        """Let the run go on, unless another hold keeps it; False if this one was over. Safe from any thread."""
        return self.node.release(self.asked)

    async def wait(self, timeout: float | None = None) -> HoldState:
        """Wait until a node is held, or it is clear that none will be. Raises TimeoutError after `timeout` seconds.

        Cancellation: only the waiting ends; the hold stands.
        """
        if not self.asked.settled.is_set:
            check_wait(self.node)
            async with asyncio.timeout(timeout):
                await self.asked.settled.wait()
        return self.state

    def wait_sync(self, timeout: float | None = None) -> HoldState:
        """As `wait`, from a thread that runs no event loop."""
        if not self.asked.settled.is_set:
            check_wait(self.node)
            check_thread(self.node)
            if not self.asked.settled.wait_sync(timeout):
                raise TimeoutError(f"{self.node.path} was not held within {timeout} s")
        return self.state

    def __repr__(self) -> str:
        return f"<HoldReceipt {self.asked.id} for {self.node.path}, {self.state}>"
