"""What a viewer at the wrong process costs: on B against on A, over HTTP, with SQLite and with PostgreSQL.

Two real servers share a storage, and A has the run. "First word" is the time from the request to the first piece of
text of a run in the middle of its message, so for B it has the link to A in it. "Words" is how much text a viewer has
got in a second, of a message that comes as fast as it can be read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.sample import Sample, side_by_side
from bench.table import Table, millis, times, verdict
from safepoint.storage.postgres.schema import upgrade
from tests.server.server_process import ServerProcess, texts
from tests.storage.postgres.postgres_server import PostgresServer

ROUNDS, POURS = 30, 5
WARM_UP = 3
PIECES = 60  # of 100,000 letters
AIM_FIRST, AIM_WORDS = 1.5, 0.8
_numbers = count(1)


def first_word(owner: ServerProcess, asked: ServerProcess) -> Callable[[], Awaitable[float]]:
    """Seconds until a new viewer of a run under way sees text."""

    async def once() -> float:
        session = f"first{next(_numbers)}"
        owner.create(session)
        owner.run_in_thread(session, "drip 600", onDisconnect="detach")
        run = asked.run_of(session, "live")
        began = perf_counter()
        with asked.open_stream("GET", f"/runs/{run}/events") as frames:
            next(iter(frames))
            took = perf_counter() - began
        owner.cancel(session)
        return took

    return once


def letters(owner: ServerProcess, asked: ServerProcess) -> Callable[[], Awaitable[float]]:
    """Seconds for a letter, of a long message that is watched from its beginning to its end."""

    async def once() -> float:
        session = f"pour{next(_numbers)}"
        owner.create(session)
        # A few slow words first: the viewer is there when the others begin.
        caller = owner.run_in_thread(session, f"drip 10; pour {PIECES}", onDisconnect="detach")
        run = asked.run_of(session, "live")
        size, began = 0, 0.0
        with asked.open_stream("GET", f"/runs/{run}/events") as frames:
            for _, event in frames:
                found = sum(map(len, texts([event])))
                began = began or (perf_counter() if found > 1000 else 0.0)
                size += found
        took = perf_counter() - began
        caller.answer()
        return took / size

    return once


def measure(folder: Path, options: Sequence[str], *, data: bool) -> tuple[tuple[Sample, Sample], tuple[Sample, Sample]]:
    """On B and on A, turn by turn: the first word, and the letters."""
    with ServerProcess(folder, data=data, options=options) as a, ServerProcess(folder, data=data, options=options) as b:
        first = asyncio.run(side_by_side(first_word(a, b), first_word(a, a), rounds=ROUNDS, warm_up=WARM_UP))
        return first, asyncio.run(side_by_side(letters(a, b), letters(a, a), rounds=POURS, warm_up=1))


def add(table: Table, storage: str, found: tuple[tuple[Sample, Sample], tuple[Sample, Sample]]) -> None:
    (first_there, first_here), (there, here) = found
    ratio = first_there.p50 / first_here.p50
    wanted = f"≤ {times(AIM_FIRST)}", verdict(ratio, AIM_FIRST)
    table.add(f"{storage}, first word, p50", millis(first_here.p50), millis(first_there.p50), times(ratio), *wanted)
    rate = here.p50 / there.p50
    speeds = f"{1e-6 / here.p50:.1f} MB/s", f"{1e-6 / there.p50:.1f} MB/s"
    table.add(f"{storage}, words", *speeds, times(rate), f"≥ {times(AIM_WORDS)}", verdict(-rate, -AIM_WORDS))


def main() -> None:
    table = Table("a viewer of a run of A", "on A", "on B", "B ÷ A", "aim", "")
    with TemporaryDirectory() as name:
        add(table, "SQLite", measure(Path(name), (), data=True))
    database = PostgresServer()
    try:
        url = database.new_database()
        asyncio.run(upgrade(url))
        with TemporaryDirectory() as name:
            add(table, "PostgreSQL", measure(Path(name), ("--store", url), data=False))
    finally:
        database.close()
    table.show()


if __name__ == "__main__":
    main()
