"""SIGTERM under load: nothing is lost, everybody is told, the process leaves in time, and the next one goes on."""

from __future__ import annotations

import http.client
import signal
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.server.server_process import PATIENCE, ServerProcess, calls_and_results, message, texts

CLIENTS = 20
PARTING = 10.0  # on top of the seconds that runs are given: answers, records, a loaded machine


class Watcher:
    """A client with a stream, to its last frame."""

    def __init__(self, server: ServerProcess, session: str, text: str, if_busy: str = "reject") -> None:
        self.events: list[dict[str, Any]] = []  # Any: JSON
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._watch, args=(server, session, text, if_busy), daemon=True)
        self._thread.start()

    def _watch(self, server: ServerProcess, session: str, text: str, if_busy: str) -> None:
        try:
            with server.stream(session, text, ifBusy=if_busy) as frames:
                self.events += [event for _, event in frames]
        except (OSError, http.client.HTTPException) as error:
            self.error = error

    def last(self) -> dict[str, Any]:  # Any: JSON
        self._thread.join(PATIENCE)
        assert self.error is None, self.error
        return self.events[-1]


def until_runs(server: ServerProcess, count: int, state: str) -> list[dict[str, Any]]:  # Any: JSON
    deadline = time.monotonic() + PATIENCE
    while True:
        found: list[dict[str, Any]] = server.get(f"/runs?state={state}").body  # Any: as above
        if len(found) == count:
            return found
        assert time.monotonic() < deadline, f"never {count} runs that are {state}: {server.get('/runs').body}"
        time.sleep(0.05)


def until_quiet(server: ServerProcess) -> None:
    deadline = time.monotonic() + PATIENCE
    while any(run["state"] in ("live", "queued") for run in server.get("/runs").body):
        assert time.monotonic() < deadline, server.get("/runs").body
        time.sleep(0.05)


def serving(folder: Path, *options: str) -> ServerProcess:
    return ServerProcess(folder, options=options)


def codes(watchers: Sequence[Watcher]) -> set[str | None]:
    return {watcher.last().get("errorCode") for watcher in watchers}


def test_twenty_runs_are_stopped_told_and_go_on_in_the_next_process(tmp_path: Path) -> None:
    with serving(tmp_path, "--shutdown-seconds", "5") as server:
        sessions = [f"s{n}" for n in range(CLIENTS)]
        for session in sessions:
            server.create(session)
        watchers = [Watcher(server, each, f"note {each}; nap {4 if each < 's15' else 30}") for each in sessions[:16]]
        until_runs(server, 16, "live")
        server.until_did("nap begins", 16)
        queued = [Watcher(server, each, f"note {each}-next", if_busy="queue") for each in sessions[:4]]
        until_runs(server, 4, "queued")
        known = {run["runId"]: run["sessionId"] for run in server.get("/runs").body}
        begun = time.monotonic()
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        while (refused := server.post("/run", message("s19", "note never"))).status != 503:
            assert refused.status == 200
        assert refused.headers["retry-after"]
        assert server.process.wait(PATIENCE) == 0
        assert time.monotonic() - begun < 5 + PARTING
        assert codes([*watchers, *queued]) == {"INVOCATION_ABORTED"}
        assert all("shutting down" in watcher.last()["errorMessage"] for watcher in [*watchers, *queued])

        server.start()
        until_quiet(server)
        assert {run["runId"]: run["sessionId"] for run in server.get("/runs").body}.items() >= known.items()
        assert {server.get(f"/runs/{run}").body["outcome"] for run in known} == {"end_turn"}
        did = server.did()
        assert sorted(line for line in did if line.startswith("note s")) == sorted(
            [*(f"note {each}" for each in sessions[:16]), *(f"note {each}-next" for each in sessions[:4])]
        )
        for session in sessions[:16]:
            calls, results = calls_and_results(server.events(session))
            assert sorted(calls) == sorted(results)
            assert texts(server.events(session))[-1] == "done "


def test_a_second_signal_forces_and_idle_connections_hold_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, "--shutdown-seconds", "60") as server:
        server.create("s")
        server.create("other")
        idle = server.connect()
        idle.request("GET", "/health")
        idle.getresponse().read()
        watcher = Watcher(server, "s", "stubborn 60")
        server.until_did("stubborn begins")
        assert server.process is not None
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        while server.post("/run", message("other", "note never")).status != 503:
            pass
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0
        assert time.monotonic() - begun < PARTING
        assert watcher.last()["errorCode"] == "INVOCATION_ABORTED"
        idle.close()
        server.start()
        until_quiet(server)
        assert server.did().count("stubborn begins") == 1


def test_without_resume_on_start_what_was_suspended_stays_so_and_can_be_cancelled(tmp_path: Path) -> None:
    with serving(tmp_path, "--shutdown-seconds", "0.2", "--no-resume-on-start") as server:
        server.create("s")
        caller = Watcher(server, "s", "nap 30")
        server.until_did("nap begins")
        waiting = Watcher(server, "s", "note next", if_busy="queue")
        until_runs(server, 1, "queued")
        assert server.terminate() == 0
        assert codes([caller, waiting]) == {"INVOCATION_ABORTED"}
        server.start()
        assert len(until_runs(server, 2, "suspended")) == 2
        cancelled = server.cancel("s", reason="no longer wanted")
        assert (cancelled.status, cancelled.body["status"], len(cancelled.body["runs"])) == (200, "cancelled", 2)
        assert {(run["state"], run["outcome"]) for run in server.get("/runs").body} == {("ended", "cancelled")}
        assert "note next" not in server.did()


@pytest.mark.timeout(60)
def test_a_store_that_hangs_does_not_hold_the_exit_and_loses_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, "--shutdown-seconds", "0.2") as server:
        server.create("s")
        watcher = Watcher(server, "s", "note before; nap 30")
        server.until_did("nap begins")
        server.until_did("note before")
        [run] = until_runs(server, 1, "live")
        file = sqlite3.connect(tmp_path / "data" / "safepoint.db", isolation_level=None)
        file.execute("BEGIN EXCLUSIVE")
        begun = time.monotonic()
        assert server.terminate(timeout=PATIENCE) == 0
        assert time.monotonic() - begun < 0.2 + 10 + 2 + PARTING
        file.execute("ROLLBACK")
        file.close()
        assert watcher.last()["errorCode"] == "INVOCATION_ABORTED"
        server.start()
        until_quiet(server)
        assert server.get(f"/runs/{run['runId']}").body["outcome"] == "end_turn"
        assert server.did().count("note before") == 1


def test_an_ignored_sigint_stays_ignored_and_sigterm_drains(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, in_background=True) as server:
        server.create("s")
        watcher = Watcher(server, "s", "nap 30")
        server.until_did("nap begins")
        assert server.process is not None
        for _ in range(3):  # three would end it on the spot
            server.process.send_signal(signal.SIGINT)
            assert server.get("/health").status == 200
        assert len(until_runs(server, 1, "live")) == 1
        assert server.terminate() == 0
        assert watcher.last()["errorCode"] == "INVOCATION_ABORTED"


def test_a_third_signal_leaves_there_and_then_and_the_next_process_finds_the_run(tmp_path: Path) -> None:
    with serving(tmp_path, "--shutdown-seconds", "60") as server:
        server.create("s")
        server.create("other")
        Watcher(server, "s", "note before; nap 30")
        server.until_did("nap begins")
        [run] = until_runs(server, 1, "live")
        file = sqlite3.connect(tmp_path / "data" / "safepoint.db", isolation_level=None)
        file.execute("BEGIN EXCLUSIVE")  # so that not even a forced run can be recorded
        assert server.process is not None
        server.process.send_signal(signal.SIGINT)
        while server.post("/run", message("other", "note never")).status != 503:
            pass
        begun = time.monotonic()
        for _ in range(2):
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)  # two that come at once are one
        assert server.process.wait(PATIENCE) == 1
        assert time.monotonic() - begun < PARTING
        file.execute("ROLLBACK")
        file.close()
        server.start()
        until_quiet(server)
        assert server.get(f"/runs/{run['runId']}").body["outcome"] == "end_turn"
        assert server.did().count("note before") == 1
