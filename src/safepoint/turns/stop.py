"""The stop controller: whether the loop continues, and what its stops amount to together.

    OPEN ──stop(idle_for=s)──▶ UNTIL_IDLE ──idle for s, or any other stop──▶ COMMITTED ──▶ ENDED
     │ └──────────────any other stop───────────────────────────────────────▶ │   ▲          ▲
     │                             │                                         └───┘ stronger │
     └──────the loop ends by itself┴────────────────────────────────────────────────────────┘

COMMITTED is final: no turn begins any more. How hard the running turn is asked is not kept here but folded from the
asks (`_core.asks.fold`), as everywhere; so a bare stop adds nothing and can withdraw nothing.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from safepoint._core.asks import Ask, Request, fold
from safepoint._core.points import Level
from safepoint.errors import InternalError
from safepoint.turns.inbox import StopAsked
from safepoint.turns.receipts import StopOutcome, StopReceipt
from safepoint.turns.turn import MoveCounts


class StopState(StrEnum):
    OPEN = "open"
    UNTIL_IDLE = "until_idle"
    COMMITTED = "committed"
    ENDED = "ended"


_MOVES = {
    StopState.OPEN: frozenset({StopState.UNTIL_IDLE, StopState.COMMITTED, StopState.ENDED}),
    StopState.UNTIL_IDLE: frozenset({StopState.COMMITTED, StopState.ENDED}),
    StopState.COMMITTED: frozenset({StopState.COMMITTED, StopState.ENDED}),
    StopState.ENDED: frozenset[StopState](),
}


class StopController:
    """All methods are called in the loop's thread."""

    def __init__(self) -> None:
        self.state = StopState.OPEN
        self.moves: MoveCounts = Counter()
        self.skip_checkpoint = False
        self.cause: str | None = None
        self.request: Request | None = None
        self._asks: list[Ask] = []
        self._receipts: list[tuple[StopReceipt, bool]] = []
        self._idle_for: float | None = None
        self._asked_at = 0.0
        # The time since which the loop has nothing to do; None while it has work.
        self._idle_since: float | None = None

    @property
    def committed(self) -> bool:
        return self.state is StopState.COMMITTED

    @property
    def draining(self) -> bool:
        """Whether the loop ends as soon as nothing is left to do. Then it does not wait for a person's answer."""
        return self.state is StopState.UNTIL_IDLE and self._idle_for == 0

    def take(self, stop: StopAsked, now: float, *, in_turn: bool) -> None:
        """A stop was asked for. `in_turn`: a turn is live and can be asked too."""
        self.skip_checkpoint = self.skip_checkpoint or stop.skip_checkpoint
        self.cause = self.cause or stop.cause
        self._receipts.append((stop.receipt, stop.ask is not None and in_turn))
        if stop.ask is not None:
            self._asks.append(stop.ask)
            self.request = fold(self._asks)
        if stop.idle_for is None:
            self._move(StopState.COMMITTED)
        elif self.state is StopState.OPEN:
            self._idle_for, self._asked_at = stop.idle_for, now
            self._move(StopState.UNTIL_IDLE)

    def caller_cancelled(self, ask: Ask) -> None:
        """The task of the loop was cancelled: that is a stop as well, without a receipt."""
        self._asks.append(ask)
        self.request = fold(self._asks)
        self._move(StopState.COMMITTED)

    def level(self, now: float) -> Level:
        """How hard the work under way is pushed."""
        return self.request.level(now) if self.request is not None else Level.NONE

    @property
    def deadline(self) -> float | None:
        return self.request.deadline if self.request is not None else None

    # -- idleness ------------------------------------------------------------------------------------------------------

    def idle_from(self, now: float) -> None:
        self._idle_since = now

    def busy(self) -> None:
        self._idle_since = None

    @property
    def due(self) -> float | None:
        """When the loop will have been idle for long enough, if it stays idle."""
        if self.state is not StopState.UNTIL_IDLE or self._idle_since is None or self._idle_for is None:
            return None
        return max(self._idle_since, self._asked_at) + self._idle_for

    def commit(self) -> None:
        """The loop was idle for long enough."""
        self._move(StopState.COMMITTED)

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self, *, cut: bool, timed_out: bool, failed: bool) -> None:
        """The loop has ended, and everything about it is recorded: settle all receipts.

        `cut`: a stop took part in the end of the last turn. `failed`: the loop ended for another reason.
        """
        self._move(StopState.ENDED)
        for receipt, asked in self._receipts:
            if cut:
                receipt.settle(StopOutcome.ESCALATED if timed_out else StopOutcome.STOPPED)
            elif failed or asked:
                receipt.settle(StopOutcome.FINISHED_FIRST)
            else:
                receipt.settle(StopOutcome.CLEAN)

    def _move(self, state: StopState) -> None:
        if state not in _MOVES[self.state]:
            raise InternalError(f"stop: {self.state} → {state} is not a move")
        self.moves[self.state, state] += 1
        self.state = state
