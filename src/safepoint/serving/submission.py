"""A message for a session, as a protocol submits it, and the run that it asks for.

prompt                      a new turn
prompt, and `continues`     that run goes on, and is told these words
answers                     the run that waits for a person goes on with these answers
neither                     the run that was stopped last goes on, or the one of `continues`
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from safepoint._core.ladder import Ladder
from safepoint._values import Value
from safepoint.agent.base import BaseAgent
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.freeze import Gate
from safepoint.agent.resume import OnUnknown, Resume
from safepoint.errors import SafepointError
from safepoint.history.json_codec import decode_message, encode_message
from safepoint.history.parts import File, Image, Message, Prompt, Text, UserPart
from safepoint.serving.event_publisher import AnyRun
from safepoint.serving.events import Turn, call_of
from safepoint.sessions.dispatch import IfBusy
from safepoint.sessions.session import Session

State: TypeAlias = Mapping[str, Any]  # Any: JSON values


class NothingToAnswer(SafepointError):
    """The submission answers a question that was not asked, or continues a run that cannot go on."""


class NothingStopped(NothingToAnswer):
    """The session has no stopped run."""


class NotTheLast(NothingToAnswer):
    """Only the last turn of a session can go on, and this is another one."""


class NotInThatEvent(NothingToAnswer):
    """The client names an event as the one with the call that it answers, and the event has no such call."""


class AnswerMissing(NothingToAnswer):
    """The run waits for a person. `calls`: the calls whose answers it needs."""

    def __init__(self, text: str, calls: Sequence[str]) -> None:
        super().__init__(text)
        self.calls = tuple(calls)


class CancelAfter(Value, frozen=True):
    """Cancel a run without viewers, unless one comes back within that many seconds."""

    seconds: float


OnDisconnect: TypeAlias = Literal["cancel", "detach"] | CancelAfter


class Answer(Value, frozen=True):
    """What a person says. `id`: of the question, or of the call that asked it."""

    id: str
    value: Any  # Any: JSON


class Idempotency(Value, frozen=True):
    """`key`: one message is accepted once under it. `digest`: of the request, so that another one is refused."""

    key: str
    digest: str


class Submission(Value, frozen=True):
    """What a client sends to a session. `prompt`: None if it sends no message.

    `continues`: the run whose turn goes on. `seen_in`: the id of the event in which the client saw the call that it
    answers. `state_delta`: changes of the session's state that come with it. `metadata`: shown again on every event of
    the turn. `on_unknown`: what a resumed run does about calls whose outcome is unknown.
    """

    prompt: tuple[UserPart, ...] | None = None
    answers: tuple[Answer, ...] = ()
    continues: str | None = None
    seen_in: str | None = None
    state_delta: State | None = None
    metadata: State | None = None
    on_disconnect: OnDisconnect = "cancel"
    if_busy: IfBusy = "reject"
    idempotency: Idempotency | None = None
    on_unknown: OnUnknown = "tell"

    @property
    def is_new_turn(self) -> bool:
        return bool(self.prompt) and not self.answers and self.continues is None

    def to_json(self) -> dict[str, Any]:  # Any: JSON
        """As the run's record keeps it, for a process that takes the run over. A client's connection is not kept."""
        found: dict[str, Any] = {"ifBusy": self.if_busy}  # Any: JSON
        if self.prompt is not None:
            found["prompt"] = encode_message(Message("user", self.prompt))["parts"]
        if self.answers:
            found["answers"] = [{"id": each.id, "value": each.value} for each in self.answers]
        optional = {
            "continues": self.continues,
            "seenIn": self.seen_in,
            "stateDelta": self.state_delta,
            "customMetadata": self.metadata,
            "onUnknown": None if self.on_unknown == "tell" else self.on_unknown,
        }
        return found | {name: value for name, value in optional.items() if value is not None}

    @staticmethod
    def from_json(stored: State) -> Submission:
        """The inverse of `to_json`. Records of version 0.1 hold ADK's request in its place, and are read too."""
        if "userId" in stored:
            return _from_version_0_1(stored)
        prompt = stored.get("prompt")
        parts = None if prompt is None else decode_message({"role": "user", "parts": prompt}).parts
        return Submission(
            cast("tuple[UserPart, ...] | None", parts),
            tuple(Answer(each["id"], each["value"]) for each in stored.get("answers", ())),
            stored.get("continues"),
            stored.get("seenIn"),
            stored.get("stateDelta"),
            stored.get("customMetadata"),
            if_busy=stored.get("ifBusy", "reject"),
            on_unknown=stored.get("onUnknown", "tell"),
        )


class Start(Value, frozen=True):
    """A run that was made and not started. `continued`: it goes on where another was stopped."""

    run: AnyRun
    prompt: Prompt
    continued: bool


def start(
    agent: BaseAgent[Any, Any],  # Any: agents of every kind
    session: Session,
    submission: Submission,
    ladder: Ladder | None,
    switch: Gate | None = None,
) -> Start:
    """`switch`: what freezes the run. `ladder`: in place of the agent's, if given.

    Raises `NothingToAnswer`, `CheckpointError`.
    """
    prompt = list(submission.prompt or ())
    if submission.is_new_turn:
        return Start(agent.start(prompt, session=session, ladder=ladder, switch=switch), prompt, continued=False)
    resume = _answered(session, submission) if submission.answers else _resumed(session, prompt or None, submission)
    return Start(agent.start(checkpoint=resume, session=session, ladder=ladder, switch=switch), "", continued=True)


def _stopped(session: Session, continues: str | None) -> Checkpoint:
    """Where the last run stands, if it can go on. Raises `NothingToAnswer`."""
    last = session.runs[-1] if session.runs else None
    if continues is not None and (last is None or last.origin != continues):
        raise NotTheLast(f"the run {continues!r} is not the last one of this session: only that can go on")
    checkpoint = session.checkpoint
    if checkpoint is None:
        raise NothingStopped("there is no stopped run to go on with: send a message")
    return checkpoint


def _resumed(session: Session, message: list[UserPart] | None, submission: Submission) -> Resume:
    """The stopped run as it was, or with words added. Raises `NothingToAnswer`."""
    checkpoint = _stopped(session, submission.continues)
    if checkpoint.questions:
        calls = [call_of(question.id) for question in checkpoint.questions]
        named = ", ".join(map(repr, calls))
        raise AnswerMissing(f"the run waits for an answer: send one for {named}", calls)
    return Resume(checkpoint, message, on_unknown=submission.on_unknown)


def _answered(session: Session, submission: Submission) -> Resume:
    """The paused run with these answers. Raises `NothingToAnswer`."""
    continues, seen_in = submission.continues, submission.seen_in
    checkpoint = session.checkpoint if continues is None else _stopped(session, continues)
    questions = [question.id for question in checkpoint.questions] if checkpoint is not None else []
    values: dict[str, Any] = {}  # Any: JSON values
    for answer in submission.answers:
        of_call = [id for id in questions if answer.id in (id, call_of(id))]
        if not of_call:
            raise NothingToAnswer(f"no call {answer.id!r} of this session waits for an answer")
        if seen_in is not None and seen_in not in _events_of(session, answer.id):
            raise NotInThatEvent(f"the event {seen_in!r} has no call {answer.id!r}")
        values |= dict.fromkeys(of_call, answer.value)
    assert checkpoint is not None
    return Resume(checkpoint, answers=values, on_unknown=submission.on_unknown)


def _events_of(session: Session, call_id: str) -> set[str]:
    """The events in which a client has seen that call."""
    run, last = session.runs[-1], len(session.messages) - 1
    turn = Turn(run.origin, run.agent)
    numbered = enumerate(session.messages[run.index :], run.index)
    positions = [position for position, message in numbered if any(call.id == call_id for call in message.tool_calls)]
    # A question of a composite's child is told by the last event of its run.
    return {turn.event_id(position) for position in (positions or [last])}


def _from_version_0_1(stored: State) -> Submission:
    parts: list[State] = stored.get("newMessage", {}).get("parts", ())
    prompt = tuple(part for each in parts if (part := _part_of_version_0_1(each)) is not None)
    given: list[State] = [each["functionResponse"] for each in parts if "functionResponse" in each]
    invocation = stored.get("invocationId")
    return Submission(
        prompt if "newMessage" in stored else None,
        tuple(Answer(each["id"], _value_of_version_0_1(each.get("response"))) for each in given),
        None if invocation is None else f"run_{invocation.removeprefix('e-')}",
        stored.get("functionCallEventId"),
        stored.get("stateDelta"),
        stored.get("customMetadata"),
        if_busy=stored.get("ifBusy", "reject"),
    )


def _value_of_version_0_1(response: Any) -> Any:  # Any: JSON
    match response:
        case {"result": value, **rest} if not rest:
            return value
        case _:
            return response


def _part_of_version_0_1(part: State) -> UserPart | None:
    if "text" in part:
        return Text(part["text"])
    if "inlineData" in part:
        blob: dict[str, str] = part["inlineData"]
        data = base64.b64decode(blob["data"], altchars=b"-_" if set(blob["data"]) & set("-_") else None)
        is_image = blob["mimeType"].startswith("image/")
        return Image(data, blob["mimeType"]) if is_image else File(data, blob["mimeType"], blob.get("displayName"))
    if "fileData" in part:
        address: dict[str, str] = part["fileData"]
        media_type = address["mimeType"]
        if media_type.startswith("image/"):
            return Image(url=address["fileUri"], media_type=media_type)
        return File(url=address["fileUri"], media_type=media_type, name=address.get("displayName"))
    return None
