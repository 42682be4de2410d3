"""The oracles: what must be true of every run that a scenario started, however it was stopped.

A valid conversation; one terminal event, last; every start with its end; no call left `running`; no live node below
it; every ask with an outcome; every model stream closed. And up to its last step, a cancelled run has said exactly
what the same run says when it is not stopped.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any, TypeAlias, cast

from safepoint._core.receipts import Receipt
from safepoint.agent.agent import Agent
from safepoint.agent.event_hub import EventReader
from safepoint.agent.events import (
    ModelCallEnded,
    ModelCallStarted,
    RunEnded,
    RunStarted,
    ToolCallEnded,
    ToolCallStarted,
)
from safepoint.agent.live import watch_runs
from safepoint.agent.model_call import receive
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.run import Run
from safepoint.agent.tool_execution import ToolExecution
from safepoint.errors import HistoryError, InternalError
from safepoint.history.check import check_history
from safepoint.history.parts import Message
from safepoint.history.states import LedgerState
from safepoint.sessions.session import Session
from safepoint.testing.frames import Owner, Place, timed_by
from safepoint.testing.subject import Seam

# The seams to the outside: the waits that a fault can strike.
#
# | seam   | the task waits                                                                             |
# |--------|--------------------------------------------------------------------------------------------|
# | model  | in a model's own stream, from connecting to closing                                        |
# | tool   | in an async tool's own code; nothing can be thrown into a thread                           |
# | store  | in a store, on behalf of a session                                                         |
# | reader | for the next event of a run, or, having read some, in its own code: sending it on, perhaps |
#
# A seam shows in the chain of awaits: directly below the runtime's own frame stands a frame of foreign code. A wait in
# the runtime itself is no seam and is not made to fail.


def _code(function: object) -> CodeType:
    return cast(FunctionType, function).__code__


def _file(function: object) -> str:
    return os.path.abspath(_code(function).co_filename)


_MODEL_CALL = _file(receive)
_SESSION = _file(Session.write)
_STORES = os.path.dirname(_SESSION) + os.sep
_TOOL_CALL = _file(ToolExecution.harvest), f"{ToolExecution.__qualname__}._perform"
_NEXT_EVENT = _file(EventReader.put), _code(EventReader.__anext__).co_qualname


class Seams:
    """The seams of one run of a scenario; it remembers which tasks read events."""

    def __init__(self) -> None:
        self._readers: set[str] = set()

    def at(self, task: str, places: list[Place]) -> frozenset[str]:
        """The seams where this task waits, outermost place first."""
        waits_for = timed_by(places)
        if waits_for is None:
            return frozenset()
        own_code = waits_for.owner in (Owner.USER, Owner.INSTALLED)
        found: set[str] = set()
        if any((place.file, place.function) == _NEXT_EVENT for place in places):
            self._readers.add(task)
            found.add(Seam.READER)
        elif task in self._readers and own_code:
            found.add(Seam.READER)
        for above, below in pairwise(places):
            if above.file == _MODEL_CALL and waits_for.file != _MODEL_CALL:
                found.add(Seam.MODEL)
            elif (above.file, above.function) == _TOOL_CALL and below.owner is not Owner.SAFEPOINT and own_code:
                found.add(Seam.TOOL)
            elif above.file == _SESSION and below.file != _SESSION and _is_store(below):
                found.add(Seam.STORE)
        return frozenset(found)


def _is_store(place: Place) -> bool:
    return place.owner in (Owner.USER, Owner.INSTALLED) or place.file.startswith(_STORES)


AnyRun: TypeAlias = Run[Any, Any]  # Any: runs of every agent


@dataclass(frozen=True, slots=True)
class Whole:
    """The messages of a run without an injection, and the messages that were added to it on the way.

    `ended`: it reached its own end. Otherwise the scenario stopped it, and only the messages before that count.
    """

    messages: list[Message]
    joined: list[Message]
    ended: bool


class SafepointRuns:
    """The runs of one scenario, as the injector's subject."""

    def __init__(self) -> None:
        self._watching = ExitStack()
        self._runs: list[AnyRun] = []
        self._remembered: dict[tuple[str, int], Whole] = {}
        # How many runs had begun at the injection; later runs may begin from another conversation.
        self._comparable: int | None = None
        self._seams = Seams()

    def begin(self) -> None:
        self._watching.close()
        self._runs = self._watching.enter_context(watch_runs())
        self._comparable = None
        self._seams = Seams()

    def disturbed(self, *, cancels: bool) -> None:
        self._comparable = len(self._runs) if cancels else 0

    def seams_of(self, task: str, places: list[Place]) -> frozenset[str]:
        return self._seams.at(task, places)

    def cancel_all(self) -> int:
        live = [run for run in self._runs if run.node.parent is None and not run.ended]
        for run in live:
            run.cancel(reason="injected")
        return len(live)

    def held(self) -> list[str]:
        if any(run.ended and run.result.orphans for run in self._runs):
            return []
        models = {id(model): model for run in self._runs if isinstance(run.agent, Agent) for model in run.agent.models}
        # Any model may count its streams as the kit's models do; a wrapper has to report its inner model's count.
        opened = [(model.name, getattr(model, "open_streams", 0)) for model in models.values()]
        return [f"{streams} streams of the model {name!r} are still open" for name, streams in opened if streams]

    def remember(self) -> None:
        self._remembered = {key: _whole(run) for key, run in self._numbered() if run.ended}

    def check(self) -> list[str]:
        self._watching.close()
        problems: list[str] = []
        for number, (key, run) in enumerate(self._numbered()):
            found, whole = check_run(run), self._remembered.get(key)
            if not found and whole is not None and (self._comparable is None or number < self._comparable):
                found = check_prefix(run.result, _joined(run), whole)
            problems += [f"run {key[0]!r} number {key[1]}: {problem}" for problem in found]
        return problems

    def _numbered(self) -> list[tuple[tuple[str, int], AnyRun]]:
        """Runs by agent and number: the second run of `x` has the same key in every run of the scenario."""
        seen: Counter[str] = Counter()
        numbered: list[tuple[tuple[str, int], AnyRun]] = []
        for run in self._runs:
            numbered.append(((run.agent.name, seen[run.agent.name]), run))
            seen[run.agent.name] += 1
        return numbered


def default_subject() -> SafepointRuns:
    return SafepointRuns()


def check_run(run: AnyRun) -> list[str]:
    """All faults of a run that should have ended."""
    if not run.ended:
        return [f"it has not ended: {run!r}"]
    problems = [*_check_result(run.result), *_check_events(run)]
    if run.node.children:
        problems.append(f"something lives below it: {run.node.children}")
    for ask in run.node.log.standing().asks:
        if not Receipt(run.node, ask).outcome:
            problems.append(f"the ask {ask.id} has no outcome")
    return problems


def _check_result(result: RunResult[Any]) -> list[str]:  # Any: of every output type
    problems: list[str] = []
    try:
        check_history(result.messages)
    except HistoryError as error:
        problems.append(f"its history is broken: {error}")
    problems += [f"{entry.name} is still `running`" for entry in result.ledger if entry.state is LedgerState.RUNNING]
    if isinstance(result.error, InternalError):
        problems.append(f"it broke: {result.error!r}")
    cancelled = result.stop_reason in (StopReason.CANCELLED, StopReason.BUDGET)
    if cancelled != (result.cancellation is not None):
        problems.append(f"it ended with {result.stop_reason} and the cancellation is {result.cancellation}")
    if result.stop_reason is not StopReason.END_TURN:
        notices = [part for part in result.messages[-1].parts if part.kind == "notice"]
        if len(notices) != 1 and result.stop_reason is not StopReason.MAX_TOKENS:
            problems.append(f"its last message has {len(notices)} notices")
    return problems


def _check_events(run: AnyRun) -> list[str]:
    events = run.kept_events()
    kinds = Counter(type(event) for event in events)
    problems: list[str] = []
    if kinds[RunStarted] != 1 or not isinstance(events[0], RunStarted):
        problems.append("its first event is not its one RunStarted")
    if kinds[RunEnded] != 1 or not isinstance(events[-1], RunEnded):
        problems.append("its last event is not its one RunEnded")
    if kinds[ModelCallStarted] != kinds[ModelCallEnded]:
        problems.append(f"{kinds[ModelCallStarted]} model calls started and {kinds[ModelCallEnded]} ended")
    ended = {event.entry.call_id for event in events if isinstance(event, ToolCallEnded)}
    for event in events:
        if isinstance(event, ToolCallStarted) and event.call.id not in ended:
            problems.append(f"the call {event.call.id} started and never ended")
    numbers = [event.seq for event in run.kept_events(nested=True)]
    if numbers != sorted(set(numbers)):
        problems.append("its sequence numbers do not rise")
    return problems


def _whole(run: AnyRun) -> Whole:
    ended = run.result.stop_reason is StopReason.END_TURN
    return Whole(run.result.messages if ended else _said(run.result), _joined(run), ended)


def _joined(run: AnyRun) -> list[Message]:
    return run.record.steering.joined_messages() if run.record is not None else []


def check_prefix(result: RunResult[Any], joined: list[Message], whole: Whole) -> list[str]:
    """H6: complete steps equal those of the run that was not stopped; only the last step is in its closed form.

    `joined`: the messages that were added while the run was live.
    """
    if result.cancellation is None:
        return []
    said = _said(result)
    for place, message in enumerate(said):
        if place == len(whole.messages) and not whole.ended:
            return []  # the scenario stops its own run, so its further messages are unknown
        known = whole.messages[place : place + 1]
        late = known and place == len(said) - 1 and _lacks_late(message, known[0], joined, whole.joined)
        if known != [message] and not late:
            return [f"message {place} is not the one of the uncancelled run: {message}"]
    return []


def _said(result: RunResult[Any]) -> list[Message]:
    """The complete messages of a stopped run: all except its last step, or the results of it."""
    messages = result.messages
    spoken = [place for place, message in enumerate(messages) if message.role == "assistant"]
    if messages[-1].parts[0].kind == "notice" and len(spoken) > 1:
        return messages[: spoken[-2] + 1]  # the closing remark is no step; the reply before it was whole
    return messages[: spoken[-1]] if spoken else messages


def _lacks_late(message: Message, known: Message, joined: list[Message], whole: list[Message]) -> bool:
    """Whether it lacks only messages that joined the uncancelled run next and were too late for this one."""
    have = len(message.parts)
    if {message.role, known.role} != {"user"} or message.parts != known.parts[:have]:
        return False
    late = tuple(part for added in whole[len(joined) :] for part in added.parts)
    return late[: len(known.parts) - have] == known.parts[have:]
