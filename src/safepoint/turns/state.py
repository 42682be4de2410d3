"""What a loop knows, and every decision about where an item goes. Plain functions only, in the loop's thread.

An accepted item is in exactly one of these: the buffer; the turn under way, unless that turn continues an earlier run;
the turn that can go on (`pending`). From there it leaves for good: consumed by a turn that ended, preempted, or dropped
by a plan. The record and the exit state are read from the same three places, so they can't disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from safepoint.agent.base import unless_failed
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.result import RunResult, StopReason
from safepoint.errors import SafepointError
from safepoint.history.parts import Message
from safepoint.turns.exit import ExitReason
from safepoint.turns.items import Buffer, Item, Taken, in_order, values
from safepoint.turns.plan import Plan, PlanContext, Previous, ResumePlan
from safepoint.turns.record import LoadedRecord, LoopRecord
from safepoint.turns.turn import Turn, TurnOutcome, TurnPhase

if TYPE_CHECKING:
    from safepoint.turns.loop import TurnLoop

T = TypeVar("T")
Carry: TypeAlias = Literal["drop", "requeue"]
OnTurnError: TypeAlias = Literal["stop", "continue"]


@dataclass(frozen=True, slots=True)
class Pending(Generic[T]):
    """A turn that can go on. `unhandled`: what waited beside it, until a plan has looked at all of it."""

    checkpoint: Checkpoint
    interrupted: list[Item[T]]
    unhandled: list[Item[T]] = field(default_factory=list[Item[T]])


@dataclass(frozen=True, slots=True)
class Division(Generic[T]):
    """How a plan divides up what it was given."""

    consumed: list[Item[T]]
    remaining: list[Item[T]]
    dropped: list[Item[T]]


def divide(plan: Plan[T] | ResumePlan[T], items: Sequence[Item[T]]) -> Division[T]:
    """Raises if the plan names an item that it was not given, or one twice."""
    taken = Taken(items)
    consumed = taken.claim(plan.consumed, "consumed")
    return Division(consumed, taken.claim(plan.remaining, "remaining"), taken.left)


class LoopState(Generic[T]):
    """The items, the turn, and what is known of the turn before."""

    def __init__(self, carry: Carry, on_turn_error: OnTurnError) -> None:
        self._carry = carry
        self._on_turn_error = on_turn_error
        self._numbers = count(1)
        self._turns = count(1)
        self.buffer: Buffer[T] = Buffer()
        self.pending: Pending[T] | None = None
        self._loaded: Checkpoint | None = None
        # Read by other threads: the turn that a push sees.
        self.turn: Turn[T] | None = None
        self.previous: Previous[T] | None = None
        # A session has the conversation already; otherwise the record keeps it.
        self._keeps_history = True
        self.error: BaseException | None = None
        # A stop took part in the end of the last turn; or that turn waits for a person.
        self.cut = False
        self.timed_out = False
        self.paused = False

    # -- items come ----------------------------------------------------------------------------------------------------

    def accept(self, value: T) -> Item[T]:
        item = Item(next(self._numbers), value)
        self.buffer.append(item)
        return item

    def load(self, loaded: LoadedRecord[T]) -> None:
        """What an earlier loop has left goes in front of everything that was pushed to this one."""
        older = count(-len(loaded.unhandled) - len(loaded.interrupted))
        interrupted = [Item(next(older), value) for value in loaded.interrupted]
        unhandled = [Item(next(older), value) for value in loaded.unhandled]
        self._loaded = loaded.checkpoint
        if loaded.checkpoint is not None:
            self.pending = Pending(loaded.checkpoint, interrupted, unhandled)
            self.previous = Previous(TurnOutcome.INTERRUPTED, loaded.checkpoint.messages)
        else:
            self.buffer.put_back([*interrupted, *unhandled])
            if loaded.history:
                self.previous = Previous(TurnOutcome.ENDED, tuple(loaded.history))

    # -- looking -------------------------------------------------------------------------------------------------------

    def snapshot(self, *, skip_checkpoint: bool = False) -> LoopRecord[T]:
        """The truth at this moment, as it is stored.

        `skip_checkpoint`: a turn that this loop has stopped will begin anew. What was found in the store is kept.
        """
        turn, pending = self.turn, self.pending
        if skip_checkpoint and pending is not None and pending.checkpoint is not self._loaded:
            items = in_order([*pending.interrupted, *pending.unhandled, *self.buffer])
            return LoopRecord(items, history=self._history())
        under_way = turn.items if turn is not None and not turn.resumed else []
        beside = pending.unhandled if pending is not None else []
        unhandled = in_order([*beside, *under_way, *self.buffer])
        if pending is not None:
            return LoopRecord(unhandled, pending.interrupted, pending.checkpoint)
        return LoopRecord(unhandled, history=self._history())

    def _history(self) -> tuple[Message, ...]:
        return self.previous.messages if self.previous is not None and self._keeps_history else ()

    @property
    def asks(self) -> Checkpoint | None:
        """Of the turn that waits for a person; None if there is none, or it goes on already. Read by other threads."""
        pending, turn = self.pending, self.turn
        if pending is None or not pending.checkpoint.questions or (turn is not None and turn.phase is TurnPhase.ACTIVE):
            return None
        return pending.checkpoint

    def exit_reason(self, *, cancelled: bool) -> ExitReason:
        if self.error is not None:
            return ExitReason.ERROR
        if self.cut or cancelled:
            return ExitReason.CANCELLED
        return ExitReason.INTERRUPTED if self.paused else ExitReason.CLEAN

    def fail(self, error: BaseException) -> None:
        """The loop ends with this; the first error is the one that is told."""
        if self.error is None:
            self.error = error

    # -- a turn is planned ---------------------------------------------------------------------------------------------

    def open_turn(self, loop: TurnLoop[T], why: Callable[[], str | None]) -> tuple[Turn[T], PlanContext[T]]:
        """Take everything that waits. From here on a push can see this turn."""
        turn = Turn(loop, next(self._turns), self.buffer.take_all(), why)
        self.turn = turn
        return turn, PlanContext(loop, self.previous, self.pending.checkpoint if self.pending is not None else None)

    def given(self, turn: Turn[T]) -> list[Item[T]]:
        """All that the plan of this turn divides up."""
        pending = self.pending
        return [*pending.interrupted, *pending.unhandled, *turn.items] if pending is not None else turn.items

    def put_back(self, turn: Turn[T]) -> None:
        """It does not come to that turn: everything is as it was before."""
        self.buffer.put_back(turn.items)
        self._close(turn)

    def wait_for_more(self, turn: Turn[T], division: Division[T]) -> None:
        """The plan wants no turn yet."""
        self.pending = None
        self.buffer.keep(division.remaining)
        self._close(turn)

    def adopt(self, turn: Turn[T], plan: Plan[T] | ResumePlan[T], division: Division[T]) -> None:
        """The plan is carried out."""
        self._keeps_history = plan.session is None
        turn.metadata = plan.metadata
        turn.items = division.consumed
        self.buffer.put_back(division.remaining)
        if isinstance(plan, ResumePlan):
            assert self.pending is not None
            self._can_go_on(turn, self.pending.checkpoint)
        else:
            self.pending = None

    def pause(self, turn: Turn[T], checkpoint: Checkpoint) -> None:
        """The turn waits for a person, and the loop with it."""
        self._can_go_on(turn, checkpoint)

    def _can_go_on(self, turn: Turn[T], checkpoint: Checkpoint) -> None:
        turn.resumed = True
        self.pending = Pending(checkpoint, turn.items)

    # -- a turn is over ------------------------------------------------------------------------------------------------

    def settle(self, turn: Turn[T], error: BaseException | None) -> TurnOutcome:
        """Where the items of a turn go that was begun. `error`: what a callback raised.

        One fixed order: a stop that took part decides, then a callback's error, then a preempt, then how the run ended.
        """
        result = turn.result if turn.has_run else None
        outcome = self._outcome(turn, result, error)
        checkpoint = result.checkpoint if result is not None else None
        if checkpoint is None and self.pending is not None and turn.phase is not TurnPhase.ACTIVE:
            checkpoint = self.pending.checkpoint
        self.pending = None
        match outcome:
            case TurnOutcome.INTERRUPTED:
                assert checkpoint is not None, "a turn that was stopped can go on"
                self.pending = Pending(checkpoint, turn.items)
                self.cut, self.paused = turn.stopped, not turn.stopped
                self.timed_out = self.cut and turn.timed_out
            case TurnOutcome.PUT_BACK if turn.resumed and checkpoint is not None:
                self.pending = Pending(checkpoint, turn.items)
            case TurnOutcome.PUT_BACK:
                self.buffer.put_back(turn.items)
            case TurnOutcome.PREEMPTED if self._carry == "requeue":
                self.buffer.put_back(turn.items)
            case TurnOutcome.FAILED if self._on_turn_error == "stop" and result is not None:
                self.fail(_failure(result))
            case _:
                pass
        if error is not None:
            self.fail(error)
        if outcome not in (TurnOutcome.PUT_BACK, TurnOutcome.INTERRUPTED):  # else the loop ends, and it is not over
            self.previous = self._remember(turn, outcome, result, checkpoint)
        self._close(turn)
        return outcome

    def _outcome(
        self, turn: Turn[T], result: RunResult[Any] | None, error: BaseException | None
    ) -> TurnOutcome:  # Any: of any output type
        if turn.stopped:
            return TurnOutcome.INTERRUPTED
        if error is not None:
            return TurnOutcome.PUT_BACK
        if turn.preempted:
            return TurnOutcome.PREEMPTED
        if result is None or result.stop_reason is StopReason.INTERRUPTED:
            return TurnOutcome.INTERRUPTED
        return TurnOutcome.FAILED if result.stop_reason is StopReason.ERROR else TurnOutcome.ENDED

    def _remember(
        self,
        turn: Turn[T],
        outcome: TurnOutcome,
        result: RunResult[Any] | None,  # Any: as above
        checkpoint: Checkpoint | None,
    ) -> Previous[T]:
        messages: tuple[Message, ...] = ()
        if result is not None:
            messages = tuple(result.messages)
        elif checkpoint is not None:
            messages = checkpoint.messages
        lost = tuple(values(turn.items)) if outcome is TurnOutcome.PREEMPTED else ()
        return Previous(outcome, messages, lost, result)

    def _close(self, turn: Turn[T]) -> None:
        turn.end()
        self.turn = None


def _failure(result: RunResult[Any]) -> BaseException:  # Any: as above
    try:
        unless_failed(result)
    except SafepointError as error:
        return error
    return result.error or SafepointError("the turn failed")
