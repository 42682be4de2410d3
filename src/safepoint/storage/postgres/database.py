"""Statements that are sent until they are answered: what a storage's patience is.

A connection that is lost, a server that restarts, a deadlock: the statement is sent again, for as long as the patience
lasts. That is safe for reads, and for units of work, which prove by a number or a receipt that they were done.
Everything else that a server says is an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg.rows import dict_row

from safepoint.errors import StoreError
from safepoint.storage.postgres.connections import Connection, Connections
from safepoint.storage.postgres.queries import Fetch, Rows
from safepoint.storage.postgres.schema import check_schema, one_line, qualify

T = TypeVar("T")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
# A deadlock, a serialization failure, too many connections, a server that stops, starts, or is no longer the primary.
_AGAIN = {"40P01", "40001", "53300", "57P01", "57P02", "57P03", "25006"}


def code_of(error: psycopg.Error) -> str | None:
    return error.diag.sqlstate or error.sqlstate


def is_worth_another_try(error: psycopg.Error) -> bool:
    code = code_of(error)
    if code is None:  # the connection was lost, or never came about
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return code in _AGAIN or code.startswith("08")


class Database:
    """On the loop of the storage's thread. `deadline`: seconds for one answer; `patience`: for all tries."""

    def __init__(self, connections: Connections, schema: str, *, deadline: float, patience: float) -> None:
        self._connections = connections
        self._schema = schema
        self._deadline = deadline
        self._patience = patience
        self._is_open = False
        self._opening = asyncio.Lock()
        self.retries = 0
        self.closing = False

    def sql(self, text: str) -> bytes:
        return qualify(text, self._schema).encode()

    async def open(self) -> None:
        """Connect once, and see that everything fits. Raises `StoreError` at once: no patience helps there."""
        if self._is_open:
            return
        async with self._opening:
            if not self._is_open:
                try:
                    await self._connections.run(lambda each: check_schema(each, self._schema), self._deadline * 4)
                except psycopg.Error as error:
                    raise StoreError(f"the database can't be used: {one_line(error)}") from error
                self._is_open = True

    async def run(self, work: Callable[[Connection], Awaitable[T]], *, patience: float | None = None) -> T:
        """Raises `StoreError` when the patience is over, and psycopg's error for every other answer."""
        await self.open()
        loop = asyncio.get_running_loop()
        until = loop.time() + (self._patience if patience is None else patience)
        pause, deadline = _FIRST_PAUSE, self._deadline
        while True:
            sent = loop.time()
            try:
                return await self._connections.run(work, deadline)
            except psycopg.Error as error:
                if not is_worth_another_try(error):
                    raise
                now = loop.time()
                if now + pause >= until or self.closing:
                    raise StoreError(f"the database was out of reach: {one_line(error)}") from error
            self.retries += 1
            if now - sent >= deadline:  # it may be slow and not dead: the next try may take longer
                deadline = min(deadline * 2, max(until - now, self._deadline))
            await self._connections.drop_idle()
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def fetch_on(self, connection: Connection) -> Fetch:
        async def fetch(text: str, given: Mapping[str, Any]) -> Rows:  # Any: as in `Fetch`
            cursor = await connection.execute(self.sql(text), given)
            return await cursor.fetchall()

        return fetch

    async def rows(self, text: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:  # Any: as in `Fetch`
        """Named columns, for statements that are not ours."""

        async def fetch(connection: Connection) -> list[dict[str, Any]]:  # Any: likewise
            async with connection.cursor(row_factory=dict_row) as cursor:
                await cursor.execute(text.encode(), given)
                return await cursor.fetchall() if cursor.description is not None else []

        return await self.run(fetch)

    async def call(
        self, text: str, given: Mapping[str, Any], *, patience: float | None = None
    ) -> Rows:  # Any: likewise
        return await self.run(lambda connection: self.fetch_on(connection)(text, given), patience=patience)
