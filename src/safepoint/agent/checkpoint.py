"""The state from which a stopped run continues.

Two views of one stop. *Closed* is the conversation as any provider takes it: every call has a truthful result and the
last assistant message says that it was stopped; a new message continues from there. *Open* is the same run with its
last step still open: resume continues inside it. A checkpoint has both, and the ledger that tells what must not happen
twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from safepoint._core.reasons import Reason
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import StopReason
from safepoint.agent.usage import Usage
from safepoint.history.closing import WAITS, notice_text, remark, unmarked
from safepoint.history.parts import Message, Notice
from safepoint.tools.call_state import CallState

# A tool asked; a check before a tool asked; a call was cut and its outcome is not known.
QuestionKind: TypeAlias = Literal["interrupt", "check", "unknown"]


@dataclass(frozen=True, slots=True)
class Question:
    """What a paused run asks a person. Answer it with `resume(checkpoint, answers={question.id: …})`.

    `tool` is the name of the tool that asks, or of the hook.
    """

    id: str
    tool: str
    payload: Any  # Any: whatever the tool asked with
    kind: QuestionKind = "interrupt"


@dataclass(frozen=True, slots=True)
class OpenCall:
    """What one call of the open step needs to go on. `tool` identifies the tool's parameters as they were.

    `decided`: what a person has said of its unknown outcome, until the call is made again.
    """

    call_id: str
    tool: str
    memory: CallState = field(default_factory=CallState)
    question: Question | None = None
    child: Checkpoint | None = None
    decided: bool | str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Made at every stop; plain data, of no particular process. `to_bytes` and `from_bytes` carry it anywhere."""

    id: str
    agent: str
    run_id: str
    stop_reason: StopReason
    messages: tuple[Message, ...]
    open_messages: tuple[Message, ...]
    ledger: tuple[LedgerEntry, ...] = ()
    calls: Mapping[str, OpenCall] = field(default_factory=dict[str, OpenCall])
    step: int = 0
    spent: Usage = field(default_factory=Usage)
    reason: Reason | None = None
    # Messages that were added and have not joined yet; and what was used of a budget beyond steps and tokens.
    pending: tuple[Message, ...] = ()
    used: Mapping[str, float] = field(default_factory=dict[str, float])
    # What hooks before the run and before its next model call remember, by the hook's name.
    hooks: Mapping[str, OpenCall] = field(default_factory=dict[str, OpenCall])

    @property
    def questions(self) -> tuple[Question, ...]:
        """What a person is asked, here and in sub-agents. A run that was cancelled asks nothing: it will ask again."""
        return self.asked if self.stop_reason is StopReason.INTERRUPTED else ()

    @property
    def asked(self) -> tuple[Question, ...]:
        """What it has asked and nobody has answered, also if it was cancelled since."""
        found: list[Question] = []
        for call in (*self.hooks.values(), *self.calls.values()):
            if call.question is not None:
                found.append(call.question)
            if call.child is not None:
                found += [question_inside(call.call_id, question) for question in call.child.questions]
        return tuple(found)

    @property
    def dropped(self) -> bool:
        """A new message came after it: it tells what was asked, and why the run stopped, and can't be continued."""
        return not self.open_messages

    def drop(self) -> Checkpoint:
        """What is kept of it for a run that others have followed; the conversation is in the session."""
        calls = {id: _dropped(call) for id, call in self.calls.items() if call.question or call.child}
        hooks = {name: _dropped(hook) for name, hook in self.hooks.items() if hook.question}
        return Checkpoint(
            "", self.agent, self.run_id, self.stop_reason, (), (), calls=calls, reason=self.reason, hooks=hooks
        )

    def cleared(self, reason: Reason, id: str) -> Checkpoint:
        """Of a run that was cancelled while it waited for a person: it asks again if it is continued."""
        notice = notice_text(reason=reason.text, source=reason.source, by=reason.by)
        messages = (*self.messages[:-1], _renoticed(self.messages[-1], notice))
        return replace(self, id=id, stop_reason=StopReason.CANCELLED, reason=reason, messages=messages)

    def to_bytes(self) -> bytes:
        """An explicit, versioned encoding. A value that can't be encoded is replaced by its description."""
        from safepoint.agent.codec import encode

        return encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> Checkpoint:
        """Raises `CheckpointError` for bytes that are damaged, of another kind, or of a later version."""
        from safepoint.agent.codec import decode

        return decode(data)


def _dropped(call: OpenCall) -> OpenCall:
    child = call.child.drop() if call.child is not None else None
    return OpenCall(call.call_id, "", question=call.question, child=child)


def _renoticed(message: Message, notice: str) -> Message:
    """Says that the run was stopped, where it said that it waits; what was told of children stays."""
    parts = [
        Notice(part.text.replace(remark(WAITS), notice).replace(WAITS, unmarked(notice)))
        if isinstance(part, Notice)
        else part
        for part in message.parts
    ]
    return Message(message.role, tuple(parts))


def question_inside(call_id: str, question: Question) -> Question:
    """As whoever resumes the run around it knows it."""
    return replace(question, id=f"{call_id}/{question.id}")
