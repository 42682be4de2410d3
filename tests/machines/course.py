"""The course of one run as the contract allows it: it hears every event and objects to those that may not be.

Nothing here asks the runtime what it decided. From the asks, and from what came through the gates, it works out itself
whether the run stops at each place, which calls may start, what each call's entry must say, and how the run must end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from safepoint import Message, StopReason, Usage
from safepoint.agent.events import (
    Event,
    HookFailed,
    ModelCallEnded,
    ModelCallStarted,
    RetryScheduled,
    RunEnded,
    RunStarted,
    ToolCallEnded,
    ToolCallStarted,
)
from safepoint.agent.ledger import LedgerEntry
from safepoint.errors import AskPerson, ModelError, ModelUnavailable, StopTool
from safepoint.history.states import LedgerState
from tests.machines.gates import (
    COUNTED_IN,
    COUNTED_OUT,
    FINISH_GRACE,
    LADDER,
    MILD,
    Gate,
    ModelGate,
    ToolGate,
    UndoGate,
    Wanted,
)
from tests.machines.reference import Kind, Party, Push, Reference

CANCELLED_STATES = frozenset({LedgerState.CUT, LedgerState.STOPPED, LedgerState.COMPENSATED, LedgerState.NOT_STARTED})

Plain: TypeAlias = tuple[object, ...]
"""A message without its notices, as something that can be compared."""


class Stage(StrEnum):
    """How far the run is."""

    NEW = "new"
    BEFORE = "before"
    CALLING = "calling the model"
    BACK_OFF = "backing off"
    TOOLS = "running tools"
    BETWEEN = "between two models"
    BATCH_OVER = "between two steps"
    AFTER = "after the answer"
    CLOSING = "closing"
    OVER = "over"


class Turn(StrEnum):
    """How far one call is. REFUSED: it could not even be tried, as nobody knows the tool."""

    QUEUED = "queued"
    STARTED = "started"
    OVER = "over"


@dataclass(eq=False)
class Call:
    """One call of a batch."""

    id: str
    wanted: Wanted
    refused: bool
    turn: Turn = Turn.QUEUED
    entered: bool = False
    party: Party | None = None
    gate: ToolGate | None = None
    undo: UndoGate | None = None
    child: Course | None = None
    judged: bool = False
    entry: LedgerEntry | None = None

    @property
    def mild(self) -> bool:
        return self.wanted.name in MILD


@dataclass(frozen=True, slots=True)
class Setting:
    """What the agent of a run was made with."""

    tools: frozenset[str]
    parallel: int | None
    retries: int
    models: int
    checked: bool


@dataclass(eq=False)
class Course:
    """One run. `complain` takes what is wrong; it never raises, because it is called from inside the runtime."""

    party: Party
    reference: Reference
    setting: Setting
    base: Sequence[Plain]
    complain: Callable[[str], None]
    runner: Stage = Stage.NEW
    said: list[Plain] = field(default_factory=list[Plain])
    gate: ModelGate | None = None
    attempt: int = 0
    model: int = 0
    hook: Gate | None = None
    calls: list[Call] = field(default_factory=list[Call])
    entries: list[LedgerEntry] = field(default_factory=list[LedgerEntry])
    draft: str = ""
    failed: bool = False
    waits: bool = False
    usage: Usage = field(default_factory=Usage)
    back_off_until: float = 0.0

    # -- every event ---------------------------------------------------------------------------------------------------

    def hear(self, event: Event) -> None:
        if self.runner is Stage.OVER:
            self.complain(f"{event} after the terminal event")
        match event:
            case RunStarted():
                self._start()
            case ModelCallStarted():
                self._call_model(event)
            case ModelCallEnded():
                self._model_ended(event)
            case RetryScheduled():
                self._back_off(event)
            case ToolCallStarted():
                self._tool_started(event)
            case ToolCallEnded():
                self._tool_ended(event)
            case RunEnded():
                self._end(event)
            case HookFailed():
                if self.hook is None:
                    self.complain(f"{event} without a hook")
            case _:
                pass  # words, rungs and announcements change nothing

    def _nothing_may_start(self, what: str, party: Party | None = None) -> None:
        push = self.reference.push(party or self.party)
        if push >= Push.NOW:
            self.complain(f"{what} started in {self.party.label} after {push.name} was recorded")

    def _expect(self, *stages: Stage) -> None:
        if self.runner not in stages:
            self.complain(f"{self.party.label} is {self.runner} and should be {' or '.join(stages)}")

    def _start(self) -> None:
        self._expect(Stage.NEW)
        self.runner = Stage.BEFORE
        if self.party.met_under >= Push.NOW:
            self.complain(f"{self.party.label} was started after {self.party.met_under.name} was recorded")

    # -- the model -----------------------------------------------------------------------------------------------------

    def _call_model(self, event: ModelCallStarted) -> None:
        self._nothing_may_start("a model call")
        self._expect(Stage.BEFORE, Stage.BETWEEN, Stage.BATCH_OVER, Stage.BACK_OFF)
        if self.party.stopped is not None:
            self.complain(f"a model call started although {self.party.label} stops at {self.party.stopped.place}")
        self.runner, self.gate = Stage.CALLING, None

    def model_called(self, gate: ModelGate) -> None:
        """The provider was really asked."""
        self._nothing_may_start("a request to the model")
        self._expect(Stage.CALLING)
        self.gate = gate

    def _model_ended(self, event: ModelCallEnded) -> None:
        self._expect(Stage.CALLING)
        gate = self.gate
        self._check_usage(event)
        if event.complete is not (gate is not None and gate.whole):
            self.complain(f"{event}: the reply was {'whole' if not event.complete else 'not whole'}")
        if event.complete and gate is not None:
            self._reply(event, gate)
        elif event.error is not None:
            self._model_failed(event.error)
        else:
            self.draft = "".join(gate.said) if gate is not None else ""
            if not self.reference.check_safe_point(self.party, None):
                self.complain(f"{self.party.label} cut its model call, and nobody had said NOW")
            self.runner = Stage.CLOSING

    def _check_usage(self, event: ModelCallEnded) -> None:
        """H7: what was counted is counted, what was cut is estimated, what was never sent costs nothing."""
        gate, usage = self.gate, event.usage
        sent = gate is not None and not (event.error is not None and gate.silent)
        counted = gate is not None and gate.finished and gate.end is not None and gate.end.counted
        if usage.model_calls != int(sent):
            self.complain(f"{usage} for {'one call' if sent else 'no call'} to the model")
        if usage.estimated is not (sent and not counted):
            self.complain(f"{usage}: estimated, though counted={counted}")
        if counted and (usage.input_tokens, usage.output_tokens) != (COUNTED_IN, COUNTED_OUT):
            self.complain(f"{usage} is not what the provider said")
        if sent and usage.input_tokens <= 0:
            self.complain(f"{usage}: the input of a call that was made costs something")

    def _reply(self, event: ModelCallEnded, gate: ModelGate) -> None:
        wanted = gate.calls
        ids = tuple((gate.call_id(index), each.name) for index, each in enumerate(wanted))
        self.said.append(("assistant", "".join(gate.said).strip() and "".join(gate.said), False, ids))
        told = event.message is not None and plain(event.message)
        if told != self.said[-1]:
            self.complain(f"the reply was {self.said[-1]} and became {told}")
        if not wanted:
            self._answer(failed=False)
            return
        self.calls = [
            Call(id, each, refused=each.name not in self.setting.tools or each.args == "invalid")
            for (id, _), each in zip(ids, wanted, strict=True)
        ]
        self.runner = Stage.TOOLS
        if not self.reference.check_safe_point(self.party, "after_model"):
            self._start_queued()

    def _model_failed(self, error: BaseException) -> None:
        gate = self.gate
        assert gate is not None, "a model that was never called cannot fail"
        self.draft = "".join(gate.said)
        if self.reference.check_safe_point(self.party, None):
            self.runner = Stage.CLOSING
        elif gate.silent and isinstance(error, ModelUnavailable) and self.attempt < self.setting.retries:
            self.attempt += 1
            self.runner = Stage.BACK_OFF
        elif gate.silent and isinstance(error, ModelError) and self.model + 1 < self.setting.models:
            self.attempt, self.model = 0, self.model + 1
            self.runner = Stage.BETWEEN
        else:
            self._answer(failed=True)

    def _back_off(self, event: RetryScheduled) -> None:
        self._nothing_may_start("a back-off")
        self._expect(Stage.BACK_OFF)
        self.back_off_until = self.reference.now + event.delay

    def _answer(self, *, failed: bool) -> None:
        self.failed = failed
        if self.reference.check_safe_point(self.party, None):
            self.failed, self.runner = False, Stage.CLOSING
        else:
            self.party.answered, self.runner = True, Stage.AFTER

    # -- tools ---------------------------------------------------------------------------------------------------------

    def _start_queued(self) -> None:
        """Which calls must start now, in their order, as long as there is room."""
        for call in self.calls:
            if call.turn is not Turn.QUEUED or not self._has_room() or not self._may_start(call):
                continue
            call.turn = Turn.OVER if call.refused else Turn.STARTED

    def _has_room(self) -> bool:
        limit = self.setting.parallel
        return limit is None or sum(call.turn is Turn.STARTED for call in self.calls) < limit

    def _may_start(self, call: Call) -> bool:
        if not self.reference.check_safe_point(self.party, None if call.mild else "before_effect"):
            return True
        stopped = self.party.stopped
        assert stopped is not None
        return stopped.place == "before_effect" and stopped.push is Push.SAFE and call.mild

    def call_of(self, call_id: str) -> Call | None:
        return next((call for call in self.calls if call.id == call_id), None)

    def _tool_started(self, event: ToolCallStarted) -> None:
        call = self.call_of(event.call.id)
        if call is None or call.turn is not Turn.STARTED or call.entered:
            self.complain(f"{event.call} started and should not have")
            return
        self._nothing_may_start(f"the call {call.wanted.name}", call.party)
        call.entered = True

    def _tool_ended(self, event: ToolCallEnded) -> None:
        call = self.call_of(event.entry.call_id)
        if call is None or call.entry is not None:
            self.complain(f"{event.entry} has no call, or ended twice")
            return
        call.entry = event.entry
        self._settle_call(call, event)
        expected = self._states(call)
        if event.entry.state not in expected:
            self.complain(f"{event.entry} should be {' or '.join(expected) or 'running on'}")
        self._check_content(call, event.entry)
        stopped = call.party is not None and call.party.stopped is not None
        if (event.cancellation is not None) is not (stopped and event.entry.state in CANCELLED_STATES):
            self.complain(f"{event.entry} has the cancellation {event.cancellation}, stopped: {stopped}")
        ran, call.turn = call.turn is Turn.STARTED, Turn.OVER
        self._call_over(call, event.entry)
        if ran:
            self._after_tool()
        elif call.refused:
            self._batch_over()

    def _settle_call(self, call: Call, event: ToolCallEnded) -> None:
        if call.party is None:
            return
        if event.entry.state in (LedgerState.NOT_STARTED, LedgerState.CUT):
            self.reference.check_safe_point(call.party, None)  # NOW was there, told or not
        if event.cancellation is not None:
            self.reference.settle(call.party, event.cancellation.level)

    def _call_over(self, call: Call, entry: LedgerEntry) -> None:
        if call.party is not None:
            call.party.over = True
            call.party.cancelled = entry.state in CANCELLED_STATES

    def _after_tool(self) -> None:
        for call in self.calls:
            self._stopped_at_point(call)
        if any(call.turn is not Turn.OVER for call in self.calls):
            self.reference.check_safe_point(self.party, "after_tool")
            self._start_queued()
        self._batch_over()

    def _stopped_at_point(self, call: Call) -> None:
        """If the run itself was asked to stop where its tool has stopped, it has come there too."""
        gate = call.gate
        if call.judged or gate is None or not gate.left or gate.abandoned_when_left:
            return
        call.judged = True
        if isinstance(gate.error, StopTool):
            self.reference.check_safe_point(self.party, f"point:{gate.error.point}")

    def _batch_over(self) -> None:
        if any(call.turn is Turn.STARTED or call.entry is None for call in self.calls):
            return
        if self._asks_a_person():
            if not self.reference.pause(self.party):
                self.waits = self.party.answered = True
                self.runner = Stage.CLOSING
            return
        if self.party.stopped is None and not self.reference.check_safe_point(self.party, "after_tool"):
            self.reference.check_safe_point(self.party, "after_tools")
        if self.party.stopped is None:
            self._close_batch()
            self.runner, self.attempt, self.model = Stage.BATCH_OVER, 0, 0

    def stopped_since(self) -> None:
        """The runtime has stopped the run. Until it calls the model again, it stands where the batch has ended."""
        if self.runner is Stage.BATCH_OVER and not self.reference.check_safe_point(self.party, "after_tool"):
            self.reference.check_safe_point(self.party, "after_tools")

    def _asks_a_person(self) -> bool:
        return any(call.entry is not None and call.entry.state is LedgerState.WAITING for call in self.calls)

    def _close_batch(self) -> None:
        entries = [call.entry for call in self.calls if call.entry is not None]
        if entries:
            self.said.append(("tool", tuple((entry.call_id, entry.name, str(entry.state)) for entry in entries)))
        self.entries += entries
        self.calls = []

    def _states(self, call: Call) -> set[LedgerState]:
        """What the ledger may say of a call that is over."""
        if call.refused and call.turn is Turn.OVER:
            return {LedgerState.FAILED}
        if call.turn is Turn.QUEUED:
            return {LedgerState.NOT_STARTED} if self.party.stopped is not None else set()
        asked = call.party is not None and self.reference.push(call.party) >= Push.NOW
        if not call.entered:
            never = {LedgerState.NOT_STARTED} if asked else set[LedgerState]()
            if call.wanted.name == "sign" and self.setting.checked:
                return never | {LedgerState.WAITING}
            return never | ({LedgerState.FAILED} if call.wanted.args == "bad" else set())
        if call.gate is not None:
            return self._states_of_tool(call, call.gate)
        abandoned = asked and call.entry is not None and call.entry.still_running
        return {LedgerState.CUT} if abandoned else self._states_of_agent(call.child)

    def _states_of_tool(self, call: Call, gate: ToolGate) -> set[LedgerState]:
        cut = {LedgerState.CUT}
        if call.undo is not None and call.undo.in_time and call.undo.error is None:
            cut = {LedgerState.COMPENSATED}
        if not gate.left or gate.abandoned_when_left:
            asked = call.party is not None and self.reference.push(call.party) >= Push.NOW
            return {LedgerState.CUT} if asked else set()
        if gate.error is None:
            return {LedgerState.FINISHED}
        if isinstance(gate.error, StopTool):
            return {LedgerState.STOPPED}
        if isinstance(gate.error, AskPerson):
            return {LedgerState.WAITING}
        if gate.told_when_left:
            return cut
        # Whoever cancels all tasks is heard of by a tool before it is heard of by the run: NOW may come a moment later.
        by_others = isinstance(gate.error, asyncio.CancelledError)
        asked = call.party is not None and self.reference.push(call.party) >= Push.NOW
        return {LedgerState.FAILED, *cut} if asked and by_others else {LedgerState.FAILED}

    def _states_of_agent(self, child: Course | None) -> set[LedgerState]:
        if child is None or child.runner is not Stage.OVER:
            return set()
        if child.party.stopped is not None:
            return {LedgerState.STOPPED}
        if child.waits:
            return {LedgerState.WAITING}
        return {LedgerState.FAILED} if child.failed else {LedgerState.FINISHED}

    def _check_content(self, call: Call, entry: LedgerEntry) -> None:
        gate = call.gate
        if entry.state is LedgerState.FINISHED and gate is not None and entry.content != gate.value:
            self.complain(f"{entry}: the tool returned {gate.value!r}")
        if entry.state is LedgerState.STOPPED and gate is not None:
            point = gate.error.point if isinstance(gate.error, StopTool) else None
            if entry.point != point:
                self.complain(f"{entry}: it stopped at {point!r}")
        if entry.still_running and (gate is not None and gate.left and not gate.abandoned_when_left):
            self.complain(f"{entry}: it is not running")
        if entry.still_running and call.party is not None and call.party.pushed is Push.NOW:
            self._check_patience(call, call.party)
        if call.undo is not None and entry.state is LedgerState.CUT:
            self._check_undo(call.undo, call.party, entry)

    def _check_patience(self, call: Call, party: Party) -> None:
        """Who does not stop after NOW is abandoned, and no sooner than its ladder says."""
        least = LADDER.cap if party.kind is Kind.AGENT else LADDER.task
        least += FINISH_GRACE if call.wanted.name == "save" else 0.0
        waited = self.reference.now - party.pushed_at
        if waited < least:
            self.complain(f"{call.id} of {call.wanted.name} was abandoned after {waited} s")

    def _check_undo(self, undo: UndoGate, party: Party | None, entry: LedgerEntry) -> None:
        """A call with an undo stays `cut` only if the undo failed, or took longer than it may; its entry says so."""
        words = ("its undo failed", "its undo was cut") if undo.in_time else ("its undo did not end in time",)
        if not any(each in (entry.error or "") for each in words):
            self.complain(f"{entry}: {undo} ended with {undo.error!r}")
        forced = party is not None and party.pushed is Push.FORCE
        if not undo.in_time and not forced and self.reference.now < undo.begun_at + LADDER.undo + LADDER.task:
            self.complain(f"{entry}: the undo was abandoned after {self.reference.now - undo.begun_at} s")

    # -- the end -------------------------------------------------------------------------------------------------------

    def _end(self, event: RunEnded) -> None:
        if self.runner is not Stage.AFTER:
            self.reference.check_safe_point(self.party, None)
        stopped, told = self.party.stopped, event.cancellation
        if stopped is not None and told is not None:
            self.reference.settle(self.party, told.level)
            # The last calls may have ended all at once; then the run came to the person before it came to `after_tool`.
            if self._asks_a_person() and told.place == stopped.fold.first_place:
                stopped.place = told.place
        stopped = self.party.stopped
        if stopped is not None:
            expected = StopReason.CANCELLED
        elif self.failed:
            expected = StopReason.ERROR
        elif self.waits:
            expected = StopReason.INTERRUPTED
        else:
            expected = StopReason.END_TURN
            self._expect(Stage.AFTER)
        if event.stop_reason != expected:
            self.complain(f"{self.party.label} ended with {event.stop_reason} and should with {expected}")
        self._close_batch()
        if self.draft.strip():
            self.said.append(("assistant", self.draft, True, ()))
        self.party.over, self.party.cancelled = True, stopped is not None
        self.runner = Stage.OVER
        self._check_cancellation(event)
        if event.usage != self.usage:
            self.complain(f"{event.usage} is not the sum, which is {self.usage}")
        above = self.party.parent
        if stopped is not None and above is not None and above.kind is Kind.AGENT:
            self.reference.check_safe_point(above, stopped.place)  # the sub-agent is what its call was

    def _check_cancellation(self, event: RunEnded) -> None:
        stopped, told = self.party.stopped, event.cancellation
        if (stopped is None) is not (told is None):
            self.complain(f"{event.cancellation} for {stopped}")
        if stopped is None or told is None:
            return
        said = (told.place, int(told.level), told.escalated, told.timed_out, told.reason.source)
        true = (stopped.place, int(stopped.push), stopped.escalated, stopped.timed_out, stopped.fold.headline)
        if said != true:
            self.complain(f"{self.party.label}: the cancellation says {said}, and it was {true}")


def plain(message: Message) -> Plain:
    """A message as the reference tells it."""
    match message.role:
        case "user":
            return ("user", message.text)
        case "assistant":
            calls = tuple((call.id, call.name) for call in message.tool_calls)
            incomplete = any(part.kind == "text" and part.incomplete for part in message.parts)
            return ("assistant", message.text, incomplete, calls)
        case "tool":
            results = [part for part in message.parts if part.kind == "tool_result"]
            return ("tool", tuple((part.call_id, part.name, part.state) for part in results))
