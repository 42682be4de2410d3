"""The same as on one file, with two servers on one PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from safepoint.storage.postgres.schema import upgrade
from tests.server import test_two_processes as on_one_file
from tests.server.server_process import ServerProcess
from tests.storage.postgres.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    folder, database = tmp_path_factory.mktemp("two"), PostgresServer()
    try:
        url = database.new_database()
        asyncio.run(upgrade(url))
        here, there = (ServerProcess(folder, data=False, options=("--store", url)) for _ in range(2))
        with here, there:
            yield here, there
    finally:
        database.close()


# One of them starts servers of its own, on a file.
globals().update(
    (name, test)
    for name, test in vars(on_one_file).items()
    if name.startswith("test_") and "tmp_path" not in test.__annotations__
)


def test_health_and_a_metric_tell_that_changes_are_pushed(servers: tuple[ServerProcess, ServerProcess]) -> None:
    for server in servers:
        assert server.get("/health").body["details"]["changes"] == "pushed"
        assert "safepoint_changes_pushed 1" in server.get("/metrics").body
