"""What a deploy costs a live run: from its safe point on the server that leaves to its next step on another one.

Two real servers share a PostgreSQL. A has runs in the middle of their tools and is told to end (SIGTERM). The gap is
the time from the end of the last tool on A to the next call of the model on B, by the clock of this machine. Every
effect is counted: none may happen twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.sample import Sample
from bench.table import Table, millis, verdict
from safepoint.storage.postgres.schema import upgrade
from tests.server.server_process import ServerProcess, message, session_path
from tests.storage.postgres.postgres_server import PostgresServer

ROUNDS = 8
RUNS = 15  # one key may have 16
STEPS = 3
AIM_P50, AIM_P99 = 0.1, 0.25
APPS = Path(__file__).parent / "moving"


def deploy(old: ServerProcess, new: ServerProcess, number: int) -> None:
    """Start runs on one, tell it to end, wait until the other has ended them."""
    names = [f"r{number}-{each}" for each in range(RUNS)]
    for place, name in enumerate(names):
        assert old.post(session_path(name, app="mover")).status == 200
        text = f"{name} {0.6 + place * 0.05:.2f}"
        said = message(name, text, appName="mover", onDisconnect="detach")
        old.begin("POST", "/run_sse", said).close()
    until(old, lambda lines: sum(line.startswith(f"asked r{number}-") for line in lines) >= RUNS)
    old.terminate()
    until(new, lambda lines: all(any(line.startswith(f"did {name}.{STEPS - 1} ") for line in lines) for name in names))


def until(server: ServerProcess, is_so: Callable[[list[str]], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so(server.did()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within a minute: {server.did()[-5:]}")
        time.sleep(0.05)


def gaps(lines: list[str]) -> list[float]:
    """Of each change of process in the log: from the last effect there to the first step here."""
    last: dict[str, tuple[str, float]] = {}
    found: list[float] = []
    for what, name, pid, at in (line.split() for line in lines):
        run = name.partition(".")[0]
        if what == "asked" and run in last and last[run][0] != pid:
            found.append(float(at) - last[run][1])
        last[run] = (pid, float(at))
    return found


def main() -> None:
    database = PostgresServer()
    try:
        url = database.new_database()
        asyncio.run(upgrade(url))
        with TemporaryDirectory() as name:
            measured, effects = measure(Path(name), url)
    finally:
        database.close()
    table = Table("a run handed over", "measured", "aim", "")
    sample = Sample(tuple(sorted(measured)))
    table.add(f"gap, p50 of {len(measured)}", millis(sample.p50), f"≤ {millis(AIM_P50)}", verdict(sample.p50, AIM_P50))
    table.add("gap, p99", millis(sample.p99), f"≤ {millis(AIM_P99)}", verdict(sample.p99, AIM_P99))
    twice = sum(count - 1 for count in effects.values())
    table.add(f"effects done twice, of {len(effects)}", str(twice), "0", verdict(twice, 0))
    table.show()


def measure(folder: Path, url: str) -> tuple[list[float], Counter[str]]:
    servers = [ServerProcess(folder, apps=APPS, data=False, options=("--store", url)) for _ in range(2)]
    with servers[0], servers[1]:
        for number in range(ROUNDS):
            old, new = servers
            deploy(old, new, number)
            old.start()
            servers.reverse()
        lines = servers[0].did()
    return gaps(lines), Counter(line.split()[1] for line in lines if line.startswith("did "))


if __name__ == "__main__":
    main()
