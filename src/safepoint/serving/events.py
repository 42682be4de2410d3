"""What a run tells its viewers: Safepoint's own values, which each protocol encodes for its wire.

    MessageEvent   a whole message of the conversation, stored before it is told. It also carries what belongs to that
                   moment: changes of the session's state, calls that wait for an answer, and the end of the run.
    PartialText    more text, or reasoning, of the message that the model is writing
    ToolOutput     more output of a tool that is running

Live events and events that are read back from the storage are built from the same messages, so they cannot differ. An
event's id follows from its turn and its position: a piece of text that is streamed now and the message that is stored
later share it.

A composite is one agent to its clients. Only agents that hand one conversation on to each other are told apart: the
run that did it names the author of each message (`Message.author`). No text of a message decides that.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

from msgspec import field

from safepoint._values import Value
from safepoint.agent.base import BaseAgent
from safepoint.agent.checkpoint import Question
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import StopReason
from safepoint.agent.usage import Usage
from safepoint.compose.handoff import Handoff
from safepoint.history.parts import Message, Notice

USER = "user"
REFUSED = "refused"
_EVENT_IDS = uuid.UUID("6a3d1c9e-5f0b-4a57-9a43-8d5f0c1b7e21")


class Origin(StrEnum):
    """Where events come from: a run, a conversation that a client imported, or a client that changed the state."""

    RUN = "run"
    IMPORT = "import"
    CLIENT = "client"


class Turn(Value, frozen=True):
    """What all events of one turn share.

    `run_id`: the run that began the turn; a run that continues it tells its events under the same id. `agent`: the name
    of the root agent. `metadata`: what the client attached to its message. `speaker`: the agent that speaks first,
    where agents hand one conversation on; None where the root agent speaks for all.
    """

    run_id: str
    agent: str
    metadata: Mapping[str, Any] | None = None  # Any: JSON values
    speaker: str | None = None
    origin: Origin = Origin.RUN

    @staticmethod
    def of(
        run_id: str,
        agent: BaseAgent[Any, Any],  # Any: agents of every kind
        metadata: Mapping[str, Any] | None = None,  # Any: JSON values
    ) -> Turn:
        return Turn(run_id, agent.name, metadata, first_speaker(agent))

    def event_id(self, position: int) -> str:
        return str(uuid.uuid5(_EVENT_IDS, f"{self.run_id}/{position}"))

    def spoken(self, messages: Iterable[Message]) -> Iterator[tuple[str | None, Message]]:
        """Each message with its speaker. A notice of the runtime, which has no author, follows the message before."""
        speaker = self.speaker
        for message in messages:
            speaker = message.author or speaker
            yield speaker, message


class Failure(Value, frozen=True):
    """What went wrong: the name of the error's class, and its text."""

    kind: str
    text: str
    at: float = 0.0

    @staticmethod
    def of(error: BaseException | None, at: float = 0.0) -> Failure:
        if error is None:
            return Failure("ERROR", "no error is known", at)
        return Failure(type(error).__name__, str(error), at)


class RunEnd(Value, frozen=True):
    """How a run ended. `stop_reason`: a `StopReason`, or `refused` for a message that was not accepted after all.

    `text`: what the runtime says about an end without an answer. `questions`: what the run waits for;
    `inner_questions`: those of them that no call of this conversation asked, but a run inside it.
    """

    stop_reason: str
    text: str = ""
    ledger: tuple[LedgerEntry, ...] = ()
    usage: Usage | None = None
    failure: Failure | None = None
    questions: tuple[Question, ...] = ()
    inner_questions: tuple[Question, ...] = ()

    @property
    def is_answer(self) -> bool:
        """Did it end with an answer, or with a question?"""
        return self.stop_reason in (StopReason.END_TURN, StopReason.INTERRUPTED)

    @staticmethod
    def of(
        stop_reason: str,
        messages: Sequence[Message],
        ledger: tuple[LedgerEntry, ...],
        usage: Usage | None,
        questions: tuple[Question, ...],
    ) -> RunEnd:
        """`messages`: those of the run, of which the last may hold notices about the end."""
        text = " ".join(part.text for part in messages[-1].parts if isinstance(part, Notice))
        inner: tuple[Question, ...] = ()
        if questions:
            calls = {call.id for message in messages for call in message.tool_calls}
            inner = tuple(each for each in questions if call_of(each.id) not in calls)
        return RunEnd(str(stop_reason), text or str(stop_reason), ledger, usage, None, questions, inner)


class MessageEvent(Value, frozen=True):
    """A message at its `position` in the conversation. `message` is None for an end, or a change, without words.

    `speaker`: the agent that speaks, if not the root agent. `step`: how many replies of a model the run has up to
    here. `waiting_calls`: calls of this message that wait for a person. `state`: what has changed in the session's
    state since the event before; None for a value that is gone.
    """

    turn: Turn
    position: int
    at: float
    message: Message | None = None
    speaker: str | None = None
    step: int = 0
    waiting_calls: tuple[str, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON values
    end: RunEnd | None = None

    @property
    def id(self) -> str:
        return self.turn.event_id(self.position)

    @property
    def by_user(self) -> bool:
        return self.turn.origin is Origin.CLIENT or (self.message is not None and self.message.role == "user")

    @property
    def author(self) -> str:
        return USER if self.by_user else self.speaker or self.turn.agent

    @property
    def path(self) -> str:
        """The node that speaks, in the tree of the run."""
        return self.turn.agent if self.by_user else _path(self.turn, self.speaker)


class PartialText(Value, frozen=True):
    """More text of the message under way. `thought`: the model's reasoning, not its answer."""

    turn: Turn
    position: int
    at: float
    text: str
    thought: bool = False
    speaker: str | None = None
    step: int = 0

    @property
    def id(self) -> str:
        return self.turn.event_id(self.position)

    @property
    def author(self) -> str:
        return self.speaker or self.turn.agent

    @property
    def path(self) -> str:
        return _path(self.turn, self.speaker)


class ToolOutput(Value, frozen=True):
    """More output of one call; its result will be at `position`. `inner_path`: of a run inside this one."""

    turn: Turn
    position: int
    at: float
    call_id: str
    tool: str
    text: str
    speaker: str | None = None
    inner_path: str | None = None

    @property
    def id(self) -> str:
        return self.turn.event_id(self.position)

    @property
    def author(self) -> str:
        return self.speaker or self.turn.agent

    @property
    def path(self) -> str:
        return self.inner_path if self.inner_path is not None else _path(self.turn, self.speaker)


FeedEvent: TypeAlias = MessageEvent | PartialText | ToolOutput


def first_speaker(agent: BaseAgent[Any, Any]) -> str | None:  # Any: agents of every kind
    """The agent that speaks first, where agents hand one conversation on."""
    return next(iter(agent.members())).name if isinstance(agent, Handoff) else None


def waiting_calls(message: Message, questions: Sequence[Question]) -> tuple[str, ...]:
    """The calls of the message that wait for an answer."""
    if not questions:
        return ()
    asked = {call_of(question.id) for question in questions}
    return tuple(sorted(call.id for call in message.tool_calls if call.id in asked))


def call_of(question_id: str) -> str:
    """The id of the call, of the run itself, in which a question was asked."""
    outer, slash, _ = question_id.partition("/")
    return outer if slash else outer.rpartition(":")[0]


def latest(events: Iterable[MessageEvent]) -> list[MessageEvent]:
    """Each event once, in its last form: an event that was told again, as its run came to wait, keeps its position."""
    return list({event.position: event for event in events}.values())


def _path(turn: Turn, speaker: str | None) -> str:
    return turn.agent if speaker is None else f"{turn.agent}/{speaker}"
