"""The state of a loop, and every decision about where an item goes. Plain functions only, in the loop's thread.

An accepted item is in exactly one of these places:

    the queue ──a plan consumes it──▶ the turn under way ──its run ended──▶ gone, with a result
        ▲                                │        │
        ├──put back, or preempted and────┤        ├──failed──▶ a failed turn, until the user decides
        │  requeued                      │        │
        └────────────────────────────────┘        └──stopped, paused, to be retried──▶ a turn that is not over
                                                                                          │
                                    the turn under way ◀──────it goes on──────────────────┘

A requeued item is in the queue and remembers the turn that said it. Each decision records its changes for the storage
in the same function, so the record, the exit state and the queue cannot disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from safepoint._core.reasons import Source
from safepoint.agent.base import unless_failed
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.result import RunResult, StopReason
from safepoint.errors import SafepointError, StoreError
from safepoint.history.parts import Message
from safepoint.history.rendering import render_error
from safepoint.storage.loop_data import StoredState, TurnBegun, TurnFailed, TurnOver, TurnStopped
from safepoint.turns.continuing import Unfinished
from safepoint.turns.exit import ExitReason, FailedTurn
from safepoint.turns.items import Buffer, Claims, Item, in_order, values
from safepoint.turns.journal import Journal, LoadedLoop
from safepoint.turns.plan import Plan, PlanContext, Previous, ResumePlan, metadata_of, session_of
from safepoint.turns.receipts import ItemOutcome, ItemResult, PushReceipt
from safepoint.turns.turn import Turn, TurnOutcome, TurnPhase

if TYPE_CHECKING:
    from safepoint.turns.loop import TurnLoop

T = TypeVar("T")
Carry: TypeAlias = Literal["drop", "requeue"]

NO_ITEM = -(1 << 62)
"""Below every number: the queue up to here is empty."""


@dataclass(frozen=True, slots=True)
class Division(Generic[T]):
    """How a plan divides the items it was given."""

    consumed: list[Item[T]]
    remaining: list[Item[T]]
    dropped: list[Item[T]]


@dataclass(frozen=True, slots=True)
class Opening(Generic[T]):
    """A turn that is being planned. `last`: the number of the last item that its plan sees."""

    turn: Turn[T]
    ctx: PlanContext[T]
    unfinished: Unfinished[T] | None
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class Failure(Generic[T]):
    """A failed turn, as the user sees it and as it would continue."""

    failed_turn: FailedTurn[T]
    turn: Unfinished[T]


@dataclass(frozen=True, slots=True)
class Places(Generic[T]):
    """Where the items are that no turn has handled, each in one list."""

    unhandled: list[Item[T]]
    interrupted: list[Item[T]]
    failed: list[Item[T]]


class LoopState(Generic[T]):
    """The items, the turn, and the facts about the turn before."""

    def __init__(self, carry: Carry, journal: Journal[T]) -> None:
        self._carry = carry
        self._journal = journal
        self._numbers = count(1)
        self._turns = count(1)
        self.buffer: Buffer[T] = Buffer()
        self.unfinished: list[Unfinished[T]] = []
        # The turn that was preempted last, if its items wait again.
        self.said: Unfinished[T] | None = None
        self.failures: list[Failure[T]] = []
        # Items that are to join the turn under way, and for which that is not decided yet.
        self.joining: list[Item[T]] = []
        # Receipts of items that were withdrawn while a plan was looking at the queue.
        self._withdrawn: list[PushReceipt] = []
        # Read by other threads: the turn that a push sees.
        self.turn: Turn[T] | None = None
        self.previous: Previous[T] | None = None
        self.history: tuple[Message, ...] = ()
        self.error: BaseException | None = None
        # A stop took part in the end of the last turn; or that turn waits for a person; or its task was cancelled.
        self.cut = False
        self.timed_out = False
        self.paused = False
        self.task_cancelled = False
        # Whether the record gets its last changes. A decision made now would be reported but not stored.
        self._sealed = False

    # -- items come and go ---------------------------------------------------------------------------------------------

    def accept(self, value: T, receipt: PushReceipt, *, joins: bool = False) -> Item[T]:
        item = Item(next(self._numbers), value, receipt)
        receipt.number = item.number
        self._journal.add(item)
        if joins:
            self.joining.append(item)
        else:
            self.buffer.append(item)
        return item

    def withdraw(self, receipt: PushReceipt) -> None:
        """Remove the item; if a plan is reading the queue, afterwards, and no plan can consume it."""
        if self.turn is not None and self.turn.phase is TurnPhase.PLANNING:
            self._withdrawn.append(receipt)
            return
        self._remove(receipt)

    def _remove(self, receipt: PushReceipt) -> None:
        found = self.buffer.find(receipt.number) if receipt.number is not None else None
        for item in [item for item in (found, *self.joining) if item is not None and item.receipt is receipt]:
            self._take_out(item)
            self._journal.remove([item])

    def lose(self, item: Item[T], error: StoreError) -> None:
        """The item cannot be written: no turn is made of an item that would be lost with the process."""
        if item not in self.buffer and item not in self.joining:
            return  # withdrawn meanwhile
        self._take_out(item)
        self.failures.append(Failure(FailedTurn((item.value,), error), Unfinished("", [item])))
        _tell([item], ItemOutcome.FAILED)

    def _take_out(self, item: Item[T]) -> None:
        if item in self.buffer:
            self.buffer.remove([item])
        else:
            self.joining.remove(item)

    def queue_joining(self, item: Item[T]) -> None:
        """The item does not join: it waits like any other."""
        self.joining.remove(item)
        self.buffer.put_back([item])
        self._journal.move([item], None)

    def join(self, turn: Turn[T], item: Item[T]) -> None:
        """The item is in the conversation of that turn."""
        self.joining.remove(item)
        turn.items.append(item)

    def load(self, loaded: LoadedLoop[T]) -> None:
        """Put the items of an earlier loop in front of everything that was pushed to this one."""
        groups: dict[str, list[Item[T]]] = {turn.key: [] for turn in loaded.stored.turns}
        joining: dict[str, list[Item[T]]] = {key: [] for key in groups}
        queue: list[Item[T]] = []
        for stored in loaded.stored.items:
            place = queue if stored.turn not in groups else (joining if stored.joining else groups)[stored.turn]
            place.append(loaded.items[stored.number])
        self.buffer.put_back(queue)
        for turn in loaded.stored.turns:
            left = Unfinished(turn.key, groups[turn.key], turn.runs, turn.checkpoint, joining=joining[turn.key])
            left.recorded = left.loaded = True
            if turn.state is StoredState.FAILED:
                error = SafepointError(turn.error or "the turn failed")
                failed_turn = FailedTurn(tuple(values(left.items)), error, turn.checkpoint)
                self.failures.append(Failure(failed_turn, left))
            else:
                self._keep(left)
        self.history = loaded.stored.history
        first = self.unfinished[0].checkpoint if self.unfinished else None
        if first is not None:
            self.previous = Previous(TurnOutcome.INTERRUPTED, first.messages)
        elif self.history:
            self.previous = Previous(TurnOutcome.ENDED, self.history)

    # -- looking -------------------------------------------------------------------------------------------------------

    def places(self) -> Places[T]:
        """Where every item is. Nothing is decided yet about the items of a turn under way."""
        open_turns = [*self.unfinished, *([self.said] if self.said is not None else [])]
        interrupted = [item for turn in open_turns if turn.checkpoint is not None for item in turn.items]
        waiting = [item for turn in self.unfinished if turn.checkpoint is None for item in turn.items]
        joining = [item for turn in self.unfinished for item in turn.joining]
        said = set(map(id, self.said.items)) if self.said is not None else set[int]()
        queue = [item for item in self.buffer if id(item) not in said]
        failed = [item for failure in self.failures for item in failure.turn.items]
        under_way = self.turn.items if self.turn is not None else ()
        unhandled = in_order([*waiting, *joining, *queue, *self.joining, *under_way])
        return Places(unhandled, in_order(interrupted), failed)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to store."""
        stored = any(failure.turn.recorded for failure in self.failures)
        return not (self.buffer or self.unfinished or stored or self.joining or self._journal.has_history)

    @property
    def asks(self) -> Checkpoint | None:
        """The checkpoint of the turn that waits for a person; None if there is none. Read by other threads."""
        turn, waiting = self.turn, tuple(self.unfinished[:1])
        if turn is not None and turn.phase is TurnPhase.ACTIVE:
            return None
        left = turn.left if turn is not None and turn.left is not None else waiting[0] if waiting else None
        checkpoint = left.checkpoint if left is not None else None
        return checkpoint if checkpoint is not None and checkpoint.questions else None

    def exit_reason(self, *, cancelled: bool) -> ExitReason:
        if self.error is not None:
            return ExitReason.ERROR
        if self.cut or cancelled or self.task_cancelled:
            return ExitReason.CANCELLED
        return ExitReason.INTERRUPTED if self.paused else ExitReason.CLEAN

    def fail(self, error: BaseException) -> None:
        """End the loop with this error; only the first error is reported."""
        if self.error is None:
            self.error = error

    # -- a turn is planned ---------------------------------------------------------------------------------------------

    def open_turn(self, loop: TurnLoop[T], why: Callable[[], str | None], now: float) -> Opening[T]:
        """From here on a push can see this turn. Its items stay in their places until the plan is carried out."""
        turn = Turn(loop, next(self._turns), why, now)
        self.turn = turn
        left = self.unfinished[0] if self.unfinished else None
        stopped = left or self.said
        checkpoint = stopped.checkpoint if stopped is not None else None
        said = tuple(values(stopped.items)) if stopped is not None and checkpoint is not None else ()
        history = checkpoint.messages if left is not None and checkpoint is not None else self.history
        last = self.buffer.last
        ctx = PlanContext(loop, self.previous, checkpoint, said, history)
        return Opening(turn, ctx, left, NO_ITEM if last is None else last)

    def divide(self, plan: Plan[T] | ResumePlan[T], last: int, apart: Sequence[Item[T]] = ()) -> Division[T] | None:
        """Apply the plan's division to the items it was given: `apart`, and the queue up to `last`.

        None if it has consumed an item that was withdrawn meanwhile. Raises if it names an item that it was not given,
        or names one twice.
        """
        claims = Claims(self.buffer, last, apart)
        consumed = claims.claim(plan.consumed, "consumed")
        if plan.keep_rest:
            division = Division(consumed, list[Item[T]](), list[Item[T]]())
        else:
            division = Division(consumed, claims.claim(plan.remaining, "remaining"), claims.left)
        if not self._consume(item for item in consumed if item not in apart):
            return None
        dropped = [item for item in division.dropped if self._consume([item])]  # the others were withdrawn
        return replace(division, dropped=dropped)

    def _consume(self, items: Iterable[Item[T]]) -> bool:
        """From here on these cannot be withdrawn; False, without any change, if one of them was."""
        claimed: list[Item[T]] = []
        said = self.said.items if self.said is not None else ()
        for item in items:
            if item.receipt is None or item in said:
                continue
            if not item.receipt.consume():
                _put_back(claimed)
                return False
            claimed.append(item)
        return True

    def give_up(self, opening: Opening[T], division: Division[T] | None) -> None:
        """The turn does not happen: restore the state before it."""
        said = self.said.items if self.said is not None else ()
        if division is not None:
            claimed = (*division.consumed, *division.dropped)
            _put_back(item for item in claimed if item in self.buffer and item not in said)
        self.buffer.fresh = len(self.buffer) > 0
        self._close(opening.turn)

    def wait_for_more(self, opening: Opening[T], division: Division[T]) -> None:
        """The plan wants no turn yet."""
        fresh = self.buffer.fresh
        if opening.unfinished is not None:
            self.unfinished.remove(opening.unfinished)
            self._forget(opening.unfinished, [])
        self._drop(division)
        self.buffer.fresh = fresh
        self._close(opening.turn)

    def take_back(self, left: Unfinished[T], consumed: Sequence[Item[T]]) -> None:
        """A preempted turn is taken back: those of its items that no plan has consumed wait like any other."""
        self.said = None
        self._forget(left, left.items)
        used = set(map(id, consumed))
        _put_back(item for item in left.items if id(item) not in used)

    def adopt(
        self,
        turn: Turn[T],
        plan: Plan[T] | ResumePlan[T],
        division: Division[T],
        left: Unfinished[T],
        replaces: Unfinished[T] | None,
    ) -> None:
        """Carry out the plan. `left`: the data needed if this turn does not reach its end.

        `replaces`: a turn that was not over and begins anew as this one.
        """
        turn.left, turn.items = left, division.consumed
        left.session, left.plan = session_of(plan), left.plan or plan
        turn.metadata = metadata_of(plan)
        before = replaces or left
        if self.said is before:
            self.said = None
        if before in self.unfinished:
            self.unfinished.remove(before)
        gone = set(map(id, (*division.consumed, *division.dropped)))
        self.buffer.remove([item for item in division.consumed if item in self.buffer])
        rest = [item for item in (*before.items, *before.joining) if id(item) not in gone]
        self.buffer.put_back(item for item in rest if item not in self.buffer)
        self._journal.move(rest, None)
        if replaces is not None:
            self._forget(replaces, [] if left.recorded else division.consumed)
        left.items, left.joining = division.consumed, []
        self._drop(division)
        self.purge_withdrawn()
        self.buffer.fresh = self.buffer.fresh or len(self.buffer) > 0

    def _drop(self, division: Division[T]) -> None:
        self.buffer.remove(item for item in division.dropped if item in self.buffer)
        self._journal.remove(division.dropped)
        self._settle_later(division.dropped, ItemOutcome.DROPPED)

    def begin_run(self, left: Unfinished[T], items: Iterable[Item[T]], run_id: str) -> None:
        """A run that a session will know is about to begin: the record names it first."""
        left.runs = (*left.runs, run_id)
        left.recorded = True
        self._journal.record(TurnBegun(left.key, run_id))
        self._journal.move(items, left.key)

    def unmark(self, left: Unfinished[T], items: Iterable[Item[T]]) -> None:
        """The run did not begin."""
        if left.recorded and not left.loaded and left.checkpoint is None:
            self._forget(left, items)

    def already_over(self, opening: Opening[T], left: Unfinished[T], joined: list[Item[T]]) -> list[Item[T]]:
        """The session says that the turn has ended; return the items that it handled."""
        done = [*left.items, *joined]
        self.unfinished.remove(left)
        rest = [item for item in left.joining if item not in joined]
        self.buffer.put_back(rest)
        self._journal.remove(done)
        self._forget(left, rest)
        self._close(opening.turn)
        return done

    def pause(self, turn: Turn[T], checkpoint: Checkpoint) -> None:
        """The turn waits for a person, and the loop with it."""
        assert turn.left is not None
        self._stop(turn.left, turn.items, checkpoint)

    def _stop(self, left: Unfinished[T], items: list[Item[T]], checkpoint: Checkpoint) -> None:
        left.items, left.checkpoint, left.recorded, left.loaded = items, checkpoint, True, False
        self._journal.record(TurnStopped(left.key, left.runs, checkpoint))
        self._journal.move(items, left.key)

    def _forget(self, left: Unfinished[T], items: Iterable[Item[T]]) -> None:
        """Store nothing of the turn; these items wait."""
        if left.recorded:
            self._journal.move(items, None)
            self._journal.record(TurnOver(left.key))
            left.recorded = False

    def _keep(self, left: Unfinished[T]) -> None:
        """Keep the turn, in the order of the items."""
        self.unfinished.append(left)
        self.unfinished.sort(key=lambda turn: turn.items[0].number if turn.items else 0)

    # -- a turn is over ------------------------------------------------------------------------------------------------

    def settle(self, turn: Turn[T], error: BaseException | None, retry_at: float | None, *, stops: bool) -> TurnOutcome:
        """Decide where the items of a begun turn go. `error`: the exception of a callback.

        `retry_at` and `stops`: the decision about a failed turn. The order is fixed: first a stop that took part, then
        the cancellation of the task, a callback's error, a preempt, and how the run ended.
        """
        left = turn.left
        assert left is not None
        result = turn.result if turn.has_run else None
        outcome = self.outcome_of(turn, error)
        checkpoint = result.checkpoint if result is not None else None
        if checkpoint is None and turn.phase is not TurnPhase.ACTIVE:
            checkpoint = left.checkpoint
        match outcome:
            case TurnOutcome.INTERRUPTED:
                assert checkpoint is not None, "a turn that was stopped can go on"
                self._stop(left, turn.items, checkpoint)
                self.unfinished.insert(0, left)
                self.cut, self.paused = turn.stopped, not turn.stopped and not _by_task(result)
                self.task_cancelled = _by_task(result) and not turn.stopped
                self.timed_out = self.cut and turn.timed_out
            case TurnOutcome.PUT_BACK:
                self._put_back(turn, left, checkpoint)
            case TurnOutcome.PREEMPTED if self._carry == "requeue" and checkpoint is not None:
                self._stop(left, turn.items, checkpoint)
                self.said = left
                self.buffer.put_back(turn.items)
            case TurnOutcome.FAILED if retry_at is not None:
                left.attempt, left.not_before, left.items = turn.attempt + 1, retry_at, turn.items
                if checkpoint is not None:
                    self._stop(left, turn.items, checkpoint)
                self.unfinished.insert(0, left)
            case TurnOutcome.FAILED:
                self._fail_turn(turn, left, checkpoint, stops=stops)
            case _:
                self._journal.remove(turn.items)
                self._forget(left, [])
                item_result = ItemOutcome.PREEMPTED if outcome is TurnOutcome.PREEMPTED else result
                self._settle_later(turn.items, item_result)
        if error is not None:
            self.fail(error)
        self._remember(turn, outcome, result, checkpoint)
        self._close(turn)
        return outcome

    def _put_back(self, turn: Turn[T], left: Unfinished[T], checkpoint: Checkpoint | None) -> None:
        if left.checkpoint is not None and checkpoint is not None:  # it went on from an earlier stop
            self._stop(left, turn.items, checkpoint)
            self.unfinished.insert(0, left)
        elif left.recorded and left.session is not None:  # it may know the turn's message: the next loop asks it
            left.items, left.checkpoint, left.plan = turn.items, None, None
            self._drop_checkpoint(left)
            self.unfinished.insert(0, left)
        else:
            self._forget(left, turn.items)
            self.buffer.put_back(turn.items)
            _put_back(turn.items)

    def _fail_turn(self, turn: Turn[T], left: Unfinished[T], checkpoint: Checkpoint | None, *, stops: bool) -> None:
        failed = self.failed(turn)
        left.items, left.checkpoint, left.recorded, left.plan = turn.items, checkpoint, True, None
        self._journal.record(TurnFailed(left.key, left.runs, render_error(failed.error), checkpoint))
        self._journal.move(turn.items, left.key)
        self.failures.append(Failure(failed, left))
        self._settle_later(turn.items, ItemOutcome.FAILED)
        if stops:
            self.fail(failed.error)

    def failed(self, turn: Turn[T]) -> FailedTurn[T]:
        result = turn.result
        return FailedTurn(tuple(turn.consumed), _failure(result), result.checkpoint, turn.attempt)

    def outcome_of(self, turn: Turn[T], error: BaseException | None) -> TurnOutcome:
        result = turn.result if turn.has_run else None
        if turn.stopped or (_by_task(result) and not turn.given_up):
            return TurnOutcome.INTERRUPTED
        if error is not None:
            return TurnOutcome.PUT_BACK
        if turn.preempted:
            return TurnOutcome.PREEMPTED
        if turn.cleared is not None:
            return TurnOutcome.ENDED
        if result is None or result.stop_reason is StopReason.INTERRUPTED:
            return TurnOutcome.INTERRUPTED
        return TurnOutcome.FAILED if result.stop_reason is StopReason.ERROR else TurnOutcome.ENDED

    def _remember(
        self,
        turn: Turn[T],
        outcome: TurnOutcome,
        result: RunResult[Any] | None,  # Any: of any output type
        checkpoint: Checkpoint | None,
    ) -> None:
        if outcome in (TurnOutcome.PUT_BACK, TurnOutcome.INTERRUPTED):
            return  # the loop ends, and the turn is not over
        messages: tuple[Message, ...] = ()
        if turn.cleared is not None and checkpoint is not None:
            messages = checkpoint.cleared(turn.cleared.reason, turn.cleared.successor).messages
        elif result is not None:
            messages = tuple(result.messages)
        elif checkpoint is not None:
            messages = checkpoint.messages
        lost = tuple(values(turn.items)) if outcome is TurnOutcome.PREEMPTED else ()
        self.previous = Previous(outcome, messages, lost, result)
        if turn.left in (self.said, *self.unfinished):
            return  # its messages are in its checkpoint and continue from there
        self.history = messages
        # A session has the conversation already; otherwise the record keeps it.
        assert turn.left is not None
        self._journal.set_history(() if turn.left.session is not None else messages)

    def _close(self, turn: Turn[T]) -> None:
        turn.end()
        self.turn = None
        self.purge_withdrawn()

    def purge_withdrawn(self) -> None:
        """Remove withdrawn items, now that no plan reads the queue."""
        withdrawn, self._withdrawn = self._withdrawn, []
        for receipt in withdrawn:
            self._remove(receipt)

    def _settle_later(self, items: Iterable[Item[T]], result: ItemResult | None) -> None:
        waiting_items = [item for item in items if item.receipt is not None]
        if waiting_items and result is not None:
            self._journal.after(lambda: _tell(waiting_items, result))

    # -- what the user decides -----------------------------------------------------------------------------------------

    def decide(self, failed: FailedTurn[T] | None, *, requeue: bool) -> None:
        """Decide about a failed turn, or about all. Too late once the record has its last changes."""
        if self._sealed:
            return
        meant = [failure for failure in self.failures if failed is None or failure.failed_turn is failed]
        for failure in meant:
            self.failures.remove(failure)
            left = failure.turn
            if not requeue:
                self._journal.remove(left.items)
                self._forget(left, [])
            elif not left.key:  # it could not be written; try once more
                self.buffer.put_back(left.items)
                for item in left.items:
                    self._journal.add(item)
            else:
                left.requeued, left.attempt, left.not_before = True, 1, 0.0
                self._requeue(left)

    def _requeue(self, left: Unfinished[T]) -> None:
        if left.checkpoint is not None:
            self._stop(left, left.items, left.checkpoint)
        else:
            self._drop_checkpoint(left)
        self._keep(left)

    def _drop_checkpoint(self, left: Unfinished[T]) -> None:
        """The record names the runs of the turn, and no more."""
        self._journal.record(TurnOver(left.key), *(TurnBegun(left.key, run) for run in left.runs))

    # -- the end -------------------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """No turn begins any more. Waiting items are reported as unhandled, and can no longer be withdrawn."""
        self._sealed = True
        for item in [*self.buffer, *self.joining]:
            if item.receipt is not None and not item.receipt.consume() and item.receipt.is_withdrawn:
                self._remove(item.receipt)

    def forget_checkpoints(self) -> None:
        """Turns that this loop has stopped will begin anew. Turns found in the store are kept."""
        for left in (*self.unfinished, *([self.said] if self.said is not None else [])):
            if not left.loaded and left.session is None:
                self._forget(left, left.items)

    def end(self) -> None:
        """Wake the callers that wait for the result of an item that has none."""
        places = self.places()
        _tell(places.interrupted, ItemOutcome.INTERRUPTED)
        _tell(places.unhandled, ItemOutcome.UNHANDLED)


def _tell(items: Iterable[Item[T]], result: ItemResult) -> None:
    for item in items:
        if item.receipt is not None:
            item.receipt.settle_result(result)


def _put_back(items: Iterable[Item[T]]) -> None:
    for item in items:
        if item.receipt is not None:
            item.receipt.put_back()


def _by_task(result: RunResult[Any] | None) -> bool:  # Any: of any output type
    """Whether the run stopped because its own task was cancelled, as when a program simply ends."""
    if result is None or result.stop_reason is not StopReason.CANCELLED or result.checkpoint is None:
        return False
    return result.cancellation is not None and any(
        reason.source is Source.CALLER for reason in result.cancellation.reasons
    )


def _failure(result: RunResult[Any]) -> BaseException:
    try:
        unless_failed(result)
    except SafepointError as error:
        return error
    return result.error or SafepointError("the turn failed")
