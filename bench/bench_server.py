"""What a run costs over HTTP: as a share of the same server's `/health`, and beside Google's ADK where that is there.

Everything is measured turn by turn, so that all meet the same noise; what is shown is the median of the rounds. Rates
depend on who else uses the machine; the server's CPU for each request does so much less.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TypeAlias

from bench.load import Connection, Load, load, request
from bench.sample import Sample
from bench.served import ADK, Running, adk_server, safepoint_server
from bench.table import Table, micros, millis, times, verdict

ROUNDS = 5
REQUESTS = {"memory": 160, "sqlite": 96}
ADK_REQUESTS = 24
SESSIONS = 64  # more than clients, so that no session is busy when its turn comes
SHARE = {"memory": 0.5, "sqlite": 0.2}
BESIDE_ADK = {"memory": 8.0, "sqlite": 10.0}
SHORT, LONG, LENGTH_AIM = 100, 1600, 1.3
CANCELS, BUSY = 40, 16


def message(session: str, app: str = "instant") -> dict[str, object]:
    said = {"role": "user", "parts": [{"text": "go"}]}
    return {"appName": app, "userId": "ann", "sessionId": session, "newMessage": said}


async def make_sessions(server: Running, names: Sequence[str], app: str = "instant") -> None:
    await load(server.port, server.pid, [request("POST", f"/apps/{app}/users/ann/sessions/{n}") for n in names], 1)


class Subject:
    """A server and the sessions that its runs go round in, made anew for each round so that all are as short."""

    def __init__(self, server: Running, count: int) -> None:
        self.server = server
        self._count = count
        self._rounds = 0

    async def measure(self, path: str, clients: int) -> Load:
        self._rounds += 1
        names = [f"s{self._rounds}.{number}" for number in range(SESSIONS)]
        if path == "/health":
            sent = [request("GET", path)] * self._count * 2
        else:
            await make_sessions(self.server, names)
            sent = [request("POST", path, message(names[number % SESSIONS])) for number in range(self._count)]
        return await load(self.server.port, self.server.pid, sent, clients, strict=self.server.name == "Safepoint")


Found: TypeAlias = dict[tuple[str, str], list[Load]]
"""What each server did, by its name and the path, one load for each round."""


async def collect_runs(ours: Subject, adk: Subject | None, clients: int, rounds: int = ROUNDS) -> Found:
    """Let both servers answer the same requests, turn by turn."""
    found: Found = {}
    for number in range(rounds + 1):
        for subject in (ours, adk):
            for path in ("/health", "/run", "/run_sse") if subject is not None else ():
                assert subject is not None
                measured = await subject.measure(path, clients)
                if number:  # the first round warms up
                    found.setdefault((subject.server.name, path), []).append(measured)
    return found


async def measure_runs(table: Table, store: str, ours: Subject, adk: Subject | None) -> None:
    for clients in 1, BUSY:
        found = await collect_runs(ours, adk, clients)
        for path in "/run", "/run_sse":
            _show_run(table, f"{path}, {store}, {clients} client{'s' * (clients > 1)}", store, path, found)


def _show_run(table: Table, name: str, store: str, path: str, found: Found) -> None:
    mine, health = found["Safepoint", path], found["Safepoint", "/health"]
    share = median(run.rate / base.rate for run, base in zip(mine, health, strict=True))
    cpu = median(run.cpu for run in mine)
    cells = [
        f"{median(run.rate for run in mine):.0f}/s",
        millis(median(run.latency.p50 for run in mine)),
        micros(cpu),
        f"{share:.0%}",
        f"≥ {SHARE[store]:.0%}",
        verdict(-share, -SHARE[store]),
    ]
    theirs = found.get(("ADK", path))
    if theirs is None:
        table.add(name, *cells, "", "", "", "")
        return
    faster = median(run.rate / other.rate for run, other in zip(mine, theirs, strict=True))
    cheaper = median(other.cpu for other in theirs) / cpu
    aim = BESIDE_ADK[store]
    table.add(name, *cells, times(faster), times(cheaper), f"≥ {aim:.0f}×", verdict(-faster, -aim))


async def measure_length(table: Table, store: str, server: Running) -> None:
    """One more run of a session that is long already."""
    took: dict[int, list[float]] = {SHORT: [], LONG: []}
    for length in took:
        await make_sessions(server, [f"length{length}"])
        await load(server.port, server.pid, [request("POST", "/run", message(f"length{length}"))] * (length // 2), 1)
    connection = await Connection.open(server.port)
    for _ in range(60):
        for length, values in took.items():
            began = perf_counter()
            await connection.ask(request("POST", "/run", message(f"length{length}")))
            values.append(perf_counter() - began)
    connection.close()
    short, long = (Sample(tuple(sorted(values))).p50 for values in took.values())
    ratio = long / short
    name = f"one more /run, {store}, after {SHORT} and {LONG:,} events"
    table.add(name, millis(short), millis(long), times(ratio), times(LENGTH_AIM), verdict(ratio, LENGTH_AIM))


async def measure_cancel(table: Table, store: str, server: Running) -> None:
    """Stop a run whose tool blocks a thread, while others keep the server busy."""
    names = [f"busy{number}" for number in range(BUSY)]
    await make_sessions(server, names)
    await make_sessions(server, [f"b{number}" for number in range(CANCELS)], "blocking")
    busy = [asyncio.create_task(_keep_busy(server, name)) for name in names]
    asked: list[float] = []
    for number in range(CANCELS):
        run, other = await Connection.open(server.port), await Connection.open(server.port)
        run.send(request("POST", "/run_sse", message(f"b{number}", "blocking")))
        await run.until(lambda seen: b"functionCall" in seen)
        began = perf_counter()
        path = f"/apps/blocking/users/ann/sessions/b{number}:cancel"
        answer = await other.ask(request("POST", path, {"waitSeconds": 0}))
        asked.append(perf_counter() - began)
        assert b'"requested":true' in answer, answer
        run.close()
        other.close()
    for task in busy:
        task.cancel()
    await asyncio.wait(busy)
    sample = Sample(tuple(sorted(asked)))
    table.add(f"{store}, {BUSY} busy clients", millis(sample.p50), millis(sample.p99))


async def _keep_busy(server: Running, session: str) -> None:
    connection = await Connection.open(server.port)
    while True:
        await connection.ask(request("POST", "/run", message(session)))


def main() -> None:
    adk: Subject | None = None
    columns = ("rate", "p50", "CPU", "of /health", "aim", "", "beside ADK", "its CPU", "aim", "")
    for store in "memory", "sqlite":
        runs = Table("a run, with an instant model", *columns)
        lengths = Table("length of the session (p50)", str(SHORT), f"{LONG:,}", "ratio", "aim", "")
        cancels = Table("answer to a cancel of a blocked run", "p50", "p99")
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            server = stack.enter_context(safepoint_server(store, folder))
            other = stack.enter_context(adk_server(store, folder))
            ours = Subject(server, REQUESTS[store])
            adk = Subject(other, ADK_REQUESTS) if other is not None else None
            asyncio.run(measure_runs(runs, store, ours, adk))
            asyncio.run(measure_length(lengths, store, server))
            asyncio.run(measure_cancel(cancels, store, server))
        for table in runs, lengths, cancels:
            table.show()
            print(flush=True)
    if adk is None:
        print(f"Not beside ADK: set {ADK} to a Python that has google-adk.")


if __name__ == "__main__":
    main()
