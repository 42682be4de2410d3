"""The turns of a loop: from the items that wait to a run that has ended and a place for each item.

What may be next is decided in `next_step`, a plain function. A turn is a plan, an agent and a run; nothing of what it
was given leaves its place before the run has started, so whatever goes wrong until then leaves everything as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from safepoint._core.points import Level, SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.work import Cut, Failed, Work
from safepoint.agent.base import BaseAgent
from safepoint.agent.result import StopReason
from safepoint.errors import UsageError
from safepoint.turns.driver import CallbackFailed, Driver, GivenUp
from safepoint.turns.events import ItemsDropped, TurnEnded, TurnStarted
from safepoint.turns.items import values
from safepoint.turns.plan import Plan, PlanContext, ResumePlan
from safepoint.turns.state import Division, divide
from safepoint.turns.turn import AnyRun, Turn, TurnPhase

T = TypeVar("T")


class Serving(Generic[T]):
    """Makes turns on a driver."""

    def __init__(self, driver: Driver[T]) -> None:
        self._driver = driver
        self._state = driver.state
        self._config = driver.config

    def next_step(self) -> Coroutine[Any, Any, None] | None:
        """What to do now; None when the loop is to end."""
        state, driver = self._state, self._driver
        if state.error is not None or state.paused or driver.stops.committed:
            return None
        if state.pending is not None or state.buffer.fresh:
            return self._turn()
        return driver.idle()

    async def _turn(self) -> None:
        """One turn, from its plan to its end. Cancellation: as in `Driver.wait`, here and below."""
        if not await self._driver.durable():
            return
        turn, ctx = self._state.open_turn(self._driver.loop, lambda: self._driver.stops.cause)
        try:
            plan, division = await self._plan(turn, ctx)
            if isinstance(plan, Plan) and plan.input is None:
                self._wait_for_more(turn, division)
                return
            agent = await self._agent(ctx, division)
            run = plan.start(agent) if isinstance(plan, Plan) else None
            if run is not None:
                run.launch()
        except GivenUp:
            self._put_back(turn)
        except CallbackFailed as failed:
            self._state.fail(_told(failed.error))
            self._put_back(turn)
        except Exception as error:  # what the plan said can't be carried out
            self._state.fail(error)
            self._put_back(turn)
        else:
            self._adopt(turn, plan, division)
            await self._serve(turn, agent, plan, run)

    # -- planning ------------------------------------------------------------------------------------------------------

    async def _plan(self, turn: Turn[T], ctx: PlanContext[T]) -> tuple[Plan[T] | ResumePlan[T], Division[T]]:
        pending, call = self._state.pending, self._driver.call
        plan: Plan[T] | ResumePlan[T]
        if pending is None:
            plan = await call("plan", self._config.plan, ctx, values(turn.items))
            if not isinstance(plan, Plan):
                raise TypeError(f"plan returned {plan!r}: return Plan(…)")
        else:
            lists = (values(pending.interrupted), values(pending.unhandled), values(turn.items))
            plan = await call("plan_resume", self._config.plan_resume, ctx, *lists)
            if not isinstance(plan, Plan | ResumePlan):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
                raise TypeError(f"plan_resume returned {plan!r}: return ResumePlan(…) or Plan(…)")
        return plan, divide(plan, self._state.given(turn))

    async def _agent(self, ctx: PlanContext[T], division: Division[T]) -> BaseAgent[Any, Any]:  # Any: any agent
        agent: BaseAgent[Any, Any]  # Any: any agent
        agent = await self._driver.call("prepare", self._config.prepare, ctx, values(division.consumed))
        if not isinstance(agent, BaseAgent):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise TypeError(f"prepare returned {agent!r}: return an Agent")
        return agent

    def _put_back(self, turn: Turn[T]) -> None:
        self._state.put_back(turn)
        self._driver.preempts.turn_over(turn, planned=False)

    def _wait_for_more(self, turn: Turn[T], division: Division[T]) -> None:
        self._state.wait_for_more(turn, division)
        self._driver.preempts.turn_over(turn, planned=False)
        self._drop(turn, division)

    def _adopt(self, turn: Turn[T], plan: Plan[T] | ResumePlan[T], division: Division[T]) -> None:
        self._state.adopt(turn, plan, division)
        self._drop(turn, division)

    def _drop(self, turn: Turn[T], division: Division[T]) -> None:
        if division.dropped:
            self._driver.hub.emit(ItemsDropped(turn.number, tuple(values(division.dropped))))
        self._driver.journal.touch()

    # -- a turn that has begun -----------------------------------------------------------------------------------------

    async def _serve(
        self, turn: Turn[T], agent: BaseAgent[Any, Any], plan: Plan[T] | ResumePlan[T], run: AnyRun | None
    ) -> None:  # Any: as above
        continued = plan if isinstance(plan, ResumePlan) else plan.continued()
        error: BaseException | None = None
        while True:
            if run is not None:
                error = await self._watch(turn, run)
                if error is not None or not self._pauses(run):
                    break
                self._pause(turn, run)
            try:
                answers = await self._answers(turn, continued)
                if answers is None:
                    break
                assert self._state.pending is not None
                run = continued.start(agent, self._state.pending.checkpoint, answers)
                run.launch()
            except Exception as refused:  # a checkpoint of another agent, a token that is cancelled
                error = refused
                break
        self._settle(turn, error)

    async def _watch(self, turn: Turn[T], run: AnyRun) -> BaseException | None:
        """See a run through, and the callback that watches it; what the callback raised."""
        driver, first = self._driver, not turn.has_run
        turn.begin(run)
        driver.answers.clear()  # an answer is for the question that was asked, and for no later one of the same name
        driver.preempts.turn_began(turn)
        if first:
            driver.hub.emit(TurnStarted(turn.number, run.id, tuple(turn.consumed)))
        works: list[Work[Any]] = [driver.begin(run.join, f"turn {turn.number}")]  # Any: of any value
        if self._config.on_events is not None:
            works.append(driver.begin(partial(self._tell, turn, run), "on_events"))
        hurried = False
        while any(work.outcome is None for work in works):
            if any(_error(work) is not None for work in works) and not run.ended:
                run.node.cancel(SafePoint.NOW, reason=Reason("a callback of the loop failed", Source.POLICY))
            if run.ended and not hurried:
                hurried = self._hurry(works[1:])
            await driver.wait()
        return next((_told(error) for work in works if (error := _error(work)) is not None), None)

    async def _tell(self, turn: Turn[T], run: AnyRun) -> None:
        assert self._config.on_events is not None
        told: Any = self._config.on_events(turn, run.events())  # Any: perhaps an awaitable
        if hasattr(told, "__await__"):
            await told

    def _hurry(self, callbacks: list[Work[Any]]) -> bool:  # Any: of any value
        """The run has ended: where NOW stands, a callback that goes on gets a moment to finish, and no longer."""
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
        """The answers to all questions; None if the turn ends before they have come."""
        assert self._state.pending is not None
        driver, known = self._driver, self._driver.answers
        known.update(plan.answers)
        wanted = [question.id for question in self._state.pending.checkpoint.questions]
        if any(id not in known for id in wanted) and turn.phase is not TurnPhase.PAUSED:
            turn.pause()
            driver.preempts.turn_began(turn)
        # A stop or a preempt that was heard together with the last answer finds no run to ask: the turn must not go on.
        while not (driver.stops.committed or turn.given_up):
            if all(id in known for id in wanted):
                return {id: known[id] for id in wanted}
            await driver.wait()
        return None

    # -- the end of a turn ---------------------------------------------------------------------------------------------

    def _settle(self, turn: Turn[T], error: BaseException | None) -> None:
        outcome = self._state.settle(turn, error)
        self._driver.answers.clear()
        self._driver.preempts.turn_over(turn, planned=True)
        self._driver.hub.emit(TurnEnded(turn.number, outcome, tuple(turn.consumed)))
        self._driver.journal.touch()


def _error(work: Work[Any]) -> BaseException | None:  # Any: of any value
    """What it raised by itself. That it was cut, or cancelled with the whole event loop, is no error."""
    match work.outcome:
        case Failed(error) if not (work.name != "on_events" and isinstance(error, asyncio.CancelledError)):
            return error
        case Cut(error):
            return error
        case _:
            return None


def _told(error: BaseException) -> BaseException:
    """As it is told: a CancelledError that nobody asked for must not be taken for a cancellation."""
    if not isinstance(error, asyncio.CancelledError):
        return error
    told = UsageError("a callback of the loop raised CancelledError, and nobody had cancelled it")
    told.__cause__ = error
    return told
