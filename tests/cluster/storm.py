"""Many runs on several workers, half of them cancelled, while something goes wrong; and what must hold after it.

Each message is sent with an idempotency key until some worker has answered it, as a client does whose server dies. A
cancel goes to a random worker, once.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.workers import broken_histories, open_runs, records, repeated, unknown_calls
from tests.server.server_process import Answer, ServerProcess, message, session_path

GONE = (OSError, http.client.HTTPException, ValueError)
PATIENCE = 60.0


@dataclass
class Storm:
    """`seconds`: how long each of the three effects of a run takes; `at_once`: how many clients there are."""

    workers: Sequence[ServerProcess]
    runs: int
    seconds: float = 0.1
    at_once: int = 12
    seed: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    kills: int = 0
    answers: dict[int, Answer] = field(default_factory=dict[int, Answer])
    # What each cancel was answered: (outcome, durable), or None where no worker answered.
    cancels: dict[int, tuple[str | None, bool] | None] = field(
        default_factory=dict[int, tuple[str | None, bool] | None]
    )
    surprises: list[str] = field(default_factory=list[str])

    def play(self, kill_every: float | None = None) -> None:
        """Until every message was answered."""
        killer = threading.Thread(target=self._kill_for_ever, args=(kill_every,), daemon=True)
        if kill_every is not None:
            killer.start()
        try:
            with ThreadPoolExecutor(self.at_once) as pool:
                list(pool.map(self._one, range(self.runs)))
        finally:
            self.over.set()
            if kill_every is not None:
                killer.join(PATIENCE)

    def _kill_for_ever(self, every: float) -> None:
        chance = random.Random(self.seed)
        while not self.over.wait(every):
            victim = chance.choice(self.workers)
            victim.kill()
            self.kills += 1
            victim.start()

    def _one(self, number: int) -> None:
        chance = random.Random(f"{self.seed} {number}")
        try:
            self._until_answered(chance, "POST", session_path(f"s{number}", app="chain"), None, taken=(200, 409))
            cancel = threading.Timer(chance.uniform(0, 4 * self.seconds), self._cancel, (number, chance))
            if number % 2:
                cancel.start()
            body = message(
                f"s{number}",
                f"chain s{number} {self.seconds}",
                appName="chain",
                idempotencyKey=f"k{number}",
                onDisconnect="detach",
            )
            self.answers[number] = self._until_answered(chance, "POST", "/run", body, taken=(200,))
            if number % 2:
                cancel.join()
        except Exception as error:
            self.surprises.append(f"s{number}: {error!r}")

    def _until_answered(
        self, chance: random.Random, method: str, path: str, body: object, *, taken: tuple[int, ...]
    ) -> Answer:
        until, last = time.monotonic() + PATIENCE, ""
        while time.monotonic() < until:
            try:
                answer = chance.choice(self.workers).http(method, path, body)
            except GONE as error:
                last = repr(error)
                time.sleep(0.05)
                continue
            if answer.status in taken:
                return answer
            last = str(answer)
            time.sleep(0.05)
        raise AssertionError(f"{method} {path} was not answered: {last}")

    def _cancel(self, number: int, chance: random.Random) -> None:
        self.cancels[number] = None
        try:
            answer = chance.choice(self.workers).cancel(f"s{number}", app="chain")
        except GONE:
            return
        if answer.status == 200 and answer.body["runs"]:
            [run] = answer.body["runs"]
            self.cancels[number] = run.get("outcome"), run["durable"]

    # -- afterwards ----------------------------------------------------------------------------------------------------

    def check(self, url: str) -> dict[str, Any]:  # Any: numbers for a report
        """Nothing is lost, repeated or broken, and each cancel is what it was answered to be."""
        until = time.monotonic() + PATIENCE
        while left := open_runs(url):
            assert time.monotonic() < until, f"{len(left)} runs have not ended: {left[:5]}"
            time.sleep(0.2)
        assert self.surprises == []
        assert len(self.answers) == self.runs
        found = {int(record.session.rpartition("/s")[2]): record for record in records(url)}
        assert len(found) == self.runs, f"{self.runs - len(found)} runs are lost, or accepted twice"
        effects = [line for line in self.workers[0].did() if not line.endswith("cut")]
        assert repeated(effects) == []
        assert broken_histories(url) == []
        outcomes = {number: str(record.outcome) for number, record in found.items()}
        assert set(outcomes.values()) <= {"end_turn", "cancelled"}, outcomes
        unknown = unknown_calls(url)
        for number, outcome in outcomes.items():
            if outcome == "end_turn":
                missing = {f"s{number} {step}" for step in range(3)} - set(effects)
                # A worker may die between the record that a call runs and the call's first line.
                assert {f"call_{each.replace(' ', '_')}" for each in missing} <= unknown, missing
            elif number % 2 == 0:
                raise AssertionError(f"s{number} was cancelled, and no client has asked for it")
        broken = [
            (number, said, outcomes[number])
            for number, said in self.cancels.items()
            if said is not None and said[1] and not _holds(said[0], outcomes[number])
        ]
        assert broken == [], "a cancel that was durable does not hold"
        stopped = sum(outcome == "cancelled" for outcome in outcomes.values())
        return {"runs": self.runs, "kills": self.kills, "stopped": stopped, "effects": len(effects)}


def _holds(told: str | None, outcome: str) -> bool:
    """`None`: asked, and durable, and no more was known then."""
    return outcome == {"stopped": "cancelled", "finished_first": "end_turn"}.get(told or "", outcome)
