"""The rows of the workers: the part `workers` of a PostgreSQL storage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from msgspec.json import decode, encode
from msgspec.structs import replace

from safepoint.storage.changes import Subscription
from safepoint.storage.peers import PeerAddress
from safepoint.storage.postgres.push import PushedChanges
from safepoint.storage.postgres.queries import Rows
from safepoint.storage.postgres.text_codec import escape, unescape
from safepoint.storage.workers import WorkerInfo, WorkerRow

# Sends one statement on the storage's own loop.
Call = Callable[[str, Mapping[str, Any]], Awaitable[Rows]]  # Any: as in `Fetch`
Announce = Callable[[str, bool], Awaitable[None]]

_ALL = """
SELECT w.id, w.info, w.draining, extract(epoch FROM w.lease_until - clock_timestamp())::float8,
    count(r.run_id) FILTER (WHERE r.state = 'live'), count(r.run_id) FILTER (WHERE r.state = 'queued')
FROM (SELECT * FROM safepoint.workers WHERE id <> '' AND lease_until > '-infinity') w
    LEFT JOIN safepoint.run_records r ON r.owner = w.id AND r.state <> 'ended'
GROUP BY w.id, w.info, w.draining, w.lease_until, w.started_at ORDER BY w.started_at, w.id
"""
_PEER = "SELECT info FROM safepoint.workers WHERE id = %(id)s AND lease_until > clock_timestamp()"
_DRAIN = """
UPDATE safepoint.workers SET draining = true WHERE id = %(id)s AND lease_until > clock_timestamp() RETURNING id
"""
_EVERY = 1.0


class Workers:
    """`announce`: writes the row of the storage's own worker."""

    def __init__(self, call: Call, announce: Announce, changes: PushedChanges) -> None:
        self._call = call
        self._announce = announce
        self._changes = changes
        self.peer: PeerAddress | None = None

    async def announce(self, info: WorkerInfo, *, draining: bool = False) -> None:
        """Cancellation: only the waiting ends."""
        await self._announce(encode(replace(info, peer=self.peer)).decode(), draining)

    async def all(self) -> list[WorkerRow]:
        """Cancellation: nothing has changed."""
        rows = await self._call(_ALL, {})
        return [
            WorkerRow(unescape(id), decode(info, type=WorkerInfo), draining, left, live, queued)
            for id, info, draining, left, live, queued in rows
        ]

    async def peer_of(self, worker: str) -> PeerAddress | None:
        """Cancellation: nothing has changed."""
        rows = await self._call(_PEER, {"id": escape(worker)})
        return decode(rows[0][0], type=WorkerInfo).peer if rows else None

    async def drain(self, worker: str) -> bool:
        """Cancellation: only the waiting ends."""
        return bool(await self._call(_DRAIN, {"id": escape(worker)}))

    def offers(self, apps: Iterable[str]) -> Subscription:
        return self._changes.offers(apps, _EVERY)
