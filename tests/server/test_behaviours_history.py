"""Behaviours B11 and B20–B37: what the history says, who may leave, load, and the end of a process."""

from __future__ import annotations

import ast
import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from safepoint import Agent
from safepoint.server.app import create_app
from safepoint.server.config import ServerConfig
from safepoint.sessions import SqliteStore
from tests.server.apps.worker.agent import Obedient, note
from tests.server.in_process import ThreadServer
from tests.server.server_process import ServerProcess, calls_and_results, message, parts, session_path, texts
from tests.server.test_behaviours import ABORTED, only_run, until_over


def responses(server: ServerProcess, session: str, app: str = "worker") -> dict[str, str]:
    """What the history says of each tool: its state, by name."""
    found = parts(server.get(session_path(session, app=app)).body["events"])
    answers = [part["functionResponse"] for part in found if "functionResponse" in part]
    return {answer["name"]: answer["response"]["state"] for answer in answers}


def is_paired(server: ServerProcess, session: str) -> bool:
    calls, results = calls_and_results(server.events(session))
    return calls == results and bool(calls)


def test_b11_a_crash_right_after_the_answer_still_ends_in_a_cancelled_run(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    with server:
        server.create("b11")
        with server.stream("b11", "note b11; stubborn 20", onDisconnect="detach"):
            server.until_did("stubborn begins")
            run_id = only_run(server, "b11")["runId"]
            assert server.cancel("b11", waitSeconds=0).body["runs"][0]["durable"] is True
            server.kill()
        server.start()
        assert until_over(server, run_id)["outcome"] == "cancelled"
        assert is_paired(server, "b11")
        assert server.did().count("stubborn begins") == 1


@pytest.mark.parametrize("how", ["now", "disconnect", "after_model", "force"])
def test_b20_every_call_has_exactly_one_response_whatever_stops_the_run(server: ServerProcess, how: str) -> None:
    session = f"b20-{how}"
    server.create(session)
    naps = server.did().count("nap begins")
    with server.stream(session, f"note {session}; nap 30") as frames:
        server.until_did(f"note {session}")
        server.until_did("nap begins", naps + 1)
        if how in ("now", "force"):
            assert server.cancel(session, at=how).status == 200
        elif how == "after_model":
            assert server.cancel(session, at=how, withinSeconds=0.2).status == 200
        if how != "disconnect":
            list(frames)
    until_over(server, only_run(server, session)["runId"])
    assert is_paired(server, session)
    assert responses(server, session) == {"note": "finished", "nap": "cut"}


def test_b20_every_call_has_exactly_one_response_after_a_crash(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    with server:
        server.create("b20")
        with server.stream("b20", "note b20; nap 30"):
            server.until_did("note b20")
            server.kill()
        server.start()
        until_over(server, only_run(server, "b20")["runId"])
        assert is_paired(server, "b20")
        assert server.did().count("note b20") == 1


def test_b21_the_record_tells_the_truth_about_each_call(server: ServerProcess) -> None:
    server.create("b21")
    naps = server.did().count("nap begins")
    caller = server.run_in_thread("b21", "note b21; nap 30; block 0.6")
    server.until_did("nap begins", naps + 1)
    server.until_did("block begins")
    server.cancel("b21")
    caller.answer()
    assert responses(server, "b21")["note"] == "finished"
    assert responses(server, "b21")["nap"] == "cut"
    assert responses(server, "b21")["block"] in ("cut", "finished", "finished_late")
    assert any(
        part["functionResponse"]["response"].get("result") == "noted b21"
        for part in parts(server.events("b21"))
        if "functionResponse" in part
    )

    server.post(session_path("b21-never", app="handy"))
    caller = server.run_in_thread("b21-never", "pause 2; note b21-never", appName="handy")
    server.until_did("pause note b21-never")
    server.post(f"{session_path('b21-never', app='handy')}:cancel", {"at": "after_model"})
    caller.answer()
    assert responses(server, "b21-never", "handy") == {"note": "not_started"}
    assert "note b21-never" not in server.did()


def test_b22_streamed_text_is_kept_and_marked_interrupted(server: ServerProcess) -> None:
    server.create("b22")
    with server.stream("b22", "say kept words; stall") as frames:
        seen = iter(frames)
        assert next(seen)[1]["partial"]
        server.cancel("b22")
        *_, (_, last) = seen
    stored = server.events("b22")[-1]
    assert "kept words" in texts([stored])[0]
    assert (stored["interrupted"], stored["id"]) == (True, last["id"])


def test_b23_the_next_prompt_is_valid_and_tells_the_model_that_it_was_stopped(server: ServerProcess) -> None:
    server.create("b23")
    caller = server.run_in_thread("b23", "note b23; nap 30")
    server.until_did("note b23")
    server.cancel("b23", reason="b23 changed their mind")
    caller.answer()
    server.run("b23", "say next")
    prompt = server.prompts()[-1]
    assert [said["role"] for said in prompt] == ["user", "assistant", "tool", "assistant", "user"]
    calls = [part["id"] for part in prompt[1]["parts"] if part["kind"] == "tool_call"]
    assert [part["call_id"] for part in prompt[2]["parts"]] == calls
    assert "b23 changed their mind" in str(prompt[3])


def test_b24_a_run_is_stopped_and_its_turn_taken_back(server: ServerProcess) -> None:
    server.create("b24")
    server.run("b24", "say stays")
    caller = server.run_in_thread("b24", "note b24; nap 30")
    server.until_did("note b24")
    run_id = next(run["runId"] for run in server.get("/runs").body if run["sessionId"] == "b24")
    answer = server.post(f"/runs/{run_id}:rewind", {"reason": "never mind"})
    assert (answer.status, answer.body["outcome"]) == (200, "rewound")
    assert {effect["name"] for effect in answer.body["effects"]} == {"note", "nap"}
    assert caller.answer().body[-1]["errorCode"] == ABORTED
    assert texts(server.events("b24")) == ["say stays", "stays "]
    server.run("b24", "say after")
    assert "note b24" not in str(server.prompts()[-1])
    assert server.post(f"/runs/{run_id}:rewind").status == 409


def test_b25_a_finished_answer_is_not_lost_because_its_reader_left_or_never_read(server: ServerProcess) -> None:
    server.post(session_path("b25", app="handy"))
    with server.stream("b25", "flood 300", appName="handy"):
        server.until_did("flooded")
        ended = until_over(server, only_run(server, "b25")["runId"])
    assert ended["outcome"] == "end_turn"
    (answer,) = texts(server.get(session_path("b25", app="handy")).body["events"][1:])
    assert len(answer) == 3_000_000


# -- disconnects -------------------------------------------------------------------------------------------------------


def test_b26_a_disconnect_cancels_by_default_and_detaches_on_demand(server: ServerProcess) -> None:
    detach: dict[str, Any] = {"onDisconnect": "detach"}  # Any: JSON
    for session, policy, outcome in (("b26", dict[str, Any](), "cancelled"), ("b26-on", detach, "end_turn")):
        server.create(session)
        with server.stream(session, f"note {session}; nap 1", **policy):
            server.until_did(f"note {session}")
        assert until_over(server, only_run(server, session)["runId"])["outcome"] == outcome


def test_b26_viewers_come_back_by_sequence_number_and_see_the_same_events(server: ServerProcess) -> None:
    server.create("b26-back")
    with server.stream("b26-back", "note b26-back; nap 0.5", onDisconnect="detach") as frames:
        seq, first = next(iter(frames))
        run_id = only_run(server, "b26-back")["runId"]
    with server.open_stream("GET", f"/runs/{run_id}/events?after={seq}") as frames:
        rest = [event for _, event in frames if "partial" not in event]
    with server.open_stream("GET", f"/runs/{run_id}/events", headers={"Last-Event-ID": str(seq)}) as frames:
        again = [event for _, event in frames if "partial" not in event]
    stored = server.events("b26-back")[1:]
    assert [first["id"], *(event["id"] for event in rest)] == [event["id"] for event in stored]
    assert rest == again


def test_b26_who_comes_back_to_a_run_that_waits_by_now_misses_no_question(server: ServerProcess) -> None:
    server.create("b26-asks")
    with server.stream("b26-asks", "ask why; nap 0.5", onDisconnect="detach") as frames:
        run_id = frames.headers["safepoint-run"]
        seen = list(frames)
    whole = [(seq, event) for seq, event in seen if "partial" not in event]
    for seq, _ in whole[:-1]:
        with server.open_stream("GET", f"/runs/{run_id}/events?after={seq}") as frames:
            rest = [event for _, event in frames]
        missed = {event["id"] for number, event in whole if (number or 0) > (seq or 0)}
        assert missed <= {event["id"] for event in rest}
        assert any(event["longRunningToolIds"] for event in rest if "longRunningToolIds" in event)
    with server.open_stream("GET", f"/runs/{run_id}/events") as frames:
        last = [seq for seq, _ in frames][-1]
    with server.open_stream("GET", f"/runs/{run_id}/events?after={last}") as frames:
        assert list(frames) == [], "it has seen all of this story"


def test_b27_nothing_lives_on_after_disconnects(server: ServerProcess) -> None:
    for number in range(10):
        session = f"b27-{number}"
        server.create(session)
        with server.stream(session, f"say a; nap {30 if number % 2 else 0}"):
            pass
    deadline = time.monotonic() + 10
    while any(run["state"] == "live" for run in server.get("/runs").body):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_b28_a_stalled_reader_gets_what_it_missed_in_one_piece(server: ServerProcess) -> None:
    server.post(session_path("b28", app="handy"))
    flooded = server.did().count("flooded")
    with server.stream("b28", "flood 2000", appName="handy") as frames:
        server.until_did("flooded", flooded + 1)
        until_over(server, only_run(server, "b28")["runId"])
        seen = [event for _, event in frames]
    assert len(seen) < 1500
    assert len(texts(seen[-1:])[0]) == 20_000_000


def test_b29_a_quiet_stream_has_comments_and_nothing_buffers_it(tmp_path: Path) -> None:
    def build(folder: Path) -> FastAPI:
        return create_app({"worker": Agent("worker", model=Obedient())}, config=ServerConfig(keep_alive_seconds=0.1))

    with ThreadServer(tmp_path, build) as server:
        server.create("b29")
        with server.stream("b29", "say a; stall") as frames:
            seen = iter(frames)
            next(seen)
            deadline = time.monotonic() + 5
            time.sleep(0.5)
            server.cancel("b29")
            list(seen)
            assert frames.comments >= 2
            assert time.monotonic() < deadline
        assert frames.headers["x-accel-buffering"] == "no"
        assert "no-cache" in frames.headers["cache-control"]


# -- load --------------------------------------------------------------------------------------------------------------


def test_b30_a_second_message_is_refused_and_neither_it_nor_a_patch_hurts_the_first(server: ServerProcess) -> None:
    server.create("b30")
    caller = server.run_in_thread("b30", "note b30; nap 2")
    server.until_did("note b30")
    assert server.run("b30", "say no").status == 409
    patched = server.http("PATCH", session_path("b30"), {"stateDelta": {"seen": 1}})
    assert (patched.status, patched.body["state"]) == (200, {"seen": 1})
    assert "errorCode" not in caller.answer().body[-1]
    assert server.get(session_path("b30")).body["state"] == {"seen": 1}


def test_b31_a_run_in_a_long_session_costs_what_it_costs_in_a_short_one(tmp_path: Path) -> None:
    def build(folder: Path) -> FastAPI:
        store = SqliteStore(folder / "b31.db")
        agent = Agent("worker", model=Obedient(), tools=[note])
        return create_app({"worker": agent}, store=store)

    said = [
        {"author": author, "content": {"role": role, "parts": [{"text": f"{author} {number}"}]}}
        for number in range(1000)
        for author, role in (("user", "user"), ("worker", "model"))
    ]
    with ThreadServer(tmp_path, build) as server:
        del os.environ["PROMPT_LOG"]  # which would grow
        took: dict[str, float] = {}
        for session, events in (("short", []), ("long", said)):
            path = "/apps/worker/users/ann/sessions"
            assert server.post(path, {"sessionId": session, "events": events}).status == 200
            times: list[float] = []
            for _ in range(15):
                began = time.perf_counter()
                assert server.run(session, "say x").status == 200
                times.append(time.perf_counter() - began)
            took[session] = statistics.median(times)
        assert took["long"] < 5 * took["short"] + 0.05, took


def test_b32_a_session_has_one_owner_among_all_processes(server: ServerProcess) -> None:
    server.create("b32")
    caller = server.run_in_thread("b32", "note b32; nap 30")
    server.until_did("note b32")
    with ServerProcess(server.folder) as other:
        assert other.run("b32", "note b32-other").status == 409
        assert other.cancel("b32", reason="from the other").body["status"] == "cancelled"
    assert "from the other" in caller.answer().body[-1]["errorMessage"]
    assert "note b32-other" not in server.did()


# -- operations --------------------------------------------------------------------------------------------------------


def test_b33_sigterm_tells_callers_seals_and_exits_with_0(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    with server:
        server.create("b33")
        caller = server.run_in_thread("b33", "note b33; nap 1")
        server.until_did("note b33")
        assert server.terminate() == 0
        events = caller.answer().body
        assert events[-1].get("errorCode") in (None, ABORTED)
        server.start()
        until_over(server, only_run(server, "b33")["runId"])
        assert is_paired(server, "b33")
        assert server.did().count("note b33") == 1


def test_b34_a_resumed_run_does_not_repeat_what_is_known_to_be_done(server: ServerProcess) -> None:
    server.create("b34")
    caller = server.run_in_thread("b34", "note b34; nap 30")
    server.until_did("note b34")
    server.cancel("b34")
    stopped = caller.answer().body[-1]
    body = message("b34", "", newMessage=None, invocationId=stopped["invocationId"])
    resumed = server.post("/run", body)
    assert resumed.status == 200
    assert {event["invocationId"] for event in resumed.body} == {stopped["invocationId"]}
    assert "errorCode" not in resumed.body[-1]
    assert server.did().count("note b34") == 1
    assert responses(server, "b34")["note"] == "finished"


# -- proof -------------------------------------------------------------------------------------------------------------


def test_b36_and_b37_every_behaviour_and_every_defect_has_a_test() -> None:
    names = [
        node.name
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    # B35 is about the WebSocket.
    missing = [number for number in range(1, 35) if not any(name.startswith(f"test_b{number:02}_") for name in names)]
    assert missing == []
    untested = [number for number in range(1, 15) if not any(name.startswith(f"check_d{number:02}_") for name in names)]
    assert untested == []
