"""D1–D14: defects that an approved cancel route for ADK still had. Each check passes on the real server, and fails on a
server with exactly that defect: so it can fail, and for that reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.server.broken.servers import BROKEN
from tests.server.in_process import ThreadServer
from tests.server.server_process import Later, ServerProcess, calls_and_results, message, session_path, texts

Check = Callable[[ServerProcess], None]
ABORTED = "INVOCATION_ABORTED"


def begun(server: ServerProcess, session: str, text: str, **more: object) -> Later:
    """A run that has begun its work."""
    server.create(session)
    caller = server.run_in_thread(session, f"note {session}; {text}", **more)
    server.until_did(f"note {session}")
    return caller


def sessions(server: ServerProcess) -> list[str]:
    return [session["id"] for session in server.get("/apps/worker/users/ann/sessions").body]


def queued(server: ServerProcess, session: str, text: str) -> Later:
    """A run that waits for its turn."""
    caller = server.run_in_thread(session, text, ifBusy="queue")
    deadline = time.monotonic() + 10
    while not any(run["state"] == "queued" for run in server.get("/runs").body if run["sessionId"] == session):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return caller


def check_d01_the_cancel_route_is_reached_and_creates_nothing(server: ServerProcess) -> None:
    caller = begun(server, "d01", "nap 30")
    before = sessions(server)
    answer = server.cancel("d01")
    assert sessions(server) == before
    assert answer.body["status"] == "cancelled"
    assert caller.answer().body[-1]["errorCode"] == ABORTED


def check_d02_what_a_client_reads_from_one_answer_works_in_the_next(server: ServerProcess) -> None:
    made = server.post("/apps/worker/users/ann/sessions", {"sessionId": "d02"}).body
    assert "id" in made, made
    assert texts(server.run(made["id"], "say d02").body) == ["d02 "]
    assert server.post(f"{session_path(made['id'])}/run", message("d02", "hi")).status == 404


def check_d03_the_caller_of_a_cancelled_run_gets_an_answer_and_no_500(server: ServerProcess) -> None:
    caller = begun(server, "d03", "nap 30")
    server.cancel("d03")
    answer = caller.answer()
    assert answer.status == 200
    assert answer.body[-1]["errorCode"] == ABORTED


def check_d04_a_cancelled_stream_says_so_before_it_ends(server: ServerProcess) -> None:
    server.create("d04")
    with server.stream("d04", "note d04; nap 30") as frames:
        server.until_did("note d04")
        server.cancel("d04")
        seen = [event for _, event in frames]
    assert seen[-1].get("errorCode") == ABORTED


def check_d05_no_call_is_left_without_a_response(server: ServerProcess) -> None:
    begun(server, "d05", "nap 30")
    server.cancel("d05")
    calls, results = calls_and_results(server.events("d05"))
    assert len(calls) == 2
    assert calls == results


def check_d06_another_user_cannot_cancel_the_run(server: ServerProcess) -> None:
    caller = begun(server, "d06", "nap 2")
    assert server.cancel("d06", user="bob").status == 404
    assert server.post(f"{session_path('d06', app='handy')}:cancel").status == 404
    assert "errorCode" not in caller.answer().body[-1]


def check_d07_a_cancel_stops_every_run_of_the_session(server: ServerProcess) -> None:
    older = begun(server, "d07", "nap 3")
    newer = queued(server, "d07", "note d07-newer")
    server.cancel("d07")
    assert older.answer().body[-1].get("errorCode") == ABORTED
    assert newer.answer().body[-1].get("errorCode") == ABORTED
    assert "note d07-newer" not in server.did()


def check_d08_the_end_of_one_run_leaves_the_other_cancellable(server: ServerProcess) -> None:
    older = begun(server, "d08", "nap 2")
    newer = queued(server, "d08", "note d08-newer; nap 3")
    assert "errorCode" not in older.answer().body[-1]
    server.until_did("note d08-newer")
    assert server.cancel("d08").status == 200
    assert newer.answer().body[-1].get("errorCode") == ABORTED


def check_d09_a_tool_that_blocks_does_not_hold_the_cancel(server: ServerProcess) -> None:
    begun(server, "d09", "block 4")
    server.until_did("block begins")
    began = time.monotonic()
    server.cancel("d09", waitSeconds=0)
    assert time.monotonic() - began < 2


def check_d10_cancelled_is_not_said_of_a_tool_that_runs_on(server: ServerProcess) -> None:
    begun(server, "d10", "stubborn 3")
    server.until_did("stubborn begins")
    answer = server.cancel("d10", waitSeconds=1).body
    left = [orphan["name"] for run in answer["runs"] for orphan in run.get("orphans", [])]
    ended = "stubborn ends" in server.did()
    assert answer["status"] == "cancelling" or ended or left == ["stubborn"], answer


def check_d11_a_reader_that_stalls_fills_no_queue(server: ServerProcess) -> None:
    server.post(session_path("d11", app="handy"))
    with server.stream("d11", "flood 2000", appName="handy") as frames:
        server.until_did("flooded")
        seen = sum(1 for _ in frames)
    assert seen < 1500, seen


def check_d12_asked_and_stopped_are_two_facts_with_a_reason(server: ServerProcess) -> None:
    begun(server, "d12", "stubborn 3")
    server.until_did("stubborn begins")
    answer = server.cancel("d12", waitSeconds=0, reason="d12 wants it").body
    assert answer["status"] == "cancelling"
    run_id = answer["runs"][0]["runId"]
    deadline = time.monotonic() + 10
    while (run := server.get(f"/runs/{run_id}").body).get("outcome") is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (run["outcome"], run["reason"]["text"], run["reason"]["by"]) == ("cancelled", "d12 wants it", "ann")


def check_d14_a_paused_and_a_queued_run_can_be_cancelled(server: ServerProcess) -> None:
    server.create("d14")
    server.run("d14", "ask d14")
    assert server.cancel("d14").status == 200
    older = begun(server, "d14-queue", "nap 2")
    newer = queued(server, "d14-queue", "note d14-newer")
    run_id = next(run["runId"] for run in server.get("/runs").body if run["state"] == "queued")
    assert server.cancel("d14-queue", runId=run_id).status == 200
    assert newer.answer().body[-1]["errorCode"] == ABORTED
    assert "errorCode" not in older.answer().body[-1]
    assert "note d14-newer" not in server.did()


def check_d13_a_cancel_reaches_a_run_of_another_process(
    server: ServerProcess, other: ServerProcess, session: str
) -> None:
    caller = begun(server, session, "nap 3")
    answer = other.cancel(session)
    last = caller.answer().body[-1]
    assert (answer.status, last.get("errorCode")) == (200, ABORTED)


CHECKS: dict[str, Check] = {
    "d01": check_d01_the_cancel_route_is_reached_and_creates_nothing,
    "d02": check_d02_what_a_client_reads_from_one_answer_works_in_the_next,
    "d03": check_d03_the_caller_of_a_cancelled_run_gets_an_answer_and_no_500,
    "d04": check_d04_a_cancelled_stream_says_so_before_it_ends,
    "d05": check_d05_no_call_is_left_without_a_response,
    "d06": check_d06_another_user_cannot_cancel_the_run,
    "d07": check_d07_a_cancel_stops_every_run_of_the_session,
    "d08": check_d08_the_end_of_one_run_leaves_the_other_cancellable,
    "d09": check_d09_a_tool_that_blocks_does_not_hold_the_cancel,
    "d10": check_d10_cancelled_is_not_said_of_a_tool_that_runs_on,
    "d11": check_d11_a_reader_that_stalls_fills_no_queue,
    "d12": check_d12_asked_and_stopped_are_two_facts_with_a_reason,
    "d14": check_d14_a_paused_and_a_queued_run_can_be_cancelled,
}


@pytest.mark.parametrize("defect", CHECKS)
def test_the_server_has_not_the_defect(server: ServerProcess, defect: str) -> None:
    CHECKS[defect](server)


@pytest.mark.parametrize("defect", CHECKS)
def test_the_check_finds_the_defect(tmp_path: Path, defect: str) -> None:
    with ThreadServer(tmp_path, BROKEN[defect]) as broken, pytest.raises(AssertionError) as found:
        CHECKS[defect](broken)
    assert found.traceback[1].name.startswith(f"check_{defect}_"), "it failed for another reason"


def test_d13_a_cancel_reaches_a_run_of_another_process(server: ServerProcess) -> None:
    with ServerProcess(server.folder) as other:
        check_d13_a_cancel_reaches_a_run_of_another_process(server, other, "d13")


def test_d13_the_check_finds_the_defect(server: ServerProcess, tmp_path: Path) -> None:
    with ThreadServer(tmp_path, BROKEN["d13"]) as broken, pytest.raises(AssertionError):
        check_d13_a_cancel_reaches_a_run_of_another_process(server, broken, "d13-broken")
