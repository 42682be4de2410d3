"""What a run tells while it goes: complete, in order, once, and without ever waiting for who listens."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing

import pytest

from safepoint import Agent, Hooks, Ladder, Run, tool
from safepoint.agent.event_hub import MAX_BUFFERED_CHARS, EventReader
from safepoint.agent.events import (
    CancelRequested,
    Event,
    Lagged,
    ModelCallEnded,
    ReasoningStreamed,
    RunEnded,
    RungReached,
    RunStarted,
    TextStreamed,
    ToolCallEnded,
    ToolCallStarted,
)
from safepoint.errors import UsageError
from safepoint.testing import ScriptedModel, call, say, stall, think
from safepoint.testing.clock import EPOCH
from tests.agent.oracle import check_left_behind
from tests.agent.workshop import Gate, HeldModel
from tests.core.piece import stubborn
from tests.virtual import passes, rounds, virtual


@tool(effect="pure")
async def double(x: int) -> int:
    """Double a number."""
    return 2 * x


def named(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


async def all_of(run: Run[None]) -> list[Event]:
    return [event async for event in run.events()]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextStreamed))


# -- what is told ------------------------------------------------------------------------------------------------------


@virtual
async def test_a_run_tells_everything_from_its_start_to_its_one_end() -> None:
    model = ScriptedModel([think("hm"), say("One moment."), call("double", x=4)], say("Eight.", pieces=2))
    async with Agent("a", model=model, tools=[double]).start("go") as run:
        events = await all_of(run)
    assert named(events) == [
        "RunStarted",
        "ModelCallStarted",
        "ReasoningStreamed",
        "TextStreamed",
        "ModelCallEnded",
        "ToolCallStarted",
        "ToolCallEnded",
        "ModelCallStarted",
        "TextStreamed",
        "TextStreamed",
        "ModelCallEnded",
        "RunEnded",
    ]
    assert {event.run_id for event in events} == {run.id}
    paths = {event.path for event in events if not isinstance(event, ToolCallStarted | ToolCallEnded)}
    assert paths == {"a"}
    assert {event.path for event in events} - paths == {"a/double:call_1_1"}, "what is about a call has the call's path"
    assert [event.seq for event in events] == list(range(1, 13))
    assert {event.time for event in events} == {EPOCH}
    check_left_behind(run)


@virtual
async def test_each_event_has_what_it_is_about() -> None:
    model = ScriptedModel(call("double", x=4), say("Eight."), name="m-1")
    async with Agent("a", model=model, tools=[double]).start("go") as run:
        events = await all_of(run)
    by_name = {type(event): event for event in reversed(events)}
    started = by_name[RunStarted]
    assert isinstance(started, RunStarted)
    assert started.agent == "a"
    calls = [event for event in events if isinstance(event, ModelCallEnded)]
    assert [(event.step, event.complete, event.error) for event in calls] == [(1, True, None), (2, True, None)]
    assert [event.message for event in calls] == [run.result.messages[1], run.result.messages[3]]
    tool_started, tool_ended = by_name[ToolCallStarted], by_name[ToolCallEnded]
    assert isinstance(tool_started, ToolCallStarted)
    assert isinstance(tool_ended, ToolCallEnded)
    assert tool_started.call == run.result.messages[1].tool_calls[0]
    assert tool_ended.entry == run.result.ledger[0]
    end = events[-1]
    assert isinstance(end, RunEnded)
    assert (end.stop_reason, end.usage, end.cancellation, end.error) == ("end_turn", run.result.usage, None, None)


@virtual
async def test_every_ask_is_told_with_its_reason_before_what_it_brings_about() -> None:
    gate = Gate("gate")
    async with Agent("a", model=ScriptedModel(call("gate")), tools=[gate.tool]).start("go") as run:
        await gate.started.wait()
        receipt = run.cancel(reason="lunch")
        again = run.cancel(reason="now!")
    told = [event for event in run.kept_events() if isinstance(event, CancelRequested)]
    assert [event.ask for event in told] == [receipt.asked, again.asked]
    names = named(list(run.kept_events()))
    assert names[names.index("CancelRequested") :] == [
        "CancelRequested",
        "CancelRequested",
        "RungReached",
        "ToolCallEnded",
        "RunEnded",
    ]
    end = run.kept_events()[-1]
    assert isinstance(end, RunEnded)
    assert end.cancellation == run.result.cancellation
    check_left_behind(run)


@virtual
async def test_two_calls_of_one_tool_are_told_apart_by_their_paths() -> None:
    gate = Gate("gate")
    model = ScriptedModel([call("gate"), call("gate"), call("gate")])
    async with Agent("a", model=model, tools=[gate.tool], max_parallel_tools=2).start("go") as run:
        await rounds(20)
        run.cancel()
    paths = ["a/gate:call_1_1", "a/gate:call_1_2", "a/gate:call_1_3"]
    kept = run.kept_events()
    assert [event.path for event in kept if isinstance(event, ToolCallStarted)] == paths[:2]
    assert [event.path for event in kept if isinstance(event, RungReached)] == paths[:2]
    assert sorted(event.path for event in kept if isinstance(event, ToolCallEnded)) == paths


@virtual
async def test_what_never_started_ends_without_a_start() -> None:
    gate = Gate("gate")
    model = ScriptedModel([call("gate"), call("double", x=1)])
    agent = Agent("a", model=model, tools=[gate.tool, double], max_parallel_tools=1)
    async with agent.start("go") as run:
        await gate.started.wait()
        run.cancel()
    started = [event.call.name for event in run.kept_events() if isinstance(event, ToolCallStarted)]
    ended = [(event.entry.name, event.entry.state) for event in run.kept_events() if isinstance(event, ToolCallEnded)]
    assert started == ["gate"]
    assert ended == [("gate", "cut"), ("double", "not_started")]


@virtual
async def test_nothing_is_told_after_the_terminal_event_also_by_a_sub_agent_that_was_abandoned() -> None:
    async def hold() -> object:
        started.set()
        return await stubborn(8)()

    started = asyncio.Event()
    inner = Agent("inner", model=ScriptedModel(call("hold")), tools=[tool(grace=5, name="hold")(hold)])
    outer = Agent(
        "outer", model=ScriptedModel(call("inner", input="go")), tools=[inner.as_tool()], ladder=Ladder(cap=2)
    )
    async with outer.start("go") as run:
        reader = run.events()
        await started.wait()
        run.cancel()
    assert [orphan.name for orphan in run.result.orphans] == ["inner"]
    told = run.kept_events()
    await passes(20)
    assert run.kept_events() == told
    assert isinstance(told[-1], RunEnded)
    read = [event async for event in reader]
    assert [event for event in read if not isinstance(event, TextStreamed)] == list(told)


# -- readers -----------------------------------------------------------------------------------------------------------


@virtual
async def test_a_run_goes_on_and_a_cancel_completes_if_nobody_reads() -> None:
    model = ScriptedModel([say("words " * 100, pieces=100), stall()])
    async with Agent("a", model=model).start("go") as run:
        unread = run.events()
        await rounds(200)
        assert await run.cancel().wait() == "stopped"
    assert len([event async for event in unread]) == len(run.kept_events()) + 1, "all text melted into one piece"


@virtual
async def test_every_reader_sees_everything() -> None:
    model = ScriptedModel(say("Hello there", pieces=3))
    async with Agent("a", model=model).start("go") as run:
        first, second = await asyncio.gather(all_of(run), all_of(run))
    assert named(first) == named(second)
    assert text_of(first) == text_of(second) == "Hello there"


@virtual
async def test_a_reader_before_the_start_sees_everything_too() -> None:
    run = Agent("a", model=ScriptedModel(say("Hello"))).start("go")
    reader = run.events()
    async with run:
        assert named([event async for event in reader])[0] == "RunStarted"


@virtual
async def test_who_waits_for_events_before_the_start_is_told_when_it_comes() -> None:
    run = Agent("a", model=ScriptedModel(say("Hello"))).start("go")
    first = asyncio.ensure_future(anext(run.events()))
    await rounds(3)
    async with run:
        assert type(await first).__name__ == "RunStarted"


def test_a_live_run_is_read_on_its_own_loop_and_one_that_has_ended_anywhere() -> None:
    agent = Agent("a", model=ScriptedModel([say("Hello"), stall()]))
    refused: list[str] = []

    async def read(reader: EventReader, run: Run[None]) -> None:
        for another in (run.events(), run.text()):
            with pytest.raises(UsageError) as caught:
                await anext(another)
            refused.append(str(caught.value))
        with pytest.raises(UsageError) as caught:
            await anext(reader)
        refused.append(str(caught.value))

    async def main() -> Run[None]:
        run = agent.start("go")
        before = run.events()
        async with run:
            assert await anext(run.text()) == "Hello"
            await asyncio.to_thread(lambda: asyncio.run(read(before, run)))
            assert await run.cancel().wait() == "stopped", "nobody who reads can hold the run"
            assert named([event async for event in before])[-1] == "RunEnded", "and its own readers have lost nothing"
        return run

    run = asyncio.run(main())
    assert len(refused) == 3
    assert {text.split(":")[0] for text in refused} == {"a lives on another event loop"}
    assert named(asyncio.run(all_of(run)))[-1] == "RunEnded"


@virtual
async def test_a_reader_that_a_collector_drops_while_another_comes_takes_nobody_along() -> None:
    model = HeldModel(say("Once upon a time", pieces=4))
    async with Agent("a", model=model).start("go") as run:
        await model.reached.wait()
        gone, stays = run.events(), run.events()
        before = run.hub._readers  # pyright: ignore[reportPrivateUsage]  # what a collector may come between
        del gone
        assert run.hub._readers is before, "a reader that is being added goes where everybody looks"  # pyright: ignore[reportPrivateUsage]  # as above
        model.gate.set()
        assert named([event async for event in stays])[-1] == "RunEnded"


@virtual
async def test_a_late_reader_gets_what_happened_then_the_words_so_far_then_the_rest() -> None:
    model = HeldModel(say("Once upon a time", pieces=4))
    async with Agent("a", model=model).start("go") as run:
        await model.reached.wait()
        late = run.events()
        model.gate.set()
        events = [event async for event in late]
    assert named(events)[:3] == ["RunStarted", "ModelCallStarted", "TextStreamed"]
    assert text_of(events) == "Once upon a time"
    assert [event.seq for event in events] == sorted({event.seq for event in events})


@virtual
async def test_a_reader_after_the_end_gets_all_but_the_pieces_of_text() -> None:
    async with Agent("a", model=ScriptedModel(say("Hello"))).start("go") as run:
        pass
    assert named(await all_of(run)) == ["RunStarted", "ModelCallStarted", "ModelCallEnded", "RunEnded"]


@virtual
async def test_breaking_out_only_detaches_that_reader() -> None:
    model = HeldModel(say("Hello", pieces=5))
    async with Agent("a", model=model).start("go") as run:
        other = run.events()
        async for event in run.events():
            if isinstance(event, TextStreamed):
                break
        gc.collect()
        model.gate.set()
        assert text_of([event async for event in other]) == "Hello"
    assert run.result.text == "Hello"


@virtual
async def test_a_reader_that_is_closed_ends_and_one_that_is_cancelled_loses_nothing() -> None:
    model = HeldModel(say("Hello", pieces=5))
    async with Agent("a", model=model).start("go") as run:
        reader, closed = run.events(), run.events()
        await model.reached.wait()
        seen = [await anext(reader) for _ in range(3)]
        waiting = asyncio.ensure_future(anext(reader))
        await rounds(2)
        waiting.cancel()
        await asyncio.wait({waiting})
        await closed.aclose()
        model.gate.set()
        seen += [event async for event in reader]
    assert text_of(seen) == "Hello"
    assert len(named([event async for event in closed])) <= 3, "only what it had when it was closed"


@virtual
async def test_pieces_that_were_not_fetched_melt_into_one_per_run_and_kind() -> None:
    model = ScriptedModel([think("a"), think("b"), say("cd", pieces=2), call("double", x=1)], say("ef", pieces=2))
    async with Agent("a", model=model, tools=[double]).start("go") as run:
        reader = run.events()
        await run.wait()
        events = [event async for event in reader]
    words = [event.text for event in events if isinstance(event, TextStreamed | ReasoningStreamed)]
    assert words == ["ab", "cd", "ef"]


# -- a slow reader -----------------------------------------------------------------------------------------------------

HALF = "x" * (MAX_BUFFERED_CHARS // 2)


@virtual
async def test_a_buffer_takes_text_up_to_its_limit_and_not_a_character_more() -> None:
    model = ScriptedModel([say(HALF), say(HALF)], say("never"))
    async with Agent("a", model=model).start("go") as run:
        exact = run.events()
        await run.wait()
        events = [event async for event in exact]
    assert "Lagged" not in named(events)
    assert len(text_of(events)) == MAX_BUFFERED_CHARS


@virtual
async def test_a_gap_shows_where_it_is_and_nothing_but_text_is_ever_lost() -> None:
    model = ScriptedModel([say(HALF), say(HALF), say("lost"), say("lost too"), call("double", x=1)], say("found"))
    async with Agent("a", model=model, tools=[double]).start("go") as run:
        slow = run.events()
        await run.wait()
        events = [event async for event in slow]
    assert named(events)[2:5] == ["TextStreamed", "Lagged", "ModelCallEnded"]
    gap = events[3]
    assert isinstance(gap, Lagged)
    assert gap.missed == 2
    assert (gap.run_id, gap.path) == (run.id, "a")
    assert [event for event in events if not isinstance(event, TextStreamed | Lagged)] == list(run.kept_events())


@virtual
async def test_text_after_a_gap_does_not_pose_as_what_comes_before_it() -> None:
    model = HeldModel([say("start "), say(HALF + HALF), say("end")])
    async with Agent("a", model=model).start("go") as run:
        slow = run.events()
        await model.reached.wait()
        model.gate.set()
        await run.wait()
        events = [event async for event in slow]
    assert text_of(events) == "start ", "a gap lasts until the reader has caught up"
    (gap,) = (event for event in events if isinstance(event, Lagged))
    assert gap.missed == 2


@virtual
async def test_a_reader_that_has_caught_up_gets_text_again() -> None:
    model = HeldModel([say(HALF + HALF), say("lost"), say("found")], hold=1)
    async with Agent("a", model=model).start("go") as run:
        slow = run.events()
        await model.reached.wait()
        seen = [await anext(slow) for _ in range(3)]
        model.gate.set()
        seen += [event async for event in slow]
    assert text_of(seen).endswith("lostfound"), "the buffer was empty again"
    assert "Lagged" not in named(seen)


# -- text() ------------------------------------------------------------------------------------------------------------


@virtual
async def test_the_words_of_the_answer_come_as_they_are_said() -> None:
    model = ScriptedModel([say("One moment. "), call("double", x=4)], say("It is eight.", pieces=4))
    async with Agent("a", model=model, tools=[double]).start("go") as run:
        pieces = [piece async for piece in run.text()]
    assert len(pieces) == 5
    assert "".join(pieces) == "One moment. It is eight."


@virtual
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("said", "heard"), [("ab\ud83d\ude00cd", "ab\U0001f600cd"), ("a\ud83d", "a\ufffd"), ("\ude00b", "\ufffdb")]
)
async def test_words_can_be_printed_also_if_a_character_comes_in_two_halves(said: str, heard: str, late: bool) -> None:
    model = HeldModel([think(said[:2]), think(said[2:]), say(said, pieces=len(said)), stall()])
    async with Agent("a", model=model).start("go") as run:
        if late:
            await model.reached.wait()
        reading = asyncio.ensure_future(all_of(run))
        words = run.text()
        if not late:
            await model.reached.wait()
        model.gate.set()
        await passes(1)
        run.cancel()
        pieces = [piece async for piece in words]
    assert "".join(pieces) == heard == run.result.text
    for event in await reading:
        if isinstance(event, TextStreamed | ReasoningStreamed):
            event.text.encode()
    for piece in pieces:
        piece.encode()


@virtual
async def test_who_leaves_the_words_early_only_leaves() -> None:
    async with Agent("a", model=ScriptedModel(say("Once upon a time", pieces=4))).start("go") as run:
        async with aclosing(run.text()) as words:
            assert await anext(words) == "Once"
        assert [piece async for piece in words] == []
    assert run.result.text == "Once upon a time"


@virtual
async def test_the_words_are_this_runs_alone() -> None:
    inner = Agent("inner", model=ScriptedModel(say("secret")))
    model = ScriptedModel(call("inner", input="go"), say("public"))
    async with Agent("outer", model=model, tools=[inner.as_tool()]).start("go") as run:
        assert "".join([piece async for piece in run.text()]) == "public"


@virtual
async def test_who_reads_the_words_late_or_slowly_gets_all_of_them() -> None:
    words = "a" * MAX_BUFFERED_CHARS
    model = HeldModel([say("start "), say(words), say("end")])
    async with Agent("a", model=model).start("go") as run:
        slow = run.text()
        await model.reached.wait()
        late = run.text()
        model.gate.set()
        await run.wait()
        whole = "start " + words + "end"
        assert "".join([piece async for piece in slow]) == whole
        assert "".join([piece async for piece in late]) == whole
    assert "".join([piece async for piece in run.text()]) == whole
    assert run.result.text == whole


@virtual
async def test_the_words_of_a_cut_answer_end_where_it_was_cut() -> None:
    model = ScriptedModel([say("Once upon a time"), stall()])
    async with Agent("a", model=model).start("go") as run:
        pieces: list[str] = []
        async for piece in run.text():
            pieces.append(piece)
            run.cancel()
    assert pieces == ["Once upon a time"]
    assert run.result.text == "Once upon a time"
    check_left_behind(run)


# -- stream() ----------------------------------------------------------------------------------------------------------


def storyteller(model: ScriptedModel | None = None) -> Agent[None]:
    return Agent("a", model=model or ScriptedModel([say("Once"), stall()], repeat=True))


@virtual
async def test_a_stream_is_the_run_as_an_iterator() -> None:
    model = ScriptedModel(say("Hello", pieces=2))
    stream = storyteller(model).stream("go")
    assert model.calls == 0, "it starts with the first event asked for"
    events = [event async for event in stream]
    assert named(events) == [
        "RunStarted",
        "ModelCallStarted",
        "TextStreamed",
        "TextStreamed",
        "ModelCallEnded",
        "RunEnded",
    ]
    assert stream.run.result.text == "Hello"
    await stream.aclose()
    check_left_behind(stream.run)


@virtual
async def test_closing_a_stream_stops_its_run_and_waits_for_that() -> None:
    async with storyteller().stream("go") as stream:
        async for event in stream:
            if isinstance(event, TextStreamed):
                break
    assert stream.run.result.stop_reason == "cancelled"
    assert stream.run.result.cancellation is not None
    assert stream.run.result.cancellation.reason.text == "its stream was closed"
    assert stream.run.result.cancellation.reason.source == "disconnect"
    check_left_behind(stream.run)


@virtual
async def test_a_stream_that_is_simply_dropped_stops_its_run() -> None:
    async def first_words() -> Run[None]:
        stream = storyteller().stream("go")
        async for event in stream:
            if isinstance(event, TextStreamed):
                break
        return stream.run

    run = await first_words()
    gc.collect()
    assert (await run.wait()).stop_reason == "cancelled"
    await rounds(3)
    check_left_behind(run)


@virtual
@pytest.mark.parametrize("leave", ["close", "drop", "cancel"])
async def test_a_detached_stream_lets_its_run_go_on(leave: str) -> None:
    model = HeldModel(say("Hello there", pieces=4))
    runs: list[Run[None]] = []

    async def read() -> None:
        stream = storyteller(model).stream("go", on_close="detach")
        runs.append(stream.run)
        async for event in stream:
            if isinstance(event, TextStreamed) and leave != "cancel":
                break
        if leave == "close":
            await stream.aclose()

    reading = asyncio.create_task(read())
    await model.reached.wait()
    await rounds(5)
    reading.cancel()
    await asyncio.wait({reading})
    gc.collect()
    (run,) = runs
    assert not run.ended
    model.gate.set()
    assert (await run.wait()).text == "Hello there"
    await rounds(3)


@virtual
async def test_a_cancelled_reader_of_a_stream_stops_the_run_before_its_exception_goes_on() -> None:
    stream = storyteller().stream("go")

    async def read() -> None:
        async for _ in stream:
            pass

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3):
            await read()
    assert stream.run.result.stop_reason == "cancelled"
    check_left_behind(stream.run)


@virtual
async def test_closing_a_stream_that_was_never_read_starts_nothing() -> None:
    model = ScriptedModel(say("Hello"))
    stream = storyteller(model).stream("go")
    await stream.aclose()
    assert [event async for event in stream] == []
    assert model.calls == 0
    del stream
    gc.collect()


@virtual
async def test_a_stream_that_nobody_reads_says_so() -> None:
    with pytest.warns(RuntimeWarning, match=r"^agent.stream\(…\) of '.*' was never read: write `async for event in"):
        storyteller(ScriptedModel(say("Hello"))).stream("go")


@virtual
async def test_leaving_a_stream_waits_for_a_run_that_has_ended_and_still_tells_its_hooks() -> None:
    told: list[str] = []

    class Slow(Hooks):
        async def on_stopped(self, run: object, result: object) -> None:
            await passes(0.5)
            told.append("stopped")

    model = ScriptedModel([say("one"), stall()])
    async with Agent("one", model=model, hooks=[Slow()]).stream("go") as events:
        async for event in events:
            if isinstance(event, TextStreamed):
                await events.run.cancel().wait()
                break
        assert events.run.ended
        assert told == []
    assert told == ["stopped"]
