"""Behaviours B1–B19: routes, and what a cancel means. Effects are looked at: tool log, stored history, next prompt."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from fastapi import FastAPI

from safepoint.server.app import create_app
from safepoint.server.shadowing import check_routes
from tests.server.server_process import (
    ServerProcess,
    calls_and_results,
    message,
    session_path,
    texts,
)

ABORTED = "INVOCATION_ABORTED"


def until_over(server: ServerProcess, run_id: str) -> dict[str, Any]:  # Any: JSON
    deadline = time.monotonic() + 20
    while True:
        run: dict[str, Any] = server.get(f"/runs/{run_id}").body  # Any: JSON
        if run.get("outcome") is not None:
            return run
        assert time.monotonic() < deadline, run
        time.sleep(0.02)


def only_run(server: ServerProcess, session: str) -> dict[str, Any]:  # Any: JSON
    (run,) = [run for run in server.get("/runs").body if run["sessionId"] == session]
    found: dict[str, Any] = run  # Any: JSON
    return found


# -- routing and compatibility -----------------------------------------------------------------------------------------


def test_b01_cancel_is_an_action_for_every_id_and_never_creates_a_session(server: ServerProcess) -> None:
    before = server.get("/apps/worker/users/ann/sessions").body
    for session in ("b01", "x.y", "a@b~c+d-e"):
        assert server.cancel(session).status == 404
    for refused in ("b01:cancel", "b01:x", "a b", "..", "%2e%2e"):
        assert server.post("/apps/worker/users/ann/sessions", {"sessionId": refused}).status == 400
    for refused in ("b01:resume", "b01%3Acancelled", "a%20b", "x%00"):
        assert server.post(session_path(refused)).status == 400
    assert server.get("/apps/worker/users/ann/sessions").body == before


def test_b02_every_route_is_reached_over_a_socket(server: ServerProcess) -> None:
    paths: dict[str, dict[str, Any]] = server.get("/openapi.json").body["paths"]  # Any: JSON
    driven = 0
    for path, methods in paths.items():
        for method in methods:
            url = path.replace("{app}", "worker").replace("{user}", "b02")
            url = url.replace("{session}", "nobody").replace("{run}", "run_nobody").replace("{ask}", "ask_nobody")
            answer = server.http(method.upper(), url, {})
            assert answer.status not in (405, 500), (method, path, answer)
            assert answer.body != {"detail": "Not Found"}, (method, path)
            driven += 1
    assert driven >= 20


def test_b02_a_shadowed_route_is_refused_at_the_start() -> None:
    app: FastAPI = create_app({})

    @app.get("/health")
    async def again() -> None: ...

    with pytest.raises(RuntimeError, match="never reached"):
        check_routes(app)


def test_b03_both_spellings_are_accepted_and_answers_are_in_camel_case(server: ServerProcess) -> None:
    camel = server.post("/apps/worker/users/ann/sessions", {"sessionId": "b03-camel", "state": {"a_b": 1}})
    snake = server.post("/apps/worker/users/ann/sessions", {"session_id": "b03-snake"})
    assert (camel.body["id"], snake.body["id"]) == ("b03-camel", "b03-snake")
    assert camel.body["state"] == {"a_b": 1}
    said = {"role": "user", "parts": [{"inline_data": {"mime_type": "text/plain", "data": "aGk="}}, {"text": "say x"}]}
    body = {"app_name": "worker", "user_id": "ann", "session_id": "b03-snake", "new_message": said}
    assert texts(server.post("/run", body).body) == ["x "]
    (user, answer) = server.events("b03-snake")
    assert user["content"]["parts"][0] == {"inlineData": {"mimeType": "text/plain", "data": "aGk="}}
    assert {"invocationId", "author", "actions", "nodeInfo", "id", "timestamp", "content"} <= answer.keys()
    assert None not in answer.values()


def test_b03_errors_have_the_statuses_and_texts_of_adk(server: ServerProcess) -> None:
    server.create("b03-texts")
    again = server.post("/apps/worker/users/ann/sessions", {"sessionId": "b03-texts"})
    assert (again.status, again.body) == (409, {"detail": "Session already exists: b03-texts"})
    absent = server.get(session_path("b03-absent"))
    assert (absent.status, absent.body) == (404, {"detail": "Session not found"})
    for path in ("/run", "/run_sse"):
        missing = server.post(path, message("b03-absent", "hi"))
        assert (missing.status, missing.body) == (404, {"detail": "Session not found"})
        assert server.post(path, message("b03-texts", "hi", appName="nobody")).status == 404
        assert server.post(path, message("b03-texts", "hi", appName=None)).status == 400
        assert server.post(path, message("b03-texts", "hi", appName="__adk")).status == 403
    assert server.get("/apps/__adk/app-info").status == 403
    assert server.http("PATCH", session_path("b03-texts"), {}).status == 422
    gone = server.http("DELETE", session_path("b03-absent"))
    assert (gone.status, gone.body) == (200, None)
    assert server.http("PUT", "/run").status == 405


NO_REQUESTS: list[dict[str, object]] = [
    {"newMessage": {"role": "user", "parts": [{"txt": "hi"}]}},
    {"newMessage": {"role": "user", "parts": [{"text": "hi"}], "more": 1}},
    {"newMessage": {"parts": [{"functionCall": {"id": "c", "name": "note", "args": {}}}]}},
    {"newMessage": {"parts": [{"text": "hi"}, {"functionResponse": {"id": "c", "name": "n", "response": {}}}]}},
    {"newMessage": {"parts": "hi"}},
    {"userId": None},
    {"streaming": "maybe"},
    {"ifBusy": "perhaps"},
    {"onDisconnect": {"cancelAfter": -1}},
]


@pytest.mark.parametrize("broken", NO_REQUESTS)
def test_b03_what_is_no_request_is_422_and_stores_nothing(server: ServerProcess, broken: dict[str, object]) -> None:
    server.post(session_path("b03-broken"))
    for path in ("/run", "/run_sse"):
        answer = server.post(path, message("b03-broken", "note b03", **broken))
        assert answer.status == 422, answer
        assert {"type", "loc", "msg"} <= answer.body["detail"][0].keys()
    assert server.post("/run", b"{no json").body["detail"][0]["type"] == "json_invalid"
    assert server.events("b03-broken") == []
    assert "note b03" not in server.did()


def test_b04_the_answer_to_a_cancel_keeps_the_fields_that_adk_clients_read(server: ServerProcess) -> None:
    server.create("b04")
    caller = server.run_in_thread("b04", "note b04; nap 30")
    server.until_did("note b04")
    answer = server.cancel("b04").body
    assert (answer["status"], answer["session_id"], answer["sessionId"]) == ("cancelled", "b04", "b04")
    (run,) = answer["runs"]
    assert {
        "runId",
        "askId",
        "requested",
        "outcome",
        "stoppedAt",
        "touched",
        "orphans",
        "usage",
        "durable",
    } <= run.keys()
    caller.answer()
    nothing = server.cancel("b04")
    assert (nothing.status, nothing.body["detail"]) == (404, "No active run found for session 'b04'")
    assert nothing.body["lastRun"] == {"runId": run["runId"], "outcome": "cancelled"}


def test_b05_data_lines_carry_events_or_the_error_frame_and_nothing_else(server: ServerProcess) -> None:
    server.create("b05")
    connection = server.connect()
    body = message("b05", "say a b c; note b05", streaming=True)
    connection.request("POST", "/run_sse", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.read().decode().splitlines()
    connection.close()
    assert all(not line or line.startswith(("data: {", "id: ", ":")) for line in lines), lines
    assert any(line.startswith("data: {") for line in lines)


# -- what a cancel means -----------------------------------------------------------------------------------------------


def test_b06_a_running_a_queued_and_a_paused_run_can_be_cancelled(server: ServerProcess) -> None:
    server.create("b06")
    running = server.run_in_thread("b06", "note b06; nap 30")
    server.until_did("note b06")
    queued = server.run_in_thread("b06", "note b06-queued", ifBusy="queue")
    deadline = time.monotonic() + 10
    while not any(run["state"] == "queued" for run in server.get("/runs?user=ann").body):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(server.cancel("b06").body["runs"]) == 2
    assert [later.answer().body[-1]["errorCode"] for later in (running, queued)] == [ABORTED, ABORTED]
    assert "note b06-queued" not in server.did()

    server.create("b06-paused")
    events = server.run("b06-paused", "ask b06").body
    (waiting,) = [event["longRunningToolIds"] for event in events if event.get("longRunningToolIds")]
    assert server.cancel("b06-paused").body["status"] == "cancelled"
    said = {"parts": [{"functionResponse": {"id": waiting[0], "name": "ask", "response": {"result": "b06"}}}]}
    late = server.post("/run", message("b06-paused", "", newMessage=said))
    assert late.status == 400
    assert "answer b06" not in server.did()
    assert texts(server.run("b06-paused", "say on").body) == ["on "]


def test_b06_a_run_that_was_resumed_can_be_cancelled(server: ServerProcess) -> None:
    server.post(session_path("b06-again", app="handy"))
    caller = server.run_in_thread("b06-again", "pause 20; note b06-again", appName="handy")
    server.until_did("pause note b06-again")
    server.post(f"{session_path('b06-again', app='handy')}:cancel")
    caller.answer()
    run_id = only_run(server, "b06-again")["runId"]
    resumed = server.post(f"/runs/{run_id}:resume").body
    assert (resumed["continues"], resumed["runId"] == run_id) == (run_id, False)
    server.until_did("pause note b06-again", 2)
    assert server.post(f"/runs/{resumed['runId']}:cancel").body["status"] == "cancelled"
    assert until_over(server, resumed["runId"])["outcome"] == "cancelled"
    assert "note b06-again" not in server.did()


def test_b07_another_users_or_apps_cancel_gets_404_and_changes_nothing(server: ServerProcess) -> None:
    server.create("b07")
    caller = server.run_in_thread("b07", "note b07; nap 2; note b07")
    server.until_did("note b07")
    assert server.cancel("b07", user="bob").status == 404
    assert server.post(f"{session_path('b07', app='handy')}:cancel").status == 404
    events = caller.answer().body
    assert "errorCode" not in events[-1]
    assert only_run(server, "b07")["outcome"] == "end_turn"


def test_b08_a_named_run_is_cancelled_alone_and_its_end_leaves_the_other_findable(server: ServerProcess) -> None:
    server.create("b08")
    first = server.run_in_thread("b08", "note b08; nap 30")
    server.until_did("note b08")
    second = server.run_in_thread("b08", "note b08-second; nap 30", ifBusy="queue")
    deadline = time.monotonic() + 10
    while len(runs := [run for run in server.get("/runs").body if run["sessionId"] == "b08"]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    live = next(run["runId"] for run in runs if run["state"] == "live")
    assert [run["runId"] for run in server.cancel("b08", runId=live).body["runs"]] == [live]
    assert first.answer().body[-1]["errorCode"] == ABORTED
    server.until_did("note b08-second")
    assert server.cancel("b08").body["status"] == "cancelled"
    assert second.answer().body[-1]["errorCode"] == ABORTED
    assert server.did().count("note b08-second") == 1


def test_b09_a_repeated_cancel_is_harmless_and_the_end_tells_the_final_state(server: ServerProcess) -> None:
    server.create("b09")
    caller = server.run_in_thread("b09", "note b09; stubborn 3")
    server.until_did("stubborn begins")
    run_id = only_run(server, "b09")["runId"]
    answers = [server.cancel("b09", waitSeconds=0) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 200]
    caller.answer()
    final = [server.post(f"/runs/{run_id}:cancel") for _ in range(2)]
    assert [(answer.status, answer.body["outcome"]) for answer in final] == [(200, "cancelled")] * 2


def test_b10_requested_and_stopped_are_two_facts(server: ServerProcess) -> None:
    server.create("b10")
    caller = server.run_in_thread("b10", "note b10; block 3")
    server.until_did("block begins")
    asked = server.cancel("b10", waitSeconds=0).body
    assert (asked["status"], asked["runs"][0]["requested"]) == ("cancelling", True)
    assert "outcome" not in asked["runs"][0]
    run_id = asked["runs"][0]["runId"]
    ended = until_over(server, run_id)
    assert (ended["state"], ended["outcome"]) == ("ended", "cancelled")
    events = caller.answer().body
    prompts = len(server.prompts())
    server.until_did("block ends")
    stored = server.events("b10")
    assert stored[-1]["id"] == events[-1]["id"]
    assert len(server.prompts()) == prompts


def test_b12_a_race_of_cancel_and_finish_has_one_winner(server: ServerProcess) -> None:
    for number in range(8):
        session = f"b12-{number}"
        server.create(session)
        caller = server.run_in_thread(session, "say a b c; note race")
        server.cancel(session, waitSeconds=0)
        last = caller.answer().body[-1]
        run = only_run(server, session)
        assert (run["outcome"] == "cancelled") == (last.get("errorCode") == ABORTED), (run, last)
        stored = server.events(session)
        assert stored[0]["content"]["parts"] == [{"text": "say a b c; note race"}]  # it was accepted, so it is there
        assert stored[-1].get("errorCode") == last.get("errorCode")
        assert server.post(f"/runs/{run['runId']}:cancel").body["outcome"] == run["outcome"]


@pytest.mark.parametrize("tool", ["block", "stubborn"])
def test_b13_a_tool_that_blocks_or_ignores_holds_neither_the_cancel_nor_the_session(
    server: ServerProcess, tool: str
) -> None:
    session = f"b13-{tool}"
    server.create(session)
    begun = server.did().count(f"{tool} begins")
    caller = server.run_in_thread(session, f"note {session}; {tool} 20")
    server.until_did(f"{tool} begins", begun + 1)
    began = time.monotonic()
    server.cancel(session, waitSeconds=0)
    assert time.monotonic() - began < 2
    assert server.get("/health").status == 200
    assert caller.answer().body[-1]["errorCode"] == ABORTED
    assert time.monotonic() - began < 10
    assert texts(server.run(session, "say free").body) == ["free "]


@pytest.mark.parametrize("app", ["handy", "pipeline", "crew", "rounds", "boss"])
def test_b14_every_shape_of_agent_stops_at_once(server: ServerProcess, app: str) -> None:
    session = f"b14-{app}"
    server.post(session_path(session, app=app))
    naps = server.did().count("nap begins")
    caller = server.run_in_thread(session, f"note {session}; nap 30", appName=app)
    server.until_did("nap begins", naps + 1)
    began = time.monotonic()
    answer = server.post(f"{session_path(session, app=app)}:cancel")
    assert (answer.status, answer.body["status"]) == (200, "cancelled")
    assert time.monotonic() - began < 5
    assert caller.answer().body[-1]["errorCode"] == ABORTED
    calls, results = calls_and_results(server.get(session_path(session, app=app)).body["events"])
    assert calls == results


def test_b15_the_model_stream_is_closed_and_no_more_is_paid_for(server: ServerProcess) -> None:
    server.post(session_path("b15", app="handy"))
    caller = server.run_in_thread("b15", "hang b15 words", appName="handy")
    server.until_did("hang")
    server.post(f"{session_path('b15', app='handy')}:cancel")
    assert "hang closed" in server.did()
    assert caller.answer().body[-1]["errorCode"] == ABORTED


def test_b16_nothing_starts_after_the_cancel_is_accepted(server: ServerProcess) -> None:
    server.post(session_path("b16", app="handy"))
    caller = server.run_in_thread("b16", "pause 3; note b16", appName="handy")
    server.until_did("pause note b16")
    prompts = len(server.prompts())
    server.post(f"{session_path('b16', app='handy')}:cancel", {"at": "after_model", "waitSeconds": 5})
    caller.answer()
    time.sleep(0.3)
    assert "note b16" not in server.did()
    assert len(server.prompts()) == prompts


# -- what the caller sees ----------------------------------------------------------------------------------------------


def test_b17_the_caller_of_a_cancelled_run_gets_the_events_so_far_and_no_error(server: ServerProcess) -> None:
    server.create("b17")
    naps = server.did().count("nap begins")
    caller = server.run_in_thread("b17", "note b17; nap 30")
    server.until_did("note b17")
    server.until_did("nap begins", naps + 1)
    server.cancel("b17", reason="enough of b17")
    answer = caller.answer()
    assert answer.status == 200
    assert [event.get("errorCode") for event in answer.body] == [None, None, ABORTED]
    assert "enough of b17" in answer.body[-1]["errorMessage"]
    ledger = {entry["name"]: entry["state"] for entry in answer.body[-1]["customMetadata"]["safepointLedger"]}
    assert ledger == {"note": "finished", "nap": "cut"}
    assert "Traceback" not in server.log.read_text()


def test_b18_finished_failed_paused_and_cancelled_can_be_told_apart(server: ServerProcess) -> None:
    last: dict[str, dict[str, Any]] = {}  # Any: JSON
    errors: dict[str, dict[str, Any]] = {}  # Any: JSON
    for session, text in (("b18-ok", "say ok"), ("b18-fail", "fail at last"), ("b18-ask", "ask b18")):
        server.create(session)
        with server.stream(session, text) as frames:
            seen = [event for _, event in frames]
        whole = [event for event in seen if "error" not in event]
        last[session], errors[session] = (
            whole[-1],
            next((event for event in seen if "error" in event), dict[str, Any]()),
        )
        assert server.events(session)[-1] == last[session]
    assert "errorCode" not in last["b18-ok"]
    assert (last["b18-fail"]["errorCode"], last["b18-fail"]["errorMessage"]) == ("RuntimeError", "at last")
    assert errors["b18-fail"]["error"] == "RuntimeError: at last"
    assert errors["b18-fail"]["error_details"].keys() == {"error_type", "error_message", "timestamp"}
    assert (errors["b18-ok"], errors["b18-ask"]) == ({}, {})
    assert last["b18-ask"]["customMetadata"]["safepointQuestions"][0]["payload"] == {"question": "b18"}
    assert next(event["longRunningToolIds"] for event in server.events("b18-ask") if "longRunningToolIds" in event)
    failed = server.run("b18-fail", "fail twice")
    assert (failed.status, failed.body[-1]["errorCode"], failed.body[-1]["errorMessage"]) == (
        200,
        "RuntimeError",
        "twice",
    )


def test_b19_who_why_and_when_are_in_the_record(server: ServerProcess) -> None:
    server.create("b19")
    caller = server.run_in_thread("b19", "note b19; nap 30")
    server.until_did("note b19")
    server.cancel("b19", reason="b19 said so", source="disconnect", by="mallory")
    caller.answer()
    run = only_run(server, "b19")
    assert run["reason"] == {"text": "b19 said so", "source": "user", "by": "ann"}

    server.create("b19-gone")
    with server.stream("b19-gone", "note b19-gone; nap 30"):
        server.until_did("note b19-gone")
    gone = until_over(server, only_run(server, "b19-gone")["runId"])
    assert (gone["outcome"], gone["reason"]["source"]) == ("cancelled", "disconnect")
