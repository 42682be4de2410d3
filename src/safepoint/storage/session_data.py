"""A session as it is stored, and the changes that are appended to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import field

from safepoint._values import Value
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.journal import Counted, Fact
from safepoint.agent.ledger import LedgerEntry
from safepoint.errors import SessionBusy, StoreError
from safepoint.history.parts import Message
from safepoint.tools.call_state import CallState

# How the name of a claimant begins that is no run, and has the session for a moment.
CHANGE = "change-"


class SessionChanging(SessionBusy):
    """A change from outside any run has the session for a moment: claim it again.

    A store that cannot tell raises `SessionBusy`.
    """


class Version(NamedTuple):
    """How far a session was written: the epoch of its last claim, and the number of the last write under it."""

    epoch: int
    number: int


class SessionOutdated(StoreError):
    """The session was written to since it was loaded: load it again."""


def taken_by(claimant: str | None, message: str) -> SessionBusy:
    """What a claim raises while that claimant has the session."""
    return (SessionChanging if (claimant or "").startswith(CHANGE) else SessionBusy)(message)


class LateResult(Value, frozen=True):
    """A call that was cut and came back after its run had ended."""

    call_id: str
    name: str
    content: str


class StoredRun(Value, frozen=True):
    """The last run of a session. `ended` is false while it is live, and if its process died.

    `index`: where its part of the conversation begins. `state_before`: the session's state at that time. `origin`:
    the run that began this turn; it differs from `run_id` if that run was stopped and continued. `continued`: what an
    unfinished run goes on from (`Opened.base`): all that it has not reached yet is still there. `counted` and
    `inside`: of such a one, too, what it has used so far, and the runs inside it, by their keys.
    """

    run_id: str
    agent: str
    index: int
    ended: bool
    stop_reason: str | None = None
    checkpoint: Checkpoint | None = None
    ledger: tuple[LedgerEntry, ...] = ()
    memories: Mapping[str, CallState] = field(default_factory=dict[str, CallState])
    state_before: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON values
    origin: str = ""
    continued: Checkpoint | None = None
    counted: Counted | None = None
    inside: Mapping[str, Stored] = field(default_factory=dict[str, "Stored"])


class Stored(Value, frozen=True):
    """A session as it is stored. `runs`: all turns that can be rewound, oldest first. `epoch`: of its last claim.

    `times`: when each message was said. A message that is written again unchanged keeps its time.
    `number`: of the last write under that epoch; None from a store that does not count its writes.
    """

    messages: tuple[Message, ...]
    state: Mapping[str, Any]  # Any: JSON values
    runs: tuple[StoredRun, ...] = ()
    late: tuple[LateResult, ...] = ()
    epoch: int = 0
    times: tuple[float, ...] = ()
    number: int | None = None

    @property
    def version(self) -> Version | None:
        return None if self.number is None else Version(self.epoch, self.number)

    def claimed(self, epoch: int, number: int | None = None) -> Stored:
        """As it is, under a new claim. Every run makes one, and `replace` would look at each field anew."""
        return Stored(self.messages, self.state, self.runs, self.late, epoch, self.times, number)


class Truncated(Value, frozen=True):
    """The conversation ends at `index`; the runs from there on are forgotten, with the late results that were told."""

    index: int


class StateSet(Value, frozen=True):
    """The session's state is this."""

    state: Mapping[str, Any]  # Any: JSON values


class LateSet(Value, frozen=True):
    """These late results wait to be told."""

    late: tuple[LateResult, ...]


class Released(Value, frozen=True):
    """The claimant gives the session back, with the write that this is part of, as `release` does."""

    claimant: str


# What is told of a session, and who has it.
Lasting = Fact | Truncated | StateSet | LateSet
Change = Lasting | Released
