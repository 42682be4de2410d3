"""`safepoint top`: what live runs do, what they use, and what holds their stop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from safepoint.cli.main import app
from safepoint.cli.server_responses import RunAnswer, TreeAnswer
from safepoint.cli.top import Sample, row
from tests.server.server_process import ServerProcess

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("top")) as server:
        yield server


def said(server: ServerProcess, *options: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["top", "--every", "0.2", *options, "--url", f"http://127.0.0.1:{server.port}"])
    assert done.exit_code == code, done.output
    return done.output


def rows(server: ServerProcess) -> dict[str, dict[str, Any]]:  # Any: JSON
    return {row["run"]: row for row in json.loads(said(server, "--json"))}


def test_it_shows_what_runs_do_and_what_holds_a_stop(server: ServerProcess) -> None:
    ids: dict[str, str] = {}
    for session, text in (("naps", "nap 60"), ("ignores", "stubborn 60"), ("thinks", "stall")):
        server.create(session)
        server.run_in_thread(session, text, onDisconnect="detach")
        ids[session] = server.run_of(session, "live")
    server.until_did("nap begins")
    server.until_did("stubborn begins")
    found = rows(server)
    assert found[ids["naps"]]["does"] == "nap"
    assert found[ids["thinks"]]["does"] == "worker: model"
    assert int(found[ids["naps"]]["tokens"]) > 0
    assert found[ids["naps"]]["tokens_per_min"] == "0"
    assert found[ids["naps"]]["stop_waits_for"] == ""
    server.cancel("naps", at="after_tools", waitSeconds=0)
    assert rows(server)[ids["naps"]]["stop_waits_for"] == "nap"
    assert "nap" in said(server, "--once")
    server.post("/runs:cancel", {"all": True, "at": "now", "waitSeconds": 0})


def test_what_is_used_per_minute_is_counted_between_two_looks() -> None:
    run = RunAnswer.model_validate({"runId": "r", "state": "live"})

    def sample(at: float, tokens_in: int, tokens_out: int) -> Sample:
        usage = {"inputTokens": tokens_in, "outputTokens": tokens_out}
        return Sample(at, run, TreeAnswer.model_validate({"usage": usage}))

    before, now = sample(10.0, 1000, 100), sample(40.0, 2000, 600)
    assert row(now, before, (2.0, 8.0))[6:9] == ("2600", "3000", "0.0120")
    assert row(now, before, None)[6:9] == ("2600", "3000", "")
    assert row(now, None, None)[6:9] == ("2600", "", "")


@pytest.mark.parametrize("price", ["1", "a,b", "-1,2", "1,inf"])
def test_a_price_that_is_none_is_refused(server: ServerProcess, price: str) -> None:
    assert "--price" in said(server, "--price", price, code=2)
