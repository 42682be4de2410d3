"""Runs of a session that other processes have: a message that may wait for its turn waits for theirs too.

Two processes share a book and nothing else, so it is looked at again and again. Who came first is first, by the time
of the records; a run of this process is waited for where its turns are given, by the session's sender. A run whose
process has died counts as well: somebody takes it over, and then it goes on, or ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from safepoint._core.reasons import Reason, Source
from safepoint.errors import SessionBusy
from safepoint.server.requests import CancelRequest
from safepoint.server.wish import Wish
from safepoint.sessions.busy import IfBusy
from safepoint.sessions.records import RunBook, RunRecord, RunState

_LOOK = 0.25
_STOPS = {"preempt": "any", "interrupt": "now"}


class Others:
    """`owner`: this process. `leads`: whether it works on the run of that id, and will give it its turn."""

    def __init__(self, book: RunBook, owner: str, leads: Callable[[str], bool]) -> None:
        self._book = book
        self._owner = owner
        self._leads = leads

    async def of(self, session: str, if_busy: IfBusy) -> list[RunRecord]:
        """What a message would have to wait for. Raises `SessionBusy` if it would not. Cancellation: no change."""
        if if_busy == "reject" or not self._book.durable:
            return []
        found = [record for record in await self._open(session) if not self._leads(record.run_id)]
        elsewhere = [record for record in found if record.owner != self._owner]  # ours are only just being accepted
        if elsewhere and if_busy == "rollback":
            raise SessionBusy(
                f"the run {elsewhere[0].run_id} of this session is live in another process, which alone can take its "
                "turn back: stop it with :cancel, take it back with :rewind, and send the message again"
            )
        return found

    async def make_way(self, found: list[RunRecord], if_busy: IfBusy, session: str, run_id: str) -> None:
        """Ask them to stop if the message wants that, and wait for them. Cancellation: some were asked."""
        await self._stop(found, if_busy)
        await self._over(session, run_id)

    async def _stop(self, found: list[RunRecord], if_busy: IfBusy) -> None:
        """Cancellation: some were asked."""
        if if_busy not in _STOPS:
            return
        request = CancelRequest(at=_STOPS[if_busy], recursive=True)
        wish = Wish(request, Reason("a new message came", Source.PREEMPT), self._owner)
        for record in found:
            if record.state is RunState.LIVE:
                await self._book.intend(record.run_id, wish.to_json())

    async def _over(self, session: str, run_id: str) -> None:
        """Wait until no live run of another process, and no message that came before, is left.

        Cancellation: only the waiting ends.
        """
        while True:
            found = await self._open(session)
            mine = next((place for place, each in enumerate(found) if each.run_id == run_id), 0)
            first = any(each.state is RunState.QUEUED for each in found[:mine])
            if not first and all(each.state is RunState.QUEUED or self._leads(each.run_id) for each in found):
                return
            await asyncio.sleep(_LOOK)

    async def _open(self, session: str) -> list[RunRecord]:
        """Live and queued, oldest first. Cancellation: nothing has changed."""
        found = await self._book.still_open(session, waiting=False)
        return [each for each in found if each.state is not RunState.SUSPENDED]
