"""The state from which a stopped run continues.

There are two views of one stop. *Closed* is the conversation as any provider takes it: every call has a truthful result
and the last assistant message says that it was stopped; a new message continues from there. *Open* is the same run with
its last step still open: resume continues inside it. A checkpoint has both views, and the ledger that says what must
not happen twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import field
from msgspec.structs import replace

from safepoint._core.reasons import Reason
from safepoint._values import Value
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.stop_reason import StopReason
from safepoint.agent.usage import NO_USAGE, Usage
from safepoint.history.closing import WAITS, notice_text, remark, unmarked
from safepoint.history.parts import Message, Notice
from safepoint.tools.call_state import CallState

# A tool asked; a check before a tool asked; or a call was cut and its outcome is unknown.
QuestionKind: TypeAlias = Literal["interrupt", "check", "unknown"]


class Question(Value, frozen=True):
    """A question of a paused run to a person. Answer it with `resume(checkpoint, answers={question.id: …})`.

    `tool` is the name of the tool or the hook that asks.
    """

    id: str
    tool: str
    payload: Any  # Any: the tool's own payload
    kind: QuestionKind = "interrupt"


class OpenCall(Value, frozen=True):
    """The state that one call of the open step needs to continue. `tool` is a digest of the tool's parameters.

    `decided`: a person's decision about its unknown outcome, until the call is made again.
    """

    call_id: str
    tool: str
    memory: CallState = field(default_factory=CallState)
    question: Question | None = None
    child: Checkpoint | None = None
    decided: bool | str | None = None


class Counted(Value, frozen=True, tag_field="kind", tag="counted"):
    """What the run and the runs it continues have used so far; and the messages that have not joined yet."""

    step: int
    spent: Usage
    used: Mapping[str, float] = field(default_factory=dict[str, float])
    pending: tuple[Message, ...] = ()


class Checkpoint(Value, frozen=True):
    """Made at every stop: plain data, bound to no process. `to_bytes` and `from_bytes` carry it anywhere."""

    id: str
    agent: str
    run_id: str
    stop_reason: StopReason
    messages: tuple[Message, ...]
    open_messages: tuple[Message, ...]
    ledger: tuple[LedgerEntry, ...] = ()
    calls: Mapping[str, OpenCall] = field(default_factory=dict[str, OpenCall])
    step: int = 0
    spent: Usage = NO_USAGE
    reason: Reason | None = None
    # Messages that were added and have not joined yet; and the use of a budget beyond steps and tokens.
    pending: tuple[Message, ...] = ()
    used: Mapping[str, float] = field(default_factory=dict[str, float])
    # The state of hooks before the run and before its next model call, by the hook's name.
    hooks: Mapping[str, OpenCall] = field(default_factory=dict[str, OpenCall])
    # Of a checkpoint made by `at`: the calls made after that step which may have changed the world. They are undone
    # when a run continues it, where there is an undo.
    since: tuple[LedgerEntry, ...] = ()

    def at(self, step: int) -> Checkpoint:
        """The same run at the end of an earlier step, as a checkpoint of its own; 0 is before its first model call.

        `since` lists the calls made after that step that may have changed the world. A run that continues from there
        undoes them, the latest first, where their tools have an undo, and tells the model what remains.
        """
        from safepoint.agent.going_back import at_step

        return at_step(self, step)

    @property
    def questions(self) -> tuple[Question, ...]:
        """The open questions, here and in sub-agents. A run that was cancelled has none: it asks again on resume."""
        return self.asked if self.stop_reason is StopReason.INTERRUPTED else ()

    @property
    def asked(self) -> tuple[Question, ...]:
        """The unanswered questions, even if the run was cancelled since."""
        found: list[Question] = []
        for call in (*self.hooks.values(), *self.calls.values()):
            if call.question is not None:
                found.append(call.question)
            if call.child is not None:
                found += [question_inside(call.call_id, question) for question in call.child.questions]
        return tuple(found)

    @property
    def dropped(self) -> bool:
        """Whether a new message followed: then it keeps the questions and the reason, but cannot be continued."""
        return not self.open_messages

    def drop(self) -> Checkpoint:
        """The part that is kept once another run has followed; the conversation is in the session."""
        calls = {id: _dropped(call) for id, call in self.calls.items() if call.question or call.child}
        hooks = {name: _dropped(hook) for name, hook in self.hooks.items() if hook.question}
        return Checkpoint(
            "", self.agent, self.run_id, self.stop_reason, (), (), calls=calls, reason=self.reason, hooks=hooks
        )

    def cleared(self, reason: Reason, id: str) -> Checkpoint:
        """The checkpoint of a run that was cancelled while it waited for a person: it asks again if it continues."""
        notice = notice_text(reason=reason.text, source=reason.source, by=reason.by)
        messages = (*self.messages[:-1], _renoticed(self.messages[-1], notice))
        return replace(self, id=id, stop_reason=StopReason.CANCELLED, reason=reason, messages=messages)

    def to_bytes(self) -> bytes:
        """An explicit, versioned encoding. A value that cannot be encoded is replaced by its description."""
        from safepoint.agent.codec import encode

        return encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> Checkpoint:
        """Raises `CheckpointError` for bytes that are damaged, of another kind, or of a later version."""
        from safepoint.agent.codec import decode

        return decode(data)


class Stopped(NamedTuple):
    """A run at its stop: its identity, both views of its conversation, its ledger, and why it stopped."""

    agent: str
    run_id: str
    stop_reason: StopReason
    messages: tuple[Message, ...]
    open_messages: tuple[Message, ...]
    ledger: tuple[LedgerEntry, ...]
    reason: Reason | None


def new_checkpoint_id() -> str:
    return f"checkpoint_{os.urandom(16).hex()}"


def checkpoint_at(
    stopped: Stopped, counted: Counted, *, calls: Mapping[str, OpenCall], hooks: Mapping[str, OpenCall]
) -> Checkpoint:
    """Make the checkpoint of a stop, with an id of its own.

    The run's id would not do: a run that continues in another process keeps its id and may stop again.
    """
    return Checkpoint(
        new_checkpoint_id(),
        stopped.agent,
        stopped.run_id,
        stopped.stop_reason,
        stopped.messages,
        stopped.open_messages,
        stopped.ledger,
        calls,
        counted.step,
        counted.spent,
        stopped.reason,
        counted.pending,
        counted.used,
        hooks,
    )


def _dropped(call: OpenCall) -> OpenCall:
    child = call.child.drop() if call.child is not None else None
    return OpenCall(call.call_id, "", question=call.question, child=child)


def _renoticed(message: Message, notice: str) -> Message:
    """Replace the notice that the run waits by one that it was stopped; the report on children stays."""
    parts = [
        Notice(part.text.replace(remark(WAITS), notice).replace(WAITS, unmarked(notice)))
        if isinstance(part, Notice)
        else part
        for part in message.parts
    ]
    return Message(message.role, tuple(parts))


def question_inside(call_id: str, question: Question) -> Question:
    """The question with the id by which the caller who resumes the outer run knows it."""
    return replace(question, id=f"{call_id}/{question.id}")
