"""The PostgreSQL storage keeps every rule of `check_storage`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import psycopg
import pytest

from safepoint.storage.postgres.schema import upgrade
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.storage.protocol import Storage
from safepoint.testing import check_storage
from tests.storage.postgres.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres


class Schemas:
    """A schema of its own for each storage: much quicker to make than a database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = count()
        self.of: dict[int, str] = {}
        # Kept, so that no id is used twice.
        self._made: list[Storage] = []

    def make(self) -> Storage:
        name = f"rule_{next(self._numbers)}"
        in_a_thread(lambda: asyncio.run(upgrade(self.url, schema=name)))
        return self._open(name)

    def reopen(self, storage: Storage) -> Storage:
        return self._open(self.of[id(storage)])

    def _open(self, schema: str) -> Storage:
        storage = PostgresStorage(self.url, schema=schema)
        self.of[id(storage)] = schema
        self._made.append(storage)
        return storage

    async def spoil(self, storage: Storage, session_id: str) -> None:
        self._execute(storage, "UPDATE {}.messages SET body = '{{' WHERE session = %s", session_id)

    async def lapse(self, storage: Storage) -> None:
        self._execute(storage, "UPDATE {}.workers SET lease_until = clock_timestamp() WHERE id = %s", storage.worker)

    def _execute(self, storage: Storage, sql: str, *given: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.format(self.of[id(storage)]).encode(), given)


def in_a_thread(work: Callable[[], object]) -> None:
    """Where a loop runs already, and a new one is needed."""
    import threading

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.timeout(300)
def test_the_postgres_storage_keeps_every_rule(server: PostgresServer) -> None:
    schemas = Schemas(server.new_database())
    check_storage(schemas.make, reopen=schemas.reopen, spoil=schemas.spoil, lapse=schemas.lapse, virtual=False)
