"""A process that works on a SQLite session is killed, again and again, and the next one always finds the truth."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from safepoint import check_history
from safepoint.history.states import LedgerState
from safepoint.sessions import Session, SqliteStore
from safepoint.sessions.store import Stored
from safepoint.testing import run_virtual
from tests.process.session_worker import STEPS


def start(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "ready").unlink(missing_ok=True)
    worker = subprocess.Popen([sys.executable, "-m", "tests.process.session_worker", str(folder)])
    deadline = time.monotonic() + 240  # on a machine that has much else to do
    while not (folder / "ready").exists():
        assert worker.poll() is None, "the worker ended before it began"
        assert time.monotonic() < deadline, "the worker never began"
        time.sleep(0.002)
    return worker


def stored(folder: Path) -> Stored:
    async def main() -> Stored:
        store = SqliteStore(folder / "session.db")
        session = await Session.load(store, "s")
        check_history(session.messages)
        found = await store.load("s")
        await store.aclose()
        return found

    return run_virtual(main)


def kill_and_continue(folder: Path, kills: int, chance: random.Random) -> int:
    """Kill so often; then let it finish. How many of the kills hit a worker at work."""
    hits = 0
    for _ in range(kills):
        worker = start(folder)
        time.sleep(chance.uniform(0.0, 0.08))
        hits += worker.poll() is None
        worker.kill()
        worker.wait()
        check_against_the_world(folder)
    assert start(folder).wait(timeout=60) == 0
    return hits


def check_against_the_world(folder: Path) -> None:
    """No effect twice; every call that the ledger calls finished has happened."""
    effects = folder / "effects"
    happened = Counter(effects.read_text().split()) if effects.exists() else Counter[str]()
    assert all(times == 1 for times in happened.values()), happened
    for run in stored(folder).runs:
        for entry in run.ledger:
            if entry.state is LedgerState.FINISHED:
                assert happened[str(entry.args["x"])] == 1, entry


@pytest.mark.timeout(300)
def test_no_kill_loses_or_repeats_a_finished_effect(tmp_path: Path) -> None:
    hits = kill_and_continue(tmp_path, kills=6, chance=random.Random(7))
    assert hits > 0
    check_against_the_world(tmp_path)
    assert len(stored(tmp_path).messages) == 2 + 2 * STEPS


@pytest.mark.proof
def test_two_hundred_kills_lose_nothing(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for round in range(20):
        folder = tmp_path / str(round)
        folder.mkdir()
        hits = kill_and_continue(folder, kills=10, chance=chance)
        print(f"round {round}: {hits} of 10 kills hit a worker at work")
        check_against_the_world(folder)
