"""Whatever a tool does, the run ends within its ladder, and what it leaves behind is true."""

from __future__ import annotations

import pytest

from safepoint.testing.clock import run_virtual
from tests.hostile.raising_tools import RAISING_TOOLS
from tests.hostile.returning_tools import RETURNING_TOOLS
from tests.hostile.row import Hostile
from tests.hostile.running_tools import RUNNING_TOOLS
from tests.hostile.shielding_tools import SHIELDING_TOOLS
from tests.hostile.task_tools import TASK_TOOLS
from tests.hostile.thread_tools import THREAD_TOOLS
from tests.hostile.visit import Push, World, check_what_is_left, victim, visit

TABLE = [*TASK_TOOLS, *RAISING_TOOLS, *RETURNING_TOOLS, *RUNNING_TOOLS, *SHIELDING_TOOLS, *THREAD_TOOLS]


@pytest.mark.parametrize("push", Push)
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_a_hostile_tool_holds_nobody_longer_than_its_ladder(row: Hostile, push: Push) -> None:
    async def scenario() -> None:
        world = World()
        left = await visit(victim(row.tool), world, push, ended=row.name if row.ends else None)
        fate = row.force if push is Push.FORCE and row.force is not None else row.now
        assert left.states == {row.name: fate.state, "nap": "cut", "quick": "finished"}
        assert left.orphans == list(fate.orphans)
        assert left.waited == 0
        assert left.seconds == pytest.approx(fate.seconds)
        assert left.free_before is row.stops
        assert left.caller.interrupted is row.interrupts
        cancelled = row.cancels_caller or (push is Push.CALLER and not row.stops and not row.interrupts)
        assert left.caller.task.cancelled() is cancelled
        if fate is row.now:
            assert row.says in left.told(row.name)
        await check_what_is_left(left)

    run_virtual(scenario)


def test_the_table_has_no_double_entries() -> None:
    assert len({row.name for row in TABLE}) == len(TABLE)
