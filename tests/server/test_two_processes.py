"""Two servers on one file: whoever is asked, the run stops; and one looks after what the other leaves behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.server_process import PATIENCE, ServerProcess, calls_and_results, texts


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    folder: Path = tmp_path_factory.mktemp("two")
    with ServerProcess(folder) as here, ServerProcess(folder) as there:
        yield here, there


def ended(server: ServerProcess, run: str) -> dict[str, Any]:  # Any: JSON
    deadline = time.monotonic() + PATIENCE
    while (found := server.get(f"/runs/{run}").body)["state"] != "ended":
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return dict(found)


def test_a_cancel_reaches_a_run_of_the_other_process(servers: tuple[ServerProcess, ServerProcess]) -> None:
    here, there = servers
    here.create("live")
    caller = here.run_in_thread("live", "note mine; nap 30")
    here.until_did("note mine")
    here.until_did("nap begins")
    cancelled = there.cancel("live", reason="enough")
    assert (cancelled.status, cancelled.body["status"]) == (200, "cancelled")
    [run] = cancelled.body["runs"]
    assert (run["outcome"], run["durable"]) == ("stopped", True)
    events = caller.answer().body
    assert events[-1]["errorCode"] == "INVOCATION_ABORTED"
    assert "enough" in events[-1]["errorMessage"]
    assert "nap ends" not in here.did()
    assert there.get(f"/runs/{run['runId']}").body["reason"] == {"text": "enough", "source": "user", "by": "ann"}
    calls, results = calls_and_results(there.events("live"))
    assert sorted(calls) == sorted(results)
    assert there.cancel("live").status == 404
    assert texts(there.run("live", "say fine").body) == ["fine "]
    assert texts(here.events("live"))[-1] == "fine "


def test_a_cancel_that_nobody_waits_for_is_told_as_asked_and_happens(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    here, there = servers
    here.create("asked")
    here.run_in_thread("asked", "nap 30")
    run = here.run_of("asked", "live")
    answer = there.post(f"/runs/{run}:cancel", {"waitSeconds": 0})
    assert (answer.body["status"], answer.body["runs"][0]["durable"]) == ("cancelling", True)
    assert ended(here, run)["outcome"] == "cancelled"


def test_queued_and_paused_runs_of_the_other_process_are_cancelled_too(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    here, there = servers
    here.create("waiting")
    here.run_in_thread("waiting", "nap 30")
    live = here.run_of("waiting", "live")
    here.run_in_thread("waiting", "note never-run", ifBusy="queue")
    queued = here.run_of("waiting", "queued")
    answer = there.post(f"/runs/{queued}:cancel")
    assert answer.body["runs"][0]["outcome"] == "stopped"
    assert here.get(f"/runs/{live}").body["state"] == "live"
    assert there.post("/runs:cancel", {"sessionId": "waiting"}).body["status"] == "cancelled"
    assert "note never-run" not in here.did()

    here.create("many")
    here.run("many", "ask why")
    several = here.post("/runs:cancel", {"sessionId": "many"}).body
    assert [run["outcome"] for run in several["runs"]] == ["stopped"]

    here.create("paused")
    here.run("paused", "ask why")
    paused = here.run_of("paused", "paused")
    assert there.cancel("paused").body["runs"][0]["outcome"] == "stopped"
    for server in servers:
        assert server.get(f"/runs/{paused}").body["outcome"] == "cancelled"
        assert server.cancel("paused").status == 404


def test_a_message_for_a_session_that_is_live_in_the_other_process_is_refused(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    here, there = servers
    here.create("busy")
    here.run_in_thread("busy", "nap 30")
    here.run_of("busy", "live")
    assert there.run("busy", "note too early").status == 409
    assert here.cancel("busy").body["status"] == "cancelled"
    assert "note too early" not in here.did()


def test_a_run_of_the_other_process_is_watched_to_its_end(servers: tuple[ServerProcess, ServerProcess]) -> None:
    here, there = servers
    here.create("watched")
    caller = here.run_in_thread("watched", "note seen; nap 1", idempotencyKey="k")
    run = here.run_of("watched", "live")
    here.until_did("note seen")
    with there.open_stream("GET", f"/runs/{run}/events") as frames:
        seen = [event for _, event in frames]
    answer = caller.answer().body
    assert [event["id"] for event in seen] == [event["id"] for event in answer]
    assert texts(seen) == ["done "]
    assert [event["id"] for event in there.run("watched", "note seen; nap 1", idempotencyKey="k").body] == [
        event["id"] for event in answer
    ]
    assert here.did().count("note seen") == 1


def test_the_run_of_a_killed_process_goes_on_in_the_other_under_its_own_id(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    here, there = servers
    for session in ("orphan", "unwanted"):
        here.create(session)
    with here.stream("orphan", "note once; nap 1", onDisconnect="detach") as frames:
        seq, _ = next(iter(frames))
        run = here.run_of("orphan", "live")
        here.run_in_thread("unwanted", "nap 30")
        unwanted = here.run_of("unwanted", "live")
        here.until_did("note once")
        here.kill()
    cancelled = there.cancel("unwanted")
    assert cancelled.body["runs"][0]["outcome"] == "stopped"
    with there.open_stream("GET", f"/runs/{run}/events?after={seq}") as frames:
        events = [event for _, event in frames]
    assert {event["invocationId"] for event in events} == {f"e-{run.removeprefix('run_')}"}
    assert "functionCall" in events[0]["content"]["parts"][0], "the place in another process's story means nothing here"
    assert ended(there, run)["outcome"] == "end_turn"
    assert ended(there, unwanted)["outcome"] == "cancelled"
    with there.open_stream("GET", f"/runs/{run}/events?after={seq}") as frames:
        again = [event["id"] for _, event in frames]
    # An event that was told in two forms is told again in the last.
    assert list(dict.fromkeys(again)) == list(dict.fromkeys(event["id"] for event in events))
    assert texts(there.events("orphan"))[-1] == "done "
    assert there.did().count("note once") == 1
    here.start()
    assert here.get(f"/runs/{unwanted}").body["outcome"] == "cancelled"
