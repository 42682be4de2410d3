"""A receipt tells everything that came of a stop: what was said in vain, what came late, what it has cost."""

from __future__ import annotations

import asyncio
import threading

from safepoint import Agent, SafePoint, Usage, tool
from safepoint.serving.cancel_answers import receipt_json
from safepoint.testing import ScriptedModel, call, say, stall
from tests.agent.workshop import Gate
from tests.virtual import passes, virtual


@virtual
async def test_messages_that_no_model_call_has_seen_are_on_the_receipt() -> None:
    gate = Gate("gate")
    async with Agent("a", model=ScriptedModel(call("gate"), say("done")), tools=[gate.tool]).start("go") as run:
        await gate.started.wait()
        run.steer("hurry")
        assert run.steer("never mind").withdraw()
        receipt = run.cancel(SafePoint.AFTER_TOOLS)
        gate.gate.set()
        assert await receipt.wait() == "stopped"
    assert receipt.unheard == ("hurry",)
    assert receipt.cut_usage is None
    assert receipt_json(receipt, is_over=True)["unheard"] == ["hurry"]


@virtual
async def test_the_cost_of_a_cut_model_call_and_of_going_on_is_on_the_receipt() -> None:
    async with Agent("a", model=ScriptedModel([say("Once upon a time"), stall()])).start("Tell me a story.") as run:
        await passes(1)
        receipt = run.cancel()
        assert await receipt.wait() == "stopped"
    cut, going_on = receipt.cut_usage, receipt.next_usage
    assert isinstance(cut, Usage)
    assert isinstance(going_on, Usage)
    assert (cut, cut.estimated, cut.model_calls) == (receipt.usage, True, 1)
    assert (going_on.estimated, going_on.model_calls, going_on.output_tokens) == (True, 1, 0)
    assert 0 < going_on.input_tokens <= cut.input_tokens
    found = receipt_json(receipt, is_over=True)
    assert found["cutUsage"] == found["usage"]
    assert "nextUsage" in found


@virtual
async def test_a_run_that_ended_by_itself_has_nothing_to_go_on_with() -> None:
    async with Agent("a", model=ScriptedModel(say("done"))).start("go") as run:
        receipt = run.cancel(SafePoint.AFTER_TOOLS)
    assert await receipt.wait() == "finished_first"
    assert (receipt.next_usage, receipt.cut_usage, receipt.unheard, receipt.late) == (None, None, (), ())


def test_what_returned_after_it_was_abandoned_is_late() -> None:
    started, release = threading.Event(), threading.Event()

    @tool
    def wait() -> str:
        """Wait, deaf."""
        started.set()
        release.wait(10)
        return "late"

    async def main() -> None:
        async with Agent("a", model=ScriptedModel(call("wait"), say("done")), tools=[wait]).start("go") as run:
            await asyncio.to_thread(started.wait, 5)
            receipt = run.cancel()
            await receipt.wait(5)
            assert not receipt.late
            release.set()
            (orphan,) = receipt.orphans
            assert orphan.thread is not None
            await asyncio.to_thread(orphan.thread.join, 5)
            for _ in range(5):
                await asyncio.sleep(0)
            assert [each.result for each in receipt.late] == ["late"]

    asyncio.run(main())
