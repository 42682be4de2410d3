"""What a turn finds in the state of its session when it begins, and what it leaves for others when it is over.

Until its turn has come nothing of a message is in the state: others may come before it. What sessions share is brought
then, and what the run did to that is given back once, at its end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from safepoint.server.hosted import HostedRun
from safepoint.server.ids import SessionKey
from safepoint.server.shared_state import bring, changed, drop_temporary, merge, places, shared
from safepoint.sessions.records import RecordMoved, RunBook, RunState
from safepoint.sessions.session import Session
from safepoint.sessions.shelf import Note, Shelf


class TurnState:
    """Of one run. `bring` when its turn has come, `keep` when it is over."""

    def __init__(self, book: RunBook, shelf: Shelf, hosted: HostedRun, session: Session) -> None:
        self._book = book
        self._shelf = shelf
        self._hosted = hosted
        self._session = session
        # None before its turn has come.
        self._shared_before: Mapping[str, Any] | None = None  # Any: JSON values

    async def bring(self) -> None:
        """The state is as its sessions share it now, with what came with the message. Cancellation: some is there."""
        await self._close_pause()
        await share(self._shelf, self._hosted.key, self._hosted.state_delta)
        self._shared_before = await self._shelf.shared(places(self._hosted.key).values())
        merge(self._session.state, self._hosted.state_delta)
        bring(self._session.state, self._shared_before)

    async def keep(self) -> None:
        """What it did to shared values is for all. Cancellation: not all of it may be."""
        drop_temporary(self._session.state)
        key, now = self._hosted.key, time.time()
        for event, delta in self._hosted.telling.state.deltas.items():
            await self._shelf.note(key.stored_as, Note(now, {"event": event, "stateDelta": delta}))
        if self._shared_before is not None:
            await share(self._shelf, key, changed(self._shared_before, self._session.state))

    async def _close_pause(self) -> None:
        """A run that waited goes on under another id, or never will. Cancellation: its record says so or does not."""
        checkpoint = self._session.checkpoint
        if checkpoint is None or not checkpoint.questions:
            return
        record = await self._book.get(self._session.runs[-1].run_id)
        if record is not None and record.state is RunState.PAUSED:
            with suppress(RecordMoved):
                await self._book.move(record.run_id, RunState.ENDED, epoch=record.epoch)


async def share(shelf: Shelf, key: SessionKey, delta: Mapping[str, Any]) -> None:  # Any: JSON values
    """What others have too. Cancellation: each place has all of it or nothing."""
    for place, part in shared(key, delta).items():
        await shelf.share(place, part)
