"""Runs of a session that other processes have: a message that may wait for its turn waits for theirs too.

Two processes share a storage and nothing else. The run that was accepted first is first: the transaction that accepts a
run that is to begin at once finds every run that was accepted before, and refuses it then. Among the runs of this
process turns are given by the session's sender, once they may begin. A run whose owner is dead counts as well: it is
taken over, and then it goes on, or ends.
"""

from __future__ import annotations

from collections.abc import Callable

from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.errors import SessionBusy
from safepoint.serving.cancel_requests import StopRequest, encode_ask
from safepoint.serving.managed_run import ManagedRun
from safepoint.sessions.dispatch import IfBusy
from safepoint.storage.protocol import Storage
from safepoint.storage.run_records import RunRecord, RunState, is_in_line

_LOOK = 0.25
_STOPS = {"preempt": SafePoint.ANY, "interrupt": SafePoint.NOW}


class CrossProcessQueue:
    """`here`: the run of that id, if this process works on it."""

    def __init__(self, storage: Storage, here: Callable[[str], ManagedRun | None]) -> None:
        self._storage = storage
        self._here = here

    def matter(self, if_busy: IfBusy) -> bool:
        """May there be any, and would such a message wait for them?"""
        return if_busy != "reject" and self._storage.durable

    async def of(self, session: str, if_busy: IfBusy) -> list[RunRecord]:
        """What a message would have to wait for. Raises `SessionBusy` if it would not. Cancellation: no change."""
        if not self.matter(if_busy):
            return []
        found = [record for record in await self._open(session) if self._here(record.run_id) is None]
        elsewhere = [
            record for record in found if record.owner != self._storage.worker
        ]  # ours are only just being accepted
        if elsewhere and if_busy == "rollback":
            raise SessionBusy(
                f"the run {elsewhere[0].run_id} of this session is live in another process, which alone can take its "
                "turn back: stop it with :cancel, take it back with :rewind, and send the message again"
            )
        return found

    async def make_way(self, if_busy: IfBusy, session: str, run_id: str) -> None:
        """Wait until no live run of another process, and no message that came before, is left.

        What is live is asked to stop, if the message wants that. Cancellation: some may have been asked.
        """
        asked = False
        async with self._storage.changes(session=session, every=_LOOK) as changes:
            async for _ in changes:
                found = await self._open(session)
                if self._is_clear(found, run_id):
                    return
                if not asked:
                    await self._stop(found, if_busy)
                asked = True

    def _is_clear(self, found: list[RunRecord], run_id: str) -> bool:
        mine = next((place for place, each in enumerate(found) if each.run_id == run_id), 0)
        away = [(place, each) for place, each in enumerate(found) if not self._has_turns(each.run_id)]
        return all(each.state is RunState.QUEUED and place >= mine for place, each in away)

    def _has_turns(self, run_id: str) -> bool:
        """Is it the sender of this process that says when it runs?"""
        managed = self._here(run_id)
        return managed is not None and managed.ahead_over is None

    async def stop(self, if_busy: IfBusy, record: RunRecord) -> None:
        """As a message that was left to other workers wants it. Cancellation: some were asked."""
        if if_busy in _STOPS:
            await self._stop([each for each in await self._open(record.session) if each != record], if_busy)

    async def _stop(self, found: list[RunRecord], if_busy: IfBusy) -> None:
        """Cancellation: some were asked."""
        if if_busy not in _STOPS:
            return
        request = StopRequest(at=_STOPS[if_busy], recursive=True)
        reason = Reason("a new message came", Source.PREEMPT)
        for record in found:
            if record.state is not RunState.LIVE:
                continue
            managed = self._here(record.run_id)
            if managed is not None:
                managed.ask(request.at, reason)
            else:
                await self._storage.runs.request_cancel(record.run_id, encode_ask(request, reason))

    async def _open(self, session: str) -> list[RunRecord]:
        """Live and queued, as they were accepted. Cancellation: nothing has changed."""
        return [each for each in await self._storage.runs.still_open(session, waiting=False) if is_in_line(each)]
