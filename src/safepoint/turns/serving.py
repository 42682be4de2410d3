"""The turns of a loop: from waiting items to an ended run and a place for each item.

`next_step`, a plain function, decides what is next. A turn is a plan, an agent and a run; none of its items leaves its
place before the run has started, so any failure until then leaves everything as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from safepoint._core.points import Level, SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.work import Cut, Failed, Work
from safepoint.agent.base import BaseAgent
from safepoint.agent.result import StopReason
from safepoint.agent.resume import Cleared, continued
from safepoint.errors import UsageError
from safepoint.turns.driver import CallbackFailed, Driver, GivenUp
from safepoint.turns.events import ItemsDropped, TurnEnded, TurnStarted
from safepoint.turns.items import values
from safepoint.turns.plan import Plan, ResumePlan, session_of
from safepoint.turns.planning import Planner, Ready
from safepoint.turns.retry import Retry, policy
from safepoint.turns.state import Opening
from safepoint.turns.turn import AnyRun, Turn, TurnOutcome, TurnPhase

T = TypeVar("T")


class Serving(Generic[T]):
    """Makes turns on a driver."""

    def __init__(self, driver: Driver[T]) -> None:
        self._driver = driver
        self._state = driver.state
        self._config = driver.config
        self._planner = Planner(driver)

    def next_step(self) -> Coroutine[Any, Any, None] | None:
        """The next step; None when the loop is to end."""
        state, driver = self._state, self._driver
        if state.error is not None or state.paused or driver.stops.committed:
            return None
        if state.unfinished and state.unfinished[0].not_before > driver.clock.now():
            return driver.rest(state.unfinished[0].not_before)
        if state.unfinished or state.buffer.fresh:
            return self._turn()
        return driver.idle()

    async def _turn(self) -> None:
        """One turn, from its plan to its end. Cancellation: as in `Driver.wait`, here and below."""
        if not await self._driver.durable():
            return
        driver = self._driver
        opening = self._state.open_turn(driver.loop, lambda: driver.stops.cause, driver.clock.wall())
        ready: Ready[T] | None = None
        run: AnyRun | None = None
        try:
            ready = await self._planner.plan(opening)
            if ready is None:
                self._touch(opening)
                return
            agent = await self._agent(opening, ready)
            ready = await self._planner.take_back(ready)
            run = ready.plan.start(agent) if isinstance(ready.plan, Plan) else None
            if run is not None and not await self._launch(ready, run):
                raise GivenUp
        except GivenUp:
            self._give_up(opening, ready, run)
        except CallbackFailed as failed:
            self._state.fail(told_as(failed.error))
            self._give_up(opening, ready, run)
        except Exception as error:  # the plan cannot be carried out
            self._state.fail(error)
            self._give_up(opening, ready, run)
        else:
            self._adopt(opening.turn, ready)
            await self._serve(opening.turn, agent, ready, run)

    # -- planning ------------------------------------------------------------------------------------------------------

    async def _agent(self, opening: Opening[T], ready: Ready[T]) -> BaseAgent[Any, Any]:  # Any: any agent
        ctx = replace(opening.ctx, plan=ready.plan)
        agent: BaseAgent[Any, Any]  # Any: any agent
        agent = await self._driver.call("prepare", self._config.prepare, ctx, values(ready.division.consumed))
        if not isinstance(agent, BaseAgent):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise TypeError(f"prepare returned {agent!r}: return an Agent")
        return agent

    async def _launch(self, ready: Ready[T], run: AnyRun) -> bool:
        """Start the run. If a session will know it, the record names it first; False if the loop is to end instead.

        So if the process dies in between, the record has the id with which to ask the session whether it ran.
        """
        if session_of(ready.plan) is not None:
            self._state.begin_run(ready.left, ready.division.consumed, run.id)
            self._driver.journal.touch()
            if not await self._driver.durable():
                return False
        run.launch()
        return True

    def _give_up(self, opening: Opening[T], ready: Ready[T] | None, run: AnyRun | None) -> None:
        if run is not None:
            run.discard()
        if ready is not None:
            self._state.unmark(ready.left, ready.division.consumed)
        self._state.give_up(opening, ready.division if ready is not None else None)
        self._touch(opening)

    def _touch(self, opening: Opening[T]) -> None:
        """The turn did not happen."""
        self._driver.preempts.turn_over(opening.turn, planned=False)
        self._driver.journal.touch()

    def _adopt(self, turn: Turn[T], ready: Ready[T]) -> None:
        self._state.adopt(turn, ready.plan, ready.division, ready.left, ready.replaces)
        if ready.checkpoint is not None:
            ready.left.checkpoint = ready.checkpoint
        if ready.division.dropped:
            self._driver.hub.emit(ItemsDropped(turn.number, tuple(values(ready.division.dropped))))
        self._driver.journal.touch()

    # -- a turn that has begun -----------------------------------------------------------------------------------------

    async def _serve(self, turn: Turn[T], agent: BaseAgent[Any, Any], ready: Ready[T], run: AnyRun | None) -> None:
        plan = ready.plan
        goes_on = plan if isinstance(plan, ResumePlan) else plan.continued()
        error: BaseException | None = None
        while True:
            if run is not None:
                error = await self._watch(turn, run)
                if error is not None or not self._pauses(run):
                    break
                self._pause(turn, run)
            try:
                answers = await self._answers(turn, goes_on)
                if answers is None:
                    break
                assert ready.left.checkpoint is not None
                run = goes_on.start(agent, ready.left.checkpoint, answers)
                if not await self._launch(ready, run):
                    run.discard()
                    break
                # The conversation already has the message that the first continued run brought.
                goes_on = replace(goes_on, message=None)
            except Exception as refused:  # a checkpoint of another agent, a token that is cancelled
                error = refused if self._cleared(turn) is None else None  # a cancel in another thread was first
                break
        await self._settle(turn, error)

    async def _watch(self, turn: Turn[T], run: AnyRun) -> BaseException | None:
        """See a run and the callback that watches it through; return the callback's exception."""
        driver, first = self._driver, not turn.has_run
        turn.begin(run)
        driver.answers.clear()  # an answer is for the question that was asked, not for a later one with the same id
        driver.preempts.turn_began(turn)
        if first:
            driver.hub.emit(TurnStarted(turn.number, run.id, tuple(turn.consumed)))
        works: list[Work[Any]] = [driver.begin(run.join, f"turn {turn.number}")]  # Any: of any value
        if self._config.on_events is not None:
            works.append(driver.begin(partial(self._tell, turn, run), "on_events"))
        hurried = False
        while any(work.outcome is None for work in works):
            if any(self._error(work) is not None for work in works) and not run.ended:
                run.node.cancel(SafePoint.NOW, reason=Reason("a callback of the loop failed", Source.POLICY))
            if run.ended and not hurried:
                hurried = self._hurry(works[1:])
            await driver.wait()
        return next((told_as(error) for work in works if (error := self._error(work)) is not None), None)

    async def _tell(self, turn: Turn[T], run: AnyRun) -> None:
        assert self._config.on_events is not None
        outcome: Any = self._config.on_events(turn, run.events())  # Any: perhaps an awaitable
        if hasattr(outcome, "__await__"):
            await outcome

    def _error(self, work: Work[Any]) -> BaseException | None:  # Any: of any value
        """The exception that it raised by itself. A cut, or a cancellation of the whole event loop, is no error."""
        match work.outcome:
            case Failed(error):
                ended_with_all = work.name != "on_events" or self._driver.is_cancelled
                return None if ended_with_all and isinstance(error, asyncio.CancelledError) else error
            case Cut(error):
                return error
            case _:
                return None

    def _hurry(self, callbacks: list[Work[Any]]) -> bool:  # Any: of any value
        """The run has ended: if NOW stands, a callback that still runs gets a moment to finish."""
        level = self._driver.stops.level(self._driver.clock.now())
        for work in callbacks:
            if level is Level.NOW and work.outcome is None:
                work.stop_at(self._driver.clock.now() + self._config.ladder.task)
            elif level is Level.FORCE:
                work.stop(force=True)
        return level >= Level.NOW

    # -- a turn that asks a person -------------------------------------------------------------------------------------

    def _pauses(self, run: AnyRun) -> bool:
        return self._config.on_interrupt == "wait" and run.result.stop_reason is StopReason.INTERRUPTED

    def _pause(self, turn: Turn[T], run: AnyRun) -> None:
        assert run.result.checkpoint is not None
        self._state.pause(turn, run.result.checkpoint)
        self._driver.journal.touch()
        turn.pause()

    async def _answers(self, turn: Turn[T], plan: ResumePlan[T]) -> Mapping[str, Any] | None:  # Any: their own
        """The answers to all questions; None if the turn ends before they arrive, or was cancelled while it waited."""
        assert turn.left is not None
        assert turn.left.checkpoint is not None
        driver, known = self._driver, self._driver.answers
        known.update(plan.answers)
        checkpoint = turn.left.checkpoint
        wanted = [question.id for question in checkpoint.questions]
        if any(id not in known for id in wanted) and turn.phase is not TurnPhase.PAUSED:
            turn.pause()
            driver.preempts.turn_began(turn)
        with continued.watched(checkpoint.id, driver.waker()):
            # A stop or a preempt that arrives together with the last answer finds no run: the turn must not continue.
            while self._cleared(turn) is None and not (driver.stops.committed or turn.given_up):
                if all(id in known for id in wanted):
                    return {id: known[id] for id in wanted}
                if driver.stops.draining:
                    return None
                await driver.wait()
        return None

    def _cleared(self, turn: Turn[T]) -> Cleared | None:
        """What a cancel of the run that waits has made of its pause. Then no answer is used, and the turn is over."""
        if turn.left is not None and turn.left.checkpoint is not None:
            turn.cleared = continued.cleared(turn.left.checkpoint.id)
        return turn.cleared

    # -- the end of a turn ---------------------------------------------------------------------------------------------

    async def _settle(self, turn: Turn[T], error: BaseException | None) -> None:
        state, driver = self._state, self._driver
        retry_at, stops = None, True
        if state.outcome_of(turn, error) is TurnOutcome.FAILED:
            choice = await self._choice(turn)
            wait = choice.wait(turn.attempt) if isinstance(choice, Retry) else None
            # This process's plan makes the next try, with the options that it has chosen.
            retry_at, stops = None if wait is None else driver.clock.now() + wait, choice != "skip"
        outcome = state.settle(turn, error, retry_at, stops=stops)
        if state.task_cancelled and not driver.stops.committed:
            driver.stop_for_caller()
        driver.answers.clear()
        driver.preempts.turn_over(turn, planned=True)
        driver.hub.emit(TurnEnded(turn.number, outcome, tuple(turn.consumed)))
        driver.journal.touch()

    async def _choice(self, turn: Turn[T]) -> Any:  # Any: "stop", "skip" or Retry
        chosen: Any = self._config.on_turn_error  # Any: a function, or one of its values
        if not callable(chosen):
            return policy(chosen)
        try:
            return policy(await self._driver.call("on_turn_error", chosen, self._state.failed(turn)))
        except GivenUp:  # the loop stops meanwhile: the items are kept with the failed ones
            return "skip"
        except CallbackFailed as failed:
            self._state.fail(told_as(failed.error))
        except ValueError as error:  # it returned something else
            self._state.fail(error)
        return "stop"


def told_as(error: BaseException) -> BaseException:
    """The error to report: a CancelledError without a cancel must not look like a cancellation."""
    if not isinstance(error, asyncio.CancelledError):
        return error
    failure = UsageError("a callback of the loop raised CancelledError without having been cancelled")
    failure.__cause__ = error
    return failure
