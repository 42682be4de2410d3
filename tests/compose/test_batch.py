"""One agent over many inputs: answers in their order, one budget, one stop, and what has finished is kept."""

from __future__ import annotations

import asyncio

import pytest

from safepoint import Agent, Budget, CancelToken, SafePoint, run_many, tool
from safepoint.models import Finish, TextDelta
from safepoint.testing import RuleModel, ScriptedModel, call, fail, raw, say
from tests.virtual import virtual

HUNDRED = raw(TextDelta("ok"), Finish("end_turn", input_tokens=90, output_tokens=10))


def _echo() -> Agent:
    return Agent("echo", model=RuleModel({f"input {n}": say(f"answer {n}") for n in range(30)}, otherwise=say("?")))


@virtual
async def test_answers_come_in_the_order_of_the_inputs_and_progress_counts_each() -> None:
    seen: list[tuple[int, int]] = []
    batch = await run_many(
        _echo(),
        [f"input {n}" for n in range(30)],
        concurrency=4,
        on_progress=lambda done, all: seen.append((done, all)),
    )
    assert batch.outputs == [f"answer {n}" for n in range(30)]
    assert batch.unfinished == []
    assert batch.stop_reason == "end_turn"
    assert seen == [(done, 30) for done in range(1, 31)]


@virtual
async def test_no_more_than_so_many_run_at_a_time() -> None:
    running, most = 0, 0

    @tool(effect="pure")
    async def work() -> str:
        """Work."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return "done"

    agent = Agent("worker", model=RuleModel({"go": call("work")}, otherwise=say("done")), tools=[work])
    batch = await run_many(agent, ["go"] * 12, concurrency=3)
    assert batch.outputs == ["done"] * 12
    assert most == 3


@virtual
async def test_one_budget_stops_all_and_a_checkpoint_pays_for_nothing_twice() -> None:
    model = ScriptedModel(HUNDRED, repeat=True)
    agent = Agent("paid", model=model)
    inputs = [str(n) for n in range(40)]
    stopped = await run_many(agent, inputs, concurrency=5, budget=Budget(tokens=1_500))
    assert stopped.stop_reason == "budget"
    assert 0 < len(stopped.unfinished) < 40
    assert stopped.usage.input_tokens + stopped.usage.output_tokens <= 1_500 + 5 * 100
    done = [place for place in range(40) if place not in stopped.unfinished]
    before = model.calls
    batch = await run_many(agent, inputs, concurrency=5, checkpoint=stopped.checkpoint)
    assert batch.outputs == ["ok"] * 40
    assert model.calls - before <= 40 - len(done)


@virtual
async def test_a_failure_is_told_in_its_place_and_stops_no_other() -> None:
    model = RuleModel({"bad": fail(RuntimeError("no")), "good": say("fine")}, otherwise=say("?"))
    batch = await run_many(Agent("mixed", model=model), ["good", "bad", "good"], concurrency=1)
    assert batch.outputs == ["fine", None, "fine"]
    assert batch.unfinished == [1]
    failed = batch.results[1]
    assert failed is not None
    assert failed.stop_reason == "error"
    assert batch.stop_reason == "error"


@virtual
async def test_a_token_stops_the_batch_and_what_never_began_is_none() -> None:
    token = CancelToken()

    def stop_after_two(done: int, total: int) -> None:
        if done == 2:
            token.cancel(SafePoint.ANY)

    batch = await run_many(
        _echo(), [f"input {n}" for n in range(10)], concurrency=1, token=token, on_progress=stop_after_two
    )
    assert batch.stop_reason == "cancelled"
    assert batch.cancellation is not None
    assert batch.outputs[:2] == ["answer 0", "answer 1"]
    assert batch.results[-1] is None


@virtual
async def test_no_inputs_are_no_run_and_bad_options_are_refused() -> None:
    assert (await run_many(_echo(), [])).results == ()
    with pytest.raises(ValueError, match="concurrency=0"):
        await run_many(_echo(), ["input 1"], concurrency=0)


@virtual
async def test_the_error_of_a_progress_function_stops_the_batch_and_is_raised() -> None:
    def broken(done: int, total: int) -> None:
        raise KeyError("progress")

    with pytest.raises(KeyError, match="progress"):
        await run_many(_echo(), [f"input {n}" for n in range(10)], concurrency=1, on_progress=broken)
