"""How a child of a stopped composite continues: decided once, in pure functions, from the composite's checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from safepoint.agent.checkpoint import OpenCall, Question
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.resume import Resume, resume_inside
from safepoint.history.closing import remark
from safepoint.history.parts import Message, Text
from safepoint.history.states import LedgerState

_UNKNOWN = "An earlier run of this task was cut while running, outcome unknown. Some of its work may be done."


@dataclass(frozen=True, slots=True)
class RestoredChild:
    """`resume`: it continues inside. `remark`: a text for its restart. `question`: a person decides first.

    `decided`: the person's decision.
    """

    resume: Resume | None = None
    remark: str | None = None
    question: Question | None = None
    decided: bool | str | None = None

    def remarked(self, message: Message) -> Message:
        """The child's input, with the remark."""
        assert self.remark is not None
        return Message(message.role, (*message.parts, Text(remark(self.remark))))


def restore_child(resume: Resume, entry: LedgerEntry) -> RestoredChild:
    """Decide how a child that has not finished continues."""
    saved = resume.checkpoint.calls.get(entry.call_id, OpenCall(entry.call_id, ""))
    inside = resume_inside(resume, saved)
    if inside is not None or entry.state is not LedgerState.CUT:
        return RestoredChild(inside)
    saved = resume.answered().calls.get(entry.call_id, saved)
    if resume.on_unknown == "ask" and saved.decided is None:
        payload = f"The child {entry.call_id!r} was cut, its outcome is unknown. Run it again?"
        return RestoredChild(question=Question(f"{entry.call_id}:unknown", entry.name, payload, "unknown"))
    if saved.decided is True or (resume.on_unknown == "rerun" and saved.decided is None):
        return RestoredChild(decided=saved.decided)
    remark = f"{_UNKNOWN} A person says: {saved.decided}" if isinstance(saved.decided, str) else _UNKNOWN
    return RestoredChild(remark=remark, decided=saved.decided)
