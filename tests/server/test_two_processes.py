"""Two servers on one file: whoever is asked, the run stops; and one looks after what the other leaves behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from safepoint.cli.main import app
from tests.server.server_process import PATIENCE, Later, ServerProcess, calls_and_results, session_path, texts


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    folder: Path = tmp_path_factory.mktemp("two")
    with ServerProcess(folder) as here, ServerProcess(folder) as there:
        yield here, there


def until_queued(server: ServerProcess, session: str, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while sum(run["sessionId"] == session for run in server.get("/runs?state=queued").body) < count:
        assert time.monotonic() < deadline, server.get("/runs").body
        time.sleep(0.02)


def ended(server: ServerProcess, run: str) -> dict[str, Any]:  # Any: JSON
    deadline = time.monotonic() + PATIENCE
    while (found := server.get(f"/runs/{run}").body)["state"] != "ended":
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return dict(found)


def napping(server: ServerProcess, session: str, before: str = "") -> Later:
    """A run of that new session, in the middle of a long nap."""
    naps = server.did().count("nap begins")
    server.create(session)
    caller = server.run_in_thread(session, f"{before}nap 30")
    server.until_did("nap begins", naps + 1)
    return caller


def test_a_node_of_a_run_of_the_other_process_is_stopped_or_is_not_there(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    here, there = servers
    caller = napping(here, "part")
    run = here.run_of("part", "live")
    for cancel in (there.cancel("part", node="worker/nowhere"), there.post(f"/runs/{run}:cancel", {"node": "nap"})):
        assert (cancel.status, "no live node has the path" in cancel.body["detail"]) == (404, True), cancel.body
    unheard = there.cancel("part", node="worker/nowhere", waitSeconds=0)
    assert (unheard.status, unheard.body["status"]) == (200, "cancelling")
    [call] = calls_and_results(here.events("part"))[0]
    stopped = there.cancel("part", node=f"worker/nap:{call}")
    assert (stopped.status, stopped.body["status"]) == (200, "cancelled"), stopped.body
    assert [each["outcome"] for each in stopped.body["runs"]] == ["stopped"]
    last = caller.answer().body[-1]  # the run goes on without it
    assert (texts([last]), "errorCode" in last) == (["done "], False)


def test_a_run_of_the_other_process_can_be_named_by_the_path_of_its_root(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    here, there = servers
    caller = napping(here, "root")
    stopped = there.cancel("root", node="worker")
    assert [each["outcome"] for each in stopped.body["runs"]] == ["stopped"]
    assert caller.answer().body[-1]["errorCode"] == "INVOCATION_ABORTED"


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
    for server in servers:
        impossible = server.post(f"/runs/{run}:cancel", {"withinSeconds": 5, "waitSeconds": 0})
        assert (impossible.status, "leave it out" in impossible.body["detail"][0]["msg"]) == (422, True)
    answer = there.post(f"/runs/{run}:cancel", {"waitSeconds": 0})
    assert answer.status == 200, answer
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
        assert paused not in [run["runId"] for run in server.get("/runs?state=paused").body]
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


def test_messages_for_a_session_that_is_live_in_the_other_process_wait_for_it_in_their_order(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    here, there = servers
    here.create("queue")
    first = here.run_in_thread("queue", "note queue-live; nap 3")
    here.until_did("note queue-live")
    callers: list[Later] = []
    for server, text, if_busy in ((there, "second", "queue"), (here, "third", "queue"), (there, "fourth", "steer")):
        callers.append(server.run_in_thread("queue", f"say {text}", ifBusy=if_busy))
        until_queued(there, "queue", len(callers))
    given_up = there.run_in_thread("queue", "say never", ifBusy="queue")
    until_queued(there, "queue", 4)
    assert there.run("queue", "say rejected").status == 409
    assert there.run("queue", "say rolled", ifBusy="rollback").status == 409
    newest = there.get("/runs?state=queued").body[0]["runId"]
    assert there.post(f"/runs/{newest}:cancel").body["runs"][0]["outcome"] == "stopped"
    assert given_up.answer().body[-1]["errorCode"] == "INVOCATION_ABORTED"
    assert texts(first.answer().body) == ["done "]
    assert [texts(caller.answer().body) for caller in callers] == [["second "], ["third "], ["fourth "]]
    said = [text for text in texts(there.events("queue")) if not text.startswith(("note", "say"))]
    assert said == ["done ", "second ", "third ", "fourth "]
    assert [run["outcome"] for run in here.get("/runs").body if run["sessionId"] == "queue"].count("end_turn") == 4


def test_a_message_that_interrupts_stops_the_run_of_the_other_process(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    here, there = servers
    here.create("interrupt")
    caller = here.run_in_thread("interrupt", "note to-interrupt; nap 30")
    here.until_did("note to-interrupt")
    assert texts(there.run("interrupt", "say instead", ifBusy="interrupt").body) == ["instead "]
    last = caller.answer().body[-1]
    assert (last["errorCode"], "a new message came" in last["errorMessage"]) == ("INVOCATION_ABORTED", True)


def test_what_two_processes_do_to_the_state_of_a_session_is_all_there(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    here, there = servers
    here.create("state")
    path = session_path("state")
    for server, name in ((here, "a"), (there, "b"), (here, "c")):
        assert server.http("PATCH", path, {"stateDelta": {name: 1, "user:last": name}}).body["state"][name] == 1
    for server, name in ((there, "d"), (here, "e"), (there, "f")):
        assert server.run("state", "say fine", stateDelta={name: 1, "user:last": name}).status == 200
    for server in servers:
        assert server.get(path).body["state"] == {**dict.fromkeys("abcdef", 1), "user:last": "f"}


def test_a_run_is_taken_back_or_goes_on_wherever_one_asks_and_never_another_in_its_place(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    here, there = servers
    here.create("back")
    here.run("back", "say one")
    one = here.run_of("back", "ended")
    there.run("back", "say two")
    assert here.post(f"/runs/{one}:rewind").status == 409, "a later turn is not taken back for it"
    assert texts(there.events("back")) == ["say one", "one ", "say two", "two "]
    two = next(run["runId"] for run in there.get("/runs").body if run["sessionId"] == "back")
    assert here.post(f"/runs/{two}:rewind").body["messages"] == 2
    assert texts(there.events("back")) == ["say one", "one "]

    there.run("back", "ask why")
    paused = there.run_of("back", "paused")
    question = there.events("back")[-3]["longRunningToolIds"][0]
    said = {"functionResponse": {"id": question, "name": "ask", "response": {"result": "so"}}}
    answered = here.run("back", "", newMessage={"role": "user", "parts": [said]})
    assert (answered.status, texts(answered.body)) == (200, ["done "])
    assert there.post(f"/runs/{paused}:resume").status == 400
    there.run("back", "say after")
    here.cancel("back")
    assert here.post(f"/runs/{paused}:resume").status == 409


def test_who_deletes_a_session_stops_its_run_in_the_other_process_first(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    here, there = servers
    here.create("deleted")
    here.run("deleted", "say secret")
    run = here.run_of("deleted", "ended")
    caller = here.run_in_thread("deleted", "note to-delete; nap 30")
    here.until_did("note to-delete")
    assert there.http("DELETE", session_path("deleted")).status == 200
    last = caller.answer().body[-1]
    assert (last["errorCode"], "its session is deleted" in last["errorMessage"]) == ("INVOCATION_ABORTED", True)
    for server in servers:
        for gone in (session_path("deleted"), f"/runs/{run}", f"/runs/{run}/events", f"/runs/{run}/why"):
            assert server.get(gone).status == 404
        assert "deleted" not in [each["sessionId"] for each in server.get("/runs").body]
    assert here.run("deleted", "say nothing").status == 404


def test_a_run_of_the_other_process_is_watched_to_its_end(servers: tuple[ServerProcess, ServerProcess]) -> None:
    here, there = servers
    here.create("watched")
    caller = here.run_in_thread("watched", "note seen; nap 1", idempotencyKey="k")
    run = here.run_of("watched", "live")
    here.until_did("note seen")
    with there.open_stream("GET", f"/runs/{run}/events") as frames:
        seen = [event for _, event in frames]
    answer = caller.answer().body
    assert [event["id"] for event in seen if not event.get("partial")] == [event["id"] for event in answer]
    assert texts(seen) == ["done ", "done "], "the words, and then the message that they are of"
    assert [event["id"] for event in there.run("watched", "note seen; nap 1", idempotencyKey="k").body] == [
        event["id"] for event in answer
    ]
    assert here.did().count("note seen") == 1


def test_an_operator_may_ask_either_process(servers: tuple[ServerProcess, ServerProcess]) -> None:
    here, there = servers
    caller = napping(here, "logged", before="note logged; ")
    run = here.run_of("logged", "live")
    env = {"SAFEPOINT_URL": f"http://127.0.0.1:{there.port}", "SAFEPOINT_KEY": ""}
    shown = CliRunner().invoke(app, ["logs", run], env=env)
    assert (shown.exit_code, "→ note(text='logged')" in shown.stdout) == (0, True), shown.output
    assert CliRunner().invoke(app, ["why", run], env=env).stdout == "no stop was asked for: the run is live\n"
    steered = CliRunner().invoke(app, ["steer", run, "say more", "--wait", "0.1"], env=env)
    assert (steered.exit_code, "waiting" in steered.stdout) == (5, True), steered.output
    answers = [server.get(f"/runs/{run}/why").body for server in servers]
    assert answers[0] == answers[1]
    here.cancel("logged")
    caller.answer()


def test_a_cancel_in_either_process_is_answered_alike(servers: tuple[ServerProcess, ServerProcess]) -> None:
    here = servers[0]
    told: list[dict[str, Any]] = []  # Any: JSON
    for number, server in enumerate(servers):
        caller = napping(here, f"alike{number}", before="note alike; ")
        [run] = server.cancel(f"alike{number}", reason="enough").body["runs"]
        caller.answer()
        told.append(run)
    one, other = told
    assert one.keys() == other.keys() == {*one} | {"askId", "touched", "orphans", "usage", "stoppedAt"}
    for same in ("outcome", "durable", "requested", "orphans", "usage"):
        assert one[same] == other[same], same
    assert [(call["name"], call["state"]) for call in one["touched"]] == [
        (call["name"], call["state"]) for call in other["touched"]
    ]


def test_an_ask_is_withdrawn_in_either_process(servers: tuple[ServerProcess, ServerProcess]) -> None:
    here, there = servers
    caller = napping(here, "undone")
    run = here.run_of("undone", "live")
    for asked, withdrawn in ((here, there), (there, here), (there, there)):
        [cancel] = asked.cancel("undone", at="after_tools", waitSeconds=0).body["runs"]
        path = f"/runs/{run}/asks/{cancel['askId']}:withdraw"
        deadline = time.monotonic() + PATIENCE
        while (answer := withdrawn.post(path)).status == 404 and time.monotonic() < deadline:
            time.sleep(0.02)  # the owner has not heard of the ask yet
        assert (answer.status, answer.body["outcome"]) == (200, "withdrawn"), answer.body
        assert here.get(f"/runs/{run}/why").body["asked"] == []
    waiting = Later(lambda: there.cancel("undone", at="after_tools", waitSeconds=PATIENCE))
    deadline = time.monotonic() + PATIENCE
    while not here.get(f"/runs/{run}/why").body["asked"] and time.monotonic() < deadline:
        time.sleep(0.02)
    [ask] = [line.split("ask=")[1].split()[0] for line in here.log.read_text().splitlines() if "run asked" in line][-1:]
    assert there.post(f"/runs/{run}/asks/{ask}:withdraw").body["outcome"] == "withdrawn"
    assert waiting.answer().body["runs"][0]["outcome"] == "withdrawn"
    assert there.post(f"/runs/{run}/asks/nothing:withdraw").status == 404
    assert here.cancel("undone").body["status"] == "cancelled"
    assert there.post(f"/runs/{run}/asks/{ask}:withdraw").status == 404
    caller.answer()


def test_an_owner_that_does_not_answer_is_told_as_that(servers: tuple[ServerProcess, ServerProcess]) -> None:
    here, there = servers
    caller = napping(here, "silent")
    run = here.run_of("silent", "live")
    assert here.process is not None
    here.process.send_signal(signal.SIGSTOP)
    try:
        told = there.get(f"/runs/{run}/why").body
        steered = there.post(f"/runs/{run}:steer", {"newMessage": {"parts": [{"text": "say more"}]}, "waitSeconds": 0})
    finally:
        here.process.send_signal(signal.SIGCONT)
    assert (told["reason"], "holding" in told) == ("no answer from the owner within 2 s", False)
    assert (steered.status, steered.body["detail"]) == (503, "no answer from the owner within 2 s")
    here.cancel("silent")
    caller.answer()


def test_the_run_of_a_killed_process_goes_on_in_the_other_under_its_own_id(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    here, there = servers
    for session in ("orphan", "unwanted"):
        here.create(session)
    naps = here.did().count("nap begins")
    with here.stream("orphan", "note once; nap 1", onDisconnect="detach") as frames:
        seq, _ = next(iter(frames))
        run = here.run_of("orphan", "live")
        here.run_in_thread("unwanted", "nap 30")
        unwanted = here.run_of("unwanted", "live")
        here.until_did("note once")
        here.until_did("nap begins", naps + 2)  # what has begun is stored
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
    env = {"SAFEPOINT_URL": f"http://127.0.0.1:{there.port}", "SAFEPOINT_KEY": ""}
    assert "done" in CliRunner().invoke(app, ["logs", run], env=env).stdout
    here.start()
    assert here.get(f"/runs/{unwanted}").body["outcome"] == "cancelled"


def test_a_message_that_waits_for_a_process_that_dies_runs_after_what_that_left_behind(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as here, ServerProcess(tmp_path) as there:
        here.create("s")
        here.run_in_thread("s", "note it-dies; nap 30")
        here.until_did("note it-dies")
        here.until_did("nap begins")
        waiting = there.run_in_thread("s", "say after", ifBusy="queue")
        there.run_of("s", "queued")
        here.kill()
        assert texts(waiting.answer().body) == ["after "]
        said = [text for text in texts(there.events("s")) if not text.startswith(("note", "say"))]
        assert said == ["done ", "after "], "it went on first, and was told that nobody knows about the nap"
        assert there.did().count("note it-dies") == 1
