"""Runs and sessions with all that is known of them, for a caller who may see them.

What belongs to another user is not found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from safepoint.errors import SessionNotFound
from safepoint.serving.events import MessageEvent, Turn, first_speaker
from safepoint.serving.feed import Feed
from safepoint.serving.ids import SessionKey, check_id
from safepoint.serving.managed_run import ManagedRun, first_event, first_stored
from safepoint.serving.principal import NotFound, Principal
from safepoint.serving.relay import Relay, copy_from_owner, failure_of, goes_on
from safepoint.serving.run_manager import RunManager
from safepoint.serving.shared_state import places, session_part
from safepoint.serving.stored_events import SessionContext, session_events, stored_run_events
from safepoint.storage.run_records import Cursor, RunRecord, RunState
from safepoint.storage.shared_state import Note


@dataclass(frozen=True)
class RunQuery:
    """Which runs: of an app, of a user, in these states, older than a position, and how many of them."""

    app: str | None = None
    user: str | None = None
    states: Collection[RunState] = frozenset(RunState)
    after: Cursor | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session for a client. `state`: with what it shares with others. `events`: empty in a list of sessions."""

    key: SessionKey
    state: Mapping[str, Any]  # Any: JSON values
    updated_at: float
    events: Sequence[MessageEvent] = ()


class RunLookup:
    """Looks among the runs of this process, then in the storage."""

    def __init__(self, manager: RunManager) -> None:
        self._manager = manager

    async def run(self, who: Principal, run_id: str) -> ManagedRun | RunRecord:
        """Raises `BadId`, `NotFound`. Cancellation: nothing has changed."""
        managed = self.live(who, run_id)
        if managed is not None:
            return managed
        record = (await self.record(who, run_id))[1]  # not there if its session was deleted, here or elsewhere
        return self.as_known_here(record) or record

    async def runs(self, who: Principal, wanted: RunQuery) -> list[tuple[Cursor, ManagedRun | RunRecord]]:
        """All that are open, and one more of the others than a page has: what `run` would find, and where it is.

        Open runs are always included, however many runs other users have had since. Cancellation: no change.
        """
        records = {record.run_id: record for record in await self._manager.storage.runs.still_open()}
        if RunState.ENDED in wanted.states:
            records |= {record.run_id: record for record in await self._over(who, wanted)}
        live = {run.id: run for run in self._manager.live() if who.owns(run.key.user)}
        keys = {id: key for id, record in records.items() if (key := SessionKey.parse(record.session)) is not None}
        mine = [records[id] for id, key in keys.items() if who.owns(key.user)]
        known = [(each.cursor, live.get(each.run_id) or self.as_known_here(each) or each) for each in mine]
        return [*known, *((Cursor(run.accepted_at, id), run) for id, run in live.items() if id not in records)]

    async def _over(self, who: Principal, wanted: RunQuery) -> list[RunRecord]:
        """Of that app and user, where they were named. Cancellation: no change."""
        app, whose = wanted.app, wanted.user if who.user is None else who.user
        apps = [each.name for each in self._manager.catalog] if app is None else [app]
        prefixes = [f"{app}/" if app is not None else ""] if whose is None else [f"{each}/{whose}/" for each in apps]
        more = partial(self._manager.storage.runs.over, after=wanted.after, limit=wanted.limit + 1)
        return [record for prefix in prefixes for record in await more(prefix=prefix)]

    def as_known_here(self, record: RunRecord) -> ManagedRun | None:
        """The run itself, if this process has it and knows more of it than its record does.

        Another process may have ended a pause, or have the run by now.
        """
        managed = self._manager.runs.get(record.run_id)
        return None if managed is None or managed.paused or managed.epoch != record.epoch else managed

    async def record(self, who: Principal, run_id: str) -> tuple[SessionKey, RunRecord]:
        """Raises `BadId`, `NotFound`. Cancellation: nothing has changed."""
        record = await self._manager.storage.runs.get(check_id("run", run_id))
        key = SessionKey.parse(record.session) if record is not None else None
        if record is None or key is None or not who.owns(key.user):
            raise NotFound(f"Run not found: {run_id}")
        return key, record

    def live(self, who: Principal, run_id: str) -> ManagedRun | None:
        """The run, if it is live here and the caller's. Raises `BadId`."""
        managed = self._manager.runs.get(check_id("run", run_id))
        return managed if managed is not None and managed.live and who.owns(managed.key.user) else None

    async def feed(self, who: Principal, run_id: str, after: int = 0) -> tuple[ManagedRun | None, Feed]:
        """What the run tells, or, if it is long over, what it has told. Raises `NotFound`.

        `after`: the number with which a viewer comes back.
        """
        found = await self.run(who, run_id)
        if isinstance(found, ManagedRun):
            return found, found.feed
        return None, await self.replay(found, after)

    async def replay(self, record: RunRecord, after: int = 0) -> Feed:
        """The events of a run that this process does not have: those that are stored, and those to come.

        Cancellation: nothing has changed.
        """
        if not goes_on(record, self._manager.config):
            if first_event(record.epoch) < after < first_stored(record.epoch):  # a number that only the owner knows
                copied = await copy_from_owner(self._manager, record)
                if copied is not None:
                    return copied
            feed = Feed(Turn(record.run_id, ""), first_stored(record.epoch))
            for event in await self._stored(record):
                feed.append(event)
            feed.close(failure_of(record))
            return feed
        known = self._manager.relayed.get(record.run_id)
        if known is not None:
            return known
        relay = Relay(self._manager, record, self._stored)
        self._manager.relayed[record.run_id] = relay.feed
        relay.begin()
        return relay.feed

    async def _stored(self, record: RunRecord) -> list[MessageEvent]:
        """Cancellation: nothing has changed."""
        key = SessionKey.parse(record.session)
        if key is None:
            return []
        try:
            session = await self._manager.view(key)
        except SessionNotFound:
            return []
        return stored_run_events(session, record, await self._beside(key))

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def session(self, key: SessionKey) -> SessionView:
        """With all its events. Raises `SessionNotFound`. Cancellation: nothing has changed."""
        session, beside = await self._manager.view(key), await self._beside(key)
        updated_at = max((beside.touched, *session.times[-1:]))
        state = {**session_part(session.state), **beside.shared}
        return SessionView(key, state, updated_at, session_events(key, session, beside))

    async def sessions(self, app: str, user: str, prefix: str) -> list[SessionView]:
        """Without events, the one that was changed last at the end. Cancellation: nothing has changed."""
        manager = self._manager
        touched, states = await manager.storage.runs.touched(prefix), await manager.storage.sessions.states(prefix)
        shared = await manager.storage.shared.shared(places(SessionKey(app, user, "")).values())
        keys = [key for id in sorted(states, key=lambda id: touched.get(id, 0.0)) if (key := SessionKey.parse(id))]
        found = [(key, session_part(manager.state_of(key, states[key.stored_as]))) for key in keys]
        return [SessionView(key, {**state, **shared}, touched.get(key.stored_as, 0.0)) for key, state in found]

    async def _beside(self, key: SessionKey) -> SessionContext:
        manager, app, id = self._manager, self._manager.catalog.get(key.app), key.stored_as
        agent = app.agent if app is not None else None
        return SessionContext(
            agent.name if agent is not None else "",
            first_speaker(agent) if agent is not None else None,
            (await manager.storage.runs.touched(id)).get(id, 0.0),
            await manager.storage.shared.shared(places(key).values()),
            {record.run_id: record for record in await manager.storage.runs.find(session=id)},
            [*await manager.storage.shared.notes(id), *_not_noted(manager.live_of(key))],
        )


def _not_noted(live: list[ManagedRun]) -> list[Note]:
    """What runs have done to the state is noted when they end; until then they know it themselves."""
    deltas = ((event, delta) for managed in live for event, delta in managed.publisher.state.deltas.items())
    return [Note(0.0, {"event": event, "stateDelta": delta}) for event, delta in deltas]
