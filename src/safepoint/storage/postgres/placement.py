"""Free runs in PostgreSQL: the part `placement` of its storage, and what the engine's own statements go through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from safepoint.storage.placement import Engine, Waiting
from safepoint.storage.postgres.queries import Rows
from safepoint.storage.postgres.text_codec import escape, unescape

# Sends one statement on the storage's own loop.
Call = Callable[[str, Mapping[str, Any]], Awaitable[Rows]]  # Any: as in `Fetch`

_BATCH = 200
_WAITING = """
SELECT p.app, count(*), extract(epoch FROM clock_timestamp() - min(p.at))::float8,
    (SELECT count(*) FROM safepoint.workers w WHERE w.lease_until > clock_timestamp() AND NOT w.draining
        AND (w.info::jsonb->>'room')::int > 0
        AND w.info::jsonb->'apps' ? p.app)
FROM (SELECT split_part(r.session, '/', 1) AS app, q.at
    FROM safepoint.placements q JOIN safepoint.run_records r USING (run_id) WHERE r.owner = '') p
GROUP BY p.app ORDER BY p.app
"""
_LOOK = """
SELECT safepoint.free_the_dead(%(most)s), (SELECT draining FROM safepoint.workers WHERE id = %(me)s)
"""
_AIM = """
INSERT INTO safepoint.moves (run_id, target) VALUES (%(run)s, %(target)s)
ON CONFLICT (run_id) DO UPDATE SET target = excluded.target RETURNING run_id
"""


class PostgresPlacement:
    """`retire`: ends the leases of workers of this machine whose process is gone."""

    def __init__(self, call: Call, retire: Callable[[], Awaitable[None]], worker: str) -> None:
        self._call = call
        self._retire = retire
        self._worker = worker
        self._draining = False

    async def engine(self) -> Engine:
        """Cancellation: nothing has changed."""
        [(name,)] = await self._call("SELECT name FROM safepoint.engine", {})
        return Engine(name)

    async def free_the_dead(self) -> int:
        """Cancellation: only the waiting ends."""
        await self._retire()
        freed: int = 0
        while True:
            [(count, draining)] = await self._call(_LOOK, {"most": _BATCH, "me": escape(self._worker)})
            self._draining = bool(draining)
            freed += int(count)
            if count < _BATCH:
                return freed

    async def is_draining(self) -> bool:
        """Cancellation: nothing has changed."""
        return self._draining

    async def place_the_forgotten(self, patience: float) -> int:
        """Cancellation: only the waiting ends."""
        [(count,)] = await self._call("SELECT safepoint.place_the_forgotten(%(patience)s)", {"patience": patience})
        return int(count)

    async def waiting(self) -> list[Waiting]:
        """Cancellation: nothing has changed."""
        return [Waiting(unescape(app), *rest) for app, *rest in await self._call(_WAITING, {})]

    async def aim(self, run_id: str, target: str) -> None:
        """Cancellation: only the waiting ends."""
        await self._call(_AIM, {"run": escape(run_id), "target": escape(target)})
