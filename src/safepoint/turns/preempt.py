"""The preempt controller: which turn a push asked to stop, until the outcome is known.

    NEW ──delay──▶ DELAYED ──────────────the turn is over──────────────┐
     │ │ │          │   │ the delay is over                            │
     │ │ │          │   └────────────────┐                             │
     │ │ └──turn is planned──▶ HELD ◀────┤ (planned)                   │
     │ │                        │  │     │                             │
     │ │                        │  └─────┼──planning failed────────────┤
     │ │            it is active│        │ (active)                    ▼
     │ └──turn is active──▶   ASKED ◀────┘ ──the turn is over──▶  RESOLVED
     └──the turn is over──────────────────────────────────────────────▲

A preempt belongs to the turn that the push saw, and to no other; a push that saw none has none. The core handles the
ask: in ASKED the run has it, folds it with others and keeps its deadline. This module handles what the core does not
know: a turn may not have its run yet, and a preempt may be due later than the push. Everything is settled with the
turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Generic, TypeVar

from safepoint._core.asks import Ask
from safepoint._core.clock import Clock
from safepoint.errors import InternalError
from safepoint.turns.receipts import PushOutcome, PushReceipt
from safepoint.turns.turn import MoveCounts, Turn, TurnPhase

T = TypeVar("T")


class PreemptState(StrEnum):
    NEW = "new"
    DELAYED = "delayed"
    HELD = "held"
    ASKED = "asked"
    RESOLVED = "resolved"


_MOVES = {
    PreemptState.NEW: frozenset(set(PreemptState) - {PreemptState.NEW}),
    PreemptState.DELAYED: frozenset({PreemptState.HELD, PreemptState.ASKED, PreemptState.RESOLVED}),
    PreemptState.HELD: frozenset({PreemptState.ASKED, PreemptState.RESOLVED}),
    PreemptState.ASKED: frozenset({PreemptState.RESOLVED}),
    PreemptState.RESOLVED: frozenset[PreemptState](),
}


@dataclass(slots=True, eq=False)
class Preempt(Generic[T]):
    """One preempt. `due`: the time before which it is not asked; `turn`: the turn that the push saw."""

    ask: Ask
    due: float | None
    turn: Turn[T]
    receipt: PushReceipt
    state: PreemptState = PreemptState.NEW
    timer: asyncio.TimerHandle | None = None


class PreemptController(Generic[T]):
    """The unsettled preempts. All are for the present turn: those for other turns are settled at once."""

    def __init__(self, on_asked: Callable[[], object]) -> None:
        self._on_asked = on_asked
        self._open: list[Preempt[T]] = []
        self.moves: MoveCounts = Counter()

    def take(self, preempt: Preempt[T], present: Turn[T] | None, clock: Clock) -> None:
        """An accepted push asks for this preempt."""
        turn = preempt.turn
        if turn is not present or turn.phase is TurnPhase.OVER:
            self._resolve(preempt, PushOutcome.FINISHED_FIRST)
        else:
            self._open.append(preempt)
            if preempt.due is not None and clock.now() < preempt.due:
                self._move(preempt, PreemptState.DELAYED)
                preempt.timer = clock.call_at(preempt.due, partial(self._due, preempt, turn))
            else:
                self._due(preempt, turn)

    def turn_began(self, turn: Turn[T]) -> None:
        """The turn has a run: ask it for the held preempts."""
        for preempt in self._open:
            if preempt.state is PreemptState.HELD:
                self._ask(preempt, turn)

    def turn_over(self, turn: Turn[T], *, planned: bool) -> None:
        """The turn is over, or never got beyond its plan: settle all its preempts."""
        open_ones, self._open = self._open, []
        for preempt in open_ones:
            if preempt.timer is not None:
                preempt.timer.cancel()
            if not planned:
                self._resolve(preempt, PushOutcome.NOTHING_TO_PREEMPT)
            elif preempt.state is PreemptState.ASKED and turn.preempted:
                self._resolve(preempt, PushOutcome.PREEMPTED)
            else:
                self._resolve(preempt, PushOutcome.FINISHED_FIRST)

    def _due(self, preempt: Preempt[T], turn: Turn[T]) -> None:
        if turn.phase is TurnPhase.PLANNING:
            self._move(preempt, PreemptState.HELD)
        else:
            self._ask(preempt, turn)

    def _ask(self, preempt: Preempt[T], turn: Turn[T]) -> None:
        self._move(preempt, PreemptState.ASKED)
        turn.preempt(preempt.ask)
        self._on_asked()

    def _resolve(self, preempt: Preempt[T], outcome: PushOutcome) -> None:
        self._move(preempt, PreemptState.RESOLVED)
        preempt.receipt.settle(outcome)

    def _move(self, preempt: Preempt[T], state: PreemptState) -> None:
        if state not in _MOVES[preempt.state]:
            raise InternalError(f"preempt: {preempt.state} → {state} is not a move")
        self.moves[preempt.state, state] += 1
        preempt.state = state
