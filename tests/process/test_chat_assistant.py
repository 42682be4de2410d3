"""The chat assistant of the examples is killed at random moments: no saved line is lost, and none is said twice."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from safepoint import check_history
from safepoint.sessions import Session, SqliteStore

ROOT = Path(__file__).parents[2]
ASSISTANT = ROOT / "examples" / "chat_assistant.py"


class Talk:
    """One process of the assistant, and the lines that it has saved."""

    def __init__(self, folder: Path) -> None:
        self.saved: list[str] = []
        self.lines = 0
        self.is_awake = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", str(ASSISTANT), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            _, mark, rest = line.strip().partition("[saved] ")
            if mark:
                self.saved.append(rest.removeprefix("!"))
                self.is_awake.set()

    def type(self, line: str) -> bool:
        self.lines += 1
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it is dead already
            return False
        return True

    def end(self, sign: signal.Signals | None) -> None:
        """By a signal, or by the end of the lines, after which it answers what waits."""
        if sign is not None:
            os.kill(self._process.pid, sign)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        code = self._process.wait(60)
        self._reader.join(10)
        assert self._process.stderr is not None
        told = self._process.stderr.read()
        self._process.stderr.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        assert code in (0, -signal.SIGKILL, -signal.SIGTERM), told  # the last one: before it could hear of it


def said(folder: Path) -> Counter[str]:
    async def read() -> Counter[str]:
        store = SqliteStore(folder / "chat.db")
        session = await Session.load(store, "chat")
        check_history(session.messages)
        found = Counter(message.text for message in session.messages if message.role == "user")
        await store.aclose()
        return found

    return asyncio.run(read())


def killed_again_and_again(folder: Path, seed: int, deaths: int) -> int:
    """Type lines at random times and kill the assistant at random moments; how many lines it has saved."""
    chance, typed, saved = random.Random(seed), list[str](), list[str]()
    for _ in range(deaths):
        talk = Talk(folder)
        dies_at = math.inf if chance.random() < 0.8 else time.monotonic() + chance.random()  # perhaps while it wakes up
        while time.monotonic() < dies_at:
            line = f"{chance.choice(['', '', '!'])}line {len(typed)} of {seed}"
            if (talk.is_awake.is_set() or talk.lines < 3) and talk.type(line):
                typed.append(line.removeprefix("!"))
            time.sleep(chance.random() * 0.15)
            if talk.is_awake.is_set():
                dies_at = min(dies_at, time.monotonic() + chance.random())
        talk.end(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        saved += talk.saved
    last = Talk(folder)
    last.end(None)
    found = said(folder)
    lost = [line for line in saved if line not in found]
    twice = [line for line, times in found.items() if times > 1]
    strange = [line for line in found if line not in typed]
    assert (lost, twice, strange) == ([], [], []), f"seed {seed}, {deaths} deaths"
    return len(saved)


@pytest.mark.timeout(120)
def test_the_assistant_loses_no_saved_line_and_says_none_twice(tmp_path: Path) -> None:
    assert killed_again_and_again(tmp_path, seed=1, deaths=4) > 0


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_the_assistant_survives_two_hundred_deaths(tmp_path: Path) -> None:
    base, saved = int(os.environ.get("SAFEPOINT_SEED", "1000")), 0
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        saved += killed_again_and_again(folder, seed=base + number, deaths=10)
    print(f"\nseed {base}: 200 deaths, {saved} saved lines")
