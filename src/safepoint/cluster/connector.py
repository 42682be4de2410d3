"""Procrastinate on the connections of our storage: no pool and no listener of its own.

Its statements are sent by the storage's thread, so no cancellation reaches one, and one that loses its connection is
sent again. A fetch that was sent twice leaves a job behind that nobody works on; its run gets another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from procrastinate import exceptions
from procrastinate.connector import BaseAsyncConnector, Notify
from psycopg.types.json import Jsonb

from safepoint.errors import StoreError
from safepoint.storage.postgres.storage import PostgresStorage

_LOOK = '{"type": "job_inserted", "job_id": 0}'
Row = dict[str, Any]  # Any: the columns


class StorageConnector(BaseAsyncConnector):
    """Open as long as the storage is."""

    def __init__(self, storage: PostgresStorage) -> None:
        self._storage = storage

    async def open_async(self, pool: object = None) -> None:
        """Cancellation: nothing happens."""

    async def close_async(self) -> None:
        """Cancellation: nothing happens."""

    async def execute_query_async(self, query: str, **arguments: Any) -> None:  # Any: as Procrastinate has it
        """Cancellation: only the waiting ends."""
        await self._rows(query, arguments)

    async def execute_query_one_async(self, query: str, **arguments: Any) -> Row:  # Any: likewise
        """Cancellation: only the waiting ends."""
        rows = await self._rows(query, arguments)
        if not rows:
            raise exceptions.NoResult
        return rows[0]

    async def execute_query_all_async(self, query: str, **arguments: Any) -> list[Row]:  # Any: likewise
        """Cancellation: only the waiting ends."""
        return await self._rows(query, arguments)

    async def _rows(self, query: str, arguments: Row) -> list[Row]:
        given = {name: Jsonb(value) if isinstance(value, dict) else value for name, value in arguments.items()}
        try:
            return await self._storage.engine_rows(query, given)
        except StoreError as error:
            raise exceptions.ConnectorException(str(error)) from error

    async def listen_notify(self, on_notification: Notify, channels: Iterable[str]) -> None:
        """For ever. Cancellation: nothing more is heard."""
        names = tuple(channels)
        async with self._storage.engine_pushes(names) as pushes:
            async for channel, payload in pushes:
                await on_notification(channel=channel or names[0], payload=payload or _LOOK)
