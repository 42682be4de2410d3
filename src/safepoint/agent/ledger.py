"""The truth about each tool call, written before its first line runs and after its last.

    not_started ──▶ running ──▶ finished | failed | stopped | waiting
         │             └──────▶ cut ──▶ compensated
         ├──▶ failed (denied, unknown tool, bad arguments: it never ran)
         ├──▶ waiting (a check asked a person)
         └──▶ its state in the run before, if this run continues that one and did not reach the call

An entry is frozen; a move replaces it. A move that is not drawn here is a bug and raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import field
from msgspec.structs import replace

from safepoint._values import Value
from safepoint.errors import InternalError
from safepoint.history.closing import ClosedCall
from safepoint.history.parts import Attachment, ToolCall
from safepoint.history.states import LedgerState
from safepoint.tools.content import Content
from safepoint.tools.options import Effect


class LedgerEntry(Value, frozen=True):
    """One tool call and what is known of its outcome. Times are seconds since the epoch.

    `remote`: a program outside this process runs it; if the call is cut, that program was told and may have continued.
    """

    call_id: str
    name: str
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: decoded JSON
    state: LedgerState = LedgerState.NOT_STARTED
    effect: Effect = Effect.EFFECTFUL
    content: str | None = None
    error: str | None = None
    still_running: bool = False
    point: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    remote: bool = False
    # The images and files of its result, which `content` names.
    parts: tuple[Attachment, ...] = ()


_MOVES: dict[LedgerState, frozenset[LedgerState]] = {
    LedgerState.NOT_STARTED: frozenset({LedgerState.RUNNING, LedgerState.FAILED, LedgerState.WAITING}),
    LedgerState.RUNNING: frozenset(
        {LedgerState.FINISHED, LedgerState.FAILED, LedgerState.STOPPED, LedgerState.WAITING, LedgerState.CUT}
    ),
    LedgerState.CUT: frozenset({LedgerState.COMPENSATED}),
}


class Ledger:
    """All entries of one run, in the order of the calls."""

    def __init__(self) -> None:
        self._entries: dict[str, LedgerEntry] = {}

    def open(self, entry: LedgerEntry) -> None:
        if entry.call_id in self._entries:
            raise InternalError(f"the call {entry.call_id} is in the ledger already")
        self._entries[entry.call_id] = entry

    def move(
        self,
        call_id: str,
        state: LedgerState,
        *,
        content: str | Content | None = None,
        error: str | None = None,
        still_running: bool = False,
        point: str | None = None,
        started_at: float | None = None,
        ended_at: float | None = None,
    ) -> LedgerEntry:
        """Move the call to that state; fields that are not given keep their values."""
        old = self._entries[call_id]
        text, parts = (content.text, content.parts) if isinstance(content, Content) else (content, old.parts)
        if state not in _MOVES.get(old.state, frozenset()):
            raise InternalError(f"{old.name} ({call_id}): {old.state} → {state} is not a move")
        entry = self._entries[call_id] = LedgerEntry(
            call_id,
            old.name,
            old.args,
            state,
            old.effect,
            old.content if text is None else text,
            old.error if error is None else error,
            old.still_running or still_running,
            old.point if point is None else point,
            old.started_at if started_at is None else started_at,
            old.ended_at if ended_at is None else ended_at,
            old.remote,
            parts,
        )
        return entry

    def put_back(self, entry: LedgerEntry) -> None:
        """This run was to repeat the call and did not reach it: restore the entry of the run before."""
        old = self._entries[entry.call_id]
        if old.state is not LedgerState.NOT_STARTED:
            raise InternalError(f"{old.name} ({old.call_id}) is {old.state}: it can't be put back")
        self._entries[entry.call_id] = entry

    def note(self, call_id: str, *, error: str) -> LedgerEntry:
        """Attach an error to an entry without changing its state."""
        entry = self._entries[call_id] = replace(self._entries[call_id], error=error)
        return entry

    def __getitem__(self, call_id: str) -> LedgerEntry:
        return self._entries[call_id]

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._entries

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(self._entries.values())


def closed_call(call: ToolCall, entry: LedgerEntry, reason: str | None) -> ClosedCall:
    """The text that the conversation has for the call, now that its entry is final."""
    return ClosedCall(
        call=call,
        state=entry.state,
        content=entry.content or "",
        parts=entry.parts,
        error=entry.error,
        reason=reason,
        point=entry.point,
        still_running=entry.still_running,
        remote=entry.remote,
    )


_HAPPENED = frozenset(
    {
        LedgerState.FINISHED,
        LedgerState.FINISHED_LATE,
        LedgerState.FAILED,
        LedgerState.CUT,
        LedgerState.STOPPED,
        LedgerState.WAITING,
    }
)


def has_effect(entry: LedgerEntry) -> bool:
    """Did the call reach the world, or may it have? One that was denied or refused never ran a line."""
    ran = entry.started_at is not None or entry.state not in (LedgerState.FAILED, LedgerState.WAITING)
    return ran and entry.state in _HAPPENED and entry.effect is not Effect.PURE
