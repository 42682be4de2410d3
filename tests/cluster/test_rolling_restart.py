"""A deploy: three workers are told to end and started again, one after the other, under live runs and viewers."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster.workers import Workers, broken_histories, open_runs, records, repeated
from tests.server.server_process import ServerProcess, message, session_path, texts

pytestmark = [pytest.mark.postgres, pytest.mark.proof]

GONE = (OSError, http.client.HTTPException, ValueError)


@dataclass
class RestlessViewer(threading.Thread):
    """Watches one run to its end, at whichever worker answers, and comes back with the last number that it has seen."""

    workers: Sequence[ServerProcess]
    run_id: str
    seed: int
    events: list[str] = field(default_factory=list[str])
    has_seen_the_end: bool = False
    connections: int = 0

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        chance, last, until = random.Random(self.seed), "", time.monotonic() + 120
        while not self.has_seen_the_end and time.monotonic() < until:
            connection = chance.choice(self.workers).connect()
            try:
                connection.request("GET", f"/runs/{self.run_id}/events", headers={"last-event-id": last})
                answer = connection.getresponse()
                self.connections += answer.status == 200
                for raw in answer:
                    line = raw.decode().rstrip("\n")
                    if line.startswith("id:"):
                        last = line[3:].strip()
                    elif line.startswith("data:"):
                        self._take(json.loads(line[5:]))
            except GONE:
                pass
            finally:
                connection.close()
            time.sleep(0.05)

    def _take(self, event: dict[str, object]) -> None:
        if not event.get("partial"):
            self.events.append(str(event["id"]))
            self.has_seen_the_end |= texts([event]) == ["done"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("runs", "viewers", "seconds"), [(24, 6, 1.5), (300, 20, 12.0)])
def test_a_rolling_restart_loses_and_repeats_nothing_and_viewers_see_every_event(
    tmp_path: Path, url: str, runs: int, viewers: int, seconds: float
) -> None:
    with Workers(tmp_path, url, 3, "--lease", "5") as workers:
        for number in range(runs):
            server = workers.all[number % 3]
            server.post(session_path(f"s{number}", app="chain"))
            body = message(f"s{number}", f"chain s{number} {seconds}", appName="chain", onDisconnect="detach")
            server.begin("POST", "/run_sse", body).close()
        found = {record.session: record.run_id for record in records(url)}
        watching = [
            RestlessViewer(workers.all, run, number) for number, run in enumerate(list(found.values())[:viewers])
        ]
        for viewer in watching:
            viewer.start()
        began = time.monotonic()
        for server in workers.all:
            server.terminate(60)
            server.start()
        took = time.monotonic() - began
        until = time.monotonic() + 120
        while left := open_runs(url):
            assert time.monotonic() < until, left
            time.sleep(0.2)
        ended = records(url)
        assert len(ended) == runs
        assert {record.outcome for record in ended} == {"end_turn"}
        assert repeated([line for line in workers.all[0].did() if not line.endswith("cut")]) == []
        assert broken_histories(url) == []
        stored = {run: path.rpartition("/")[2] for path, run in found.items()}
        doubled = 0
        for viewer in watching:
            viewer.join(60)
            assert viewer.has_seen_the_end, (viewer.run_id, viewer.events)
            told = workers.all[0].get(session_path(stored[viewer.run_id], app="chain")).body["events"]
            # Without the message that the run answers.
            assert set(viewer.events) == {event["id"] for event in told[1:]}
            doubled += len(viewer.events) - len(set(viewer.events))
        moved = sum(record.epoch > 0 for record in ended)
        print(f"{runs} runs, {moved} moved, restarts took {took:.1f} s; events told again to viewers: {doubled}")
