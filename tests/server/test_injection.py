"""A host whose callers, runs and tasks are cancelled wherever anything waits: no record is wrong, no task is left.

Each scenario is a process that does something and leaves, then the next one, which picks up what the first has left.
Whatever was cancelled in between, in the end every run is over, every history is whole and no effect happened twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import pytest

from safepoint import Agent, check_history, tool
from safepoint._core.caller_cancellation import outlast
from safepoint._core.reasons import Reason
from safepoint._core.supervisor import Supervisor
from safepoint.agent.tool_context import ToolContext
from safepoint.server.config import ServerConfig
from safepoint.serving.apps import Catalog
from safepoint.serving.cancel_requests import StopRequest
from safepoint.serving.cancel_service import cancel_all
from safepoint.serving.ids import SessionKey
from safepoint.serving.lease_sweeper import LeaseSweeper
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import LOCAL
from safepoint.serving.remote_cancel import cancel_records
from safepoint.serving.run_manager import RunManager
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.operations import Statement
from safepoint.storage.run_records import RunState
from safepoint.testing import CALLER, OWN, Report, RuleModel, call, check_cancellable, say
from safepoint.testing.injections import Injection
from tests.injection.parts import A_MOMENT, A_WHILE, EFFECTS, post
from tests.injection.sampling import sample
from tests.server.server_process import submission

Scenario: TypeAlias = Callable[[], Coroutine[Any, Any, None]]  # Any: what a coroutine yields
KEY = SessionKey("worker", "ann", "s")


class Slow(MemoryStorage):
    """Outlives its process, and takes its time to say that something has happened. A caller may stop waiting."""

    durable = True

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: of every result
        results = await super().commit(*statements)
        await asyncio.sleep(A_MOMENT)
        return results


class World:
    """What the processes of one scenario share, until somebody has looked at it."""

    def __init__(self) -> None:
        self.storage = Slow()
        self.accepted = 0

    def process(self) -> RunManager:
        """Seen from the next one, it is dead."""
        model = RuleModel({"post": call("post"), "ask": call("ask")}, otherwise=say("done"))
        catalog = Catalog.of({"worker": Agent("worker", model=model, tools=[post, ask])})
        self.storage.worker = f"{self.storage.worker} and the next"
        self.storage.alive = {self.storage.worker}
        return RunManager(catalog, self.storage, CONFIG)


CONFIG = ServerConfig(shutdown_seconds=A_MOMENT)
WORLDS: list[World] = []


@tool
async def ask(ctx: ToolContext) -> str:
    """Ask a person."""
    return str(await ctx.interrupt("why?"))


def everything_is_over() -> None:
    """The oracle."""
    while WORLDS:
        world = WORLDS.pop()
        made = asyncio.run(world.storage.sessions.list_ids())
        stored = asyncio.run(world.storage.sessions.load(KEY.stored_as)) if made else None
        for record in asyncio.run(world.storage.runs.still_open()):
            assert record.state is RunState.PAUSED, record
        if stored is not None:
            check_history(stored.messages)
            assert sum(each.text == "post" for each in stored.messages) >= world.accepted, "a message is lost"
            assert all(run.ended for run in stored.runs)


def two_processes(first: Callable[[RunManager], Awaitable[None]]) -> Scenario:
    async def scenario() -> None:
        world = World()
        WORLDS.append(world)
        manager = world.process()
        try:
            await world.storage.sessions.create(KEY.stored_as, {})
            await first(manager)
        finally:
            await outlast(Supervisor.current().spawn(_next_process(world, manager), "the next process", None))

    scenario.__name__ = first.__name__
    return scenario


async def _next_process(world: World, manager: RunManager) -> None:
    await manager.shut_down()
    successor = world.process()
    recovery = LeaseSweeper(successor)
    await recovery.once()
    for managed in list(successor.runs.values()):
        await managed.over.wait()
    await successor.shut_down()


async def submit(manager: RunManager, text: str, **more: object) -> ManagedRun:
    managed = await manager.submit(LOCAL, KEY, submission("s", text, **more))
    assert isinstance(managed, ManagedRun)
    await managed.admitted.wait()
    return managed


async def a_message_is_answered(manager: RunManager) -> None:
    managed = await submit(manager, "post")
    await managed.over.wait()


async def a_process_leaves_while_a_run_and_a_queue_are_under_way(manager: RunManager) -> None:
    for _ in range(2):
        await submit(manager, "post", ifBusy="queue")
        WORLDS[-1].accepted += 1
    await asyncio.sleep(A_WHILE / 2)


async def a_run_and_a_queued_one_are_cancelled(manager: RunManager) -> None:
    runs = [await submit(manager, "post"), await submit(manager, "post", ifBusy="queue")]
    await asyncio.sleep(A_WHILE / 4)
    await cancel_all(manager, runs, StopRequest(), Reason("enough"))


async def a_pause_is_cleared(manager: RunManager) -> None:
    managed = await submit(manager, "ask")
    await managed.over.wait()
    await cancel_records(manager, await manager.storage.runs.still_open(), StopRequest(), Reason("enough"))


EACH_BEGINNING = pytest.mark.parametrize(
    "first",
    [
        a_message_is_answered,
        a_process_leaves_while_a_run_and_a_queue_are_under_way,
        a_run_and_a_queued_one_are_cancelled,
        a_pause_is_cleared,
    ],
    ids=lambda first: first.__name__,
)


def kinds_for(first: Callable[[RunManager], Awaitable[None]]) -> list[Injection]:
    return [CALLER] if first is a_process_leaves_while_a_run_and_a_queue_are_under_way else [CALLER, OWN]


def cancel(first: Callable[[RunManager], Awaitable[None]], kinds: list[Injection]) -> Report:
    report = check_cancellable(two_processes(first), oracles=[everything_is_over, EFFECTS.began_once], kinds=kinds)
    assert report.failures == [], "\n".join(map(str, report.failures[:3]))
    return report


@EACH_BEGINNING
def test_whatever_is_cancelled_today_the_next_process_finds_and_ends_everything(
    first: Callable[[RunManager], Awaitable[None]],
) -> None:
    assert cancel(first, sample(kinds_for(first), first.__name__)).points


@pytest.mark.everywhere
@pytest.mark.timeout(300)
@EACH_BEGINNING
def test_whatever_is_cancelled_the_next_process_finds_and_ends_everything(
    first: Callable[[RunManager], Awaitable[None]], capsys: pytest.CaptureFixture[str]
) -> None:
    report = cancel(first, kinds_for(first))
    with capsys.disabled():
        print(f"\n{report.entry}: {len(report.points)} points, {report.injections} injections")
    assert report.injections > 30
