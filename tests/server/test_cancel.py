"""Stop a run over HTTP while its caller waits, against a real server; effects are looked at, not answers."""

from __future__ import annotations

import json
import time

from tests.server.server_process import PATIENCE, ServerProcess, calls_and_results, message, parts, texts


def test_a_cancelled_tool_stops_and_its_caller_gets_the_events_so_far(server: ServerProcess) -> None:
    server.create("nap")
    caller = server.run_in_thread("nap", "note before; nap 30")
    server.until_did("nap begins")
    cancelled = server.cancel("nap", reason="enough")
    assert (cancelled.status, cancelled.body["status"]) == (200, "cancelled")
    events = caller.answer().body
    assert events[-1]["errorCode"] == "INVOCATION_ABORTED"
    assert "enough" in events[-1]["errorMessage"]
    assert "nap ends" not in server.did()
    stored = server.events("nap")
    calls, results = calls_and_results(stored)
    assert len(calls) == 2
    assert sorted(calls) == sorted(results)
    assert texts(server.run("nap", "say fine").body) == ["fine "]


def test_streamed_text_is_kept_and_the_last_frame_says_that_it_was_stopped(server: ServerProcess) -> None:
    server.create("stream")
    with server.stream("stream", "say drip drop; stall") as frames:
        seen = iter(frames)
        assert next(seen)[1]["partial"]
        server.cancel("stream", reason="enough")
        *_, (_, last) = seen
    assert last["errorCode"] == "INVOCATION_ABORTED"
    assert any("drip drop" in text for text in texts(server.events("stream")))


def test_nothing_live_is_404_and_creates_no_session(server: ServerProcess) -> None:
    assert server.cancel("nobody").status == 404
    assert server.get("/apps/worker/users/ann/sessions/nobody").status == 404


def test_one_call_can_be_stopped_and_its_run_and_whatever_waits_go_on(server: ServerProcess) -> None:
    server.create("node")
    begun = server.did().count("nap begins")
    caller = server.run_in_thread("node", "nap 30; note beside")
    server.until_did("nap begins", begun + 1)
    waiting = server.run_in_thread("node", "say next", ifBusy="queue")
    run, _ = server.run_of("node", "live"), server.run_of("node", "queued")
    (call,) = [
        part["functionCall"]["id"]
        for part in parts(server.events("node"))
        if part.get("functionCall", {}).get("name") == "nap"
    ]
    assert server.post("/runs:cancel", {"all": True, "node": f"worker/nap:{call}"}).status == 400, "of which run?"
    answer = server.cancel("node", node=f"worker/nap:{call}", reason="enough sleep")
    assert (answer.status, answer.body["status"]) == (200, "cancelled")
    assert [(each["runId"], each["outcome"]) for each in answer.body["runs"]] == [(run, "stopped")]
    events = caller.answer().body
    assert (texts(events), "errorCode" in events[-1]) == (["done "], False)
    states = [part["functionResponse"]["response"]["state"] for part in parts(events) if "functionResponse" in part]
    assert states == ["cut", "finished"]
    assert texts(waiting.answer().body) == ["next "]


def test_a_caller_of_run_that_leaves_at_once_or_later_stops_its_run(server: ServerProcess) -> None:
    for session, stays in (("leaves-at-once", False), ("leaves-later", True)):
        naps = server.did().count("nap begins")
        server.create(session)
        connection = server.connect()
        connection.request("POST", "/run", json.dumps(message(session, "nap 60")), {"content-type": "application/json"})
        if stays:
            server.until_did("nap begins", naps + 1)
            time.sleep(0.1)
        connection.close()
        deadline = time.monotonic() + PATIENCE
        while True:
            found = [run for run in server.get("/runs").body if run["sessionId"] == session]
            if found and found[0]["state"] == "ended":
                break
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
        assert (found[0]["outcome"], found[0]["reason"]["source"]) == ("cancelled", "disconnect")
