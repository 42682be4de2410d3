"""The seam for agents of other frameworks, with a framework of twenty lines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from safepoint import Budget, Freeze, Message, ModelSettings, SafePoint, Switch, Text
from safepoint.adapters import Promises, adapt, adapter_for
from safepoint.agent.foreign import ForeignAgent, ForeignOptions
from safepoint.agent.foreign_loop import Answered, ForeignLoop, Outcome
from safepoint.agent.foreign_tool import CallResult, tool_context
from safepoint.agent.result import StopReason
from safepoint.errors import RunFailed, UsageError
from safepoint.history import check_history
from safepoint.history.parts import ToolCall
from safepoint.testing import check_cancellable, pass_time
from safepoint.tools.options import ToolOptions
from tests.virtual import virtual

Tool = Callable[[], Awaitable[object]]


class Toy(ForeignAgent[Any, str]):
    """Says its replies one after the other and makes their calls side by side, in tasks of its own."""

    promises = Promises(framework="Toy", tested=("1", "2"))

    def __init__(self, *replies: Message | str, tools: Mapping[str, Tool] | None = None, **facts: ToolOptions) -> None:
        super().__init__(ForeignOptions(name="toy", tools=facts))
        self._replies = replies
        self._tools = tools or {}
        self.sent: list[Sequence[Message]] = []
        self.hangs = asyncio.Event()
        self.answered: dict[str, Answered] = {}

    async def carry_out(self, loop: ForeignLoop) -> Outcome:
        """Cancellation: ends it."""
        if loop.reply_to_replay is not None:
            await self._make(loop, loop.reply_to_replay)
        while True:
            await loop.begin_model("toy-1", self.answered)
            self.sent.append(loop.messages)
            reply = self._replies[min(len(self.sent), len(self._replies)) - 1]
            if isinstance(reply, str):
                loop.say(reply)
                if reply.endswith("…"):
                    self.hangs.set()
                    await asyncio.get_running_loop().create_future()
                await loop.end_model(Message("assistant", (Text(reply),)))
                return Outcome()
            await loop.end_model(reply)
            await self._make(loop, reply)

    async def _make(self, loop: ForeignLoop, reply: Message) -> None:
        await asyncio.gather(*(self._call(loop, call) for call in reply.tool_calls if call.name in self._tools))

    async def _call(self, loop: ForeignLoop, call: ToolCall) -> object:
        async def perform(_args: Mapping[str, Any]) -> object:
            return await self._tools[call.name]()

        return await loop.call_tool(call.id, call.name, call.args, perform)


def calls(*names: str) -> Message:
    return Message("assistant", tuple(ToolCall(f"call_{place}", name, {}) for place, name in enumerate(names)))


async def quick() -> str:
    return "quick result"


async def long() -> str:
    await pass_time(60)
    return "late"


def has(result: Any, state: str) -> list[str]:
    check_history(result.messages)
    return [entry.name for entry in result.ledger if entry.state == state]


@virtual
async def test_a_loop_to_its_end() -> None:
    toy = Toy(calls("quick", "quick"), "done", tools={"quick": quick})
    result = await toy.run("go")
    assert (result.text, has(result, "finished"), result.usage.model_calls) == ("done", ["quick", "quick"], 2)


@virtual
async def test_a_stream_is_cut_and_its_words_are_kept() -> None:
    toy = Toy("one moment…")
    async with toy.start("go") as run:
        await toy.hangs.wait()
        run.cancel()
    assert (run.result.stop_reason, run.result.text) == (StopReason.CANCELLED, "one moment…")


@virtual
async def test_a_call_that_the_framework_gives_up_is_cut_and_the_loop_goes_on() -> None:
    class Impatient(Toy):
        async def _call(self, loop: ForeignLoop, call: ToolCall) -> object:
            """Cancellation: that of its own time-out."""
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    return await super()._call(loop, call)
            return "too slow"

    result = await Impatient(calls("long"), "done", tools={"long": long}).run("go")
    assert (result.text, has(result, "cut")) == ("done", ["long"])
    assert "the framework cancelled the call" in str(result.messages[2].parts[0])


@virtual
async def test_a_call_that_the_framework_answers_itself_has_its_words() -> None:
    toy = Toy(calls("unknown", "left"), "done")
    toy.answered = {"call_0": Answered("no such tool", failed=True)}
    result = await toy.run("go")
    assert (has(result, "failed"), has(result, "not_started")) == (["unknown"], ["left"])
    assert "no such tool" in str(result.messages[2].parts[0])


@virtual
async def test_ids_of_calls_that_repeat_are_told_apart() -> None:
    toy = Toy(calls("quick"), calls("quick"), "done", tools={"quick": quick})
    result = await toy.run("go")
    assert has(result, "finished") == ["quick", "quick"]
    assert [entry.call_id for entry in result.ledger] == ["call_0", "call_0_"]


@virtual
async def test_two_agents_that_speak_in_turn_are_one_message() -> None:
    class Two(Toy):
        async def carry_out(self, loop: ForeignLoop) -> Outcome:
            """Cancellation: ends it."""
            await super().carry_out(loop)
            return await super().carry_out(loop)

    result = await Two("first ", "second").run("go")
    check_history(result.messages)
    assert result.text == "first second"


@virtual
async def test_a_task_of_the_framework_that_outlives_its_loop_is_awaited_or_listed() -> None:
    release = asyncio.Event()

    class Careless(Toy):
        async def carry_out(self, loop: ForeignLoop) -> Outcome:
            """Cancellation: ends it, and not what it has started."""
            self.left = asyncio.create_task(self._stay(loop))
            return await super().carry_out(loop)

        async def _stay(self, loop: ForeignLoop) -> None:
            """Cancellation: ignored."""
            loop.visit()
            while not release.is_set():
                with suppress(asyncio.CancelledError):
                    await release.wait()

    toy = Careless("one moment…")
    async with toy.start("go") as run:
        await toy.hangs.wait()
        run.cancel()
    assert [orphan.still_running for orphan in run.result.orphans] == [True]
    release.set()
    await toy.left


@virtual
async def test_a_loop_that_was_cancelled_from_outside_has_failed() -> None:
    class Cancelled(Toy):
        async def carry_out(self, loop: ForeignLoop) -> Outcome:
            """Cancellation: of its own."""
            raise asyncio.CancelledError

    with pytest.raises(RunFailed):
        await Cancelled("never").run("go")


@virtual
async def test_a_message_on_resume_takes_the_place_of_the_calls_that_are_left() -> None:
    begun: list[str] = []

    async def pay() -> str:
        begun.append("pay")
        return "paid"

    toy = Toy(calls("pay"), "done", tools={"pay": pay})
    async with toy.start("go") as run:
        run.cancel(SafePoint.AFTER_MODEL)
    assert run.result.checkpoint is not None
    again = await toy.resume(run.result.checkpoint, message="rather not")
    assert (again.text, begun, has(again, "not_started")) == ("done", [], ["pay"])
    assert "rather not" in str(toy.sent[-1])


@virtual
async def test_a_question_is_asked_again_on_resume_and_answered() -> None:
    async def ask() -> object:
        return await tool_context().interrupt("really?")

    toy = Toy(calls("ask"), "done", tools={"ask": ask})
    async with toy.start("go") as run:
        pass
    [question] = run.result.questions
    assert run.result.checkpoint is not None
    again = await toy.resume(run.result.checkpoint, answers={question.id: "yes"})
    assert (again.stop_reason, again.ledger[0].content) == (StopReason.END_TURN, "yes")


@virtual
async def test_a_stop_before_an_effect_lets_what_is_harmless_run() -> None:
    toy = Toy(calls("look", "pay"), "done", tools={"look": quick, "pay": quick}, look=ToolOptions.parse(effect="pure"))
    async with toy.start("go") as run:
        run.cancel(SafePoint.BEFORE_EFFECT)
    assert (has(run.result, "finished"), has(run.result, "not_started")) == (["look"], ["pay"])


@virtual
async def test_a_budget_of_steps_is_kept() -> None:
    toy = Toy(calls("quick"), tools={"quick": quick})
    result = await toy.run("go", budget=Budget(steps=3))
    assert (result.stop_reason, len(toy.sent)) == (StopReason.MAX_STEPS, 3)


@virtual
async def test_what_is_not_promised_is_refused_at_the_call() -> None:
    class Blind(Toy):
        promises = Promises(framework="Blind", tested=("1", "2"), safe_points=("after_tools",))

    toy = Blind("one moment…")
    async with toy.start("go") as run:
        with pytest.raises(
            UsageError, match=r"Blind has no place for SafePoint.AFTER_MODEL: write one of .*AFTER_TOOLS"
        ):
            run.cancel(SafePoint.AFTER_MODEL)
        with pytest.raises(UsageError, match="no place for"):
            toy.cancel(SafePoint.BEFORE_EFFECT)
        with pytest.raises(UsageError, match="takes no message in the middle of a run"):
            run.steer("and be brief")
        assert run.cancel(SafePoint.AFTER_MODEL | SafePoint.AFTER_TOOLS).accepted
        run.cancel()
    with pytest.raises(UsageError, match="chooses its settings"):
        toy.start("go", settings=ModelSettings())


def test_a_context_is_for_tools_only() -> None:
    with pytest.raises(UsageError, match="inside one, during a run"):
        tool_context()
    assert CallResult("cut", failed=True).failed


def test_an_object_of_no_framework_is_refused() -> None:
    assert adapter_for(object()) is None
    with pytest.raises(UsageError, match="object is no agent that can be adapted"):
        adapt(object())


def test_it_can_be_cancelled_at_every_await() -> None:
    async def scenario() -> None:
        toy = Toy(calls("quick", "long"), "done", tools={"quick": quick, "long": long})
        async with toy.start("go") as run:
            pass
        check_history(run.result.messages)

    report = check_cancellable(scenario)
    report.raise_for_failures()
    assert report.injections > 20


@virtual
@pytest.mark.parametrize("freeze", [Freeze("x"), Freeze("x", tool="quick"), Freeze("x", model="toy-1")])
async def test_what_is_frozen_does_not_begin_and_goes_on_after_the_thaw(freeze: Freeze) -> None:
    toy = Toy(calls("quick", "quick"), "done", tools={"quick": quick})
    switch = Switch(toy)
    switch.add(freeze)
    async with toy.start("go") as run:
        await pass_time(60)
        assert run.held_by is freeze
        assert has_begun(run) == []
        assert len(toy.sent) == (1 if freeze.tool else 0)
        switch.thaw()
    assert (run.result.text, has(run.result, "finished")) == ("done", ["quick", "quick"])
    assert run.held_by is None


@virtual
@pytest.mark.parametrize("freeze", [Freeze("x"), Freeze("x", tool="quick"), Freeze("x", model="toy-1")])
@pytest.mark.parametrize("at", [SafePoint.NOW, SafePoint.AFTER_TOOLS, SafePoint.FORCE])
async def test_a_loop_that_waits_for_a_thaw_stops_for_every_ask(freeze: Freeze, at: SafePoint) -> None:
    toy = Toy(calls("quick"), "done", tools={"quick": quick})
    switch = Switch(toy)
    switch.add(freeze)
    async with toy.start("go") as run:
        await pass_time(60)
        run.cancel(at)
    assert run.result.stop_reason is StopReason.CANCELLED
    assert has(run.result, "finished") == []


@virtual
async def test_a_call_of_the_framework_that_is_frozen_waits_while_the_others_are_made() -> None:
    toy = Toy(calls("quick", "long"), "done", tools={"quick": quick, "long": long})
    switch = Switch(toy)
    switch.add(Freeze("x", tool="quick"))
    async with toy.start("go") as run:
        await pass_time(90)
        assert [entry.name for entry in run.ledger if entry.state == "finished"] == ["long"]
        switch.thaw()
    assert has(run.result, "finished") == ["quick", "long"]


def has_begun(run: Any) -> list[str]:
    return [entry.name for entry in run.ledger if entry.state != "not_started"]
