"""The phases of a served run: those that are drawn, and no others."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise, product

import pytest

from safepoint import Agent
from safepoint.serving import managed_run
from safepoint.serving.events import Turn
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun, Phase
from safepoint.storage.run_records import RunState
from safepoint.testing import ScriptedModel

AT_ONCE = (Phase.NEW, Phase.WAITING, Phase.ADMITTED, Phase.RUNNING, Phase.RECORDED)
AFTER_A_WAIT = (Phase.NEW, Phase.QUEUED, Phase.STARTING, Phase.RUNNING, Phase.RECORDED)
DRAWN = {
    *pairwise(AT_ONCE),
    *pairwise(AFTER_A_WAIT),
    (Phase.ADMITTED, Phase.RECORDED),
    (Phase.STARTING, Phase.RECORDED),
    *((phase, Phase.OWED) for phase in (Phase.QUEUED, Phase.STARTING, Phase.RUNNING, Phase.RECORDED)),
    (Phase.OWED, Phase.RECORDED),
}


def managed(phase: Phase = Phase.NEW) -> ManagedRun:
    async def make() -> ManagedRun:
        run = Agent("worker", model=ScriptedModel()).start("go")
        made = ManagedRun(SessionKey("worker", "ann", "s"), run, "go", Turn(run.id, "worker"))
        run.discard()
        return made

    made = asyncio.run(make())
    made.phase = phase
    return made


@pytest.mark.parametrize(("before", "after"), list(product(Phase, Phase)))
def test_a_move_that_is_not_drawn_raises_and_changes_nothing(before: Phase, after: Phase) -> None:
    run = managed(before)
    if (before, after) in DRAWN:
        run.move(after)
        assert run.phase is after
    else:
        with pytest.raises(RuntimeError, match=f"cannot go from {before.value} to {after.value}"):
            run.move(after)
        assert run.phase is before


def test_every_phase_is_in_the_drawing() -> None:
    drawing = managed_run.__doc__ or ""
    assert set(re.findall(r"\b[A-Z]{3,}\b", drawing)) >= {phase.name for phase in Phase}


@pytest.mark.parametrize("phase", Phase)
def test_only_what_waits_for_its_turn_is_queued(phase: Phase) -> None:
    waits = phase in (Phase.WAITING, Phase.QUEUED)
    assert managed(phase).state is (RunState.QUEUED if waits else RunState.LIVE)


def test_a_queued_message_has_a_record_that_becomes_live_at_its_turn() -> None:
    run = managed()
    assert (run.is_accepted, run.record_state) == (False, None)
    run.queue()
    assert (run.is_accepted, run.record_state) == (True, RunState.QUEUED)
