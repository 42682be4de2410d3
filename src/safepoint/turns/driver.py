"""The task of a loop: take the waiting items, plan a turn, see it through, and repeat.

Safepoint never cancels the driver's own task. It waits in one place, for a wake-up; everything else that may wait
(callbacks, runs, the store) is a supervised piece of work. Pushes and stops from any thread are read between two steps,
in `look`. So a cancellation of the task can only land where it waits: it counts as the caller's own, stops the turn
NOW, lets the record be saved, and is then raised again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar

from safepoint._core.asks import make_ask
from safepoint._core.clock import Clock
from safepoint._core.ladder import Ladder
from safepoint._core.latch import Latch
from safepoint._core.points import Level, SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.supervisor import Supervisor
from safepoint._core.wake import call_soon
from safepoint._core.wakeup import Wakeup
from safepoint._core.work import Abandoned, Cut, Failed, Returned, Work
from safepoint.agent.steering import SteerOutcome, SteerReceipt
from safepoint.errors import StoreError
from safepoint.storage.loop_data import LoopStorage
from safepoint.turns.codec import ItemCodec
from safepoint.turns.events import LoopEnded, LoopHub
from safepoint.turns.exit import ExitState, Saved, SavedState
from safepoint.turns.inbox import Answered, Closing, Decided, Entry, Inbox, Pushed, StopAsked, Withdrawn
from safepoint.turns.items import Item, values
from safepoint.turns.journal import Journal
from safepoint.turns.plan import OnEvents, PlanResume, PlanTurn, PrepareAgent
from safepoint.turns.preempt import PreemptController
from safepoint.turns.receipts import PushOutcome, StopOutcome, inside_loops
from safepoint.turns.retry import OnTurnError
from safepoint.turns.state import Carry, LoopState
from safepoint.turns.stop import StopController, StopState
from safepoint.turns.turn import Turn, TurnPhase

if TYPE_CHECKING:
    from safepoint.turns.loop import TurnLoop

T = TypeVar("T")
V = TypeVar("V")
OnInterrupt: TypeAlias = Literal["exit", "wait"]

_log = logging.getLogger("safepoint")


@dataclass(frozen=True, slots=True)
class LoopConfig(Generic[T]):
    """The arguments with which a loop was made."""

    plan: PlanTurn[T]
    prepare: PrepareAgent[T]
    on_events: OnEvents[T] | None
    plan_resume: PlanResume[T] | None
    storage: LoopStorage | None
    checkpoint_id: str
    codec: ItemCodec[T]
    carry: Carry
    on_turn_error: OnTurnError
    on_interrupt: OnInterrupt
    ladder: Ladder


class GivenUp(Exception):
    """Internal: a stop arrived during planning, or cut the work under way."""


class CallbackFailed(Exception):
    """Internal: carries any exception that a callback raised."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Driver(Generic[T]):
    """Reads what was asked, keeps the store up to date, and ends the loop. `Serving` makes the turns."""

    def __init__(self, loop: TurnLoop[T], config: LoopConfig[T]) -> None:
        self.loop = loop
        self.config = config
        self.journal: Journal[T] = Journal(config.storage, config.checkpoint_id, config.codec)
        self.state: LoopState[T] = LoopState(config.carry, self.journal)
        self.inbox: Inbox[T] = Inbox()
        self.hub: LoopHub[T] = LoopHub()
        self._wakeup = Wakeup()
        self.preempts: PreemptController[T] = PreemptController(self._wakeup.ring)
        self.stops = StopController()
        self.answers: dict[str, Any] = {}  # Any: people's answers
        self.exit: ExitState[T] | None = None
        self.ended = Latch()
        self.clock = Clock()
        self._supervisor: Supervisor | None = None
        self._context = Context()
        self._timers: list[asyncio.TimerHandle] = []
        self._loaded = False
        # Decisions about failed turns that were made before the record that names them was read.
        self._decisions: list[Decided[T]] = []
        self._cancelled: asyncio.CancelledError | None = None
        # Whether the event loop was asked to read the inbox and has not read it yet. Cleared before reading.
        self.woken = False

    def attach(self) -> Supervisor:
        """Attach the loop to the running event loop."""
        self._supervisor = Supervisor.current()
        self.clock = self._supervisor.clock
        return self._supervisor

    async def drive(self, turns: Callable[[], Coroutine[Any, Any, None] | None]) -> None:
        """Run to the end; `turns` returns the next step. Cancellation: stops NOW, saves, and is then raised."""
        token = inside_loops.set((*inside_loops.get(), self.loop))
        self._context = copy_context()
        try:
            self.look()
            if await self._load():
                while (step := turns()) is not None:
                    await step
            self.close_the_door()
            self.state.seal()
            until = self._last_moment()
            saved = await self._save_last(until)
            await self._release(until)
            self._end(saved)
        finally:
            inside_loops.reset(token)
        if self._cancelled is not None:
            raise self._cancelled

    # -- hearing: plain functions in the loop's thread -----------------------------------------------------------------

    def look(self) -> None:
        """Read what was asked since the last time."""
        self.woken = False
        if self.inbox.finished:
            self._too_late()
            return
        for entry in self.inbox.take():
            self._hear(entry)
        self.journal.touch()
        self._wakeup.ring()

    def _too_late(self) -> None:
        """Requests that arrived after the end, or at the same moment, change nothing."""
        for entry in self.inbox.finish():
            if isinstance(entry, StopAsked):
                entry.receipt.settle(StopOutcome.FINISHED_FIRST)

    def _hear(self, entry: Entry[T]) -> None:
        match entry:
            case Pushed():
                if entry.in_time:  # otherwise it is on the list of late items
                    self._hear_push(entry)
            case Withdrawn(receipt=receipt):
                self.state.withdraw(receipt)
                if receipt.wants_to_join:
                    receipt.settle(PushOutcome.QUEUED)
            case Decided():
                if self._loaded:
                    self.state.decide(entry.failed, requeue=entry.requeue)
                else:
                    self._decisions.append(entry)
            case StopAsked():
                self._hear_stop(entry)
            case Answered(question=question, value=value):
                asks = self.state.asks
                # Before the record is read the questions are unknown. Later, a second answer to one is ignored.
                if not self._loaded or (asks is not None and question in {each.id for each in asks.questions}):
                    self.answers[question] = value
            case Closing():
                pass

    def _hear_push(self, entry: Pushed[T]) -> None:
        turn = entry.joins
        joins = turn is not None and turn is self.state.turn and turn.phase is TurnPhase.ACTIVE
        item = self.state.accept(entry.value, entry.receipt, joins=joins)
        if turn is not None and joins:
            assert turn.left is not None
            if turn.left.session is not None:
                self.journal.move([item], turn.left.key, joining=True)
            # Once it has joined, a session may hold its message; so the record must know of it first.
            self.journal.after(lambda: self._steer(turn, item))
        elif entry.receipt.wants_to_join:
            entry.receipt.settle(PushOutcome.QUEUED)
        if entry.preempt is not None:
            self.preempts.take(entry.preempt, self.state.turn, self.clock)

    def _steer(self, turn: Turn[T], item: Item[T]) -> None:
        """Join the item to that turn now, unless it was withdrawn or could not be written in the meantime."""
        if item not in self.state.joining:
            return
        assert item.receipt is not None
        if turn.phase is not TurnPhase.ACTIVE or not item.receipt.consume():
            self._settle_joining(turn, item, None)
            return
        value: Any = item.value  # Any: a prompt, as `push` has checked
        steered = turn.run.steer(value)
        steered.when_settled(lambda: self._settle_joining(turn, item, steered))

    def _settle_joining(self, turn: Turn[T], item: Item[T], steered: SteerReceipt | None) -> None:
        receipt = item.receipt
        assert receipt is not None
        if steered is not None and steered.outcome is SteerOutcome.JOINED:
            self.state.join(turn, item)
            receipt.settle(PushOutcome.JOINED)
            return
        if not receipt.is_withdrawn:
            receipt.put_back()
            self.state.queue_joining(item)
            self.journal.touch()
        receipt.settle(PushOutcome.QUEUED)
        self._wakeup.ring()

    def _hear_stop(self, stop: StopAsked) -> None:
        turn = self.state.turn
        active = turn is not None and turn.phase is TurnPhase.ACTIVE
        self.stops.take(stop, self.clock.now(), in_turn=active)
        if stop.ask is None:
            return
        if turn is not None:
            turn.stop(stop.ask)
        if stop.ask.deadline is not None:
            self._timers.append(self.clock.call_at(stop.ask.deadline, self._wakeup.ring))

    def _caller_cancelled(self, error: asyncio.CancelledError) -> None:
        """The loop's task was cancelled. Only the first time counts; after that the stop is under way."""
        if self._cancelled is not None:
            return
        self._cancelled = error
        self.stop_for_caller()

    def stop_for_caller(self) -> None:
        """The program ends, or a task of the loop was cancelled from outside: both count as a stop NOW."""
        self.close_the_door()
        now, wall = self.clock.now(), self.clock.wall()
        reason = Reason("the task of the loop was cancelled", Source.CALLER)
        ask = make_ask(SafePoint.NOW, within=None, recursive=True, reason=reason, now=now, wall=wall)
        self.stops.caller_cancelled(ask)
        if self.state.turn is not None:
            self.state.turn.stop(ask)

    @property
    def is_cancelled(self) -> bool:
        """Whether the loop's task was cancelled, even if the cancellation has not arrived yet. Call it in that task."""
        task = asyncio.current_task()
        return self._cancelled is not None or (task is not None and task.cancelling() > 0)

    def close_the_door(self) -> None:
        """Items pushed from now on are late."""
        self.inbox.put(Closing())
        self.look()

    # -- waiting and working -------------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Wait until something changes. Cancellation: counts as the caller's own, and is raised again at the end."""
        try:
            await self._wakeup.wait()
        except asyncio.CancelledError as error:
            self._caller_cancelled(error)

    def waker(self) -> Callable[[], object]:
        """A function that wakes the driver from any thread."""
        return partial(call_soon, asyncio.get_running_loop(), self._wakeup.ring)

    def begin(self, make: Callable[[], Awaitable[V]], name: str, on_end: Callable[[], object] | None = None) -> Work[V]:
        """Begin a piece of work of this loop. Its end wakes the driver."""
        assert self._supervisor is not None
        ring = self._wakeup.ring

        def ended() -> None:
            if on_end is not None:
                on_end()
            ring()

        return self._supervisor.begin(
            make,
            name=name,
            path=f"turns/{name}",
            ladder=self.config.ladder,
            context=self._context.copy(),
            on_end=ended,
        )

    async def call(self, name: str, function: Callable[..., Any], *args: object) -> Any:  # Any: the user's own
        """The value of a callback, sync or async. Raises `CallbackFailed`, or `GivenUp` if the loop stops meanwhile.

        Cancellation: as in `wait`.
        """

        async def called() -> Any:
            value = function(*args)
            return await value if inspect.isawaitable(value) else value

        value = await self._outcome(self.begin(called, name))
        if self.stops.committed:
            raise GivenUp
        return value

    async def _outcome(self, work: Work[V]) -> V:
        while work.outcome is None:
            self.press(work)
            await self.wait()
        match work.outcome:
            case Returned(value):
                return value
            case Failed(error) if not (isinstance(error, asyncio.CancelledError) and self.is_cancelled):
                raise CallbackFailed(error)
            case Cut(error) if error is not None:
                raise CallbackFailed(error)
            case Abandoned(orphan):
                _log.warning("%s of a loop does not end: %r", work.name, orphan)
                raise GivenUp
            case _:
                raise GivenUp

    def press(self, work: Work[Any]) -> None:  # Any: of any value
        """Cut the work under way if NOW or FORCE stands."""
        level = self.stops.level(self.clock.now())
        if level >= Level.NOW:
            work.stop(force=level is Level.FORCE)

    async def durable(self) -> bool:
        """Wait until the store has everything. False if the loop is to end first. Cancellation: as in `wait`.

        So no turn begins with an item that would be lost with the process.
        """
        while self.journal.busy and self.journal.error is None and not self.stops.committed:
            await self.wait()
        if self.journal.error is not None:
            self.state.fail(self.journal.error)
        return self.journal.error is None and not self.stops.committed

    async def rest(self, until: float) -> None:
        """Wait before a turn is retried. A stop ends the wait. Cancellation: as in `wait`."""
        timer = self.clock.call_at(until, self._wakeup.ring)
        while self.clock.now() < until and not self.stops.committed and self.journal.error is None:
            await self.wait()
        timer.cancel()
        if self.journal.error is not None:
            self.state.fail(self.journal.error)

    async def idle(self) -> None:
        """Wait for an item, a stop, or the end of the idle time that a stop waits for. Cancellation: as in `wait`."""
        self.stops.idle_from(self.clock.now())
        while not self._has_work() and not self.stops.committed and self.journal.error is None:
            due = self.stops.due
            if due is not None and self.clock.now() >= due:
                self._idle_for_long()
                continue
            timer = self.clock.call_at(due, self._wakeup.ring) if due is not None else None
            await self.wait()
            if timer is not None:
                timer.cancel()
        self.stops.busy()
        if self.journal.error is not None:
            self.state.fail(self.journal.error)

    def _has_work(self) -> bool:
        return self.state.buffer.fresh or bool(self.state.unfinished)

    def _idle_for_long(self) -> None:
        self.look()
        if not self._has_work() and not self.state.joining and self.stops.state is StopState.UNTIL_IDLE:
            self.close_the_door()
            self.stops.commit()

    # -- beginning and end ---------------------------------------------------------------------------------------------

    async def _load(self) -> bool:
        """Read the record of an earlier loop. Cancellation: as in `wait`."""
        if not self.journal.enabled:
            self._loaded = True
            return True
        work = self.begin(self.journal.load, "load")
        hurried = False
        while work.outcome is None and self.stops.level(self.clock.now()) < Level.FORCE:
            if not hurried and self.stops.level(self.clock.now()) is Level.NOW:
                # Without the record nothing can be saved, so the read gets a little more time.
                work.stop_at(self.clock.now() + self.config.ladder.task)
                hurried = True
            await self.wait()
        try:
            loaded = await self._outcome(work)
        except CallbackFailed as failed:
            self.state.fail(failed.error)
            return False
        except GivenUp:
            return False
        self.state.load(loaded)
        self._loaded = True
        for decision in self._decisions:
            self.state.decide(decision.failed, requeue=decision.requeue)
        self.journal.open(self.begin, self._lost)
        return True

    def _lost(self, item: Item[T], error: StoreError) -> None:
        self.state.lose(item, error)
        if item.receipt is not None and item.receipt.wants_to_join:
            item.receipt.settle(PushOutcome.QUEUED)
        self._wakeup.ring()

    def _last_moment(self) -> float:
        """The time until which the store may work."""
        ladder, now = self.config.ladder, self.clock.now()
        return now + (ladder.kill if self.stops.level(now) is Level.FORCE else ladder.cap)

    async def _save_last(self, until: float) -> Saved:
        """Save the final record, within limits. Cancellation: as in `wait`."""
        journal = self.journal
        if not journal.enabled:
            return Saved(SavedState.NONE)
        if not self._loaded:
            why = self.state.error or StoreError("the loop was stopped before its record was read; it was left alone")
            return Saved(SavedState.FAILED, why)
        if self.stops.skip_checkpoint:
            self.state.forget_checkpoints()
        journal.hurry(until)
        while journal.writing:
            await self.wait()
        journal.write_last()
        journal.hurry(until)
        while journal.writing:
            await self.wait()
        saved = journal.saved(empty=self.state.is_empty)
        return Saved(SavedState.SKIPPED) if self.stops.skip_checkpoint and saved.error is None else saved

    async def _release(self, until: float) -> None:
        """Release the record for the next loop, within limits. Cancellation: as in `wait`."""
        if not self.journal.claimed:
            return
        work = self.begin(self.journal.release, "release")
        work.stop_at(until)
        while work.outcome is None:
            await self.wait()
        if not isinstance(work.outcome, Returned):
            _log.warning("a loop could not give its record back: %r", work.outcome)

    def task_done(self, task: asyncio.Task[None]) -> None:
        """The last resort when the task is over and the loop is not: no caller may wait for ever."""
        if self.exit is not None:
            return
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.state.fail(error)
        else:
            self._cancelled = asyncio.CancelledError()
        self.close_the_door()
        self.state.seal()
        turn = self.state.turn
        if turn is not None:
            if turn.has_run:
                turn.run.node.cancel(SafePoint.FORCE, reason=Reason("the loop is gone", Source.PARENT))
            self.preempts.turn_over(turn, planned=turn.has_run)
        if self.journal.claimed:
            self.begin(self.journal.release, "release").stop_at(self._last_moment())
        why = StoreError("the task of the loop was over before the record could be saved")
        self._end(Saved(SavedState.FAILED, why) if self.journal.enabled else Saved(SavedState.NONE))

    def _end(self, saved: Saved) -> None:
        """Everything is recorded: wake all waiting callers, without a pause in between."""
        self.look()
        self._too_late()
        for timer in self._timers:
            timer.cancel()
        state = self.state
        places = state.places()
        self.exit = ExitState(
            state.exit_reason(cancelled=self._cancelled is not None),
            state.error,
            values(places.unhandled),
            values(places.interrupted),
            self.stops.cause,
            saved,
            [failure.failed_turn for failure in state.failures],
        )
        self.journal.end(saved)
        state.end()
        self.stops.end(cut=state.cut, timed_out=state.timed_out, failed=state.error is not None)
        self.hub.emit(LoopEnded(self.exit))
        self.ended.set()
