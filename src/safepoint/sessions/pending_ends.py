"""The ends of runs that could not be stored yet, and the one place that tries again.

    submitted ──committed──▶ (gone)
        │  ▲
        │  └── failed, tried again: at once, then after growing pauses
        └── refused for ever (deleted, taken over) ──▶ (gone)

An end is one unit of work with a number, so it can be sent again without looking whether an earlier try has happened.
Until it is stored, this process knows how the run ended although the storage does not: `Session` shows that, and
stores it before anything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from safepoint._core.reasons import Reason, Source
from safepoint._core.supervisor import Supervisor
from safepoint.agent.journal import Ended, Opened
from safepoint.errors import SessionNotFound, StoreError, Superseded
from safepoint.sessions.sealing import CRASH
from safepoint.storage.operations import AppendChanges, Statement
from safepoint.storage.protocol import SessionCommits
from safepoint.storage.run_records import RecordMoved
from safepoint.storage.session_data import Change, Stored

_log = logging.getLogger("safepoint")

# Nothing will ever store these: another run owns the session by now, or it was deleted.
REFUSED = (Superseded, SessionNotFound, RecordMoved)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_REMEMBERED = 1_000
_ANSWER = 15.0  # seconds after which a try that was not answered is made again


@dataclass(eq=False, slots=True)
class PendingEnd:
    """`append`: the write to the session in the unit. `task`: tries again; None while its caller does that."""

    run_id: str
    append: AppendChanges
    unit: tuple[Statement[Any], ...]  # Any: of every result
    on_stored: Callable[[], object]
    began: float = 0.0
    failures: int = 0
    task: asyncio.Task[None] | None = None


class PendingEnds:
    """Of one storage."""

    def __init__(self, storage: SessionCommits) -> None:
        self._storage = storage
        self._ends: dict[str, PendingEnd] = {}
        # Runs whose beginning the store has refused, and perhaps kept all the same, with what it said. The newest.
        self._never_began: dict[str, Exception] = {}

    def never_began(self, run_id: str, error: Exception) -> None:
        """The run has failed, because the store did not take its beginning."""
        self._never_began[run_id] = error
        if len(self._never_began) > _REMEMBERED:
            del self._never_began[next(iter(self._never_began))]

    def why_unended(self, run_id: str) -> Reason:
        """Why the store has no end of a run that nobody has."""
        error = self._never_began.get(run_id)
        return CRASH if error is None else Reason(f"its beginning was not stored: {error}", Source.POLICY)

    def get(self, session_id: str) -> PendingEnd | None:
        return self._ends.get(session_id)

    async def store(self, end: PendingEnd) -> None:
        """Raises what the second try raises; it is tried again all the same.

        Cancellation: only the waiting ends.
        """
        end.began = asyncio.get_running_loop().time()
        self._add(end)
        try:
            try:
                await self._try(end)
            except REFUSED:
                raise
            except Exception as error:
                self._failed(end, error)
                await self._try(end)
        except REFUSED as error:
            self._give_up(end, error)
            raise
        except BaseException as error:
            if isinstance(error, Exception):
                self._failed(end, error)
            self.begin(end)
            raise

    def begin(self, end: PendingEnd) -> None:
        """Store it from now on, in a task of its own. Call it on a loop."""
        end.began = end.began or asyncio.get_running_loop().time()
        self._add(end)
        body = self._keep_trying(end)
        end.task = Supervisor.current().spawn(body, f"end of {end.run_id}", copy_context())

    def _add(self, end: PendingEnd) -> None:
        self._ends[end.append.session_id] = end
        _UNSETTLED.add(self)

    async def settle(self, session_id: str) -> None:
        """Store the end of that session now, if one is pending. Raises `StoreError` if that fails once more.

        Cancellation: it is tried again later.
        """
        end = self._ends.get(session_id)
        if end is None:
            return
        await self._stop(end)
        if self._ends.get(session_id) is end:
            try:
                await self._try(end)
            except REFUSED as error:
                self._give_up(end, error)
            except BaseException as error:
                if isinstance(error, Exception):
                    self._failed(end, error)
                self.begin(end)
                raise

    async def _stop(self, end: PendingEnd) -> None:
        """Leave the try that is under way, which may hang: the unit is sent again. Cancellation: likewise."""
        task, end.task = end.task, None
        if task is None or task.done():
            return
        with suppress(RuntimeError):  # of a loop that was closed
            task.cancel()
            if task.get_loop() is asyncio.get_running_loop():
                await asyncio.wait({task}, timeout=1.0)

    async def _keep_trying(self, end: PendingEnd) -> None:
        """Cancellation: it stays pending."""
        while True:
            if end.failures:
                await asyncio.sleep(min(_FIRST_PAUSE * 2 ** min(end.failures - 1, 10), _LONGEST_PAUSE))
            try:
                async with asyncio.timeout(_ANSWER):
                    return await self._try(end)
            except REFUSED as error:
                return self._give_up(end, error)
            except Exception as error:
                self._failed(end, error)

    async def _try(self, end: PendingEnd) -> None:
        await self._storage.commit(*end.unit)
        self._forget(end)
        if end.failures:
            took = asyncio.get_running_loop().time() - end.began
            _log.warning("the end of the run %s was stored %.1f s late", end.run_id, took)
        end.on_stored()

    def _give_up(self, end: PendingEnd, error: StoreError) -> None:
        self._forget(end)
        _log.warning("the end of the run %s is not stored: %s", end.run_id, error)

    def _forget(self, end: PendingEnd) -> None:
        if self._ends.get(end.append.session_id) is end:
            del self._ends[end.append.session_id]
        if not self._ends:
            _UNSETTLED.discard(self)

    def _failed(self, end: PendingEnd, error: Exception) -> None:
        end.failures += 1
        _log.warning("the end of the run %s could not be stored, and is tried again: %s", end.run_id, error)


# By the storage's identity, which is its own for as long as its pending ends, or a session, refer to it.
_PENDING: WeakValueDictionary[int, PendingEnds] = WeakValueDictionary()
# Those that have something to store, although the session may be gone, and the loop closed.
_UNSETTLED: set[PendingEnds] = set()


def pending_ends(storage: SessionCommits) -> PendingEnds:
    """Those of that storage."""
    found = _PENDING.get(id(storage))
    if found is None:
        found = _PENDING[id(storage)] = PendingEnds(storage)
    return found


def still_needed(changes: list[Change], stored: Stored, opening: list[Change]) -> list[Change]:
    """It was unknown whether an earlier write had happened: write the beginning of the run exactly once."""
    run_id = stored.runs[-1].run_id if stored.runs else None
    if any(isinstance(change, Opened) and change.run_id == run_id for change in changes):
        return []
    if any(isinstance(change, Ended) and change.run_id != run_id for change in changes):
        return [*opening, *changes]
    return changes
