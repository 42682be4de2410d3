"""One visit of something hostile: start a run, wait until it is in the hostile place, push, and look at what is left.

Everything runs on the virtual clock, so "within the ladder" is an exact number of seconds. Beside each hostile call
runs a sibling that behaves (`nap`, cut by the push) and one that is done (`quick`, finished), so every visit also shows
that one bad call takes nothing away from the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from safepoint import Agent, Ladder, Run, RunResult, SafePoint, ToolContext, check_history, tool
from safepoint._core.clock import Clock
from safepoint._core.orphans import Orphan
from safepoint.agent.as_tool import AgentTool
from safepoint.agent.events import Event, RunEnded, ToolCallEnded
from safepoint.testing import ScriptedModel, call, say

LADDER = Ladder(task=1, thread=0.25, kill=0.5, undo=2, cap=4)


class Push(StrEnum):
    """Who stops the run, and how."""

    NOW = "now"
    FORCE = "force"
    CALLER = "caller"


class World:
    """What a hostile thing can reach (it is the run's deps), and how a test lets go of it in the end."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.host = asyncio.current_task()
        self.reached = asyncio.Event()
        self.over = asyncio.Event()
        self.released = threading.Event()
        self.left: list[asyncio.Task[Any]] = []  # Any: whatever a hostile tool starts
        self.seen: list[object] = []

    def reach(self) -> None:
        """The hostile place is reached; from any thread."""
        self.loop.call_soon_threadsafe(self.reached.set)

    def let_go(self) -> None:
        self.over.set()
        self.released.set()


@tool
async def nap(ctx: ToolContext[World]) -> str:
    """Sleep until cut."""
    await ctx.deps.over.wait()
    return "rested"


@tool
async def quick() -> str:
    """Answer at once."""
    return "quick"


class Caller:
    """The task that holds the run's block, and how it was left."""

    def __init__(self, run: Run[World, str]) -> None:
        self._run = run
        self.interrupted = False  # by a KeyboardInterrupt, which a task must not raise: it would end the loop
        self.task = asyncio.create_task(self._hold())

    async def _hold(self) -> None:
        try:
            async with self._run:
                pass
        except KeyboardInterrupt:
            self.interrupted = True


@dataclass
class Left:
    """What a visit left behind.

    On the virtual clock, `waited`: until it was pushed; `seconds`: from the push until the caller was free.
    """

    world: World
    agent: Agent[World]
    run: Run[World, str]
    caller: Caller
    free_before: bool
    waited: float
    seconds: float
    result: RunResult[str] = field(init=False)

    def __post_init__(self) -> None:
        self.result = self.run.result

    @property
    def states(self) -> dict[str, str]:
        return {entry.name: str(entry.state) for entry in self.result.ledger}

    @property
    def orphans(self) -> list[str]:
        return sorted(orphan.name for orphan in self.result.orphans)

    def told(self, name: str) -> str:
        """What the conversation says of that call."""
        parts = [part for message in self.result.messages for part in message.parts]
        return next(part.content for part in parts if part.kind == "tool_result" and part.name == name)


async def reach(run: Run[World, str], world: World, *, ended: str | None) -> None:
    """Until the hostile place is reached; with `ended`, until that call has ended by itself."""
    await world.reached.wait()
    if ended is not None:
        async for event in run.events(nested=True):
            if isinstance(event, ToolCallEnded) and event.entry.name == ended:
                break
    for _ in range(20):  # let everything that can go on by itself do so
        await asyncio.sleep(0)


async def visit(agent: Agent[World], world: World, push: Push, *, ended: str | None = None) -> Left:
    began = world.loop.time()
    run = agent.start("go", deps=world)
    caller = Caller(run)
    await reach(run, world, ended=ended)
    pushed, free = world.loop.time(), caller.task.done()
    match push:
        case Push.NOW:
            run.cancel(reason="enough")
        case Push.FORCE:
            run.cancel(SafePoint.FORCE, reason="enough")
        case Push.CALLER:
            caller.task.cancel()
    await asyncio.wait({caller.task})
    return Left(world, agent, run, caller, free, pushed - began, world.loop.time() - pushed)


async def check_what_is_left(left: Left) -> None:
    """What must be true after every visit, whatever was visited."""
    result, world = left.result, left.world
    check_history(result.messages)
    assert result.stop_reason == "cancelled"
    check_one_terminal_event(left.run)
    assert left.run.why_not_stopped() == []
    assert list(left.run.tree.walk()) == []
    strangers = asyncio.all_tasks() - {asyncio.current_task(), *world.left}
    assert strangers == set(), "a task of ours is left"
    for orphan in result.orphans:
        told = orphan.name.removeprefix("undo of hostile") or "undo_that"
        assert not orphan.still_running or told in orphan.stack(), "nobody can tell where it is"
    facts = (result.ledger, list(result.messages), left.run.kept_events(nested=True))
    again = await left.agent.run("again", history=result.messages, deps=world)
    assert (again.stop_reason, again.text) == ("end_turn", "fine")
    await let_go(left)
    now = (left.run.result.ledger, left.run.result.messages, left.run.kept_events(nested=True))
    assert now == facts, "changed after its end"


def check_one_terminal_event(run: Run[Any, Any]) -> None:  # Any: runs of every agent
    events: Sequence[Event] = run.kept_events(nested=True)
    assert [event.run_id for event in events if isinstance(event, RunEnded)].count(run.id) == 1
    assert isinstance(events[-1], RunEnded)
    assert events[-1].run_id == run.id


async def let_go(left: Left) -> None:
    """End what the hostile thing left running, and see that each orphan notices."""
    left.world.let_go()
    for orphan in left.result.orphans:
        await _gone(orphan, left.world)
    for task in left.world.left:
        task.cancel()
    if left.world.left:
        await asyncio.wait(left.world.left)


async def _gone(orphan: Orphan, world: World) -> None:
    gone = asyncio.Event()
    orphan.when_late(lambda _: gone.set())
    if orphan.still_running:
        # A thread that was flagged long ago is none that the clock would wait for.
        thread = Clock(world.loop).outside(orphan.name) if orphan.thread is not None else None
        await gone.wait()
        if thread is not None:
            thread.done()


def victim(*tools: Any, **options: Any) -> Agent[World]:  # Any: tools of every signature; an agent's own options
    """An agent that calls the first of these tools after two that behave, and then, in the next run, says "fine"."""
    args = {"input": "go"} if isinstance(tools[0], AgentTool) else {}
    batch = [call("nap"), call("quick"), call(tools[0].name, args)]
    options.setdefault("model", ScriptedModel(batch, say("fine")))
    return Agent("victim", tools=[*tools, nap, quick], ladder=LADDER, **options)
