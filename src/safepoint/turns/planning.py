"""From waiting items to a plan that can be carried out: which items, which options, anew or from a checkpoint.

The plan is the user's own; this module makes sure that a message is said once. A stopped turn continues with the
options of its plan. A preempted turn whose items wait again continues if the plan wants exactly these items, and is
removed from the conversation if the plan wants others.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

from safepoint.agent.checkpoint import Checkpoint
from safepoint.sessions.session import Session
from safepoint.turns.continuing import (
    AlreadyOver,
    Anew,
    GoOn,
    NextStep,
    Unfinished,
    joined_already,
    next_step,
    remaining_effects,
    with_effects,
)
from safepoint.turns.driver import Driver
from safepoint.turns.events import ItemsDropped, TurnEnded
from safepoint.turns.items import Item, ItemsView, in_order, values
from safepoint.turns.plan import Plan, ResumePlan, session_of
from safepoint.turns.state import NO_ITEM, Division, Opening
from safepoint.turns.turn import TurnOutcome

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ready(Generic[T]):
    """A plan that can be carried out. `left`: the data of its turn. `checkpoint`: where it continues, if it does.

    `replaces`: a turn that is not over and has said nothing that counts. `taken_back`: a turn whose messages are
    removed from the conversation first.
    """

    plan: Plan[T] | ResumePlan[T]
    division: Division[T]
    left: Unfinished[T]
    checkpoint: Checkpoint | None = None
    replaces: Unfinished[T] | None = None
    taken_back: Unfinished[T] | None = None


class Planner(Generic[T]):
    """Calls the planning callbacks of a driver."""

    def __init__(self, driver: Driver[T]) -> None:
        self._driver = driver
        self._state = driver.state
        self._config = driver.config

    async def plan(self, opening: Opening[T]) -> Ready[T] | None:
        """Plan the next turn; None if there is none, and then everything about that is settled.

        Cancellation: as in `Driver.wait`, here and below.
        """
        if opening.unfinished is None:
            return await self._plan_queue(opening)
        left = opening.unfinished
        if self._config.plan_resume is not None and left.checkpoint is not None and left.plan is None:
            return await self._plan_resumed(opening, left)
        return await self._plan_again(opening, left)

    # -- what waits ----------------------------------------------------------------------------------------------------

    async def _plan_queue(self, opening: Opening[T]) -> Ready[T] | None:
        self._state.buffer.fresh = False
        while True:
            view = self._state.buffer.view(opening.last)
            if not len(view):
                self._wait_for_more(opening, Division([], [], []))
                return None
            plan = await self._asked(opening, view)
            division = self._state.divide(plan, opening.last)
            if division is not None:
                break
            self._driver.look()
            self._state.purge_withdrawn()  # an item was withdrawn during planning: plan again without it
        if isinstance(plan, Plan) and plan.input is None:
            self._wait_for_more(opening, division)
            return None
        said = self._state.said
        if isinstance(plan, ResumePlan):
            return self._resumption(plan, division, said)
        if said is None:
            return Ready(plan, division, self._new(plan, division))
        if set(map(id, division.consumed)) != set(map(id, said.items)):
            return Ready(plan, division, self._new(plan, division), taken_back=said)
        return self._continued(opening, said, plan, next_step(said, plan.session, plan.history), division)

    async def _asked(self, opening: Opening[T], items: ItemsView[T]) -> Plan[T] | ResumePlan[T]:
        plan: Any = await self._driver.call("plan", self._config.plan, opening.ctx, items)  # Any: untyped callers
        if not isinstance(plan, Plan | ResumePlan):
            raise TypeError(f"plan returned {plan!r}: return Plan(…)")
        return cast("Plan[T] | ResumePlan[T]", plan)

    def _resumption(self, plan: ResumePlan[T], division: Division[T], said: Unfinished[T] | None) -> Ready[T]:
        """The plan continues from a checkpoint: that of a session, or of the turn whose items wait again."""
        if said is not None and said.checkpoint is not None and _is_of(plan, said.checkpoint):
            made = plan.completed(said.plan)
            step = next_step(said, session_of(made), ())
            checkpoint = step.checkpoint if isinstance(step, GoOn) else said.checkpoint
            return Ready(made, division, said, checkpoint)
        if plan.checkpoint is None:
            raise TypeError("plan returned ResumePlan(…) and no turn was stopped: write checkpoint=session.checkpoint")
        made = plan.completed(None)
        return Ready(made, division, self._new(made, division), plan.checkpoint, taken_back=said)

    def _wait_for_more(self, opening: Opening[T], division: Division[T]) -> None:
        self._state.wait_for_more(opening, division)
        if division.dropped:
            self._driver.hub.emit(ItemsDropped(opening.turn.number, tuple(values(division.dropped))))

    # -- a turn that is not over ---------------------------------------------------------------------------------------

    async def _plan_again(self, opening: Opening[T], left: Unfinished[T]) -> Ready[T] | None:
        """The plan that made the turn also resumes it: it gets the items of that turn and no others."""
        plan = left.plan
        if plan is None:
            plan = await self._asked(opening, _view_of(left.items))
        history = plan.history if isinstance(plan, Plan) else ()
        step = next_step(left, session_of(plan), history)
        if isinstance(step, Anew) and isinstance(plan, ResumePlan):
            raise TypeError(f"plan returned {plan!r} for a turn that left no checkpoint: return Plan(…)")
        whole = Division(list(left.items), [], [])
        if isinstance(step, Anew) and left.plan is None:
            divided = self._state.divide(plan, NO_ITEM, left.items)
            assert divided is not None, "its items can't be withdrawn"
            whole = divided
        if isinstance(plan, Plan) and plan.input is None and isinstance(step, Anew):
            self._state.buffer.put_back([item for item in left.items if item not in whole.dropped])
            self._wait_for_more(opening, whole)
            return None
        return self._continued(opening, left, plan, step, whole)

    async def _plan_resumed(self, opening: Opening[T], left: Unfinished[T]) -> Ready[T] | None:
        """The user's `plan_resume` decides, and sees everything."""
        assert self._config.plan_resume is not None
        self._state.buffer.fresh = False
        while True:
            waiting = self._state.buffer.up_to(opening.last)
            unhandled = values(item for item in waiting if item.number <= 0)
            new = values(item for item in waiting if item.number > 0)
            lists = (values(left.items), unhandled, new)
            planned: Any = await self._driver.call("plan_resume", self._config.plan_resume, opening.ctx, *lists)
            if not isinstance(planned, Plan | ResumePlan):
                raise TypeError(f"plan_resume returned {planned!r}: return ResumePlan(…) or Plan(…)")
            plan = cast("Plan[T] | ResumePlan[T]", planned)
            division = self._state.divide(plan, opening.last, left.items)
            if division is not None:
                break
            self._driver.look()
            self._state.purge_withdrawn()
        if isinstance(plan, Plan):
            if plan.input is None:
                self._state.buffer.put_back([item for item in division.remaining if item in left.items])
                self._wait_for_more(opening, division)
                return None
            return self._continued(opening, left, plan, Anew(), division)
        made = plan
        if not made.is_complete:
            view = _view_of(left.items)
            made = made.completed(await self._asked(opening, view))
        step = GoOn(made.checkpoint) if made.checkpoint is not None else next_step(left, session_of(made), ())
        return self._continued(opening, left, made, step, division)

    def _continued(
        self,
        opening: Opening[T],
        left: Unfinished[T],
        plan: Plan[T] | ResumePlan[T],
        step: NextStep,
        division: Division[T],
    ) -> Ready[T] | None:
        joined = joined_already(left, session_of(plan)) if left.joining and not isinstance(step, Anew) else []
        match step:
            case AlreadyOver():
                self._tell_over(opening, left, joined)
                return None
            case GoOn(checkpoint):
                made = plan.continued() if isinstance(plan, Plan) else plan.completed(None)
                whole = replace(division, consumed=in_order([*division.consumed, *joined]))
                return Ready(made, whole, left, checkpoint)
            case Anew():
                fresh = self._new(plan, division)
                fresh.attempt = left.attempt
                return Ready(plan, division, fresh, replaces=left)

    def _tell_over(self, opening: Opening[T], left: Unfinished[T], joined: list[Item[T]]) -> None:
        if left is self._state.said:
            self._state.said = None
            self._state.buffer.remove(left.items)
            self._state.unfinished.append(left)
        done = self._state.already_over(opening, left, joined)
        self._driver.hub.emit(TurnEnded(opening.turn.number, TurnOutcome.ENDED, tuple(values(done))))

    def _new(self, plan: Plan[T] | ResumePlan[T], division: Division[T]) -> Unfinished[T]:
        return Unfinished(f"turn_{uuid.uuid4().hex}", division.consumed, plan=plan, session=session_of(plan))

    # -- taking back ---------------------------------------------------------------------------------------------------

    async def take_back(self, ready: Ready[T]) -> Ready[T]:
        """Remove the turn whose items wait again from the conversation, before they are said anew.

        The new message reports the effects of its calls, which remain.
        """
        left = ready.taken_back
        if left is None:
            return ready
        effects = remaining_effects(left)
        session = left.session
        if isinstance(session, Session) and left.runs:
            await self._driver.call("rewind", lambda: session.rewind(turn=left.runs[-1]))
        self._state.take_back(left, ready.division.consumed)
        self._driver.journal.touch()
        if isinstance(ready.plan, ResumePlan) or ready.plan.input is None:
            return ready
        return replace(ready, plan=replace(ready.plan, input=with_effects(ready.plan.input, effects)))


def _view_of(items: list[Item[T]]) -> ItemsView[T]:
    return ItemsView(list(items), items[-1].number if items else NO_ITEM)


def _is_of(plan: ResumePlan[T], checkpoint: Checkpoint) -> bool:
    return plan.checkpoint is None or plan.checkpoint.id == checkpoint.id
