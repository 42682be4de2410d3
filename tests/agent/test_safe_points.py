"""When a request takes effect: the table of the contract, line by line, each line a run.

The agent has four tools: `look` (pure), `check` (idempotent), `send` (effectful) and `again` (pure). Its model asks for
the first three in one reply, for the fourth in the next, and then answers:

    reply 1: look, check, send        reply 2: again        reply 3: "done"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import pytest

from safepoint import Agent, Receipt, Run, RunResult, SafePoint
from safepoint.testing import ScriptedModel, call, say
from tests.agent.oracle import check_left_behind, states
from tests.agent.workshop import Gate, HeldModel
from tests.virtual import rounds, virtual

Moment: TypeAlias = Literal["before the start", "model call in flight", "tools in parallel", "tools one by one"]

NOW, FORCE, ANY = SafePoint.NOW, SafePoint.FORCE, SafePoint.ANY
AFTER_MODEL, AFTER_TOOL, AFTER_TOOLS = SafePoint.AFTER_MODEL, SafePoint.AFTER_TOOL, SafePoint.AFTER_TOOLS
BEFORE_EFFECT, NAMED = SafePoint.BEFORE_EFFECT, SafePoint.named("nowhere")

START: Moment = "before the start"
MODEL: Moment = "model call in flight"
TOGETHER: Moment = "tools in parallel"
ONE_BY_ONE: Moment = "tools one by one"  # max_parallel_tools=1: look is in flight, check and send are queued


@dataclass(frozen=True)
class Line:
    """Asked at this point, at this moment: where the run stops, after how many model calls, and what became of calls.

    `calls` has a letter per call, look, check, send and again: f finished, c cut, n not started, - never asked for.
    `place` is where it stopped; a run that was faster says `end_turn`.
    """

    at: SafePoint
    moment: Moment
    place: str
    models: int
    calls: str


TABLE = [
    # NOW: the connection is closed; running calls are cut, calls not yet started never start.
    Line(NOW, START, "now", 0, "----"),
    Line(NOW, MODEL, "now", 1, "----"),
    Line(NOW, TOGETHER, "now", 1, "ccc-"),
    Line(NOW, ONE_BY_ONE, "now", 1, "cnn-"),
    # FORCE absorbs NOW.
    Line(FORCE, START, "force", 0, "----"),
    Line(FORCE, MODEL, "force", 1, "----"),
    Line(FORCE, TOGETHER, "force", 1, "ccc-"),
    Line(FORCE, ONE_BY_ONE, "force", 1, "cnn-"),
    # AFTER_MODEL: the call completes, its tool calls are not started; if tools run, after the next model call.
    Line(AFTER_MODEL, START, "after_model", 1, "nnn-"),
    Line(AFTER_MODEL, MODEL, "after_model", 1, "nnn-"),
    Line(AFTER_MODEL, TOGETHER, "after_model", 2, "fffn"),
    Line(AFTER_MODEL, ONE_BY_ONE, "after_model", 2, "fffn"),
    # AFTER_TOOL: the first tool call to end is the point; calls in flight complete, queued ones never start.
    Line(AFTER_TOOL, START, "after_tool", 1, "fff-"),
    Line(AFTER_TOOL, MODEL, "after_tool", 1, "fff-"),
    Line(AFTER_TOOL, TOGETHER, "after_tool", 1, "fff-"),
    Line(AFTER_TOOL, ONE_BY_ONE, "after_tool", 1, "fnn-"),
    # AFTER_TOOLS: the whole batch completes; stop before the next model call.
    Line(AFTER_TOOLS, START, "after_tools", 1, "fff-"),
    Line(AFTER_TOOLS, MODEL, "after_tools", 1, "fff-"),
    Line(AFTER_TOOLS, TOGETHER, "after_tools", 1, "fff-"),
    Line(AFTER_TOOLS, ONE_BY_ONE, "after_tools", 1, "fff-"),
    # BEFORE_EFFECT: pure and idempotent calls run, the others are not started; with no effect to come, nothing stops.
    Line(BEFORE_EFFECT, START, "before_effect", 1, "ffn-"),
    Line(BEFORE_EFFECT, MODEL, "before_effect", 1, "ffn-"),
    Line(BEFORE_EFFECT, TOGETHER, "end_turn", 3, "ffff"),
    Line(BEFORE_EFFECT, ONE_BY_ONE, "before_effect", 1, "ffn-"),
    # ANY: whichever of all these comes first.
    Line(ANY, START, "after_model", 1, "nnn-"),
    Line(ANY, MODEL, "after_model", 1, "nnn-"),
    Line(ANY, TOGETHER, "after_tool", 1, "fff-"),
    Line(ANY, ONE_BY_ONE, "after_tool", 1, "fnn-"),
    # Joined points: whichever comes first.
    Line(AFTER_MODEL | AFTER_TOOLS, TOGETHER, "after_tools", 1, "fff-"),
    Line(AFTER_MODEL | AFTER_TOOLS, MODEL, "after_model", 1, "nnn-"),
    Line(BEFORE_EFFECT | AFTER_TOOLS, ONE_BY_ONE, "before_effect", 1, "ffn-"),
    Line(BEFORE_EFFECT | AFTER_TOOLS, TOGETHER, "after_tools", 1, "fff-"),
    # A point that no tool has: the run is faster.
    Line(NAMED, START, "end_turn", 3, "ffff"),
    Line(NAMED, TOGETHER, "end_turn", 3, "ffff"),
]

LETTERS = {"finished": "f", "cut": "c", "not_started": "n", "": "-"}


class Workshop:
    """The agent of the table."""

    def __init__(self, moment: Moment) -> None:
        self.tools = [Gate("look", "pure"), Gate("check", "idempotent"), Gate("send"), Gate("again", "pure")]
        self.model = HeldModel(
            [say("Working."), call("look"), call("check"), call("send")], call("again"), say("done"), hold=1
        )
        if moment != MODEL:
            self.model.gate.set()
        self.agent = Agent(
            "worker",
            model=self.model,
            tools=[gate.tool for gate in self.tools],
            max_parallel_tools=1 if moment == ONE_BY_ONE else None,
        )
        self.moment: Moment = moment

    async def reach(self) -> None:
        """Wait for the moment at which to ask."""
        if self.moment == MODEL:
            await self.model.reached.wait()
        for gate in {TOGETHER: self.tools[:3], ONE_BY_ONE: self.tools[:1]}.get(self.moment, []):
            await gate.started.wait()

    def let_go(self) -> None:
        self.model.gate.set()
        for gate in self.tools:
            gate.gate.set()

    def letters(self, run: Run[None]) -> str:
        told = states(run)
        return "".join(LETTERS[told.get(gate.name, "")] for gate in self.tools)


async def asked(workshop: Workshop, at: SafePoint) -> tuple[Run[None], Receipt]:
    """Run the agent, ask at its moment, let everything go on, and wait for the end."""
    run = workshop.agent.start("go")
    if workshop.moment == START:
        receipt = run.cancel(at, reason="lunch")
        workshop.let_go()
        async with run:
            await run.wait()
    else:
        async with run:
            await workshop.reach()
            receipt = run.cancel(at, reason="lunch")
            await rounds(3)
            workshop.let_go()
    return run, receipt


@virtual
@pytest.mark.parametrize("line", TABLE, ids=lambda line: f"{line.at!r} {line.moment}")
async def test_the_table(line: Line) -> None:
    workshop = Workshop(line.moment)
    run, receipt = await asked(workshop, line.at)
    result = run.result
    stopped = result.cancellation
    assert (stopped.place if stopped is not None else result.stop_reason) == line.place
    assert workshop.model.calls == line.models
    assert workshop.letters(run) == line.calls
    assert workshop.model.open_streams == 0
    assert receipt.accepted
    check_left_behind(run)
    check_receipt(result, receipt)
    for gate in workshop.tools:
        assert gate.runs == (states(run).get(gate.name) in ("finished", "cut"))


def check_receipt(result: RunResult[str], receipt: Receipt) -> None:
    cancelled = result.stop_reason == "cancelled"
    assert receipt.outcome == ("stopped" if cancelled else "finished_first")
    assert receipt.contributed is cancelled
    assert receipt.usage == result.usage
    if cancelled:
        assert result.cancellation is not None
        assert result.cancellation.reason.text == "lunch"
        assert not result.cancellation.escalated
        assert '"lunch"' in str(result.messages[-1].parts[-1])


@virtual
@pytest.mark.parametrize("at", [NOW, FORCE, AFTER_MODEL, AFTER_TOOL, AFTER_TOOLS, BEFORE_EFFECT, ANY, NAMED], ids=repr)
async def test_after_the_end_every_ask_finds_the_run_finished(at: SafePoint) -> None:
    workshop = Workshop(START)
    workshop.let_go()
    async with workshop.agent.start("go") as run:
        await run.wait()
    receipt = run.cancel(at)
    assert not receipt.accepted
    assert await receipt.wait() == "finished_first"
    assert run.result.stop_reason == "end_turn"
    check_left_behind(run)


@virtual
@pytest.mark.parametrize("at", [AFTER_MODEL, AFTER_TOOL, AFTER_TOOLS, BEFORE_EFFECT, ANY, NAMED], ids=repr)
async def test_a_final_answer_in_flight_is_not_held_up_by_a_safe_point_ask(at: SafePoint) -> None:
    model = HeldModel(say("The answer", pieces=3))
    async with Agent("a", model=model).start("go") as run:
        await model.reached.wait()
        receipt = run.cancel(at)
        model.gate.set()
    assert (run.result.stop_reason, run.result.text) == ("end_turn", "The answer")
    assert receipt.outcome == "finished_first"
    check_left_behind(run)


@virtual
async def test_a_safe_point_ask_becomes_now_at_its_deadline() -> None:
    workshop = Workshop(ONE_BY_ONE)
    async with workshop.agent.start("go") as run:
        await workshop.reach()
        receipt = run.cancel(AFTER_TOOLS, within=5)
        result = await run.wait()
        assert await receipt.wait() == "escalated"
    assert workshop.letters(run) == "cnn-"
    assert result.cancellation is not None
    assert (result.cancellation.escalated, result.cancellation.timed_out) == (True, True)
    assert result.cancellation.stopped_at - result.cancellation.asked_at == 5.0
    check_left_behind(run)


@virtual
async def test_a_deadline_also_bounds_calls_in_flight_after_the_safe_point_was_reached() -> None:
    look, send = Gate("look", "pure", open=True), Gate("send")
    agent = Agent("a", model=ScriptedModel([call("look"), call("send")]), tools=[look.tool, send.tool])
    run = agent.start("go")
    receipt = run.cancel(AFTER_TOOL, within=5)
    async with run:
        assert await receipt.wait() == "escalated"
    assert states(run) == {"look": "finished", "send": "cut"}
    assert run.result.cancellation is not None
    assert (run.result.cancellation.place, run.result.cancellation.timed_out) == ("after_tool", True)
    check_left_behind(run)


@virtual
async def test_now_after_a_safe_point_ask_escalates_it_but_not_by_the_deadline() -> None:
    workshop = Workshop(TOGETHER)
    async with workshop.agent.start("go") as run:
        await workshop.reach()
        safe = run.cancel(AFTER_TOOLS, within=100)
        hard = run.cancel(reason="now, please")
    assert (safe.outcome, safe.contributed) == ("stopped", False)
    assert (hard.outcome, hard.contributed) == ("stopped", True)
    assert run.result.cancellation is not None
    assert (run.result.cancellation.escalated, run.result.cancellation.timed_out) == (True, False)
    assert len(run.result.cancellation.reasons) == 2
    check_left_behind(run)


@virtual
async def test_the_receipt_tells_which_calls_were_touched_and_which_are_still_queued() -> None:
    workshop = Workshop(ONE_BY_ONE)
    run, receipt = await asked(workshop, NOW)
    assert [(each.path, each.name, each.state) for each in receipt.touched] == [
        ("worker/look:call_1_1", "look", "cut"),
        ("worker/check:call_1_2", "check", "not_started"),
        ("worker/send:call_1_3", "send", "not_started"),
    ]
    assert receipt.queued == ("check", "send")
    assert (receipt.orphans, receipt.usage) == ((), run.result.usage)
    assert receipt.stopped_at == run.kept_events()[-1].time


@virtual
async def test_an_ask_that_was_taken_back_stops_nothing() -> None:
    workshop = Workshop(ONE_BY_ONE)
    async with workshop.agent.start("go") as run:
        await workshop.reach()
        receipt = run.cancel(AFTER_TOOL)
        await rounds(3)
        assert receipt.withdraw()
        assert await receipt.wait() == "withdrawn"
        workshop.let_go()
    assert run.result.stop_reason == "end_turn"
    assert workshop.letters(run) == "ffff"
    check_left_behind(run)
