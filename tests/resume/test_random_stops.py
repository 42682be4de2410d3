"""Stop, continue, stop, continue, at a random place and in a random way each time, until the work is done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from safepoint import Agent, Checkpoint, Run, RunResult, check_history
from safepoint.history.json_codec import encode_message
from safepoint.history.states import LedgerState
from safepoint.testing import run_virtual
from tests.resume.test_table import KINDS, ask, blank, parts_of, whole
from tests.resume.world import PLACES, SHAPES, World, build

Stops = list[tuple[str, str]]

CUTS = ("now", "force", "caller", "deadline")


async def attempt(agent: Agent, data: bytes | None, world: World, kind: str) -> RunResult[str]:
    """Start the run, or continue it from bytes, with one stop planned."""
    started: list[Run[Any, Any]] = []

    async def owner() -> None:
        handle = agent.start("go") if data is None else agent.start(checkpoint=Checkpoint.from_bytes(data))
        async with handle as run:
            started.append(run)

    task = asyncio.ensure_future(owner())
    loop = asyncio.get_running_loop()
    world.stop = lambda: loop.call_soon_threadsafe(ask, started[0], task, kind)
    await asyncio.wait((task,))
    if not task.cancelled():
        task.result()
    return started[0].result


def work_through(shape: str, stops: Stops) -> tuple[RunResult[str], list[int], set[int]]:
    """The last result, all effects, and the effects whose outcome was unknown at some stop."""
    effects: list[int] = []
    unknown: set[int] = set()

    async def main() -> RunResult[str]:
        data: bytes | None = None
        for place, kind in [*stops, ("nowhere", "now")]:
            world = World(place, cuts=kind in CUTS, effects=effects)
            result = await attempt(build(shape, world), data, world, kind)
            check_history(result.messages)
            if result.checkpoint is None:
                return result
            unknown.update(_unknown(result.checkpoint))
            data = result.checkpoint.to_bytes()
        raise AssertionError("the last attempt has no stop and must end")

    return run_virtual(main), effects, unknown


def _unknown(checkpoint: Checkpoint) -> set[int]:
    found = {entry.args["x"] for entry in checkpoint.ledger if entry.name == "act" and entry.state is LedgerState.CUT}
    for call in checkpoint.calls.values():
        if call.child is not None:
            found |= _unknown(call.child)
    return found


def check(shape: str, stops: Stops) -> None:
    result, effects, unknown = work_through(shape, stops)
    assert result.stop_reason == "end_turn"
    assert len(effects) == len(set(effects)), f"an effect happened twice: {effects}"
    assert set(effects) | unknown == {1, 2, 3}
    messages = [encode_message(message) for message in result.messages]
    cut = {
        part["call_id"]
        for message in messages
        for part in message["parts"]
        if part["kind"] == "tool_result" and part["state"] == "cut"
    }
    expected = parts_of([encode_message(message) for message in whole(shape)])
    assert parts_of(messages) == blank(expected, cut)


some_stops = st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(KINDS)), max_size=6)
# The virtual clock stands still while a thread works, so threads are left to the table.
some_shape = st.sampled_from([shape for shape in SHAPES if shape != "thread"])


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(shape=some_shape, stops=some_stops)
def test_any_series_of_stops_ends_as_if_there_had_been_none(shape: str, stops: Stops) -> None:
    check(shape, stops)


@pytest.mark.proof
@settings(max_examples=5_000, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(shape=some_shape, stops=some_stops)
def test_thousands_of_series_of_stops_end_as_if_there_had_been_none(shape: str, stops: Stops) -> None:
    check(shape, stops)
