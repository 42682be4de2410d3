"""The truth about each tool call, written before its first line runs and after its last.

    not_started ──▶ running ──▶ finished | failed | stopped | waiting
         │             └──────▶ cut ──▶ compensated
         ├──▶ failed (denied, unknown tool, bad arguments: it never ran)
         ├──▶ waiting (a check asked a person)
         └──▶ what it was in the run before, if this one continues that and did not come to it

An entry is frozen; a move replaces it. A move that is not drawn here is a bug and raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from safepoint.errors import InternalError
from safepoint.history.closing import ClosedCall
from safepoint.history.parts import ToolCall
from safepoint.history.states import LedgerState
from safepoint.tools.options import Effect


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One tool call: what it was, and what is known of its outcome. Times are seconds since the epoch.

    `remote`: somebody else's program runs it; if it is cut, that one was told, and may have gone on.
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

    def closed(self, call: ToolCall, reason: str | None = None) -> ClosedCall:
        """What the conversation says of the call that this is the entry of. `reason`: why it was stopped."""
        return ClosedCall(
            call=call,
            state=self.state,
            content=self.content or "",
            error=self.error,
            reason=reason or None,
            point=self.point,
            still_running=self.still_running,
            remote=self.remote,
        )


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
        content: str | None = None,
        error: str | None = None,
        still_running: bool = False,
        point: str | None = None,
        started_at: float | None = None,
        ended_at: float | None = None,
    ) -> LedgerEntry:
        """The call is in that state from now on; what is not said stays as it was."""
        old = self._entries[call_id]
        if state not in _MOVES.get(old.state, frozenset()):
            raise InternalError(f"{old.name} ({call_id}): {old.state} → {state} is not a move")
        entry = self._entries[call_id] = LedgerEntry(
            call_id,
            old.name,
            old.args,
            state,
            old.effect,
            old.content if content is None else content,
            old.error if error is None else error,
            old.still_running or still_running,
            old.point if point is None else point,
            old.started_at if started_at is None else started_at,
            old.ended_at if ended_at is None else ended_at,
            old.remote,
        )
        return entry

    def put_back(self, entry: LedgerEntry) -> None:
        """This run was to make the call again and did not come to it: the call is what the run before has left."""
        old = self._entries[entry.call_id]
        if old.state is not LedgerState.NOT_STARTED:
            raise InternalError(f"{old.name} ({old.call_id}) is {old.state}: it can't be put back")
        self._entries[entry.call_id] = entry

    def note(self, call_id: str, *, error: str) -> LedgerEntry:
        """Attach an error to an entry whose state stays what it is."""
        entry = self._entries[call_id] = replace(self._entries[call_id], error=error)
        return entry

    def __getitem__(self, call_id: str) -> LedgerEntry:
        return self._entries[call_id]

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._entries

    def __iter__(self) -> Iterator[LedgerEntry]:
        return iter(self._entries.values())
