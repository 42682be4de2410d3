"""`/health` says that the process is alive, `/ready` whether it can do its work."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from safepoint.errors import StoreError
from safepoint.server import create_app
from safepoint.storage.memory import MemoryStorage
from tests.server.apps.worker.agent import agent
from tests.server.guarded import Guarded
from tests.server.in_process import ThreadServer
from tests.server.server_process import PATIENCE, Answer, ServerProcess

FINE = {"ready": True, "draining": False, "store": "ok", "changes": "polled"}


class Remote(MemoryStorage):
    """A storage that can go away: it raises, or never answers."""

    away: str | None = None

    async def check(self) -> None:
        """Cancellation: nothing has changed."""
        if self.away == "raises":
            raise StoreError("no route to /var/lib/secret.db")
        if self.away == "hangs":
            await asyncio.Event().wait()
        await super().check()


@pytest.fixture(scope="module")
def store() -> Remote:
    return Remote()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, store: Remote) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("ready")
    with ThreadServer(folder, lambda _: create_app({"worker": agent}, storage=store)) as running:
        yield running


def until(server: ServerProcess, status: int) -> Answer:
    """What `/ready` says, once it has that status."""
    deadline = time.monotonic() + PATIENCE
    while (answer := server.get("/ready")).status != status:
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
    return answer


def test_a_server_that_can_work_says_so(server: ServerProcess) -> None:
    assert server.get("/ready").body == {"status": "ok", "details": FINE}
    assert server.get("/health").body == {"status": "ok", "details": FINE}
    with server.begin("HEAD", "/ready") as answer:
        assert answer.status == 200


@pytest.mark.parametrize("how", ["raises", "hangs"])
def test_a_store_out_of_reach_is_not_ready_and_alive_and_so_until_it_is_back(
    server: ServerProcess, store: Remote, how: str
) -> None:
    store.away = how
    try:
        refused = until(server, 503)
        began = time.monotonic()
        alive = server.get("/health")
        assert time.monotonic() - began < 5
    finally:
        store.away = None
    gone = {"ready": False, "draining": False, "store": "out of reach", "changes": "polled"}
    assert (refused.body, refused.headers["retry-after"]) == ({"status": "unavailable", "details": gone}, "5")
    assert (alive.status, alive.body) == (200, {"status": "ok", "details": gone})
    assert until(server, 200).body["details"] == FINE


def test_a_server_that_drains_is_not_ready_and_alive(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        server.create("draining")
        caller = server.run_in_thread("draining", "nap 3")
        server.until_did("nap begins")
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        refused = until(server, 503)
        alive = server.get("/health")
        assert refused.body["details"]["draining"] is True
        assert (alive.status, alive.body["status"], alive.body["details"]["ready"]) == (200, "ok", False)
        assert caller.answer().status == 200
        assert server.process.wait(PATIENCE) == 0
        server.process = None


def test_nobody_needs_a_key_to_ask(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path)
    with guarded.server:
        for path in ("/ready", "/health"):
            assert guarded.ask(None, "GET", path, headers={"Host": "10.1.2.3:8000"}).status == 200
        assert guarded.ask(None, "POST", "/ready").status == 401
        assert guarded.ask(None, "GET", "/ready/..").status in (401, 404)
