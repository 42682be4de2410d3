"""The same as on one file, with all servers on one PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from safepoint.storage.postgres.schema import upgrade
from tests.server import test_watching_elsewhere as on_one_file
from tests.server.server_process import ServerProcess
from tests.storage.postgres.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    started = PostgresServer()
    yield started
    started.close()


@pytest.fixture(scope="module")
def servers(
    database: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    start = _new_server(database, tmp_path_factory.mktemp("watched"))
    with start() as here, start() as there:
        yield here, there


@pytest.fixture
def new_server(database: PostgresServer, tmp_path: Path) -> on_one_file.Start:
    return _new_server(database, tmp_path)


def _new_server(database: PostgresServer, folder: Path) -> on_one_file.Start:
    url = database.new_database()
    asyncio.run(upgrade(url))
    return lambda: ServerProcess(folder, data=False, options=("--store", url))


globals().update((name, test) for name, test in vars(on_one_file).items() if name.startswith("test_"))
