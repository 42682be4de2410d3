"""How a turn that is not over continues, so that its message is in the conversation once. Pure.

A turn in a session writes its message there, and the process may die before the loop's record says so. So the record
names the runs of a turn before they begin, and this module asks the session which of them it knows:

| the session                                       | the turn                                    |
|---------------------------------------------------|---------------------------------------------|
| knows none of its runs                            | begins anew: nothing was said               |
| ends with one of them, which can go on            | goes on from the session's checkpoint       |
| ends with one of them, which has ended            | is over                                     |
| ends with one that was cancelled while it waited  | is over                                     |
| has one of them, and others came after it         | is over, unless the user asked for it again |

Without a session the record has all the facts: the turn continues from its checkpoint, or begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar, cast

from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.ledger import LedgerEntry, has_effect
from safepoint.agent.result import StopReason
from safepoint.agent.session_protocol import SessionProtocol
from safepoint.history.closing import quoted
from safepoint.history.parts import Message, Prompt, Text, user_message
from safepoint.sessions.session import Session
from safepoint.storage.session_data import StoredRun
from safepoint.turns.items import Item
from safepoint.turns.plan import Plan, ResumePlan

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Unfinished(Generic[T]):
    """A turn that is not over. `runs`: its runs so far. `plan`: the plan that made it, if made in this process."""

    key: str
    items: list[Item[T]]
    runs: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    plan: Plan[T] | ResumePlan[T] | None = None
    session: SessionProtocol | None = None
    # Items that were about to join its conversation when the process died.
    joining: list[Item[T]] = field(default_factory=list[Item[T]])
    # Whether the storage has a row for this turn; and whether an earlier loop left it.
    recorded: bool = False
    loaded: bool = False
    attempt: int = 1
    not_before: float = 0.0
    # Whether it had failed, and the user has requeued it.
    requeued: bool = False


@dataclass(frozen=True, slots=True)
class GoOn:
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Anew:
    pass


@dataclass(frozen=True, slots=True)
class AlreadyOver:
    pass


NextStep: TypeAlias = GoOn | Anew | AlreadyOver


def next_step(turn: Unfinished[T], session: SessionProtocol | None, history: Sequence[Message]) -> NextStep:
    """`history`: the conversation that the plan of the turn wants to continue."""
    if isinstance(session, Session):
        return _by_session(turn, session)
    if turn.checkpoint is None:
        return Anew()
    if turn.requeued and tuple(turn.checkpoint.messages[: len(history)]) != tuple(history):
        return Anew()  # the conversation has moved on since it failed
    return GoOn(turn.checkpoint)


def _by_session(turn: Unfinished[T], session: Session) -> NextStep:
    known = [run for run in session.runs if run.run_id in turn.runs or run.origin in turn.runs]
    if not known:
        return Anew()
    last = session.runs[-1]
    if known[-1] is not last:
        return Anew() if turn.requeued else AlreadyOver()
    if not last.ended:  # its end is not stored yet: the session stores it when it is entered again
        return GoOn(turn.checkpoint) if turn.checkpoint is not None else Anew()
    if session.checkpoint is None or _was_cleared(turn, last):
        return AlreadyOver()
    return GoOn(session.checkpoint)


def _was_cleared(turn: Unfinished[T], last: StoredRun) -> bool:
    """Whether that run of the turn waited for a person when the loop saw it last, and was cancelled since."""
    seen = turn.checkpoint
    waited = seen is not None and bool(seen.questions) and seen.run_id == last.run_id
    return waited and last.stop_reason == StopReason.CANCELLED


def joined_already(turn: Unfinished[T], session: SessionProtocol | None) -> list[Item[T]]:
    """Which of the items that were about to join the turn are in its session's conversation."""
    if not isinstance(session, Session) or not session.runs:
        return []
    said = [message for message in session.messages[session.runs[-1].index :] if message.role == "user"]
    pending = session.checkpoint.pending if session.checkpoint is not None else ()
    parts = [part for message in (*said, *pending) for part in message.parts]
    found: list[Item[T]] = []
    for item in turn.joining:
        message = message_of(item.value)
        if message is not None and all(part in parts for part in message.parts):
            for part in message.parts:
                parts.remove(part)
            found.append(item)
    return found


def message_of(value: Any) -> Message | None:  # Any: items of any type
    """The item as a message; None if it is no prompt."""
    try:
        return user_message(cast("Prompt", value)) if isinstance(value, str | list | tuple) else None
    except ValueError:
        return None


def remaining_effects(turn: Unfinished[T]) -> tuple[LedgerEntry, ...]:
    """The finished calls of a turn that is removed from the conversation; their effects remain."""
    return tuple(filter(has_effect, turn.checkpoint.ledger)) if turn.checkpoint is not None else ()


def with_effects(prompt: Prompt, effects: Sequence[LedgerEntry]) -> Prompt:
    """The prompt of a turn that begins anew, with the effects of an earlier try, so that none is repeated unawares."""
    if not effects:
        return prompt
    done = " ".join(f"The call {entry.name} {entry.state}: {quoted(entry.content or '', 500)}." for entry in effects)
    note = Text(f"[An earlier try at this was stopped. What it did stays done. {done}]")
    return [note, *([Text(prompt)] if isinstance(prompt, str) else prompt)]
