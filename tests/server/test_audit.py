"""The audit trail: who asked what of which run when, from where, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from safepoint.cli.main import app
from safepoint.server.keys import KeyFile
from tests.server.server_process import ServerProcess, message

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("audit")) as server:
        yield server


def trail(server: ServerProcess, *options: str) -> list[dict[str, Any]]:  # Any: JSON
    done = CliRunner().invoke(app, ["audit", *options, "--url", f"http://127.0.0.1:{server.port}"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.output.splitlines()]


def test_a_cancel_is_asked_stopped_and_answered_in_the_trail(server: ServerProcess) -> None:
    server.create("s")
    server.run_in_thread("s", "nap 30", onDisconnect="detach")
    run = server.run_of("s", "live")
    server.post(f"/runs/{run}:cancel", {"reason": "too long"})
    asked, stopped, answer = trail(server, "--run", run)
    assert (asked["action"], asked["who"], asked["origin"], asked["asked"]) == (
        "cancel_run",
        "local",
        "127.0.0.1",
        {"reason": "too long"},
    )
    assert (stopped["action"], stopped["asked"]["reason"]["text"]) == ("stopped", "too long")
    assert (stopped["app"], stopped["user"], stopped["session"]) == ("worker", "ann", "s")
    assert (answer["action"], answer["about"], answer["outcome"]["outcome"]) == ("answer", asked["number"], "stopped")
    assert asked["at"] <= stopped["at"] <= answer["at"]


def test_what_is_said_is_left_out_and_what_is_refused_is_in(server: ServerProcess) -> None:
    before = max((each["number"] for each in trail(server)), default=0)
    said = {"newMessage": {"role": "user", "parts": [{"text": "a secret"}]}}
    server.post("/runs/run_nowhere:steer", said)
    asked, answer = trail(server, "--after", str(before))
    assert (asked["action"], asked["asked"], asked["run_id"]) == ("steer", {"newMessage": "…"}, "run_nowhere")
    assert "Not found" in json.dumps(answer) or "not found" in json.dumps(answer)
    assert "secret" not in json.dumps(trail(server))


def test_a_freeze_and_a_thaw_are_in_the_trail(server: ServerProcess) -> None:
    before = max((each["number"] for each in trail(server)), default=0)
    server.post("/freezes", {"reason": "an incident", "tool": "nap"})
    server.post("/freezes:thaw")
    actions = [(each["action"], each.get("asked", {}).get("reason")) for each in trail(server, "--after", str(before))]
    assert actions == [("freeze", "an incident"), ("answer", None), ("thaw", None), ("answer", None)]


def test_a_stop_that_nobody_asked_for_over_http_is_in_the_trail(server: ServerProcess) -> None:
    server.create("leaves")
    naps = server.did().count("nap begins")
    with server.open_stream("POST", "/run_sse", message("leaves", "nap 30")):
        server.until_did("nap begins", naps + 1)
    run = server.run_of("leaves", "ended")
    [stopped] = trail(server, "--run", run)
    assert (stopped["action"], stopped["origin"]) == ("stopped", "disconnect")


def ask_for_trail(connection: HTTPConnection, headers: dict[str, str]) -> HTTPResponse:
    connection.request("GET", "/audit", headers=headers)
    return connection.getresponse()


def test_the_trail_survives_a_kill_and_is_for_the_admin_key(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "data" / "keys.json")
    admin, user = (
        {"Authorization": f"Bearer {key}"} for key in (keys.add("boss", admin=True), keys.add("ann", user="ann"))
    )
    with ServerProcess(tmp_path) as server:
        assert server.http("POST", "/freezes", {"reason": "mine"}, user).status == 403
        assert server.http("GET", "/audit", None, user).status == 403
        server.kill()
        server.start()
        with closing(server.connect()) as connection, closing(ask_for_trail(connection, admin)) as response:
            assert response.headers.get_content_type() == "text/plain"
            asked, answer = [json.loads(line) for line in response.read().splitlines()]
    assert (asked["who"], asked["action"]) == ("ann", "freeze")
    assert answer["outcome"]["detail"] == "NotAllowed: this needs the admin key"
