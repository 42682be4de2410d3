"""A run as a plain iterator, for programs without an event loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings

import pytest

from safepoint import Agent, Hooks, Run, tool
from safepoint.errors import CheckpointError, UsageError
from safepoint.events import RunEnded, RunStarted, TextStreamed
from safepoint.testing import ScriptedModel, call, say, stall

SOON = 20.0  # a ceiling, for a busy machine


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("stream of")]


def test_events_come_in_order_and_the_run_is_over_after_the_last() -> None:
    with Agent("a", model=ScriptedModel(say("hello"))).stream_sync("go") as events:
        told = list(events)
    assert [type(told[0]), type(told[-1])] == [RunStarted, RunEnded]
    assert "".join(event.text for event in told if isinstance(event, TextStreamed)) == "hello"
    assert events.run.result.text == "hello"
    assert list(events) == []
    assert threads() == []


def test_leaving_early_stops_the_run_and_waits_for_that() -> None:
    with Agent("a", model=ScriptedModel([say("Once"), stall()])).stream_sync("go") as events:
        for event in events:
            if isinstance(event, TextStreamed):
                break
    result = events.run.result
    assert (result.stop_reason, result.text) == ("cancelled", "Once")
    assert result.cancellation is not None
    assert result.cancellation.reason.source == "disconnect"
    assert threads() == []


def test_an_exception_in_the_block_stops_the_run_and_goes_on() -> None:
    events = Agent("a", model=ScriptedModel([say("Once"), stall()])).stream_sync("go")

    def read() -> None:
        with events:
            for _ in events:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read()
    assert events.run.result.stop_reason == "cancelled"


def test_the_run_goes_on_and_can_be_stopped_while_the_program_does_something_else() -> None:
    entered = threading.Event()

    @tool
    async def hang() -> None:
        """Hang."""
        entered.set()
        await asyncio.get_running_loop().create_future()

    with Agent("a", model=ScriptedModel(call("hang")), tools=[hang]).stream_sync("go") as events:
        assert isinstance(next(events), RunStarted)
        assert entered.wait(SOON), "nobody has asked for another event"
        assert events.run.cancel(reason="enough").wait_sync(SOON) == "stopped"
        *_, last = events
    assert isinstance(last, RunEnded)
    assert last.stop_reason == "cancelled"


def test_nested_events_come_on_request() -> None:
    def boss() -> Agent:
        helper = Agent("helper", model=ScriptedModel(say("found")))
        return Agent("boss", model=ScriptedModel(call("helper", input="look"), say("done")), tools=[helper.as_tool()])

    assert len([event for event in boss().stream_sync("go") if isinstance(event, RunEnded)]) == 1
    assert len([event for event in boss().stream_sync("go", nested=True) if isinstance(event, RunEnded)]) == 2


def test_a_failed_run_ends_the_stream_and_its_result_says_why() -> None:
    events = Agent("a", model=ScriptedModel()).stream_sync("go")
    *_, last = events
    assert isinstance(last, RunEnded)
    assert (last.stop_reason, events.run.result.stop_reason) == ("error", "error")


def test_a_stream_that_is_never_read_warns_and_never_starts() -> None:
    model = ScriptedModel()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Agent("a", model=model).stream_sync("go")
        gc.collect()
    assert ["was never read" in str(warning.message) for warning in caught] == [True]
    with Agent("a", model=model).stream_sync("go"):
        pass
    assert model.calls == 0


def test_a_stream_that_is_dropped_stops_its_run() -> None:
    stopped = threading.Event()

    class Told(Hooks):
        async def on_stopped(self, run: Run[None], result: object) -> None:
            stopped.set()

    events = Agent("a", model=ScriptedModel([say("Once"), stall()]), hooks=[Told()]).stream_sync("go")
    next(events)
    del events
    gc.collect()
    assert stopped.wait(SOON)


def test_what_starting_raises_is_raised_where_the_first_event_is_asked_for() -> None:
    agent = Agent("a", model=ScriptedModel(say("one")))
    run = agent.start("go")
    run.cancel()

    async def enter() -> None:
        async with run:
            pass

    asyncio.run(enter())
    checkpoint = run.result.checkpoint
    assert checkpoint is not None
    assert agent.resume_sync(checkpoint).text == "one"
    with pytest.raises(CheckpointError, match="was continued already"):
        agent.resume_sync(checkpoint)


def test_a_keyboard_interrupt_of_a_tool_reaches_the_program() -> None:
    @tool
    async def press() -> None:
        """Press."""
        raise KeyboardInterrupt

    events = Agent("a", model=ScriptedModel(call("press")), tools=[press]).stream_sync("go")
    with pytest.raises(KeyboardInterrupt):
        list(events)
    assert events.run.result.stop_reason == "cancelled"
    assert threads() == []


@pytest.mark.parametrize("form", ["stream_sync", "resume_sync", "run_sync"])
def test_inside_a_running_loop_it_is_refused_with_what_to_write(form: str) -> None:
    async def inside() -> None:
        getattr(Agent("a", model=ScriptedModel()), form)("go")

    with pytest.raises(UsageError, match=r"inside a running event loop .*: write `"):
        asyncio.run(inside())
