"""What a server writes about itself, read by a machine; and what it never writes."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from safepoint.server.logs import JsonLines, TextLines
from tests.server.server_process import PATIENCE, ServerProcess, message


@pytest.fixture(scope="module")
def logging_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("logs"), options=("--log-format", "json")) as server:
        yield server


def lines(server: ServerProcess) -> list[dict[str, Any]]:  # Any: JSON
    """Every line is JSON, from the first on. The server may be in the middle of writing the last one."""
    *whole, _unfinished = server.log.read_text().split("\n")
    return [json.loads(line) for line in whole]


def until_logged(server: ServerProcess, event: str, **fields: object) -> dict[str, Any]:  # Any: JSON
    deadline = time.monotonic() + PATIENCE
    while True:
        for line in lines(server):
            if line.get("event") == event and all(line.get(name) == value for name, value in fields.items()):
                return line
        assert time.monotonic() < deadline, (event, fields)
        time.sleep(0.02)


def test_the_life_of_a_stopped_run_can_be_followed_by_its_id(logging_server: ServerProcess) -> None:
    logging_server.create("life")
    caller = logging_server.run_in_thread("life", "nap 60")
    logging_server.until_did("nap begins")
    logging_server.cancel("life", reason="words of a user")
    caller.answer()
    accepted = until_logged(logging_server, "run_accepted", session="life")
    assert (accepted["app"], accepted["user"], accepted["by"]) == ("worker", "ann", "local")
    asked = until_logged(logging_server, "run_asked", run=accepted["run"])
    assert (asked["at"], asked["source"]) == (["now"], "user")
    stopped = until_logged(logging_server, "run_stopped", run=accepted["run"])
    assert (stopped["outcome"], stopped["orphans"]) == ("cancelled", 0)
    assert 0 < stopped["stop_seconds"] < 10
    ended = [line for line in lines(logging_server) if line.get("event") == "run_ended"]
    assert accepted["run"] not in [line["run"] for line in ended]


def test_a_run_that_ends_by_itself_says_how_and_after_how_long(logging_server: ServerProcess) -> None:
    logging_server.create("end")
    logging_server.run("end", "say hello")
    ended = until_logged(logging_server, "run_ended", session="end")
    assert ended["outcome"] == "end_turn"
    assert 0 < ended["seconds"] < PATIENCE


def test_each_request_is_one_line_without_anything_that_may_be_secret(logging_server: ServerProcess) -> None:
    logging_server.create("secret")
    bearer = {"Authorization": "Bearer sp_very_secret"}
    answer = logging_server.post("/run?note=hidden", message("secret", "say the-words-of-ann"), bearer)
    assert answer.status == 200, "it got as far as a run, whose lines are looked at too"
    assert logging_server.post("/run?token=refused", message("secret", "say more"), bearer).status == 400
    line = until_logged(logging_server, "request", path="/run", status=400)
    assert (line["method"], line["logger"]) == ("POST", "safepoint.access")
    assert line["seconds"] > 0
    log = logging_server.log.read_text()
    for secret in ("sp_very_secret", "hidden", "refused", "the-words-of-ann", "words of a user"):
        assert secret not in log, secret


def test_a_path_cannot_write_a_line_of_its_own(logging_server: ServerProcess) -> None:
    logging_server.get("/x%0a%7B%22event%22:%22forged%22%7D")
    line = until_logged(logging_server, "request", status=404)
    assert "%0A" in line["path"]
    assert not [line for line in lines(logging_server) if line.get("event") == "forged"]


def test_a_level_leaves_lines_out(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, options=("--log-level", "warning", "--log-format", "json")) as server:
        assert server.get("/health").status == 200
        assert server.terminate() == 0
        assert server.log.read_text() == ""


def record(words: str) -> logging.LogRecord:
    return logging.LogRecord("safepoint", logging.INFO, __file__, 1, words, None, None)


def test_a_line_of_text_stays_one_line() -> None:
    assert len(TextLines().format(record("one\ntwo\r\nthree")).splitlines()) == 1


def test_a_line_of_json_has_its_fields_and_its_exception() -> None:
    told = record("it broke")
    told.run = "run_1"
    try:
        raise RuntimeError("on purpose")
    except RuntimeError as error:
        told.exc_info = (type(error), error, error.__traceback__)
    shown = json.loads(JsonLines().format(told))
    assert (shown["message"], shown["run"], shown["level"]) == ("it broke", "run_1", "info")
    assert "on purpose" in shown["exception"]
    assert shown["time"].endswith("Z")
