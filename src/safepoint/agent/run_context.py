"""Everything about one run that is not control flow: its identity, its records so far, and how it emits events.

The driver decides and acts; it writes here. Plain functions write the facts and then emit the events, so that no
callback ever runs between a fact and its record.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from safepoint._core.endings import Stop
from safepoint._core.ladder import Ladder
from safepoint._core.orphans import Orphan
from safepoint._core.points import Condition
from safepoint._core.supervisor import Supervisor
from safepoint._core.tree import Node
from safepoint._core.wakeup import Wakeup
from safepoint._core.work import Cut, Failed, WorkResult
from safepoint.agent.budget import Budget, Meter
from safepoint.agent.checkpoint import Checkpoint, OpenCall
from safepoint.agent.event_hub import EventHub
from safepoint.agent.events import Event, EventOrigin, HookFailed
from safepoint.agent.freeze import Freeze, Gate, stop_for
from safepoint.agent.journal import Counted, Ended, Fact, Journal, Opened, Said, as_store_errors
from safepoint.agent.ledger import Ledger, LedgerEntry
from safepoint.agent.nested_journal import NestedJournal
from safepoint.agent.run_state import RunState
from safepoint.agent.session_protocol import ConversationMoved, Entered
from safepoint.agent.steering import Steering, SteerOutcome, SteerReceipt, joined
from safepoint.agent.usage import NO_USAGE, Usage
from safepoint.errors import StoreError
from safepoint.history.check import call_ids
from safepoint.history.parts import Message, common
from safepoint.history.rendering import render_error

if TYPE_CHECKING:
    from safepoint.agent.base import BaseAgent
    from safepoint.agent.run import Run

# A tuple: a union would be made anew for each piece of work.
_RAISED = (Failed, Cut)
_EventT = TypeVar("_EventT", bound=EventOrigin)


class RunContext:
    """The facts of one run."""

    # The places because of which queued calls do not start now: a hold stands there.
    held_back: tuple[str, ...] = ()
    # What the model call that a stop has cut has used.
    cut_usage: Usage | None = None
    # Of a run that goes back to an earlier step: the calls made since that are still to be undone, and all of them.
    since: tuple[LedgerEntry, ...] = ()
    taken_back: tuple[LedgerEntry, ...] = ()

    def __init__(
        self,
        run: Run[Any, Any],
        node: Node,
        hub: EventHub,
        messages: list[Message],
        steering: Steering,
        ladder: Ladder,
        budget: Budget | None = None,
    ) -> None:
        # Weak, because the run knows its context; while it lives, its node keeps it.
        self._run = weakref.ref(run)
        self.agent: BaseAgent[Any, Any] = run.agent
        self._deps = run.deps
        self.session = run.session
        self.node = node
        self.hub = hub
        self.ladder = ladder
        self.wakeup = Wakeup()
        self.ledger = Ledger()
        self.usage: Usage = NO_USAGE
        self.spent_before: Usage = NO_USAGE
        self.orphans: list[Orphan] = []
        # The state and questions of the hooks before the run and before the current model call, by the hook's name.
        self.hooked: dict[str, OpenCall] = {}
        # The switch as this run sees it, the freeze that it waits for, and the names of the model that it calls now.
        self.gate: Gate | None = None
        self.held: Freeze | None = None
        self.calling: tuple[str, ...] = ()
        # Whole messages only. A partial message lives in the driver until it is recorded here.
        self.messages = messages
        # The opening messages, in case the rest of the conversation is damaged at the end.
        self.opening = tuple(messages)
        # Where this run's part of the conversation begins.
        self.started_at = 0
        # The user's message that this run answers: the model's words after it are the run's own.
        self.answers_at = _last_of_user(messages)
        self.call_ids: set[str] | None = None
        # The current step, and how many are complete: a model call that is made again counts once.
        self.step = 0
        self.steps_done = 0
        self.steering = steering
        # The composite's run that this one is a child of, if there is one: its budget counts here too.
        self.above: RunContext | None = None
        # The run whose tool call started this one, if there is one: it pays for this run.
        self.payer: RunContext | None = None
        self._paid: set[str] = set()
        # Messages given to a resumed run, until they have joined the conversation.
        self.amendments: list[SteerReceipt] = []
        # Where facts go that must outlive the process; `unsaved` knows which messages the journal has not seen.
        self.journal: Journal | None = None
        # Where its facts go in the run around it, if it is inside one.
        self.inside: NestedJournal | None = None
        # The error of a journal: no new step may build on facts that were not saved.
        self.broken: StoreError | None = None
        self._saved = 0
        self._counted: tuple[object, ...] = ()
        # The result is being made: runs inside this one may not write any more.
        self.closed = False
        # After the terminal event no event is emitted.
        self.sealed = False
        self.supervisor = Supervisor.current()
        self.meter = Meter(self, budget) if budget is not None else None

    @property
    def run(self) -> Run[Any, Any]:
        """The handle of the run. It exists until the run's own task has ended."""
        run = self._run()
        assert run is not None, "the run has ended"
        return run

    @property
    def is_heard(self) -> bool:
        return self.hub.is_heard

    @property
    def deps(self) -> Any:  # Any: the user's own type, given back to the user's own tools
        return self._deps

    def event(self, kind: type[_EventT], **fields: Any) -> _EventT:  # Any: the event's own fields
        """An event of this run, with number and time; about the run itself unless `path` names a node of it."""
        node = self.node
        fields.setdefault("path", node.path)
        return kind(run_id=node.id, seq=self.hub.number(), time=node.clock.wall(), **fields)

    def emit(self, kind: type[Event], **fields: Any) -> None:
        if not self.sealed:
            hub, node = self.hub, self.node
            fields.setdefault("path", node.path)
            hub.emit(kind(run_id=node.id, seq=hub.number(), time=node.clock.wall(), **fields))

    def unsaved(self) -> list[Fact]:
        """The messages that the journal has not seen, as facts; they count as seen from now on."""
        new, now = range(self._saved, len(self.messages)), self.node.clock.wall()
        facts: list[Fact] = [Said(place, self.messages[place], now) for place in new]
        self._saved = len(self.messages)
        return facts

    def replace_last(self, message: Message) -> None:
        """The last message has grown: the journal has not seen the longer one."""
        self.messages[-1] = message
        self._saved = min(self._saved, len(self.messages) - 1)

    def hear(self) -> bool:
        """Take the messages that wait to join the conversation; True if there were any."""
        new = self.steering.take()
        if new:
            # The last message may have grown, and the journal has not seen the longer one.
            self._saved = min(self._saved, len(self.messages) - (self.messages[-1].role == "user"))
            self.messages[:] = joined(self.messages, new)
        return bool(new)

    def join(self, entered: Entered, *, resumed: bool) -> None:
        """Continue a stored conversation. A resumed run brings its own, which begins with the same messages."""
        self.journal, self.call_ids = entered.journal, entered.call_ids
        self.started_at = entered.index
        if not resumed:
            self.messages[:] = joined(list(entered.messages), self.messages)
            self.answers_at = _last_of_user(self.messages)
        self._saved = len(self.messages)

    @property
    def is_kept(self) -> bool:
        """Whether the run has to enter a session, its own or that of a run around it."""
        return self.session is not None or self.inside is not None

    def join_inside(self) -> bool:
        """Write to the run around this one from now on; False if there is none, or if it is not stored."""
        if self.inside is None or not self.inside.is_kept:
            return False
        self.inside.begin(self.messages)
        self.journal, self.started_at, self._saved = self.inside, self.inside.index, len(self.messages)
        return True

    def has_written(self, messages: Sequence[Message]) -> int:
        """How many messages at the start of these the journal has of this run's own conversation."""
        return common(self.messages[: self._saved], messages)

    def known_call_ids(self) -> set[str]:
        """The ids of all calls in the conversation; read once, then kept."""
        if self.call_ids is None:
            self.call_ids = call_ids(self.messages)
        return self.call_ids

    async def note(self, *facts: Fact) -> None:
        """Write facts if there is a journal. Cancellation: either all of them are written or none."""
        if self.journal is None:
            return
        try:
            with as_store_errors():
                await self.journal.write(*facts, *self._counts(*facts))
        except (asyncio.CancelledError, ConversationMoved):
            raise  # cut: the run is stopped, or the write is repeated
        except BaseException as error:
            self.broken = error if isinstance(error, StoreError) else StoreError(f"not written: {render_error(error)}")
            raise

    def _counts(self, *facts: Fact) -> list[Fact]:
        """What was used since the last write. The facts of a run's beginning and end carry that themselves."""
        pending = self.pending
        now = (self.steps_done, self.spent, pending)
        if isinstance(facts[0], Opened):
            self._counted = now
        if now == self._counted or isinstance(facts[-1], Ended):
            return []
        self._counted = now
        return [Counted(self.steps_done, self.spent, self.used(), pending)]

    def used(self) -> dict[str, float]:
        """The use of a budget beyond steps and tokens."""
        return self.meter.used() if self.meter is not None else {}

    @property
    def pending(self) -> tuple[Message, ...]:
        """Messages that were added to a resumed run and have not joined the conversation."""
        return tuple([one.message for one in self.amendments if one.outcome is not SteerOutcome.JOINED])

    def based_on(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint that this run continues, with the given messages and the current count of steps."""
        return replace(checkpoint, pending=self.pending, step=self.steps_done)

    @property
    def spent(self) -> Usage:
        """The tokens used by this run and by the runs that it continues."""
        return self.spent_before + self.usage

    def check_safe_point(self, *places: str) -> Stop | None:
        """The run stands at these places. If a request hits one of them, it stops from now on."""
        node = self.node
        if node.stop is None and not node.is_quiet:
            for place in self.standing_at(node, *places):
                node.check_safe_point(place)
        return node.stop

    def standing_at(self, node: Node, *places: str) -> tuple[str, ...]:
        """These places of that node, and with them every condition that holds there. Messages hear of it, too."""
        if node.is_quiet:
            return places
        wanted = (*node.conditions(), *self.steering.conditions())
        found = [condition for condition in dict.fromkeys(wanted) if any(self._holds(condition, at) for at in places)]
        self.steering.reach((*places, *found))
        return (*places, *found)

    def _holds(self, condition: Condition, place: str) -> bool:
        ended = [entry for entry in self.ledger if entry.ended_at is not None]
        last = max(ended, key=lambda entry: entry.ended_at or 0.0, default=None)
        cost = self.meter.used()["cost"] if self.meter is not None else 0.0
        state = RunState(place, self.steps_done, self.spent, last, len(ended), cost)
        try:
            return bool(condition.test(state))
        except Exception as error:  # who asked wants the run to stop: a broken test must not keep it going
            self.emit(HookFailed, hook=str(condition), error=error)
            return True

    def heed(self, outcome: WorkResult[Any] | None) -> None:  # Any: work of every kind
        """A KeyboardInterrupt raised by a piece of work belongs to the caller, even if the work was cut."""
        if isinstance(outcome, _RAISED) and isinstance(outcome.error, KeyboardInterrupt):
            self.run.interrupt(outcome.error)

    def obey(self, freeze: Freeze) -> None:
        """The run waits for this freeze; one that stops runs asks the run that this one is part of, once."""
        if self.held is not freeze and freeze.stops_at:
            stop_for(self.run.outermost, freeze)
        self.held = freeze

    def name_orphan(self, orphan: Orphan) -> None:
        """List work that did not stop, unless it has ended since without a result."""
        if orphan.matters:
            self.orphans.append(orphan)

    def leave(self, child: Node) -> None:
        """A run below this one used up its time and continues alone: list it; its result goes to the orphan."""
        if child.task is None:
            return  # it lives in the task of a call, which is listed itself
        orphan = Orphan(child.name, child.path, clock=child.clock, task=child.task)
        self.orphans.append(orphan)
        child.ended.when_set(lambda: orphan.returned_late(getattr(child.owner, "result", None)))

    def meters(self) -> list[Meter]:
        """The budgets that count what this run does: its own, and those of the composites that it is part of."""
        record: RunContext | None = self
        found: list[Meter] = []
        while record is not None:
            if record.meter is not None:
                found.append(record.meter)
            record = record.above
        return found

    def payers(self) -> list[Meter]:
        """The budgets that count what this run spends: `meters`, and those of the runs that it is a sub-agent of."""
        record: RunContext | None = self
        found: list[Meter] = []
        while record is not None:
            if record.meter is not None:
                found.append(record.meter)
            record = record.above or record.payer
        return found

    def count_steps(self, number: int) -> None:
        self.steps_done += number
        if self.above is not None:
            self.above.count_steps(number)

    def spend(self, usage: Usage) -> None:
        """Count the tokens as soon as they are known, here and in every run that this one is part of."""
        self.usage = self.usage + usage
        if self.payer is not None:
            self.payer._paid.add(self.node.id)
        payer = self.above or self.payer
        if payer is not None:
            payer.spend(usage)

    def pay(self, run_id: str, usage: Usage) -> None:
        """Count the tokens of a run that a tool made and returned, unless they were counted as it ran."""
        if run_id not in self._paid:
            self.spend(usage)


def _last_of_user(messages: Sequence[Message]) -> int:
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role == "user":
            return place
    return 0
