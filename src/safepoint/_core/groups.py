"""Groups of runs that one ask reaches: all live runs of an agent, or all runs under one token.

An ask reads the list of live runs; a run adds itself to the list and then reads the asks that are kept. Each operation
is atomic by itself, and each side reads again after it has written, so an ask and a start that cross in two threads
meet exactly once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from msgspec.structs import replace

from safepoint._core.asks import Ask, make_ask
from safepoint._core.clock import Clock, current_clock
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason
from safepoint._core.receipts import Outcome, Receipt
from safepoint._core.tree import Node
from safepoint.errors import AskNotTaken, TokenCancelled


class GroupReceipt:
    """The receipt of one ask to several runs. `receipts` holds one receipt for each run that took the ask."""

    def __init__(self, ask: Ask, clock: Clock | None = None) -> None:
        self.asked = ask
        # The clock by which the ask's deadline was set; a run on another loop may use another clock.
        self._clock = clock or current_clock()
        # One for each run. Adding and copying are atomic: when an ask and a start cross, both may add the same run.
        self._receipts: dict[Node, Receipt] = {}
        # The queue where the ask waits for a run, if it does. The side that removes it decides what becomes of it.
        self._kept_in: deque[GroupReceipt] | None = None
        self._withdrawn = False
        # The list of cancels because of which a token refuses new runs; None if the ask was not made through a token.
        self._refuses: list[GroupReceipt] | None = None

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        return tuple(self._receipts.values())

    @property
    def accepted(self) -> bool:
        return self._kept_in is not None or any(receipt.accepted for receipt in self.receipts)

    @property
    def contributed(self) -> bool:
        """Whether the ask took part in any run's outcome. Known after `wait`."""
        return any(receipt.contributed for receipt in self.receipts)

    @property
    def outcome(self) -> Outcome:
        """The strongest outcome that the ask had in any run. Known after `wait`."""
        self._refuse_untaken()
        found = {receipt.outcome for receipt in self.receipts}
        if self._withdrawn:
            found.add(Outcome.WITHDRAWN)
        return next((outcome for outcome in _MOST_FIRST if outcome in found), Outcome.FINISHED_FIRST)

    def withdraw(self) -> bool:
        """Withdraw the ask from every run that has not acted on it; False if it stands in any run or had no effect."""
        if self._kept_in is not None:
            with suppress(ValueError):  # a run took it in the meantime
                self._kept_in.remove(self)
                self._withdrawn = True
        taken_back = self._take_back_from_runs()
        if self._acted_on():
            return False
        if self._refuses is not None:
            with suppress(ValueError):  # withdrawn before
                self._refuses.remove(self)
                self._withdrawn = True
                self._take_back_from_runs()  # a run may have started in the meantime
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
        """Ask that run; False if it has ended, or if its loop was closed before it ended."""
        receipt = self._receipts.setdefault(node, node.take(self._for(node)))
        if self._withdrawn:  # withdrawn by another thread while this run was asked
            receipt.withdraw()
        return receipt.accepted

    def _for(self, node: Node) -> Ask:
        """The ask with its deadline moved to the clock of that run: as many seconds away as on the asker's clock."""
        ask, its, ours = self.asked, node.clock, self._clock
        if its.now is ours.now:  # asyncio's own loops share one clock
            return ask
        deadline = None if ask.deadline is None else ask.deadline + (its.now() - ours.now())
        return replace(ask, deadline=deadline, asked_at=ask.asked_at + (its.wall() - ours.wall()))

    def keep_in(self, kept: deque[GroupReceipt]) -> None:
        self._kept_in = kept
        kept.append(self)

    def refuse_by(self, cancels: list[GroupReceipt]) -> None:
        """Have the token refuse new runs while this receipt is on that list."""
        self._refuses = cancels
        cancels.append(self)

    def take_back(self) -> bool:
        """Remove the ask from the kept asks; False if a run took it first."""
        assert self._kept_in is not None
        try:
            self._kept_in.remove(self)
        except ValueError:
            return False
        return True

    def _take_back_from_runs(self) -> bool:
        """Withdraw the ask from every run; True if any run had not acted on it."""
        taken_back = [receipt.withdraw() for receipt in self.receipts]  # a list: `any` would stop at the first
        return any(taken_back)

    def _acted_on(self) -> bool:
        return any(receipt.acted_on for receipt in self.receipts)

    def _refuse_untaken(self) -> None:
        accepted = any(receipt.accepted for receipt in self.receipts)
        if self._kept_in is not None and not accepted and not self._withdrawn:
            raise AskNotTaken("no run has taken this ask yet, so waiting would never end: start the run first")


_MOST_FIRST = (Outcome.ESCALATED, Outcome.STOPPED, Outcome.WITHDRAWN, Outcome.FINISHED_FIRST)


class Group:
    """The live runs, and the asks that wait for the next one."""

    def __init__(self) -> None:
        # Ordered, and a run leaves at constant cost in any order. Adding, leaving and copying are atomic.
        self._live: dict[Node, None] = {}
        self._kept: deque[GroupReceipt] = deque()
        self.has_run = False

    def join(self, node: Node) -> None:
        """Add a run to the live ones, and give it the asks that were kept."""
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
        """Ask every live run. With none live and `keep`, keep the ask for the next one. `clock`: the deadline's."""
        receipt = GroupReceipt(ask, clock)
        if not self.ask_live(receipt) and keep:
            receipt.keep_in(self._kept)
            # A run may start between the two reads, and may end before it is asked.
            while self._is_live() and receipt.take_back() and not self.ask_live(receipt):
                receipt.keep_in(self._kept)
        return receipt

    def ask_live(self, receipt: GroupReceipt) -> bool:
        """Ask every live run; False if there is none."""
        self._forget_lost()
        accepted = [receipt.ask(node) for node in tuple(self._live)]  # a list, not a generator: every run is asked
        return any(accepted)

    def _is_live(self) -> bool:
        return any(node.open for node in tuple(self._live))

    def _forget_lost(self) -> None:
        """Remove runs that did not end before their loop was closed: such a run never leaves by itself."""
        for node in tuple(self._live):
            if node.lost:
                self._leave(node)

    def _leave(self, node: Node) -> None:
        self._live.pop(node, None)


class CancelToken:
    """One token can govern many runs: `agent.run(…, token=t)`, then `t.cancel()`, in force until withdrawn."""

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
        """Put a starting run under this token. The caller checks `refuse_if_cancelled` first."""
        self._group.join(node)
        for cancel in tuple(self._cancels):  # another thread may have cancelled meanwhile; a run is asked once
            cancel.ask(node)

    def refuse_if_cancelled(self) -> None:
        if self._cancels:
            why = self._cancels[0].asked.reason.text
            raise TokenCancelled(
                f"this token is cancelled{f' ({why})' if why else ''}: make a new CancelToken for a new run"
            )
