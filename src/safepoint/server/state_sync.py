"""What is written with the beginning and with the end of a served run, beside its conversation.

With the beginning: its record, what its message does to the state, and what sessions share, which the run then finds
in the state of its session. With the end: how its record ends, what the run did to shared values, and which event told
of which change. So session and record cannot disagree about an end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from safepoint._core.reasons import Reason, Source
from safepoint.agent.journal import Ended
from safepoint.agent.result import StopReason
from safepoint.server.wire_events import usage_json
from safepoint.serving.ids import SessionKey
from safepoint.serving.shared_state import bring, changed, drop_temporary, merge, own, places, shared
from safepoint.sessions.session import Session
from safepoint.storage.operations import AcceptRun, AddNote, MoveRun, ReadShared, Share, Statement
from safepoint.storage.run_records import RunState
from safepoint.storage.shared_state import Note

if TYPE_CHECKING:
    from safepoint.server.managed_run import ManagedRun


class StateSync:
    """Of one run, attached to its session. `accept`: its record, if the beginning of the run is what accepts it."""

    def __init__(self, managed: ManagedRun, session: Session, accept: AcceptRun | None) -> None:
        self._managed = managed
        self._session = session
        self._accept = accept
        # What the message has replaced in the state, to be put back if the run does not begin.
        self._replaced: dict[str, Any] = {}  # Any: JSON values
        self._shared_before: Mapping[str, Any] | None = None  # Any: as above

    def opening(self) -> Sequence[Statement[Any]]:  # Any: of every result
        managed, delta = self._managed, own(self._managed.state_delta)
        self._replaced = {name: self._session.state.get(name) for name in delta}
        merge(self._session.state, delta)
        statements: list[Statement[Any]] = []  # Any: as above
        if self._accept is not None:
            statements.append(self._accept)
        elif managed.queued:
            statements.append(MoveRun(managed.id, RunState.LIVE, managed.epoch, {"started_at": time.time()}))
        statements += share(managed.key, managed.state_delta)
        return [*statements, ReadShared(tuple(places(managed.key).values()))]

    def not_opened(self) -> None:
        """Until its turn has come nothing of a message is in the state."""
        merge(self._session.state, self._replaced)

    def opened(self, results: Sequence[Any] | None) -> None:  # Any: a result for each
        self._managed.opened()
        if results:
            self._shared_before = results[-1]
            merge(self._session.state, {n: v for n, v in self._managed.state_delta.items() if n.startswith("temp:")})
            bring(self._session.state, results[-1])

    def ending(self, ended: Ended, state: Mapping[str, Any]) -> Sequence[Statement[Any]]:  # Any: JSON values
        managed, session = self._managed, self._session
        drop_temporary(session.state)
        shared_now = {name: value for name, value in session.state.items() if name not in own(session.state)}
        managed.publisher.prepare_end(ended, {**own(state), **shared_now})
        statements: list[Statement[Any]] = [  # Any: of every result
            MoveRun(managed.id, state_after(ended.stop_reason, ended.reason), managed.epoch, _left_behind(ended))
        ]
        deltas = managed.publisher.state.deltas.items()
        notes = (Note(ended.at, {"event": event, "stateDelta": delta}) for event, delta in deltas)
        statements += [AddNote(managed.key.stored_as, note) for note in notes]
        if self._shared_before is not None:
            statements += share(managed.key, changed(self._shared_before, session.state))
        return statements

    def ended(self) -> None:
        self._managed.is_recorded = True
        self._managed.stored()  # its beginning, too, if that was not known


def state_after(stop_reason: StopReason, reason: Reason | None) -> RunState:
    """What a run is once it has stopped."""
    if stop_reason is StopReason.INTERRUPTED:
        return RunState.PAUSED
    return RunState.SUSPENDED if reason is not None and reason.source is Source.SHUTDOWN else RunState.ENDED


def _left_behind(ended: Ended) -> Mapping[str, Any]:  # Any: fields of a record
    why: Mapping[str, Any] | None = None if ended.reason is None else reason_json(ended.reason)  # Any: JSON values
    if why is None and ended.error is not None:
        why = {"error": type(ended.error).__name__, "text": str(ended.error)}
    outcome, usage = str(ended.stop_reason), usage_json(ended.usage)
    return {"ended_at": ended.at, "outcome": outcome, "reason": why, "usage": usage}


def share(key: SessionKey, delta: Mapping[str, Any]) -> list[Share]:  # Any: JSON values
    """What others have too, by its place."""
    return [Share(place, part) for place, part in shared(key, delta).items()]


def reason_json(reason: Reason) -> dict[str, str | None]:
    return {"text": reason.text, "source": str(reason.source), "by": reason.by}
