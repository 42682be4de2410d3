"""Behind PgBouncer in transaction mode, where each transaction may have another connection."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from safepoint import Agent
from safepoint.sessions.session import Session
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.testing import ScriptedModel, say
from safepoint.testing.conformance.storage_maker import record
from tests.storage.postgres.postgres_server import PostgresServer, free_port
from tests.storage.postgres.test_leases_and_pushes import hears, listening

pytestmark = pytest.mark.postgres


@pytest.fixture
def pooled(server: PostgresServer, url: str) -> Iterator[str]:
    """The address of the same database through a pooler."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("needs pgbouncer: apt-get install pgbouncer")
    folder, port = Path(tempfile.mkdtemp(prefix="safepoint-pgbouncer-")), free_port()
    (folder / "users").write_text('"safepoint" ""\n')
    (folder / "ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nauth_type = any\nauth_file = {folder}/users\npool_mode = transaction\n"
        f"default_pool_size = 3\nunix_socket_dir =\n[users]\n"
    )
    name = url.rpartition("/")[2]
    ini = (folder / "ini").read_text().replace("* = host", f"{name} = user=safepoint host")
    (folder / "ini").write_text(ini)
    uid: int | None = None
    gid: int | None = None
    if os.geteuid() == 0:
        user = pwd.getpwnam("nobody")
        for path in (folder, *folder.iterdir()):
            os.chown(path, user.pw_uid, user.pw_gid)
        uid, gid = user.pw_uid, user.pw_gid
    command = [program, "-q", str(folder / "ini")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, user=uid, group=gid) as process:
        try:
            _wait_for(port)
            yield server.url(name, port)
        finally:
            process.send_signal(signal.SIGTERM)
    shutil.rmtree(folder)


def _wait_for(port: int) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
    raise AssertionError("pgbouncer does not listen")


def test_runs_go_through_a_pooler_and_pushes_past_it(pooled: str, url: str) -> None:
    async def main() -> None:
        owner, asking = PostgresStorage(pooled, lease=300.0, listen_url=url), PostgresStorage(pooled)
        agent = Agent("worker", model=ScriptedModel(say("done"), repeat=True))

        async def talk(id: str) -> None:
            session = await Session.create(owner, id)
            for _ in range(5):
                assert (await agent.run("hi", session=session)).output == "done"

        await asyncio.gather(*(talk(f"s{number}") for number in range(8)))
        await owner.runs.accept(record(owner), since=0)
        await listening(owner)
        await hears(owner, asking)
        await owner.aclose()
        await asking.aclose()

    asyncio.run(main())


def test_a_pooler_that_eats_the_listen_is_noticed_and_polled(pooled: str) -> None:
    async def main() -> None:
        owner, asking = PostgresStorage(pooled, lease=300.0), PostgresStorage(pooled)
        await owner.runs.accept(record(owner), since=0)
        # With several server connections behind it, a LISTEN is on one of them, and a push may come to nobody.
        await hears(owner, asking)
        await owner.aclose()
        await asking.aclose()

    asyncio.run(main())
