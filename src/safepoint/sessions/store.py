"""What a store is to a session: a place for conversations that many processes may know and one run at a time may write.

A run claims a session and gets an epoch; every later write carries it. A store refuses a write with an old epoch, so a
run that was taken for dead and comes back can't spoil what its successor has written. One `append` is one atomic step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.journal import Counted, Fact
from safepoint.agent.ledger import LedgerEntry
from safepoint.errors import SessionBusy
from safepoint.history.parts import Message
from safepoint.tools.memory import CallMemory

# How the name of a claimant begins that is no run, and has the session for a moment.
CHANGE = "change-"


class SessionChanging(SessionBusy):
    """Somebody has it for a moment, to change it: claim it again. A store that can't tell says `SessionBusy`."""


def taken_by(claimant: str | None, message: str) -> SessionBusy:
    """What a claim raises while that one has the session."""
    return (SessionChanging if (claimant or "").startswith(CHANGE) else SessionBusy)(message)


@dataclass(frozen=True, slots=True)
class LateResult:
    """A call that was cut and came back after its run had ended."""

    call_id: str
    name: str
    content: str


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The last run of a session. `ended` is false for one that is live, or whose process died.

    `index`: where its part of the conversation begins. `state_before`: the session's state at that time. `origin`:
    the run that began this turn; another one than `run_id` if that was stopped and continued. `continued`: of one that
    has not ended, what it goes on from (`Opened.base`): all that it has not come to yet is still there. `counted` and
    `inside`: of such a one, too, what it has used so far, and the runs inside it, by their keys.
    """

    run_id: str
    agent: str
    index: int
    ended: bool
    stop_reason: str | None = None
    checkpoint: Checkpoint | None = None
    ledger: tuple[LedgerEntry, ...] = ()
    memories: Mapping[str, CallMemory] = field(default_factory=dict[str, CallMemory])
    state_before: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON values
    origin: str = ""
    continued: Checkpoint | None = None
    counted: Counted | None = None
    inside: Mapping[str, Stored] = field(default_factory=dict[str, "Stored"])


@dataclass(frozen=True, slots=True)
class Stored:
    """A session as it is stored. `runs`: all turns that can be rewound, oldest first. `epoch`: of its last claim.

    `times`: when each message was said. One that is written again as it was keeps its time.
    """

    messages: tuple[Message, ...]
    state: Mapping[str, Any]  # Any: JSON values
    runs: tuple[StoredRun, ...] = ()
    late: tuple[LateResult, ...] = ()
    epoch: int = 0
    times: tuple[float, ...] = ()

    def claimed(self, epoch: int) -> Stored:
        """As it is, under a new claim. Every run makes one, and `replace` would look at each field anew."""
        return Stored(self.messages, self.state, self.runs, self.late, epoch, self.times)


@dataclass(frozen=True, slots=True)
class Truncated:
    """The conversation ends at `index`; the runs from there on are forgotten, with the late results that were told."""

    index: int


@dataclass(frozen=True, slots=True)
class StateSet:
    """The session's state is this."""

    state: Mapping[str, Any]  # Any: JSON values


@dataclass(frozen=True, slots=True)
class LateSet:
    """These late results wait to be told."""

    late: tuple[LateResult, ...]


@dataclass(frozen=True, slots=True)
class Released:
    """The claimant gives the session back, with the write that this is part of; as `release` does."""

    claimant: str


# What is told of a session, and who has it.
Lasting = Fact | Truncated | StateSet | LateSet
Change = Lasting | Released


class Store(Protocol):
    """Every method is atomic: it happens whole or raises. Cancellation of any of them: likewise."""

    async def create(self, session_id: str, state: Mapping[str, Any]) -> None:  # Any: JSON values
        """A new, empty session. Raises `SessionExists`."""
        ...

    async def load(self, session_id: str) -> Stored:
        """Everything. Raises `SessionNotFound`, or `StoreCorrupt` and changes nothing."""
        ...

    async def claim(self, session_id: str, claimant: str) -> int:
        """Take the session; returns the epoch of its writes. Raises `SessionBusy` while another claimant has it."""
        ...

    async def release(self, session_id: str, claimant: str) -> None:
        """Give it back. Does nothing if somebody else has it by now."""
        ...

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        """All of these changes, or none. Raises `Superseded` for an old epoch, `SessionNotFound` after a delete."""
        ...

    async def add_late(self, session_id: str, late: LateResult) -> None:
        """A late result, from outside any run."""
        ...

    async def delete(self, session_id: str) -> None:
        """Forget it. Deleting what is not there is no error."""
        ...

    async def list_ids(self, prefix: str = "") -> list[str]:
        """The ids of all sessions that begin so, sorted."""
        ...

    async def states(self, prefix: str = "") -> dict[str, Mapping[str, Any]]:  # Any: JSON values
        """The state of every session whose id begins so, in the order of `list_ids`, without its conversation."""
        ...

    async def aclose(self) -> None:
        """Close the store; it can't be used any more."""
        ...
