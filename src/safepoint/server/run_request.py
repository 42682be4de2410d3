"""Which run a request means: a new turn, or one that was stopped and goes on. Plain functions only.

newMessage with words                          a new turn
newMessage with words, and invocationId        that run goes on, and is told these words
newMessage with functionResponse parts         the run that waits goes on with these answers
no newMessage                                  the run that was stopped last goes on, or the one of invocationId
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from safepoint._core.ladder import Ladder
from safepoint.agent.base import BaseAgent
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.resume import Resume
from safepoint.errors import SafepointError
from safepoint.history.parts import Prompt, UserPart
from safepoint.server.event_publisher import AnyRun
from safepoint.server.requests import Answer, RunRequest
from safepoint.server.wire_events import EventContext, call_of
from safepoint.sessions.session import Session


class NothingToAnswer(SafepointError):
    """An answer came for a question that nobody asked, or a wish to go on where there is nothing to go on with."""


@dataclass(frozen=True, slots=True)
class Start:
    """A run that was made and not started. `continued`: it goes on where another was stopped."""

    run: AnyRun
    prompt: Prompt
    continued: bool


def start(
    agent: BaseAgent[Any, Any],  # Any: agents of every kind
    session: Session,
    request: RunRequest,
    ladder: Ladder | None,
) -> Start:
    """`ladder`: instead of the agent's, if there is one. Raises `NothingToAnswer`, `CheckpointError`, `ValueError`."""
    message = request.new_message
    prompt = message.prompt() if message is not None else []
    if message is not None and message.answers:
        resume = answered(session, message.answers, request.invocation_id, request.function_call_event_id)
    elif request.function_call_event_id is not None:
        raise NothingToAnswer("functionCallEventId goes with a functionResponse: leave it out")
    elif message is not None and not prompt:
        raise ValueError("newMessage: write at least one part with text, inlineData or functionResponse")
    elif message is not None and request.invocation_id is None:
        return Start(agent.start(prompt, session=session, ladder=ladder), prompt, continued=False)
    else:
        resume = going_on(session, prompt or None, request.invocation_id)
    return Start(agent.start(checkpoint=resume, session=session, ladder=ladder), "", continued=True)


def stopped(session: Session, invocation_id: str | None) -> Checkpoint:
    """Where the last run stands, if it can go on. Raises `NothingToAnswer`."""
    last = session.runs[-1] if session.runs else None
    if invocation_id is not None and (last is None or EventContext(last.origin, "").invocation != invocation_id):
        raise NothingToAnswer(f"Invocation {invocation_id!r} is not the last one of this session: only that can go on")
    checkpoint = session.checkpoint
    if checkpoint is None:
        raise NothingToAnswer("there is no stopped run to go on with: write a newMessage")
    return checkpoint


def going_on(session: Session, message: list[UserPart] | None, invocation_id: str | None) -> Resume:
    """The stopped run as it was, or with words added. Raises `NothingToAnswer`."""
    checkpoint = stopped(session, invocation_id)
    if checkpoint.questions:
        waiting = ", ".join(repr(call_of(question.id)) for question in checkpoint.questions)
        raise NothingToAnswer(f"the run waits for an answer: write a newMessage with a functionResponse for {waiting}")
    return Resume(checkpoint, message)


def answered(session: Session, answers: list[Answer], invocation_id: str | None, event_id: str | None) -> Resume:
    """The paused run with these answers. `event_id`: where the client saw the call. Raises `NothingToAnswer`."""
    checkpoint = session.checkpoint if invocation_id is None else stopped(session, invocation_id)
    questions = {question.id: question for question in checkpoint.questions} if checkpoint is not None else {}
    values: dict[str, Any] = {}  # Any: JSON values
    for answer in answers:
        of_call = [id for id in questions if answer.id in (id, call_of(id))]
        if not of_call or checkpoint is None:
            raise NothingToAnswer(f"no call {answer.id!r} of this session waits for an answer")
        if event_id is not None and event_id not in _events_of(session, answer.id):
            raise NothingToAnswer(f"the event {event_id!r} has no call {answer.id!r}: leave functionCallEventId out")
        values |= dict.fromkeys(of_call, answer.value)
    assert checkpoint is not None
    return Resume(checkpoint, answers=values)


def _events_of(session: Session, call_id: str) -> set[str]:
    """The events in which a client has seen that call."""
    run, last = session.runs[-1], len(session.messages) - 1
    event_context = EventContext(run.origin, run.agent)
    own = enumerate(session.messages[run.index :], run.index)
    places = [place for place, message in own if any(call.id == call_id for call in message.tool_calls)]
    # A question of a composite's child is told by the last event of its run.
    return {event_context.event_id(place) for place in (places or [last])}
