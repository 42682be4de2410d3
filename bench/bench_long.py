"""NOW in a long conversation, against NOW in one that has just begun: a stop must not wait for what was said before.

The long one has 1,000 messages, about 250,000 tokens. What is measured is `run.cancel()` until the owner, who awaits
the run, has its result; with a session, until its end is stored.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter

from bench.models import SilentModel
from bench.sample import side_by_side
from bench.table import Table, micros, times, verdict
from safepoint import Agent, Message, StopReason, Text
from safepoint.sessions import MemoryStore, Session, SqliteStore
from safepoint.sessions.store import Store

AIM = 5.0
ROUNDS = 60
_WORDS = Text("The quick brown fox jumps over the lazy dog. " * 22)
LONG = [Message("user" if place % 2 == 0 else "assistant", (_WORDS,)) for place in range(1000)]


class Conversation:
    """An agent that is silent in a conversation with such a past."""

    def __init__(self, store: Store | None, past: list[Message]) -> None:
        self._ready = asyncio.Event()
        self._agent = Agent("silent", model=SilentModel(self._ready.set))
        self._store = store
        self._past = past

    async def measure(self) -> float:
        self._ready.clear()
        session = None if self._store is None else await Session.create(self._store, history=self._past)
        history = self._past if session is None else ()
        async with self._agent.start("go", history=history, session=session) as run:
            await self._ready.wait()
            gc.collect(1)  # see bench_compose
            asked = perf_counter()
            run.cancel()
            result = await run.wait()
            ended = perf_counter()
        assert result.stop_reason is StopReason.CANCELLED
        if session is not None:
            await session.delete()
        return ended - asked


@asynccontextmanager
async def stores() -> AsyncGenerator[dict[str, Store | None]]:
    with tempfile.TemporaryDirectory() as directory:
        sqlite = SqliteStore(Path(directory) / "sessions.db")
        try:
            yield {"no session": None, "memory": MemoryStore(), "SQLite": sqlite}
        finally:
            await sqlite.aclose()


async def measure(table: Table) -> None:
    async with stores() as every:
        for name, store in every.items():
            long, short = Conversation(store, LONG), Conversation(store, [])
            ours, floor = await side_by_side(long.measure, short.measure, rounds=ROUNDS, warm_up=10)
            ratio = ours.p50 / floor.p50
            cells = (micros(floor.p50), micros(ours.p50), times(ratio), f"≤ {AIM:g}×", verdict(ratio, AIM))
            table.add(name, *cells)


def main() -> None:
    table = Table("NOW, p50", "first message", "after 1,000", "ratio", "aim", "verdict")
    asyncio.run(measure(table))
    table.show()


if __name__ == "__main__":
    main()
