"""The run of a composite: ask the plan, run the children it names, ask again.

    Begin ──▶ Plan ──children──▶ RunGroup ─all have ended──┐
               ▲ └──an answer──▶ Finalize ──▶ Close        │
               └───────────────────────────────────────────┘   Close from any step, once the node is to stop

Whenever one child has ended and another would start, the composite stands between its children: a safe point for every
request. Its conversation is its prompt and its answer; the children have conversations of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from safepoint._core.points import BETWEEN, Level
from safepoint._core.reasons import Reason
from safepoint._core.work import Failed, Returned, Work
from safepoint.agent.base_driver import BaseDriver, Frame
from safepoint.agent.journal import Fact
from safepoint.agent.open_calls import OpenCalls
from safepoint.agent.preview import CancelQuery, Preview, longest
from safepoint.agent.preview import joined as joined_previews
from safepoint.agent.result import NO_VALUE, StopReason
from safepoint.agent.resume import Resume
from safepoint.agent.run_context import RunContext
from safepoint.agent.steering import joined
from safepoint.agent.steps import Close, Finalize
from safepoint.compose.child_run import ChildRun
from safepoint.compose.children import ChildGroup, Children
from safepoint.compose.plan import Answer, EndAs, Move, Progress, RunChildren
from safepoint.errors import SafepointError
from safepoint.history.closing import Draft
from safepoint.history.parts import Message, Text
from safepoint.history.wellformed import well_formed

if TYPE_CHECKING:
    from safepoint.compose.composite import Composite


@dataclass(frozen=True, slots=True)
class Plan:
    """Ask the plan what to do next."""


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Run these children."""

    group: ChildGroup


OwnStep: TypeAlias = Plan | RunGroup
Step: TypeAlias = OwnStep | Frame


class CompositeDriver(BaseDriver[OwnStep]):
    """Drives one run of a composite."""

    def __init__(self, agent: Composite[Any, Any], record: RunContext, resume: Resume | None) -> None:  # Any: every one
        super().__init__(record, resume)
        self._agent = agent
        self._group: ChildGroup | None = None
        self._children = Children(agent, record, resume)
        self._answer: object = NO_VALUE
        self._draft: Draft | None = None
        self.runner.push_more = self._push
        if resume is not None:
            self._restore(resume)

    def _restore(self, resume: Resume) -> None:
        """Set the driver to the state of the checkpoint."""
        record, checkpoint = self._record, resume.checkpoint
        record.steps_done, record.spent_before = checkpoint.step, checkpoint.spent
        amendment = resume.amendment()
        for message in (*checkpoint.pending, *((amendment,) if amendment is not None else ())):
            record.amendments.append(record.steering.add(message))
        if record.meter is not None:
            record.meter.carry(checkpoint.used, self._children.calls_made())

    def _carried(self) -> Iterable[Fact]:
        """Record the answers of children that finished earlier, so that they also survive a crash of this run."""
        return self._children.facts_before()

    def _push(self, level: Level) -> None:
        if self._group is not None:
            self._group.push(force=level is Level.FORCE)

    def _first(self) -> Step:
        return Plan()

    async def _act(self, step: OwnStep) -> Step:
        match step:
            case Plan():
                return await self._plan()
            case RunGroup(group):
                while True:
                    while not group.advance():
                        await self.runner.wait()
                    if not self._record.held_back:
                        return self._after_group(group)
                    await self.runner.stand(*self._record.held_back)
            case _:
                assert_never(step)

    # -- the plan ------------------------------------------------------------------------------------------------------

    async def _plan(self) -> Step:
        progress = Progress(tuple(self._record.messages), self._children.ended())
        outcome = await self.runner.perform(partial(_asked, self._agent, progress), "plan")
        if isinstance(outcome, Returned):
            if isinstance(outcome.value, RunChildren) and self._children.has_moved:
                await self.runner.stand(BETWEEN)
            return self._moved(outcome.value)
        if self._node.check_stop() is not None:
            return Close(StopReason.CANCELLED)
        error = outcome.error if isinstance(outcome, Failed) else None
        return self._fail(error or SafepointError(f"the plan of {self._agent.name!r} could not be asked"), None)

    def _moved(self, move: Move) -> Step:
        """Carry out the plan's move. The answer is recorded without an await in between."""
        match move:
            case RunChildren(children, limit, stop_others):
                if self._children.has_moved and self._record.check_safe_point(BETWEEN) is not None:
                    return Close(StopReason.CANCELLED)
                runs = [self._children.run_of(child) for child in children]
                if any(run.asks for run in runs):
                    return Close(StopReason.INTERRUPTED if self._node.pause() is None else StopReason.CANCELLED)
                self._group = ChildGroup(self._record, runs, limit, stop_others=stop_others)
                return RunGroup(self._group)
            case Answer():
                if self._node.answer() is not None:
                    return Close(StopReason.CANCELLED)  # nothing is lost: the children's answers make it again
                self._say(move)
                return Finalize(StopReason.END_TURN)
            case EndAs(stop_reason, text):
                self._draft = Draft(text) if text else None
                return Close(stop_reason if self._node.answer() is None else StopReason.CANCELLED)
            case _:
                assert_never(move)

    def _say(self, answer: Answer) -> None:
        said = Message("assistant", (Text(well_formed(answer.text)),))
        self._record.messages[:] = answer.messages if answer.messages is not None else [*self._asked(), said]
        self._answer = answer.value

    # -- after the children --------------------------------------------------------------------------------------------

    def _after_group(self, group: ChildGroup) -> Step:
        self._children.has_moved = True
        if self._node.stop is not None:
            return Close(StopReason.CANCELLED)
        if self._record.broken is not None:
            return self._fail(self._record.broken, None)
        failed = group.failed
        if failed is not None:
            return self._fail(failed.error, None)
        if any(child.waits for child in group.children):
            return Close(StopReason.INTERRUPTED if self._node.pause() is None else StopReason.CANCELLED)
        stopped = [child for child in group.children if child.stopped]
        if any(child.was_asked_by_composite for child in stopped):
            self._node.check_safe_point(BETWEEN)
        elif stopped and not self._may_go_on(group):
            self._stop_with(stopped[0])
        if self._node.stop is not None or self._node.check_stop() is not None:
            return Close(StopReason.CANCELLED)
        self._group = None
        return Plan()

    def _may_go_on(self, group: ChildGroup) -> bool:
        """A child was stopped alone. Whether there is anything left to answer with."""
        return self._agent.goes_on_without and not all(child.stopped for child in group.children)

    def _stop_with(self, child: ChildRun) -> None:
        """A child was stopped alone and the composite cannot continue without it: it stops for the same reason."""
        assert child.result is not None
        assert child.result.cancellation is not None
        why = child.result.cancellation.reason
        text = f"its child {child.child.key!r} was stopped{f': {why.text}' if why.text else ''}"
        self._node.cancel(reason=Reason(text, why.source, why.by))
        self._node.check_stop()

    # -- what is left --------------------------------------------------------------------------------------------------

    def _asked(self) -> list[Message]:
        """The composite's input: its prompt, and the messages added while its children ran."""
        return joined(self._record.messages, self._record.steering.joined_messages())

    def _remains(self, reason: str | None) -> OpenCalls:
        if self._answer is NO_VALUE:
            self._record.messages[:] = self._asked()
        return self._children.remains(self._draft)

    def _value(self, text: str) -> object:
        return self._answer

    def preview(self, query: CancelQuery) -> Preview:
        """At a safe point running children continue, and queued ones never start."""
        children = self._group.children if self._group is not None else []
        of_works = Preview(seconds=longest(work.stops_within(query.now, force=query.force) for work in super().works()))
        return joined_previews([of_works, *(child.preview(query) for child in children)])

    def make_room(self) -> None:
        """As for every run; the message may be for any child that runs."""
        for child in self._group.children if self._group is not None else ():
            if child.running and child.run is not None:
                child.run.make_room()

    def works(self) -> Iterator[Work[object]]:
        yield from super().works()
        for child in self._group.children if self._group is not None else ():
            if child.work is not None and child.running:
                yield child.work


async def _asked(agent: Composite[Any, Any], progress: Progress) -> Move:  # Any: every composite
    """Ask the plan, which may call the user's own functions."""
    return agent.plan(progress)
