"""A loop whose task, or whose program, simply ends saves like a stop, whichever of its tasks hears of that first."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from safepoint import Agent, SafePoint, TurnLoop
from safepoint.agent.event_hub import EventReader
from safepoint.testing import ScriptedModel, say, stall
from safepoint.turns import MemoryTurnStore, Turn
from tests.machines.stepping import SteppingLoop
from tests.turns.parts import stored_places, tables_of

KEY: dict[str, Any] = {"checkpoint_id": "loop"}


class Peeked(MemoryTurnStore):
    def peek(self) -> tuple[list[str], list[str], list[str]]:
        table = tables_of(self).get("loop")
        return stored_places(None if table is None else table.read())


async def watch(turn: Turn[str], events: EventReader) -> None:
    async for _ in events:
        pass


def ended_in_round(number: int, seed: int, *, watched: bool) -> tuple[TurnLoop[str], Peeked]:
    """The program ends that many rounds after its item was pushed: all tasks are cancelled, in an order of the seed."""
    event_loop, store = SteppingLoop(), Peeked()
    agent = Agent("desk", model=ScriptedModel([say("Once upon a time "), stall()], repeat=True))
    loop = TurnLoop(agent, store=store, on_events=watch if watched else None, **KEY)
    event_loop.call_soon(loop.start)
    event_loop.round()
    event_loop.call_soon(loop.push, "item")
    for _ in range(number):
        event_loop.round()
    tasks = sorted(asyncio.all_tasks(event_loop), key=lambda task: task.get_name())
    random.Random(seed).shuffle(tasks)
    for task in tasks:
        task.cancel()
    event_loop.advance(30)
    assert not asyncio.all_tasks(event_loop)
    event_loop.dismiss()
    return loop, store


@pytest.mark.parametrize("watched", [False, True], ids=["unwatched", "watched"])
def test_a_program_that_ends_in_any_round_and_any_order_keeps_its_item(watched: bool) -> None:
    reasons: dict[str, int] = {}
    for number in range(1, 40):
        for seed in range(12):
            loop, store = ended_in_round(number, seed, watched=watched)
            exit = loop.wait_sync()
            kept = [*exit.interrupted, *exit.unhandled]
            assert kept == ["item"], f"round {number}, seed {seed}: {exit}"
            assert exit.reason == "cancelled", f"round {number}, seed {seed}: {exit}"
            if exit.checkpoint == "saved":
                assert store.peek() == (exit.interrupted, exit.unhandled, []), f"round {number}, seed {seed}"
                place = "interrupted" if exit.interrupted else "unhandled"
                reasons[place] = reasons.get(place, 0) + 1
    assert set(reasons) == {"interrupted", "unhandled"}  # it was met in the middle of its turn, and before that


def test_a_run_whose_own_task_is_cancelled_is_interrupted_and_ends_the_loop() -> None:
    reached = asyncio.Event()

    async def main() -> None:
        agent = Agent("desk", model=ScriptedModel(stall(on_reached=reached.set)))
        loop = TurnLoop(agent, store=MemoryTurnStore(), **KEY)
        loop.start()
        loop.push("item")
        await reached.wait()
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "safepoint:desk"]
        task.cancel()
        exit = await loop.wait()
        assert (exit.reason, exit.interrupted, exit.checkpoint.state) == ("cancelled", ["item"], "saved")

    asyncio.run(main())


def test_a_run_that_its_user_cancels_ends_its_turn_and_the_loop_goes_on() -> None:
    async def main() -> None:
        reached = asyncio.Event()
        agent = Agent("desk", model=ScriptedModel(stall(on_reached=reached.set), say("next")))
        async with TurnLoop(agent) as loop:
            first = loop.push("item")
            await reached.wait()
            seen = loop.view.turn
            assert seen is not None
            assert seen.run is not None
            seen.run.cancel(SafePoint.NOW)
            result = await first.result()
            assert not isinstance(result, str)
            assert result.stop_reason == "cancelled"
            assert not isinstance(await loop.push("second").result(), str)

    asyncio.run(main())
