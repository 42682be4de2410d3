"""`safepoint db`, and `safepoint serve --store postgresql://…` where something is wrong."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from safepoint.cli.main import app
from safepoint.errors import StoreError
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.opening import open_storage
from safepoint.storage.postgres.storage import PostgresStorage
from tests.storage.postgres.postgres_server import PostgresServer
from tests.storage.postgres.test_postgres_storage import sql

pytestmark = pytest.mark.postgres


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


def test_a_database_is_made_ready_by_one_command(server: PostgresServer) -> None:
    url = server.new_database()
    assert run("db", "status", "--store", url) == (
        1,
        "safepoint: the database has no tables of Safepoint yet: run `safepoint db upgrade`\n",
    )
    code, text = run("db", "upgrade", "--sql")
    assert (code, text.count("CREATE TABLE safepoint.sessions")) == (0, 1)
    for _ in range(2):
        code, text = run("db", "upgrade", "--store", url)
        assert (code, text[:28]) == (0, "The tables have version 4; P")
    assert run("db", "status", "--store", url)[0] == 0
    sql(url, "UPDATE safepoint.schema_version SET version = 0")
    assert run("db", "status", "--store", url)[0] == 1


def test_pruning_takes_an_age(url: str) -> None:
    assert run("db", "prune", "--store", url, "--older-than", "90d") == (0, "0 sessions were deleted.\n")
    assert run("db", "prune", "--store", url, "--older-than", "soon") == (
        2,
        "safepoint: --older-than soon: write a number and s, m, h or d, as 90d\n",
    )


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("postgresql://me:secret@127.0.0.1:1/x", "Connection refused"),
        ("postgresql://me:secret@[x/", "the address can't be read"),
        ("redis://me:secret@x", "write memory:, sqlite:PATH or postgresql://"),
    ],
)
def test_a_server_that_cannot_use_its_database_says_so_in_one_line_and_exits_with_2(address: str, told: str) -> None:
    code, text = run("serve", "--store", address, "--port", "0")
    assert code == 2
    assert told in text
    assert (text.count("\n"), "secret" in text) == (1, False)


def test_a_server_refuses_a_database_without_tables_and_names_the_command(server: PostgresServer) -> None:
    code, text = run("serve", "--store", server.new_database(), "--port", "0")
    assert (code, "run `safepoint db upgrade`" in text) == (2, True)


def test_a_storage_is_opened_by_its_address(url: str) -> None:
    assert isinstance(open_storage("memory:"), MemoryStorage)
    assert isinstance(open_storage(url), PostgresStorage)
    with pytest.raises(StoreError, match="names no file"):
        open_storage("sqlite:")
    with pytest.raises(StoreError, match="leave it out"):
        open_storage("memory:", listen_url=url)
