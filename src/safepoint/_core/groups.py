"""Runs that one ask reaches together: all live runs of an agent, or all runs under one token.

An ask looks at the list of live runs; a run adds itself to the list and then looks at the asks that are kept. Both use
operations that are atomic by themselves, and each looks again after it wrote, so an ask and a start that cross each
other in two threads meet exactly once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from safepoint._core.asks import Ask, make_ask
from safepoint._core.clock import current_clock
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason
from safepoint._core.receipts import Outcome, Receipt
from safepoint._core.tree import Node
from safepoint.errors import AskNotTaken, TokenCancelled


class GroupReceipt:
    """One ask of several runs: `receipts` has one for each run that took it."""

    def __init__(self, ask: Ask) -> None:
        self.asked = ask
        self._receipts: list[Receipt] = []
        # Where the ask waits for a run, if it does; whoever takes it out of there decides what becomes of it.
        self._kept_in: deque[GroupReceipt] | None = None
        self._withdrawn = False
        # The asks of the token that refuses new runs for this one; none if it was not made with a token.
        self._refuses: list[Ask] | None = None

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        return tuple(self._receipts)

    @property
    def accepted(self) -> bool:
        return self._kept_in is not None or any(receipt.accepted for receipt in self._receipts)

    @property
    def contributed(self) -> bool:
        """Did it take part in any run's outcome? Known after `wait`."""
        return any(receipt.contributed for receipt in self._receipts)

    @property
    def outcome(self) -> Outcome:
        """The most that came of it in any run. Known after `wait`."""
        self._refuse_untaken()
        found = {receipt.outcome for receipt in self._receipts}
        if self._withdrawn:
            found.add(Outcome.WITHDRAWN)
        return next((outcome for outcome in _MOST_FIRST if outcome in found), Outcome.FINISHED_FIRST)

    def withdraw(self) -> bool:
        """Take the ask back wherever nobody has acted on it; False if it stands in any run."""
        if self._kept_in is not None:
            with suppress(ValueError):  # a run took it in this moment
                self._kept_in.remove(self)
                self._withdrawn = True
        taken_back = [receipt.withdraw() for receipt in self._receipts]  # all of them, not up to the first refusal
        if not all(taken_back):
            return False
        if self._refuses is not None:
            with suppress(ValueError):  # taken back before
                self._refuses.remove(self.asked)
                self._withdrawn = True
        return self._withdrawn or bool(taken_back)

    async def wait(self, timeout: float | None = None) -> Outcome:
        """Wait for every run that took the ask. Cancellation: only the waiting ends; the ask stands."""
        async with asyncio.timeout(timeout):
            for receipt in self._receipts:
                await receipt.wait()
        return self.outcome

    def wait_sync(self, timeout: float | None = None) -> Outcome:
        """As `wait`, from a thread that runs no event loop; `timeout` counts for each run."""
        for receipt in self._receipts:
            receipt.wait_sync(timeout)
        return self.outcome

    def ask(self, node: Node) -> None:
        self._receipts.append(node.take(self.asked))

    def keep_in(self, kept: deque[GroupReceipt]) -> None:
        self._kept_in = kept
        kept.append(self)

    def refuse_by(self, asks: list[Ask]) -> None:
        """As long as the ask is on that list, new runs are refused."""
        self._refuses = asks

    def take_back(self) -> bool:
        """Out of the kept asks again; False if a run was faster."""
        assert self._kept_in is not None
        try:
            self._kept_in.remove(self)
        except ValueError:
            return False
        return True

    def _refuse_untaken(self) -> None:
        if self._kept_in is not None and not self._receipts and not self._withdrawn:
            raise AskNotTaken("no run has taken this ask yet, so waiting would never end: start the run first")


_MOST_FIRST = (Outcome.ESCALATED, Outcome.STOPPED, Outcome.WITHDRAWN, Outcome.FINISHED_FIRST)


class Group:
    """The live runs, and the asks that wait for the next one."""

    def __init__(self) -> None:
        # Ordered, and left at the same price whoever leaves first. Adding, leaving and copying are atomic.
        self._live: dict[Node, None] = {}
        self._kept: deque[GroupReceipt] = deque()
        self.has_run = False

    def join(self, node: Node) -> None:
        """The run is live from now on, and takes the asks that were kept for it."""
        self._live[node] = None
        self.has_run = True
        node.ended.when_set(lambda: self._leave(node))
        while True:
            try:
                receipt = self._kept.popleft()
            except IndexError:
                return
            receipt.ask(node)

    def ask(self, ask: Ask, *, keep: bool) -> GroupReceipt:
        """Ask every live run; with none live, keep it for the next if that is wanted."""
        receipt = GroupReceipt(ask)
        if not self._ask_live(receipt) and keep:
            receipt.keep_in(self._kept)
            if self._live and receipt.take_back():  # a run came between the two looks
                self._ask_live(receipt)
        return receipt

    def _ask_live(self, receipt: GroupReceipt) -> bool:
        for node in tuple(self._live):
            receipt.ask(node)
        return bool(receipt.receipts)

    def _leave(self, node: Node) -> None:
        self._live.pop(node, None)


class CancelToken:
    """One token can govern many runs: `agent.run(…, token=t)`, then `t.cancel()`. That lasts until it is withdrawn."""

    def __init__(self) -> None:
        self._group = Group()
        self._asks: list[Ask] = []

    @property
    def cancel_requested(self) -> bool:
        return bool(self._asks)

    def cancel(
        self,
        at: SafePoint = SafePoint.NOW,
        *,
        within: float | None = None,
        recursive: bool = False,
        reason: str | Reason | None = None,
    ) -> GroupReceipt:
        """Ask every run under this token; safe from any thread. New runs with this token are refused from now on."""
        clock = current_clock()
        ask = make_ask(at, within=within, recursive=recursive, reason=reason, now=clock.now(), wall=clock.wall())
        self._asks.append(ask)
        receipt = self._group.ask(ask, keep=False)
        receipt.refuse_by(self._asks)
        return receipt

    def admit(self, node: Node) -> None:
        """A run starts under this token; check `refuse_if_cancelled` first."""
        self._group.join(node)
        for ask in tuple(self._asks):  # a cancel that crossed us in another thread; one ask counts once
            node.take(ask)

    def refuse_if_cancelled(self) -> None:
        if self._asks:
            why = self._asks[0].reason.text
            raise TokenCancelled(
                f"this token is cancelled{f' ({why})' if why else ''}: make a new CancelToken for a new run"
            )
