"""One PostgreSQL for all tests of this folder, with a database for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from safepoint.storage.postgres.schema import upgrade
from tests.storage.postgres.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    started = PostgresServer()
    yield started
    started.close()


@pytest.fixture
def url(server: PostgresServer) -> str:
    """The address of a new database, with our tables and those of the engine in it."""
    address = server.new_database()
    asyncio.run(upgrade(address))
    return address


@pytest.fixture
def database(server: PostgresServer) -> PostgresServer:
    """That server, for tests whose `server` is one of ours."""
    return server
