"""The switch of real servers: frozen stays frozen through `kill -9`, nothing begins, and all goes on after the thaw."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from safepoint.cli.main import app
from safepoint.server.keys import KeyFile
from tests.server.server_process import PATIENCE, ServerProcess

pytestmark = pytest.mark.timeout(180)

_SETTLED = 1.5  # seconds: a nap, a look at the file, and a machine that is busy with other tests
_QUIET = 3.0  # of a restarted server: some beats, in which it picks up what the dead one has left


def runs(server: ServerProcess) -> list[dict[str, Any]]:  # Any: JSON
    return list(server.get("/runs?limit=1000").body)


def begun(server: ServerProcess) -> tuple[int, int]:
    """How many tool calls and model calls have begun, in every process that shares the folder."""
    return sum(line.endswith("begins") for line in server.did()), len(server.prompts())


def until_all_ended(server: ServerProcess, count: int) -> list[str]:
    deadline = time.monotonic() + 2 * PATIENCE
    while True:
        found = runs(server)
        if len(found) == count and all(run["state"] == "ended" for run in found):
            return [run["outcome"] for run in found]
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def load(server: ServerProcess, names: range, before: int = 0) -> None:
    """Runs of sessions of their own, each with one nap and two model calls."""
    for number in names:
        server.create(f"s{number}")
        server.run_in_thread(f"s{number}", "nap 0.4", onDisconnect="detach")
    if before:
        server.until_did("nap begins", before)


def test_a_frozen_server_that_is_killed_begins_nothing_until_it_is_thawed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        load(server, range(8), before=3)
        frozen = server.post("/freezes", {"reason": "it runs wild"})
        assert frozen.status == 200, frozen.body
        load(server, range(8, 12))
        time.sleep(_SETTLED)
        before = begun(server)
        assert before[0] >= 3
        assert [run for run in runs(server) if run["state"] not in ("ended", "live", "queued")] == []
        waiting = [run for run in runs(server) if run["state"] != "ended"]
        assert len(waiting) >= 4
        assert all(run.get("frozen") == "it runs wild" for run in waiting), waiting
        server.kill()
        server.start()
        time.sleep(_QUIET)
        assert begun(server) == before
        [freeze] = server.get("/freezes").body
        assert (freeze["reason"], freeze["by"]) == ("it runs wild", "local")
        thawed = server.post("/freezes:thaw", {"id": freeze["id"]})
        assert [each["id"] for each in thawed.body["thawed"]] == [freeze["id"]]
        assert until_all_ended(server, 12) == ["end_turn"] * 12
        assert begun(server)[0] == 12  # no nap was lost, and none was made twice
        assert server.get("/freezes").body == []


def test_two_servers_obey_one_freeze_and_a_kill_of_either_changes_nothing(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as here, ServerProcess(tmp_path) as there:
        load(here, range(6))
        load(there, range(6, 12), before=4)
        assert here.post("/freezes", {"reason": "it runs wild"}).status == 200
        there.kill()  # in the middle of naps
        load(here, range(12, 14))
        time.sleep(_SETTLED)
        before = begun(here)
        there.start()
        load(there, range(14, 16))
        time.sleep(_QUIET)
        assert begun(here) == before
        here.kill()
        time.sleep(_QUIET)
        assert begun(there) == before
        assert len(there.post("/freezes:thaw").body["thawed"]) == 1
        assert set(until_all_ended(there, 16)) == {"end_turn"}


def test_runs_that_a_freeze_stops_are_suspended_and_go_on_after_the_thaw(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        server.create("s")
        server.run_in_thread("s", "nap 30", onDisconnect="detach")
        server.until_did("nap begins")
        dry = server.post("/freezes", {"reason": "stop", "tool": "nap", "at": "now", "dryRun": True})
        [told] = dry.body["runs"]
        assert (dry.body["frozen"], told["fate"], told["cut"]) == (None, "stops", [told["cut"][0]])
        assert told["cut"][0].startswith("nap")
        assert server.get("/freezes").body == []
        server.post("/freezes", {"reason": "stop", "tool": "nap", "at": "now"})
        run = server.run_of("s", "suspended")
        server.kill()
        server.start()
        time.sleep(_QUIET)
        assert server.get(f"/runs/{run}").body["state"] == "suspended"
        server.post("/freezes:thaw")
        assert until_all_ended(server, 1) == ["end_turn"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("frozen")) as server:
        yield server


def test_a_message_that_waits_for_a_thaw_can_be_withdrawn_and_its_session_is_busy(server: ServerProcess) -> None:
    server.post("/freezes", {"reason": "stop", "userId": "ann"})
    try:
        server.create("waits")
        caller = server.run_in_thread("waits", "note a")
        run = server.run_of("waits", "queued")
        assert server.get(f"/runs/{run}").body["frozen"] == "stop"
        assert server.run("waits", "note b").status == 409
        assert server.cancel("waits").body["status"] == "cancelled"
        assert caller.answer().status == 200
        server.create("free", user="bob")
        assert server.post("/run", {"appName": "worker", "userId": "bob", "sessionId": "free", "newMessage": {
            "role": "user", "parts": [{"text": "say hello"}]}}).status == 200  # fmt: skip
    finally:
        server.post("/freezes:thaw")


def test_the_command_line_freezes_lists_and_thaws(server: ServerProcess) -> None:
    def said(*command: str) -> str:
        done = CliRunner().invoke(app, [*command, "--url", f"http://127.0.0.1:{server.port}"])
        assert done.exit_code == 0, done.output
        return done.output

    assert "nothing is frozen" in said("freezes")
    assert "no run is live" in said("freeze", "--reason", "try", "--dry-run")
    assert "frozen as frz_" in said("freeze", "--reason", "bad prompt", "--app", "worker", "--tool", "note")
    listed = said("freezes")
    assert "app worker, tool note" in listed
    assert "bad prompt" in listed
    assert "thawed frz_" in said("thaw")
    assert "nothing was frozen" in said("thaw")


@pytest.mark.parametrize(
    "body",
    [{}, {"reason": ""}, {"reason": "x", "tol": "pay"}, {"reason": "x", "at": "nowhere"}, {"reason": "x", "tool": ""},
     {"reason": "x", "withinSeconds": 3}],
)  # fmt: skip
def test_a_freeze_that_could_not_be_obeyed_is_refused(server: ServerProcess, body: dict[str, object]) -> None:
    assert server.post("/freezes", body).status == 422
    assert server.post("/freezes:thaw", {"id": "frz_nowhere"}).status == 404


def test_the_file_itself_refuses_to_change_the_audit_trail(server: ServerProcess) -> None:
    with sqlite3.connect(server.folder / "data" / "safepoint.db") as db:
        db.execute("INSERT INTO audit (body) VALUES ('{}')")
        for change in ("UPDATE audit SET body = ''", "DELETE FROM audit"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                db.execute(change)
        db.rollback()


def test_only_the_admin_key_may_freeze_look_and_thaw(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "data" / "keys.json")
    admin, user = keys.add("boss", admin=True), keys.add("ann", user="ann")
    with ServerProcess(tmp_path) as server:
        for method, path, body in (
            ("POST", "/freezes", {"reason": "mine"}),
            ("POST", "/freezes", {"reason": "mine", "userId": "ann", "dryRun": True}),
            ("GET", "/freezes", None),
            ("POST", "/freezes:thaw", {}),
        ):
            assert server.http(method, path, body).status == 401
            assert server.http(method, path, body, {"Authorization": f"Bearer {user}"}).status == 403
            assert server.http(method, path, body, {"Authorization": f"Bearer {admin}"}).status == 200
