"""`check_engine`: what every engine that starts runs has to do, with workers that are killed at any moment.

Workers are processes; they run the agent `engine_agent`, whose runs leave a line in a file for every effect. Workers
are killed and replaced while the runs go on, and some of the runs are cancelled from outside. Then it is counted: runs
that were lost, effects that happened twice, histories that are broken, reasons that were not kept.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.agent.agent import Agent
from safepoint.agent.model import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from safepoint.cluster.placing import place
from safepoint.errors import UsageError
from safepoint.history.check import check_history
from safepoint.history.states import LedgerState
from safepoint.serving.cancel_requests import StopRequest, encode_ask
from safepoint.storage.protocol import Storage
from safepoint.storage.run_records import RunRecord
from safepoint.tools.function import tool

APP = "check"
EFFECTS = 3
_BY = "check_engine"
_NAME = re.compile(r"r\d+")


class WorkerProcess(Protocol):
    """A worker in a process of its own."""

    def kill(self) -> None:
        """As `kill -9`."""
        ...


@dataclass(frozen=True, kw_only=True)
class EngineSetup:
    """`storage()` opens the storage that all workers share. `start_worker()` starts a process that runs `engine_agent`
    under the name `check`, and returns once it takes runs. `log`: the file that `engine_agent` was given. `started`:
    called with the storage and the id of each placed run, for an engine that the database does not tell itself.
    `patience`: seconds, for all of them to end.
    """

    storage: Callable[[], Storage]
    start_worker: Callable[[], WorkerProcess]
    log: Path
    started: Callable[[Storage, str], Awaitable[object]] | None = None
    patience: float = 120.0


def engine_agent(log: Path, *, seconds: float = 0.1) -> Agent[None, str]:
    """Three effects, one after the other, each of which takes that long and leaves a line in the file."""

    @tool
    async def effect(name: str) -> str:
        """Leave a line, once. Cancellation: left, or not."""
        await asyncio.sleep(seconds)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, f"{name}\n".encode())
        finally:
            os.close(descriptor)
        return f"did {name}"

    return Agent(APP, model=_InTurn(), tools=[effect])


class _InTurn:
    """Calls one effect after the other. One whose outcome is unknown is not called again."""

    name = "in_turn"

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        """Cancellation: the stream is closed."""
        chunks = self._chunks(request)
        try:
            yield chunks
        finally:
            await chunks.aclose()

    async def _chunks(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        said = [_NAME.match(message.text) if message.role == "user" else None for message in request.messages]
        start, found = max((place, found) for place, found in enumerate(said) if found is not None)
        name, called = found[0], sum(len(message.tool_calls) for message in request.messages[start:])
        if called == EFFECTS:
            yield TextDelta("all done")
            yield Finish("end_turn")
            return
        arguments = json.dumps({"name": f"{name}.{called}"})
        yield CallDelta(0, f"call_{name}_{called}", "effect", arguments)
        yield Finish("tool_calls")


def check_engine(
    setup: EngineSetup, *, runs: int = 200, workers: int = 3, kills: int = 5, seed: int | None = None
) -> str:
    """Hold an engine to its promise, and raise one AssertionError that lists what is broken; else say what happened."""
    if asyncio._get_running_loop() is not None:
        raise UsageError("check_engine() brings its own loop and one is already running here: call it from a plain def")
    given = random.randrange(2**32) if seed is None else seed
    return asyncio.run(_Trial(setup, runs, random.Random(given), given).play(workers, kills))


class _Trial:
    def __init__(self, setup: EngineSetup, runs: int, chance: random.Random, seed: int) -> None:
        self._setup = setup
        self._count = runs
        self._chance = chance
        self._seed = seed
        self._storage = setup.storage()
        self._runs: list[str] = []
        self._cancelled: dict[str, str] = {}
        self._done = False

    async def play(self, workers: int, kills: int) -> str:
        began = time.monotonic()
        alive = [self._setup.start_worker() for _ in range(workers)]
        try:
            async with asyncio.TaskGroup() as group:
                killing = group.create_task(self._kill(alive, kills))
                await self._place_all()
                records = await self._all_over()
                self._done = True
                killed = await killing
            complaints = [*self._lost(records), *await self._broken(records)]
            assert not complaints, "\n".join([f"the engine breaks its promise (seed {self._seed}):", *complaints])
            took = time.monotonic() - began
            outcomes = Counter(record.outcome for record in records.values() if record is not None)
            return f"{self._count} runs, {killed} kills, {len(self._cancelled)} cancels, {took:.1f} s: {dict(outcomes)}"
        finally:
            for worker in alive:
                worker.kill()
            await self._storage.aclose()

    async def _kill(self, alive: list[WorkerProcess], kills: int) -> int:
        """Kill a worker, start another one, until that many are dead or all runs are over."""
        for number in range(kills):
            await asyncio.sleep(self._chance.uniform(0.3, 1.5))
            if self._done:
                return number
            victim = alive.pop(self._chance.randrange(len(alive)))
            victim.kill()
            alive.append(await asyncio.to_thread(self._setup.start_worker))
        return kills

    async def _place_all(self) -> None:
        for number in range(self._count):
            # Two runs for each session, so that the second has to wait for its turn.
            id = await place(self._storage, APP, f"r{number}", user=f"u{number % 7}", session=f"s{number // 2}")
            self._runs.append(id)
            if self._setup.started is not None:
                await self._setup.started(self._storage, id)
            if self._chance.random() < 0.25:
                await self._cancel(self._chance.choice(self._runs))

    async def _cancel(self, run_id: str) -> None:
        if run_id in self._cancelled:
            return
        reason = Reason(f"cancelled as {len(self._cancelled)}", Source.POLICY, by=_BY)
        record = await self._storage.runs.get(run_id)
        if record is not None and not record.ended:
            await self._storage.runs.request_cancel(run_id, encode_ask(StopRequest(at=SafePoint.NOW), reason))
            self._cancelled[run_id] = reason.text

    async def _all_over(self) -> dict[str, RunRecord | None]:
        """The records, once all have ended or the patience is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._setup.patience):
                for id in self._runs:
                    async with self._storage.changes(run=id) as changes:
                        async for _ in changes:
                            record = await self._storage.runs.get(id)
                            if record is None or record.ended:
                                break
        return {id: await self._storage.runs.get(id) for id in self._runs}

    def _lost(self, records: dict[str, RunRecord | None]) -> list[str]:
        found: list[str] = []
        for id, record in records.items():
            if record is None or not record.ended:
                found.append(f"{id} is lost: it is {'not there' if record is None else record.state}")
                continue
            reason = record.reason or {}
            if record.outcome not in ("end_turn", "cancelled"):
                found.append(f"{id} has ended with {record.outcome}: {reason}")
            elif record.outcome == "cancelled" and reason.get("text") != self._cancelled.get(id):
                found.append(f"{id} was cancelled for {reason.get('text')!r}, asked for {self._cancelled.get(id)!r}")
        return found

    async def _broken(self, records: dict[str, RunRecord | None]) -> list[str]:
        lines = self._setup.log.read_text().split() if self._setup.log.exists() else []
        found = [f"the effect {name} happened {count} times" for name, count in Counter(lines).items() if count > 1]
        seen = set(lines)
        for session in {record.session for record in records.values() if record is not None}:
            stored = await self._storage.sessions.load(session)
            try:
                check_history(stored.messages)
            except Exception as error:
                found.append(f"the history of {session} is broken: {error}")
            for run in stored.runs:
                finished = [entry for entry in run.ledger if entry.state is LedgerState.FINISHED]
                gone = [entry.args["name"] for entry in finished if entry.args["name"] not in seen]
                found += [f"the effect {name} is recorded and never happened" for name in gone]
        return found
