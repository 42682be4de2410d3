"""A store as a user may write it: the simplest that keeps every rule, and no part of Safepoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import Any

from safepoint.errors import SessionExists, SessionNotFound, StoreError, Superseded
from safepoint.sessions.store import Change, LateResult, Released, StateSet, Stored, taken_by
from safepoint.storage.reducer import apply


class PlainStore:
    """Sessions in a dict."""

    def __init__(self) -> None:
        self._sessions: dict[str, Stored] = {}
        self._claimed: dict[str, str] = {}
        self._closed = False
        # A session's first epoch is far from any other's: a run of a deleted one can't write into its successor.
        self._first_epochs = count(0, 2**32)

    async def create(self, session_id: str, state: Mapping[str, Any]) -> None:  # Any: JSON values
        """Cancellation: of this and of every other method: there is nothing to wait for."""
        self._refuse_closed()
        if session_id in self._sessions:
            raise SessionExists(f"the session {session_id!r} is there already: load it")
        self._sessions[session_id] = Stored((), deepcopy(dict(state)), epoch=next(self._first_epochs))

    async def load(self, session_id: str) -> Stored:
        return self._get(session_id)

    async def claim(self, session_id: str, claimant: str) -> int:
        stored = self._get(session_id)
        holder = self._claimed.setdefault(session_id, claimant)
        if holder != claimant:
            raise taken_by(holder, f"a run of the session {session_id!r} is live")
        self._sessions[session_id] = stored.claimed(stored.epoch + 1)
        return stored.epoch + 1

    async def release(self, session_id: str, claimant: str) -> None:
        self._give_back(session_id, claimant)

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        stored = self._get(session_id)
        if stored.epoch != epoch:
            raise Superseded(f"the session {session_id!r} was taken over by another run")
        for change in changes:
            # The state is its owner's, who goes on changing it.
            stored = apply(stored, deepcopy(change) if isinstance(change, StateSet) else change)
        self._sessions[session_id] = stored
        for change in changes:
            if isinstance(change, Released):
                self._give_back(session_id, change.claimant)

    async def add_late(self, session_id: str, late: LateResult) -> None:
        stored = self._get(session_id)
        self._sessions[session_id] = replace(stored, late=(*stored.late, late))

    async def delete(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)
        self._claimed.pop(session_id, None)

    async def list_ids(self, prefix: str = "") -> list[str]:
        self._refuse_closed()
        return sorted(id for id in self._sessions if id.startswith(prefix))

    async def states(self, prefix: str = "") -> dict[str, Mapping[str, Any]]:  # Any: JSON values
        self._refuse_closed()
        found = sorted(id for id in self._sessions if id.startswith(prefix))
        return {id: deepcopy(dict(self._sessions[id].state)) for id in found}

    async def aclose(self) -> None:
        self._sessions.clear()
        self._closed = True

    def _give_back(self, session_id: str, claimant: str) -> None:
        if self._claimed.get(session_id) == claimant:
            del self._claimed[session_id]

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    def _get(self, session_id: str) -> Stored:
        self._refuse_closed()
        try:
            return self._sessions[session_id]
        except KeyError:
            raise SessionNotFound(f"there is no session {session_id!r}: create it first") from None
