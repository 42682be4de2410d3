"""`run.events()` tells of this run; `events(nested=True)` of the runs inside it as well."""

from __future__ import annotations

from safepoint import Agent, Sequential
from safepoint.events import Event, RunEnded, RunStarted, TextStreamed
from safepoint.testing import ScriptedModel, call, say
from tests.virtual import virtual

PATHS = {"boss", "boss/helper:call_1_1/helper"}


def boss(*, task: str = "look") -> Agent:
    helper = Agent("helper", model=ScriptedModel(say("found it", pieces=2)))
    return Agent("boss", model=ScriptedModel(call("helper", input=task), say("all done")), tools=[helper.as_tool()])


def runs_told(events: list[Event]) -> set[str]:
    return {event.path for event in events if isinstance(event, RunStarted | RunEnded)}


@virtual
async def test_a_loop_that_breaks_at_the_end_of_the_run_has_read_to_the_end_of_the_run() -> None:
    async with boss().start("go") as run:
        async for event in run.events():
            if isinstance(event, RunEnded):
                break
        assert run.ended
        assert run.result.text == "all done"


@virtual
async def test_events_are_those_of_the_run_and_nested_ones_have_their_paths() -> None:
    async with boss().start("go") as run:
        own, every = run.events(), run.events(nested=True)
        told, nested = [event async for event in own], [event async for event in every]
    assert {event.run_id for event in told} == {run.id}
    assert (runs_told(told), runs_told(nested)) == ({"boss"}, PATHS)
    assert told == [event for event in nested if event.run_id == run.id]
    assert [type(told[0]), type(told[-1]), type(nested[-1])] == [RunStarted, RunEnded, RunEnded]
    assert [event.seq for event in nested] == sorted({event.seq for event in nested})


@virtual
async def test_a_reader_that_comes_late_gets_the_same_choice() -> None:
    async with boss().start("go") as run:
        await run.wait()
    late, nested = [event async for event in run.events()], [event async for event in run.events(nested=True)]
    assert (runs_told(late), runs_told(nested)) == ({"boss"}, PATHS)
    assert (list(run.kept_events()), list(run.kept_events(nested=True))) == (late, nested)


@virtual
async def test_a_stream_is_of_the_run_too_unless_nested_events_are_asked_for() -> None:
    assert runs_told([event async for event in boss().stream("go")]) == {"boss"}
    assert runs_told([event async for event in boss().stream("go", nested=True)]) == PATHS


@virtual
async def test_a_composite_tells_its_own_events_and_those_of_its_children_if_nested() -> None:
    first, second = (Agent(name, model=ScriptedModel(say(name, pieces=1))) for name in ("first", "second"))
    async with Sequential("both", first).then(second).start("go") as run:
        own, every = run.events(), run.events(nested=True)
        told, nested = [event async for event in own], [event async for event in every]
        words = [piece async for piece in run.text()]
    assert runs_told(told) == {"both"}
    assert runs_told(nested) == {"both", "both/first", "both/second"}
    assert [event.text for event in nested if isinstance(event, TextStreamed)] == ["first", "second"]
    assert words == ["second"]


@virtual
async def test_words_of_a_sub_agent_under_way_are_no_backlog_of_the_run() -> None:
    async with boss().start("go") as run:
        told: list[Event] = []
        async for event in run.events(nested=True):
            if isinstance(event, TextStreamed) and event.run_id != run.id:
                told = [event async for event in run.events()]
                break
    assert {event.run_id for event in told} == {run.id}
