"""Stop a run over HTTP while its caller waits, against a real server; effects are looked at, not answers."""

from __future__ import annotations

from tests.server.server_process import ServerProcess, calls_and_results, texts


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
