"""Bulk cancel: which runs the filters mean, and a dry run that tells what would stop and asks nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from safepoint.cli.main import app
from tests.server.server_process import PATIENCE, ServerProcess

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """`naps` and `blocks` are live here, `far` in the other process."""
    folder: Path = tmp_path_factory.mktemp("bulk")
    with ServerProcess(folder) as here, ServerProcess(folder) as there:
        for server, session, text in ((here, "naps", "nap 90"), (here, "blocks", "block 90"), (there, "far", "nap 90")):
            server.create(session)
            server.run_in_thread(session, text, onDisconnect="detach", customMetadata={"team": session})
        here.until_did("nap begins", 2)
        here.until_did("block begins")
        yield here, there


def would(server: ServerProcess, **wanted: object) -> set[str]:
    answer = server.post("/runs:cancel", {**wanted, "dryRun": True})
    assert (answer.status, answer.body["status"]) == (200, "dry_run"), answer.body
    return {run["sessionId"] for run in answer.body["runs"]}


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [
        ({"all": True}, {"naps", "blocks", "far"}),
        ({"appName": "worker"}, {"naps", "blocks", "far"}),
        ({"userId": "bob"}, set[str]()),
        ({"sessionId": "naps"}, {"naps"}),
        ({"tool": "nap"}, {"naps", "far"}),
        ({"tool": "block"}, {"blocks"}),
        ({"tool": "note"}, set[str]()),
        ({"agent": "worker"}, {"naps", "blocks", "far"}),
        ({"agent": "boss"}, set[str]()),
        ({"state": "live"}, {"naps", "blocks", "far"}),
        ({"state": "queued"}, set[str]()),
        ({"metadata": {"team": "far"}}, {"far"}),
        ({"metadata": {"team": "far", "more": 1}}, set[str]()),
        ({"olderThanSeconds": 80_000}, set[str]()),
        ({"tokensOver": 0}, {"naps", "blocks", "far"}),
        ({"tokensOver": 10_000_000}, set[str]()),
        ({"tool": "nap", "metadata": {"team": "naps"}}, {"naps"}),
    ],
)
def test_the_filters_mean_these_runs_of_both_processes(
    servers: tuple[ServerProcess, ServerProcess], wanted: dict[str, object], meant: set[str]
) -> None:
    assert would(servers[0], **wanted) == meant


def test_a_dry_run_tells_what_would_be_cut_and_asks_nothing(servers: tuple[ServerProcess, ServerProcess]) -> None:
    here, there = servers
    runs: list[dict[str, Any]] = here.post("/runs:cancel", {"all": True, "dryRun": True}).body["runs"]  # Any: JSON
    told = {run["sessionId"]: [(call["name"], call["fate"]) for call in run["calls"]] for run in runs}
    assert told == {"naps": [("nap", "in_doubt")], "blocks": [("block", "may_not_react")], "far": [("nap", "in_doubt")]}
    assert all(run["seconds"] > 0 and run["usage"]["inputTokens"] > 0 for run in runs), runs
    for server in (here, there):
        live = server.get("/runs?state=live").body
        assert len(live) == 3
        assert all(server.get(f"/runs/{run['runId']}/why").body["asked"] == [] for run in live)


def test_the_command_line_has_the_same_filters_and_then_stops_those_runs(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    here, _ = servers

    def said(*command: str) -> str:
        done = CliRunner().invoke(app, ["stop", *command, "--url", f"http://127.0.0.1:{here.port}"])
        assert done.exit_code == 0, done.output
        return done.output

    assert "no run would stop" in said("--tool", "note", "--dry-run")
    assert "nap in_doubt" in said("--tool", "nap", "--metadata", "team=far", "--dry-run")
    assert "stopped" in said("--tool", "nap", "--wait", "20")
    deadline = time.monotonic() + PATIENCE
    while {run["sessionId"] for run in here.get("/runs?state=live").body} != {"blocks"}:
        assert time.monotonic() < deadline, here.get("/runs").body
        time.sleep(0.1)


def test_a_bulk_cancel_without_a_filter_is_refused(servers: tuple[ServerProcess, ServerProcess]) -> None:
    assert servers[0].post("/runs:cancel", {"dryRun": True}).status == 400
    assert servers[0].post("/runs:cancel", {"state": "over"}).status == 422
