"""Runs that one ask reaches together: all live runs of an agent, or all runs under one token.

An ask looks at the list of live runs; a run adds itself to the list and then looks at the asks that are kept. Both use
operations that are atomic by themselves, and each looks again after it wrote, so an ask and a start that cross each
other in two threads meet exactly once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import replace

from safepoint._core.asks import Ask, make_ask
from safepoint._core.clock import Clock, current_clock
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason
from safepoint._core.receipts import Outcome, Receipt
from safepoint._core.tree import Node
from safepoint.errors import AskNotTaken, TokenCancelled


class GroupReceipt:
    """One ask of several runs: `receipts` has one for each run that took it."""

    def __init__(self, ask: Ask, clock: Clock | None = None) -> None:
        self.asked = ask
        # By which its deadline was set; a run on another loop may go by another one.
        self._clock = clock or current_clock()
        # One for each run. Adding and copying are atomic: an ask and a start that cross may both add the same run.
        self._receipts: dict[Node, Receipt] = {}
        # Where the ask waits for a run, if it does; whoever takes it out of there decides what becomes of it.
        self._kept_in: deque[GroupReceipt] | None = None
        self._withdrawn = False
        # The cancels for which a token refuses new runs; none if this one was not made with a token.
        self._refuses: list[GroupReceipt] | None = None

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        return tuple(self._receipts.values())

    @property
    def accepted(self) -> bool:
        return self._kept_in is not None or any(receipt.accepted for receipt in self.receipts)

    @property
    def contributed(self) -> bool:
        """Did it take part in any run's outcome? Known after `wait`."""
        return any(receipt.contributed for receipt in self.receipts)

    @property
    def outcome(self) -> Outcome:
        """The most that came of it in any run. Known after `wait`."""
        self._refuse_untaken()
        found = {receipt.outcome for receipt in self.receipts}
        if self._withdrawn:
            found.add(Outcome.WITHDRAWN)
        return next((outcome for outcome in _MOST_FIRST if outcome in found), Outcome.FINISHED_FIRST)

    def withdraw(self) -> bool:
        """Take the ask back wherever nobody has acted on it; False if it stands in any run, or came to nothing."""
        if self._kept_in is not None:
            with suppress(ValueError):  # a run took it in this moment
                self._kept_in.remove(self)
                self._withdrawn = True
        taken_back = self._take_back_from_runs()
        if self._acted_on():
            return False
        if self._refuses is not None:
            with suppress(ValueError):  # taken back before
                self._refuses.remove(self)
                self._withdrawn = True
                self._take_back_from_runs()  # one may have started meanwhile
        return (self._withdrawn or taken_back) and not self._acted_on()

    async def wait(self, timeout: float | None = None) -> Outcome:
        """Wait for every run that took the ask. Cancellation: only the waiting ends; the ask stands."""
        async with asyncio.timeout(timeout):
            for receipt in self.receipts:
                await receipt.wait()
        return self.outcome

    def wait_sync(self, timeout: float | None = None) -> Outcome:
        """As `wait`, from a thread that runs no event loop; `timeout` counts for each run."""
        for receipt in self.receipts:
            receipt.wait_sync(timeout)
        return self.outcome

    def ask(self, node: Node) -> bool:
        """Ask that run; False if it has ended, or is lost with its loop."""
        receipt = self._receipts.setdefault(node, node.take(self._for(node)))
        if self._withdrawn:  # in this moment
            receipt.withdraw()
        return receipt.accepted

    def _for(self, node: Node) -> Ask:
        """The ask, as far away in time on the clock of that run as on the asker's."""
        ask, its, ours = self.asked, node.clock, self._clock
        if its.now is ours.now:  # asyncio's own loops share one
            return ask
        deadline = None if ask.deadline is None else ask.deadline + (its.now() - ours.now())
        return replace(ask, deadline=deadline, asked_at=ask.asked_at + (its.wall() - ours.wall()))

    def keep_in(self, kept: deque[GroupReceipt]) -> None:
        self._kept_in = kept
        kept.append(self)

    def refuse_by(self, cancels: list[GroupReceipt]) -> None:
        """As long as it is on that list, new runs are refused."""
        self._refuses = cancels
        cancels.append(self)

    def take_back(self) -> bool:
        """Out of the kept asks again; False if a run was faster."""
        assert self._kept_in is not None
        try:
            self._kept_in.remove(self)
        except ValueError:
            return False
        return True

    def _take_back_from_runs(self) -> bool:
        """True if that could be done in any of them."""
        taken_back = [receipt.withdraw() for receipt in self.receipts]  # all of them, not up to the first
        return any(taken_back)

    def _acted_on(self) -> bool:
        return any(receipt.acted_on for receipt in self.receipts)

    def _refuse_untaken(self) -> None:
        taken = any(receipt.accepted for receipt in self.receipts)
        if self._kept_in is not None and not taken and not self._withdrawn:
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

    def ask(self, ask: Ask, clock: Clock | None = None, *, keep: bool) -> GroupReceipt:
        """Ask every live run; with none live, keep it for the next if that is wanted. `clock`: that of its deadline."""
        receipt = GroupReceipt(ask, clock)
        if not self.ask_live(receipt) and keep:
            receipt.keep_in(self._kept)
            # A run may come between the two looks, and may end before it is asked.
            while self._is_live() and receipt.take_back() and not self.ask_live(receipt):
                receipt.keep_in(self._kept)
        return receipt

    def ask_live(self, receipt: GroupReceipt) -> bool:
        """Ask every live run; False if there is none."""
        self._forget_lost()
        taken = [receipt.ask(node) for node in tuple(self._live)]  # all of them, as above
        return any(taken)

    def _is_live(self) -> bool:
        return any(node.open for node in tuple(self._live))

    def _forget_lost(self) -> None:
        """A run that did not end before its loop was closed never leaves by itself."""
        for node in tuple(self._live):
            if node.lost:
                self._leave(node)

    def _leave(self, node: Node) -> None:
        self._live.pop(node, None)


class CancelToken:
    """One token can govern many runs: `agent.run(…, token=t)`, then `t.cancel()`. That lasts until it is withdrawn."""

    def __init__(self) -> None:
        self._group = Group()
        self._cancels: list[GroupReceipt] = []

    @property
    def cancel_requested(self) -> bool:
        return bool(self._cancels)

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
        receipt = GroupReceipt(ask, clock)
        receipt.refuse_by(self._cancels)
        self._group.ask_live(receipt)
        return receipt

    def admit(self, node: Node) -> None:
        """A run starts under this token; check `refuse_if_cancelled` first."""
        self._group.join(node)
        for cancel in tuple(self._cancels):  # one that crossed us in another thread; a run is asked once
            cancel.ask(node)

    def refuse_if_cancelled(self) -> None:
        if self._cancels:
            why = self._cancels[0].asked.reason.text
            raise TokenCancelled(
                f"this token is cancelled{f' ({why})' if why else ''}: make a new CancelToken for a new run"
            )
