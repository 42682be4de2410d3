"""Every limit refuses what is above it, says so, and never stands between a person and the stop of a run."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.server.guarded import Guarded, raw, status_of
from tests.server.server_process import Answer, ServerProcess, message, session_path

OPTIONS = ("live_runs=2", "queued_runs=2", "viewers=12", "body_bytes=20000", "cancels=2")
LONG = {"onDisconnect": "detach"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    options = [word for option in OPTIONS for word in ("--limit", option)]
    guarded = Guarded(tmp_path_factory.mktemp("limits"), *options)
    with guarded.server:
        yield guarded
        assert "Traceback" not in guarded.server.log.read_text()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server that gives a request a second; apart, because on a busy machine an honest one may need that."""
    guarded = Guarded(tmp_path_factory.mktemp("hasty"), "--limit", "request_seconds=1")
    with guarded.server:
        yield guarded


@pytest.fixture(autouse=True)
def still(world: Guarded) -> Iterator[None]:
    """No run of one test is left to the next."""
    yield
    world.ask("boss", "POST", "/runs:cancel", {"all": True})


def begin(world: Guarded, session: str, who: str = "ann", text: str = "nap 3000", **more: object) -> None:
    """A run that goes on by itself."""
    begun = world.server.did().count("nap begins")
    assert world.ask(who, "POST", session_path(session, who)).status in (200, 409)
    body = message(session, text, userId=who, **LONG, **more)
    with world.server.open_stream("POST", "/run_sse", body, world.bearer(who)):
        world.server.until_did("nap begins", begun + 1)


def states(world: Guarded, who: str = "ann") -> list[str]:
    return sorted(run["state"] for run in world.ask(who, "GET", "/runs").body if run["state"] in ("live", "queued"))


def test_a_key_has_so_many_live_runs_and_a_stop_makes_room(world: Guarded) -> None:
    begin(world, "one")
    begin(world, "two")
    world.ask("ann", "POST", session_path("three"))
    refused = world.ask("ann", "POST", "/run", message("three", "note third"))
    assert (refused.status, "2 runs are live" in refused.body["detail"]) == (429, True)
    assert "note third" not in world.server.did()
    begin(world, "bobs-own", "bob")  # another key has its own
    stopped = world.ask("ann", "POST", f"{session_path('one')}:cancel")
    assert (stopped.status, stopped.body["status"]) == (200, "cancelled")
    assert world.ask("ann", "POST", "/run", message("three", "note third")).status == 200


def test_a_key_has_so_many_messages_that_wait_and_each_can_be_stopped(world: Guarded) -> None:
    begin(world, "queue")
    for _ in range(2):
        with world.server.open_stream(
            "POST", "/run_sse", message("queue", "note q", ifBusy="queue", **LONG), world.bearer("ann")
        ):
            pass
    assert states(world) == ["live", "queued", "queued"]
    refused = world.ask("ann", "POST", "/run", message("queue", "note q", ifBusy="queue"))
    assert (refused.status, "wait for their turn" in refused.body["detail"]) == (429, True)
    stopped = world.ask("ann", "POST", f"{session_path('queue')}:cancel")
    assert (stopped.status, len(stopped.body["runs"])) == (200, 3)
    assert "note q" not in world.server.did()


def test_the_limit_holds_for_messages_that_come_at_the_same_time(world: Guarded) -> None:
    names = [f"burst{number}" for number in range(8)]
    for name in names:
        world.ask("ann", "POST", session_path(name))

    def send(name: str) -> Answer:
        return world.ask("ann", "POST", "/run", message(name, "nap 0.5"))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, names))
    found = [answer.status for answer in answers]
    assert set(found) == {200, 429}, found
    assert found.count(200) <= 4  # two at once, and two more if the others took their time


def test_a_cancel_is_not_refused_when_every_limit_is_reached(world: Guarded) -> None:
    begin(world, "full1")
    begin(world, "full2")
    run = next(run["runId"] for run in world.ask("ann", "GET", "/runs").body if run["sessionId"] == "full1")
    until(lambda: "safepoint_viewers 0" in world.ask("boss", "GET", "/metrics").body)  # of those who have left
    with ExitStack() as watching:
        for _ in range(12):
            watching.enter_context(world.server.open_stream("GET", f"/runs/{run}/events", headers=world.bearer("ann")))
        crowded = world.ask("ann", "GET", f"/runs/{run}/events")
        assert (crowded.status, crowded.headers["retry-after"]) == (503, "5")
        assert world.ask("ann", "POST", "/run", message("full1", "say x")).status == 503
        assert world.ask("ann", "POST", f"/runs/{run}:cancel").body["status"] == "cancelled"
        assert world.ask("ann", "POST", f"{session_path('full2')}:cancel").body["status"] == "cancelled"
    until(lambda: world.ask("ann", "GET", f"/runs/{run}/events").status == 200)


def test_cancels_that_wait_have_a_limit_of_their_own_for_each_key(world: Guarded) -> None:
    begin(world, "slow", text="stubborn 1; nap 3000")

    def cancel(who: str) -> Answer:
        return world.ask(who, "POST", f"{session_path('slow')}:cancel", {"waitSeconds": 2})

    with ThreadPoolExecutor(9) as pool:
        answers = list(pool.map(cancel, ["ann"] * 8 + ["boss"]))
    assert {answer.status for answer in answers[:8]} == {200, 429}
    assert answers[8].status == 200


def test_a_body_may_be_as_large_as_the_limit_says(world: Guarded) -> None:
    world.ask("ann", "POST", session_path("large"))
    for size, status in ((19_000, 200), (20_001, 413)):
        body = message("large", "say " + "a" * size)
        assert world.ask("ann", "POST", "/run", body).status == status


POST = b"POST /run HTTP/1.1\r\nHost: 127.0.0.1\r\n"
KEY = b"Authorization: Bearer $ann\r\n"
SECOND = "half of the second request"
HALVES = {
    "nothing": b"",
    "half a line": b"GET /hea",
    "half a head": b"GET /runs HTTP/1.1\r\nHost: 127.0.0.1\r\n",
    "half a body": POST + KEY + b"Content-Length: 50\r\n\r\n{",
    "half a chunk": POST + KEY + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
    "half a body of somebody unknown": POST + b"Content-Length: 50\r\n\r\n{",
    SECOND: b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + POST + KEY + b"Content-Length: 50\r\n\r\n{",
}


@pytest.mark.parametrize("name", HALVES)
def test_a_client_that_sends_half_a_request_is_not_waited_for(hasty: Guarded, name: str) -> None:
    began = time.monotonic()
    answer = raw(hasty.server.port, HALVES[name].replace(b"$ann", hasty.keys["ann"].encode()), timeout=20)
    assert time.monotonic() - began < 15
    if name == SECOND:
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in answer
    else:
        assert status_of(answer) == 408


def test_a_client_that_drips_is_not_waited_for_either(hasty: Guarded) -> None:
    with socket.create_connection(("127.0.0.1", hasty.server.port), 20) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        connection.settimeout(0.05)
        received, deadline = b"", time.monotonic() + 15
        while not received:
            assert time.monotonic() < deadline
            try:
                connection.sendall(b"X-Drip: x\r\n")
                received = connection.recv(1000)
            except TimeoutError:
                pass
    assert status_of(received) == 408


def test_a_connection_that_waits_for_its_run_is_not_taken_for_a_slow_client(hasty: Guarded) -> None:
    hasty.ask("ann", "POST", session_path("patient"))
    assert hasty.ask("ann", "POST", "/run", message("patient", "nap 2.5")).status == 200


def test_a_run_lasts_as_long_as_the_limit_says(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("short")
    with ServerProcess(folder, options=("--limit", "run_seconds=0.5")) as server:
        server.create("long")
        events = server.run("long", "nap 3000").body
        assert events[-1]["errorCode"] == "INVOCATION_ABORTED"
        assert "as long as a run may" in events[-1]["errorMessage"]
        assert "nap ends" not in server.did()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 15
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
