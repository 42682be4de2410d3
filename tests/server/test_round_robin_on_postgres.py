"""The same as on one file, with both servers on one PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import psycopg
import pytest

from safepoint.storage.postgres.schema import upgrade
from tests.server import test_round_robin as on_one_file
from tests.server import test_safety
from tests.server.guarded import Guarded
from tests.server.round_robin import ServerPair
from tests.server.server_process import ServerProcess
from tests.storage.postgres.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres

# What changes by itself: leases, and who is told of what.
# The tables of the engine: its workers beat, and it cleans up every minute.
ENGINE = "procrastinate_"
BY_ITSELF = {"workers", "watches", "receipts"}


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    started = PostgresServer()
    yield started
    started.close()


def new_database(database: PostgresServer) -> str:
    url = database.new_database()
    asyncio.run(upgrade(url))
    return url


@pytest.fixture(scope="module")
def server(database: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ("--store", new_database(database))
    with ServerPair(tmp_path_factory.mktemp("pair"), data=False, options=options) as running:
        yield running


@pytest.fixture(scope="module")
def world(database: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    url = new_database(database)

    def tables() -> Mapping[str, list[tuple[object, ...]]]:
        with psycopg.connect(url) as connection:
            named = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'safepoint'").fetchall()
            names = sorted({name for (name,) in named if not name.startswith(ENGINE)} - BY_ITSELF)
            rows = {name: connection.execute(f"SELECT * FROM safepoint.{name}".encode()).fetchall() for name in names}
            return {name: sorted(found, key=str) for name, found in rows.items()}

    folder = tmp_path_factory.mktemp("guarded")
    with test_safety.settled(Guarded(folder, "--store", url, kind=ServerPair, tables=tables)) as guarded:
        yield guarded


globals().update(
    (name, test) for name, test in vars(on_one_file).items() if name.startswith("test_") and callable(test)
)
