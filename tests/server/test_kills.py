"""kill -9 while twenty clients run, cancel, leave and come back: the next process finds, and tells, the truth.

What a client was told before the kill is held against what is there after the restart: the history, the records, the
log of what tools really did, and which runs the new process went on with.
"""

from __future__ import annotations

import http.client
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from safepoint import check_history
from safepoint.history.states import LedgerState
from safepoint.sessions import SqliteStore
from safepoint.sessions.store import Stored
from safepoint.storage.run_records import RunRecord, RunState
from safepoint.testing import run_virtual
from tests.server.server_process import PATIENCE, Frames, ServerProcess, message

CLIENTS = 20
SESSIONS = 10
GONE = (OSError, http.client.HTTPException, ValueError)  # ValueError: half an answer
PICKED_UP = re.compile(r"the run (\S+) is picked up: (?:start|resume)")


@dataclass
class Told:
    """What clients know for sure. Appending to a list needs no lock."""

    accepted: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # session, text
    asked: list[str] = field(default_factory=list[str])  # durable, not known whether it came in time
    stopped: list[str] = field(default_factory=list[str])  # durable, and it was the cancel that ended it
    runs: list[str] = field(default_factory=list[str])
    surprises: list[str] = field(default_factory=list[str])


class Client(threading.Thread):
    """Does one thing after the other until the server is gone."""

    def __init__(self, server: ServerProcess, told: Told, sessions: list[str], seed: int) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._told = told
        self._chance = random.Random(seed)
        self._sessions = sessions
        self._seed = seed
        self._count = 0
        self._opened: list[http.client.HTTPResponse] = []

    def run(self) -> None:
        acts: list[Callable[[str], None]] = [
            self._stay,
            self._stay,
            self._wait,
            self._leave,
            self._cancel,
            self._answer,
        ]
        try:
            while True:
                self._chance.choice(acts)(self._chance.choice(self._sessions))
        except GONE:
            pass
        except AssertionError as error:
            self._told.surprises.append(str(error))
        finally:
            for response in self._opened:
                response.close()

    def _text(self) -> str:
        self._count += 1
        name = f"note c{self._seed}-{self._count}"
        more = ["", "; nap 0.1", "; block 0.1", "; nap 0.4; say words", "; ask why", "; note d" + name[6:]]
        return name + self._chance.choice(more)

    def _send(self, session: str, text: str, **more: object) -> http.client.HTTPResponse | None:
        """An accepted stream; None if the session was busy."""
        if_busy = self._chance.choice(["reject", "queue", "queue", "interrupt", "steer"])
        body = message(session, text, streaming=True, ifBusy=if_busy, **more)
        response = self._open("POST", "/run_sse", body)
        if response.status == 200:
            self._told.accepted.append((session, text))
            return response
        assert response.status in (409, 429, 503), (response.status, response.read())
        return None

    def _open(self, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
        response = self._server.begin(method, path, body)
        self._opened.append(response)
        return response

    def _stay(self, session: str) -> None:
        response = self._send(session, self._text())
        if response is not None:
            self._know(list(Frames(response)))
            response.close()

    def _wait(self, session: str) -> None:
        text = self._text()
        answer = self._server.run(session, text, ifBusy="queue")
        if answer.status == 200:
            self._told.accepted.append((session, text))

    def _leave(self, session: str) -> None:
        """Detach after the first frame, and come back for the rest."""
        response = self._send(session, self._text(), onDisconnect="detach")
        if response is None:
            return
        first = next(iter(Frames(response)), None)
        response.close()
        if first is None:
            return  # killed before it said anything
        [run] = self._know([first])
        again = self._open("GET", f"/runs/{run}/events?after={first[0]}")
        assert again.status == 200, (run, again.status, again.read())
        list(Frames(again))
        again.close()

    def _cancel(self, session: str) -> None:
        patience = self._chance.choice([0, 5])
        answer = self._server.cancel(session, reason="enough", waitSeconds=patience)
        assert answer.status in (200, 404), answer
        for run in answer.body.get("runs", ()) if answer.status == 200 else ():
            if run["durable"] and run["requested"]:
                told = self._told.stopped if run.get("outcome") == "stopped" else self._told.asked
                if run.get("outcome") != "finished_first":
                    told.append(run["runId"])

    def _answer(self, session: str) -> None:
        """Answer a question, if there is one."""
        for event in self._server.events(session)[-3:]:
            for call in event.get("longRunningToolIds", ()):
                response = {"functionResponse": {"id": call, "name": "ask", "response": {"result": "because"}}}
                said = {"role": "user", "parts": [response]}
                self._server.post("/run", {**message(session, ""), "newMessage": said})

    def _know(self, frames: list[tuple[int | None, dict[str, Any]]]) -> set[str]:  # Any: JSON
        runs = {f"run_{event['invocationId'][2:]}" for _, event in frames if "invocationId" in event}
        self._told.runs.extend(runs)
        return runs


@dataclass(frozen=True)
class Left:
    """What is stored."""

    records: dict[str, RunRecord]
    sessions: dict[str, Stored]


def look(folder: Path) -> Left:
    async def main() -> Left:
        store = SqliteStore(folder / "data" / "safepoint.db")
        records = await store.storage.runs.find(limit=1_000_000)
        sessions = {id: await store.load(id) for id in await store.list_ids()}
        await store.aclose()
        return Left({record.run_id: record for record in records}, sessions)

    return run_virtual(main)


def check(server: ServerProcess, told: Told) -> None:
    """Everything that was told holds."""
    assert told.surprises == []
    left = look(server.folder)
    for stored in left.sessions.values():
        check_history(stored.messages)
    no_message_is_lost(told, left)
    no_effect_is_repeated(server, left)
    cancelled_stays_cancelled(server, told, left)
    open_runs = [record for record in left.records.values() if not record.ended]
    assert {record.state for record in open_runs} <= {RunState.PAUSED}, open_runs


def no_message_is_lost(told: Told, left: Left) -> None:
    said = {
        id.rpartition("/")[2]: "\n".join(message.text for message in stored.messages if message.role == "user")
        for id, stored in left.sessions.items()
    }
    withdrawn = {
        (record.session.rpartition("/")[2], part["text"])
        for record in left.records.values()
        if record.outcome == "cancelled" and record.reason is not None and record.reason["source"] != "shutdown"
        for part in record.request.get("prompt", ())
        if "text" in part
    }
    lost = [each for each in told.accepted if each[1] not in said[each[0]] and each not in withdrawn]
    assert lost == [], lost


def no_effect_is_repeated(server: ServerProcess, left: Left) -> None:
    happened = Counter(line for line in server.did() if line.startswith("note "))
    assert [line for line, times in happened.items() if times > 1] == []
    for stored in left.sessions.values():
        for run in stored.runs:
            for entry in run.ledger:
                if entry.name == "note" and entry.state is LedgerState.FINISHED:
                    assert happened[f"note {entry.args['text']}"] == 1, entry


def cancelled_stays_cancelled(server: ServerProcess, told: Told, left: Left) -> None:
    for run_id in told.stopped:
        record = left.records[run_id]
        assert (record.state, record.outcome) == (RunState.ENDED, "cancelled"), record
    picked_up = Counter(PICKED_UP.findall(server.log.read_text()))
    for run_id in {*told.stopped, *told.asked}:
        assert left.records[run_id].ended, left.records[run_id]
    # Before a cancel a run may well have been picked up; a cancelled one is not, and is never seen again.
    assert {run_id: picked_up[run_id] for run_id in SETTLED if picked_up[run_id] != SETTLED[run_id]} == {}
    SETTLED.update({run_id: picked_up[run_id] for run_id in (*told.stopped, *told.asked)})


# How often a run that is over had been picked up: that never changes.
SETTLED: dict[str, int] = {}


def until_quiet(server: ServerProcess) -> None:
    deadline = time.monotonic() + PATIENCE
    while open_runs := server.get("/runs?state=live&state=queued").body:
        assert time.monotonic() < deadline, open_runs
        time.sleep(0.05)


def kill_often(folder: Path, kills: int, seed: int) -> Told:
    SETTLED.clear()
    told, chance = Told(), random.Random(seed)
    with ServerProcess(folder) as server:
        for round in range(kills):
            sessions = [f"s{round // 5}-{n}" for n in range(SESSIONS)]
            if round % 5 == 0:
                for session in sessions:
                    server.create(session)
            clients = [Client(server, told, sessions, round * 1000 + n) for n in range(CLIENTS)]
            for client in clients:
                client.start()
            time.sleep(chance.uniform(0.2, 1.5))
            server.kill()
            for client in clients:
                client.join(PATIENCE)
                assert not client.is_alive(), "a client still waits for a server that is gone"
            server.start()
            until_quiet(server)
            check(server, told)
            for run in chance.sample(told.runs, min(5, len(told.runs))):
                assert server.get(f"/runs/{run}").status == 200, run
                with server.open_stream("GET", f"/runs/{run}/events") as frames:
                    list(frames)
        server.kill()
        server.start()
        check(server, told)
    return told


def report(told: Told) -> str:
    counts = {name: len(getattr(told, name)) for name in ("accepted", "stopped", "asked", "runs")}
    return f"messages and cancels that were answered before a kill: {counts}"


@pytest.mark.timeout(300)
def test_no_kill_loses_a_message_repeats_an_effect_or_revives_a_cancelled_run(tmp_path: Path) -> None:
    told = kill_often(tmp_path, kills=5, seed=11)
    assert len(told.accepted) > 50
    assert len(told.stopped) + len(told.asked) > 5


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_two_hundred_kills_of_a_server_with_twenty_clients(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}", file=sys.stderr)
    told = kill_often(tmp_path, kills=200, seed=seed)
    print(report(told), file=sys.stderr)
