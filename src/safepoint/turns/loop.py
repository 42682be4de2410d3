"""A long-lived loop that makes turns of an agent from the items pushed to it.

This is the callers' side, for any thread: it checks arguments, records requests and returns receipts. The loop's own
task (`driver`, `serving`) decides, in the order in which the requests were recorded (`inbox`).
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from types import TracebackType
from typing import Any, Generic, TypeVar, cast, get_args, overload

from safepoint._core.asks import make_ask
from safepoint._core.caller_cancellation import outlast, outlive
from safepoint._core.ladder import Ladder
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.wake import call_soon
from safepoint.agent.base import BaseAgent
from safepoint.agent.checkpoint import Question
from safepoint.agent.resume import Resume
from safepoint.errors import StoreError, UsageError
from safepoint.storage.loop_data import LoopStorage
from safepoint.turns.codec import ItemCodec
from safepoint.turns.continuing import message_of
from safepoint.turns.driver import Driver, LoopConfig, OnInterrupt
from safepoint.turns.events import LoopReader
from safepoint.turns.exit import ExitState, FailedTurn
from safepoint.turns.inbox import Answered, Decided, Entry, LateItems, Pushed, StopAsked, Withdrawn
from safepoint.turns.items import values
from safepoint.turns.options import PushOptions, Strategy, from_strategy, stop_ask
from safepoint.turns.plan import OnEvents, PlanResume, PlanTurn, PrepareAgent, one_message
from safepoint.turns.preempt import Preempt
from safepoint.turns.receipts import (
    ItemOutcome,
    PushOutcome,
    PushReceipt,
    StopOutcome,
    StopReceipt,
    refuse_in_its_thread,
    refuse_inside,
)
from safepoint.turns.retry import OnTurnError, policy
from safepoint.turns.serving import Serving
from safepoint.turns.state import Carry
from safepoint.turns.store import TurnStore, storage_of
from safepoint.turns.turn import Turn, TurnPhase
from safepoint.turns.view import LoopView, TurnView

T = TypeVar("T")


class TurnLoop(Generic[T]):
    """`TurnLoop(agent)`: every batch of pushed text becomes one user message of one conversation.

    `plan` divides the waiting items into turns, `prepare` chooses the agent, `on_events` watches a turn. With `store`
    and `checkpoint_id` the loop keeps a record from which the next one continues; `plan_resume` decides how.
    """

    @overload
    def __init__(
        self: TurnLoop[str],
        agent: BaseAgent[Any, Any],
        *,
        on_events: OnEvents[str] | None = None,
        plan_resume: PlanResume[str] | None = None,
        store: TurnStore | LoopStorage | None = None,
        checkpoint_id: str | None = None,
        codec: ItemCodec[str] | None = None,
        carry: Carry = "drop",
        on_turn_error: OnTurnError = "stop",
        on_interrupt: OnInterrupt = "exit",
    ) -> None: ...

    @overload
    def __init__(
        self,
        agent: BaseAgent[Any, Any] | None = None,
        *,
        plan: PlanTurn[T],
        prepare: PrepareAgent[T] | None = None,
        on_events: OnEvents[T] | None = None,
        plan_resume: PlanResume[T] | None = None,
        store: TurnStore | LoopStorage | None = None,
        checkpoint_id: str | None = None,
        codec: ItemCodec[T] | None = None,
        carry: Carry = "drop",
        on_turn_error: OnTurnError = "stop",
        on_interrupt: OnInterrupt = "exit",
    ) -> None: ...

    def __init__(
        self,
        agent: BaseAgent[Any, Any] | None = None,
        *,
        plan: PlanTurn[Any] | None = None,  # Any, here and below: str or T, as the overloads say
        prepare: PrepareAgent[Any] | None = None,
        on_events: OnEvents[Any] | None = None,
        plan_resume: PlanResume[Any] | None = None,
        store: TurnStore | LoopStorage | None = None,
        checkpoint_id: str | None = None,
        codec: ItemCodec[Any] | None = None,
        carry: Carry = "drop",
        on_turn_error: OnTurnError = "stop",
        on_interrupt: OnInterrupt = "exit",
    ) -> None:
        if (agent is None) == (prepare is None):
            raise ValueError("write TurnLoop(agent), or prepare=… to choose an agent for each turn, and not both")
        if agent is not None and not isinstance(agent, BaseAgent):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"{agent!r} is no agent: write TurnLoop(Agent('writer', model=…))")
        if agent is None and plan is None:
            raise ValueError("prepare=… without plan=…: say what a turn consists of, write plan=…")
        _check_choice("carry", carry, get_args(Carry))
        if not callable(on_turn_error):
            policy(on_turn_error)
        _check_choice("on_interrupt", on_interrupt, get_args(OnInterrupt))
        _check_store(store, checkpoint_id, codec=codec, plan_resume=plan_resume)
        config: LoopConfig[T] = LoopConfig(
            plan or one_message,
            prepare or (lambda _ctx, _consumed: cast("BaseAgent[Any, Any]", agent)),
            on_events,
            plan_resume,
            None if store is None else storage_of(store),
            checkpoint_id or "",
            codec or ItemCodec.plain(),
            carry,
            on_turn_error,
            on_interrupt,
            Ladder(),
        )
        self._driver: Driver[T] = Driver(self, config)
        self._late: LateItems[T] = LateItems()
        self._task: asyncio.Task[None] | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked = False

    # -- asking: any thread, any time, no lock -------------------------------------------------------------------------

    def push(
        self,
        item: T,
        *,
        preempt: SafePoint | None = None,
        within: float | None = None,
        delay: float | None = None,
        strategy: Strategy[T] | None = None,
        interrupt: bool = False,
        join: bool = False,
    ) -> PushReceipt:
        """Add an item, and optionally ask the running turn to stop or to take the item in. Safe from any thread.

        `preempt` stops that turn at a safe point, `interrupt` at once; with `join` the item becomes a message of its
        conversation, if a model call follows there. A push after a stop is refused and kept as late; once the late
        items were taken, it raises. With a store, an item whose type has no codec is refused: `receipt.error`.
        """
        seen = self._driver.state.turn
        if strategy is None:
            options = PushOptions(preempt, within, delay, interrupt, join)
        else:
            live = seen if seen is not None and seen.phase is not TurnPhase.PLANNING else None
            options = from_strategy(strategy, live, beside=(preempt, within, delay, interrupt, join))
        if options.join and message_of(item) is None:
            raise ValueError(f"join=True makes a message of the item, and {item!r} is no text and no list of parts")
        receipt = PushReceipt(self, stored=self._driver.journal.enabled)
        receipt.event_loop = self._event_loop
        if self._driver.journal.enabled and (refusal := self._driver.config.codec.refusal(item)) is not None:
            return self._refuse(receipt, refusal)
        entry = self._entry(item, receipt, options, seen)
        receipt.accepted = self._record(entry) and self._driver.inbox.in_time(entry)
        if not receipt.accepted or (entry.preempt is None and not options.join):
            receipt.settle(PushOutcome.NOTHING_TO_PREEMPT)
        elif options.join and seen is None:
            receipt.settle(PushOutcome.QUEUED)
        if not receipt.accepted:
            receipt.settle_result(ItemOutcome.LATE)
            if not self._late.add(entry):
                raise UsageError(f"the loop has stopped and its late items were taken: {item!r} would be lost")
        return receipt

    def _entry(self, item: T, receipt: PushReceipt, options: PushOptions, seen: Turn[T] | None) -> Pushed[T]:
        wanted = options.ask(self._driver.clock)
        request = None if wanted is None or seen is None else Preempt(wanted[0], wanted[1], seen, receipt)
        receipt.wants_to_join = options.join
        receipt.on_withdrawn = lambda withdrawn: self._record(Withdrawn(withdrawn))
        return Pushed(item, receipt, request, joins=seen if options.join else None)

    def _refuse(self, receipt: PushReceipt, error: StoreError) -> PushReceipt:
        receipt.accepted, receipt.error = False, error
        receipt.settle(PushOutcome.NOTHING_TO_PREEMPT)
        receipt.settle_result(ItemOutcome.REFUSED)
        return receipt

    def stop(
        self,
        at: SafePoint | None = None,
        *,
        within: float | None = None,
        idle_for: float | None = None,
        skip_checkpoint: bool = False,
        cause: str | None = None,
    ) -> StopReceipt:
        """Ask the loop to end, after the running turn or as `at` says. Safe from any thread and any signal handler.

        May be called many times, and only gets stronger. `idle_for` waits for that many seconds without any work.
        """
        ask = stop_ask(at, within, idle_for, cause, self._driver.clock)
        self._stop_asked = True
        receipt = StopReceipt(self)
        receipt.event_loop = self._event_loop
        entry = StopAsked(ask, receipt, idle_for=idle_for, skip_checkpoint=bool(skip_checkpoint), cause=cause)
        receipt.accepted = self._record(entry) and not self._driver.inbox.finished
        if not receipt.accepted:
            receipt.settle(StopOutcome.FINISHED_FIRST)
        return receipt

    @property
    def questions(self) -> tuple[Question, ...]:
        """The questions of the turn that waits for a person, also after the loop has ended. Safe in any thread."""
        asks = self._driver.state.asks
        return asks.questions if asks is not None else ()

    def answer(self, id: str, value: Any) -> None:  # Any: the person's answer
        """Answer one of `questions`. Safe from any thread; before the start it is kept for a turn that continues.

        An answer that meets a stop is not used: the turn is kept with its question.
        """
        if self._task is not None:
            asks = self._driver.state.asks
            if asks is None or self.ended:
                raise UsageError(f"no turn waits for an answer to {id!r}")
            Resume(asks, answers={id: value})  # refuses an unknown id, or a value of the wrong kind
        self._record(Answered(id, value))

    @property
    def view(self) -> LoopView[T]:
        """The live turn, the waiting items and the failed turns at this moment. Safe from any thread."""
        state = self._driver.state
        # In this order: an item that the loop takes over meanwhile is seen twice, and recognised by its receipt.
        unheard = [entry for entry in self._driver.inbox.waiting() if isinstance(entry, Pushed)]
        turn, waiting = state.turn, [*state.buffer.snapshot(), *tuple(state.joining)]
        known = {id(item.receipt) for item in waiting if item.receipt is not None}
        new = [each for each in unheard if id(each.receipt) not in known and each.receipt.number is None]
        queue = [*values(waiting), *(each.value for each in new if not each.receipt.is_withdrawn)]
        seen = None
        if turn is not None:
            run = turn.run if turn.has_run else None
            seen = TurnView(turn.number, turn.phase, tuple(turn.consumed), run, turn.since)
        return LoopView(seen, tuple(queue), tuple(failure.failed_turn for failure in tuple(state.failures)))

    def requeue(self, failed: FailedTurn[T] | None = None) -> None:
        """Retry a failed turn, or all of them. Safe from any thread, also before the start.

        It continues from its checkpoint, unless its conversation has moved on since. While the loop ends this changes
        nothing: the turn is in `exit.failed`, and in the record for the next loop.
        """
        self._record(Decided(failed, requeue=True))

    def discard(self, failed: FailedTurn[T] | None = None) -> None:
        """Discard a failed turn, or all of them: its items leave the record. Safe from any thread.

        While the loop ends this changes nothing, as with `requeue`.
        """
        self._record(Decided(failed, requeue=False))

    def take_late_items(self) -> list[T]:
        """The items that were refused. This seals the list: a later push raises. Returns the same list each time."""
        if not self._driver.inbox.closed:
            raise UsageError("the loop accepts items, so none is late yet: call it after `await loop.wait()`")
        return self._late.take()

    def _record(self, entry: Entry[T]) -> bool:
        """Record it and wake the loop. False if the event loop is closed, so that the entry would never be read."""
        driver = self._driver
        driver.inbox.put(entry)
        event_loop = self._event_loop
        if event_loop is None or driver.inbox.finished:
            return True
        if event_loop.is_closed():
            return False
        if driver.woken:
            return True
        driver.woken = True
        return call_soon(event_loop, driver.look)

    # -- living --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve, in a task of its own. A second call does nothing."""
        if self._task is not None:
            return
        supervisor = self._driver.attach()
        self._event_loop = self._driver.hub.home = asyncio.get_running_loop()
        serving = Serving(self._driver)
        self._task = supervisor.spawn(self._driver.drive(serving.next_step), "turns", copy_context())
        self._task.add_done_callback(self._driver.task_done)

    @property
    def ended(self) -> bool:
        return self._driver.ended.is_set

    def events(self) -> LoopReader[T]:
        """The loop's events from now on: its turns, dropped items, its end. For `async for`, in the loop's thread."""
        return self._driver.hub.read()

    async def wait(self) -> ExitState[T]:
        """Wait for the end; may be called before the start. It never raises `exit.error`.

        Cancellation: only the waiting ends; leaving the loop's block is what stops the loop.
        """
        if self._driver.exit is None:
            refuse_inside(self, "the end of the loop")
            self._refuse_closed()
            await self._driver.ended.wait()
        return self._exit

    def wait_sync(self, timeout: float | None = None) -> ExitState[T]:
        """As `wait`, from a thread that runs no event loop. Raises TimeoutError after `timeout` seconds."""
        if self._driver.exit is None:
            refuse_inside(self, "the end of the loop")
            refuse_in_its_thread(self._event_loop, "loop.wait()")
            self._refuse_closed()
            if not self._driver.ended.wait_sync(timeout):
                raise TimeoutError(f"the loop has not ended within {timeout} s")
        return self._exit

    @property
    def _exit(self) -> ExitState[T]:
        assert self._driver.exit is not None
        return self._driver.exit

    def _refuse_closed(self) -> None:
        if self._event_loop is not None and self._event_loop.is_closed():
            raise UsageError("the event loop of this TurnLoop was closed before it ended: leave its block first")

    # -- the block -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> TurnLoop[T]:
        """Start the loop. Never waits. Cancellation: leaving the block is what stops the loop."""
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until all pushed items are handled, stop, and raise `exit.error`; after an exception, stop NOW.

        An earlier stop takes precedence. A turn that waits for a person ends the loop.
        Cancellation: stops NOW, waits until the record is saved, within limits, and is then raised again.
        """
        assert self._task is not None
        if error is not None:
            self._stop_now(f"its block was left by {type(error).__name__}")
            await outlast(self._task)
            return
        if not self._stop_asked:
            self._record(StopAsked(None, StopReceipt(self), idle_for=0))
        await outlive(self._task, lambda: self._stop_now("its caller was cancelled"))
        if self._exit.error is not None:
            raise self._exit.error

    def _stop_now(self, why: str) -> None:
        now, wall = self._driver.clock.now(), self._driver.clock.wall()
        reason = Reason(why, Source.CALLER)
        ask = make_ask(SafePoint.NOW, within=None, recursive=True, reason=reason, now=now, wall=wall)
        self._record(StopAsked(ask, StopReceipt(self), cause=why))

    def __repr__(self) -> str:
        if "_stop_asked" not in vars(self):
            return "<TurnLoop, not made: its arguments were refused>"
        state = "new" if self._task is None else "ended" if self.ended else str(self._driver.stops.state)
        return f"<TurnLoop {state}, {len(self._driver.state.buffer)} items wait>"


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{option}={value!r}: write {' or '.join(map(repr, choices))}")


def _check_store(store: object, checkpoint_id: str | None, **needing_it: object) -> None:
    if (store is None) != (checkpoint_id is None):
        raise ValueError("store=… and checkpoint_id=… go together: the id names this loop's record in the store")
    if store is not None and not isinstance(store, TurnStore):
        raise ValueError(f"{store!r} is no store for a loop: it needs load, save and delete")
    if checkpoint_id is not None and not checkpoint_id:
        raise ValueError("checkpoint_id='' names no record: write a name for this loop")
    idle = next((name for name, given in needing_it.items() if given is not None), None)
    if store is None and idle is not None:
        raise ValueError(f"{idle}=… without a store is never used: write store=… and checkpoint_id=…, or leave it out")
