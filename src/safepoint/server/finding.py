"""A run by its id, for a caller who may see it. Whatever belongs to somebody else is not there."""

from __future__ import annotations

from safepoint.errors import SessionNotFound
from safepoint.server.answers import stored_run_events
from safepoint.server.feed import Feed
from safepoint.server.host import Host
from safepoint.server.hosted import HostedRun
from safepoint.server.ids import SessionKey, check_id
from safepoint.server.principal import NotYours, Principal
from safepoint.server.wire_events import Scene
from safepoint.sessions.records import RunRecord


class Finder:
    """Looks among the runs of this process, then in the book."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def run(self, who: Principal, run_id: str) -> HostedRun | RunRecord:
        """Raises `BadId`, `NotYours`. Cancellation: nothing has changed."""
        hosted = self._host.runs.get(check_id("run", run_id))
        if hosted is not None and who.owns(hosted.key.user):
            return hosted
        return (await self.record(who, run_id))[1]

    async def record(self, who: Principal, run_id: str) -> tuple[SessionKey, RunRecord]:
        """Raises `BadId`, `NotYours`. Cancellation: nothing has changed."""
        record = await self._host.book.get(check_id("run", run_id))
        key = SessionKey.parse(record.session) if record is not None else None
        if record is None or key is None or not who.owns(key.user):
            raise NotYours(f"Run not found: {run_id}")
        return key, record

    def live(self, who: Principal, run_id: str) -> HostedRun | None:
        """The run, if it is live here and the caller's. Raises `BadId`."""
        hosted = self._host.runs.get(check_id("run", run_id))
        return hosted if hosted is not None and hosted.live and who.owns(hosted.key.user) else None

    async def feed(self, who: Principal, run_id: str) -> tuple[HostedRun | None, Feed]:
        """What the run tells, or, if it is long over, what it has told. Raises `NotYours`."""
        found = await self.run(who, run_id)
        if isinstance(found, HostedRun):
            return found, found.feed
        return None, await self.replay(found)

    async def replay(self, record: RunRecord) -> Feed:
        """The stored events of a run that this process does not hold. Cancellation: nothing has changed."""
        feed = Feed(Scene(record.run_id, ""))
        key = SessionKey.parse(record.session)
        try:
            session = (await self._host.sender(key)).session if key is not None else None
        except SessionNotFound:
            session = None
        if session is not None:
            for place, event in enumerate(stored_run_events(session, record.run_id)):
                feed.say(place, event)
        feed.close()
        return feed
