"""One budget for a shutdown: `shutdown_seconds` bound the whole drain, whatever the tools of live runs declare."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, TypeAlias

import pytest

from safepoint import Agent, Ladder, Tool, ToolContext, tool
from safepoint.server.config import ServerConfig
from safepoint.serving.apps import Catalog
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import LOCAL
from safepoint.serving.run_manager import RunManager
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.run_records import RunState
from safepoint.testing import ScriptedModel, call, say
from tests.server.server_process import submission
from tests.virtual import now, passes, virtual

AnyTool: TypeAlias = Tool[Any, Any]  # Any: of every type
BUDGET = 5.0


@tool
async def naps() -> None:
    """Ends as soon as it is cancelled."""
    await asyncio.sleep(600)


@tool(on_cancel="finish", grace=30, ladder=Ladder(cap=60))
async def finishes() -> None:
    """Wants half a minute to finish."""
    await asyncio.sleep(600)


@tool
async def shields(ctx: ToolContext) -> None:
    """Is in a critical section."""
    async with ctx.shield(30):
        await asyncio.sleep(29)


@tool
async def ignores() -> None:
    """Stops for nothing."""
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)


@tool
async def ends_at_three() -> None:
    """Ends by itself within the budget."""
    await asyncio.sleep(3)


async def drained(*tools: AnyTool) -> tuple[float, bool, dict[str, RunState], list[str]]:
    """How long it took, whether all was recorded, the states of the records, and what each run had in its ledger."""
    storage = MemoryStorage()
    agents = {
        each.name: Agent(
            each.name, model=ScriptedModel(call(each.name), say("done")), tools=[each], ladder=Ladder(cap=60)
        )
        for each in tools
    }
    manager = RunManager(Catalog.of(agents), storage, ServerConfig(shutdown_seconds=BUDGET))
    runs: list[ManagedRun] = []
    for name in agents:
        key = SessionKey(name, "ann", "s")
        await manager.create(key, None)
        run = await manager.submit(LOCAL, key, submission("s", "go"))
        assert isinstance(run, ManagedRun)
        runs.append(run)
    await passes(1)
    begun = now()
    recorded = await manager.shut_down()
    took = now() - begun
    states = {record.session.partition("/")[0]: record.state for record in await storage.runs.find()}
    return took, recorded, states, [str(entry.state) for run in runs for entry in run.run.result.ledger]


@virtual
@pytest.mark.parametrize("tools", [[finishes], [shields], [ignores], [naps, finishes, shields, ignores]])
async def test_a_shutdown_takes_no_longer_than_its_budget(
    tools: list[AnyTool], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    took, recorded, states, _ = await drained(*tools)
    assert took <= BUDGET
    assert recorded
    assert set(states.values()) == {RunState.SUSPENDED}
    for each in tools:
        wants = any("may take" in line and each.name in line for line in caplog.messages)
        forced = any("forced at the end" in line and each.name in line for line in caplog.messages)
        if each.name in ("finishes", "shields"):
            assert forced, caplog.messages
        assert not (each.name == "naps" and (forced or wants)), caplog.messages


@virtual
async def test_what_ends_by_itself_within_the_budget_is_not_cut() -> None:
    took, recorded, _, ledger = await drained(ends_at_three)
    assert (recorded, ledger) == (True, ["finished"])
    assert 1.9 < took <= 3


@virtual
async def test_a_run_that_needs_long_to_stop_is_told_so_and_asked_earlier(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    await drained(naps, finishes)
    wanting = [line for line in caplog.messages if "its stop" in line]
    assert len(wanting) == 1
    assert "gets 4.0 s" in wanting[0]
