"""A call of a tool is a run of an agent: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import pytest
from mcp import MCPError
from mcp_types import INVALID_PARAMS, RequestParamsMeta

from safepoint import Budget, tool
from safepoint.agent.result import StopReason
from safepoint.models import Finish, TextDelta
from safepoint.protocols.mcp.results import IS_ERROR, JOINED
from safepoint.serving.principal import Principal
from safepoint.testing import ScriptedModel, call, fail, raw, say
from tests.protocols.mcp.world import MODES, Mode, Nap, World, agent, structured, text_of
from tests.virtual import virtual


def if_busy(policy: str) -> RequestParamsMeta:
    return cast(RequestParamsMeta, {"safepoint/ifBusy": policy})


@dataclass
class City:
    name: str
    people: int


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_each_app_is_a_tool_with_the_description_of_its_module(mode: Mode) -> None:
    world = World({"poet": agent("poet", ScriptedModel(say("a verse")))}, description="Writes verses.")
    async with world.client(mode) as client:
        (listed,) = (await client.list_tools()).tools
    assert (listed.name, listed.description) == ("poet", "Writes verses.")
    assert set(listed.input_schema["properties"]) == {"task", "session", "answers"}


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_the_answer_is_text_and_structured_content_and_its_session_goes_on(mode: Mode) -> None:
    model = ScriptedModel(say("one"), say("two"))
    world = World({"poet": agent("poet", model)})
    async with world.client(mode) as client:
        first = await client.call_tool("poet", {"task": "begin"})
        session = structured(first)["session"]
        second = await client.call_tool("poet", {"task": "go on", "session": session})
    assert (text_of(first), text_of(second)) == ("one", "two")
    assert structured(second)["session"] == session
    assert structured(second)["stopReason"] == "end_turn"
    assert [message.text for message in model.requests[1].messages] == ["begin", "one", "go on"]


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_a_typed_output_is_structured_and_fits_the_schema_that_the_client_was_given(mode: Mode) -> None:
    # The SDK's client itself checks the result against the schema that the server has listed.
    answers = call("final_answer", name="Bern", people=146_000)
    world = World({"atlas": agent("atlas", ScriptedModel(answers), output=City)})
    async with world.client(mode) as client:
        (listed,) = (await client.list_tools()).tools
        result = await client.call_tool("atlas", {"task": "capital?"})
    assert listed.output_schema is not None
    assert listed.output_schema["properties"]["output"]["properties"].keys() == {"name", "people"}
    assert structured(result)["output"] == {"name": "Bern", "people": 146_000}


@virtual
async def test_two_clients_at_once_have_runs_of_their_own() -> None:
    world = World({"poet": agent("poet", ScriptedModel(say("one"), say("two")))})
    async with world.client("legacy") as old, world.client("auto") as new:
        first, second = await old.call_tool("poet", {"task": "a"}), await new.call_tool("poet", {"task": "b"})
    assert {text_of(first), text_of(second)} == {"one", "two"}
    assert structured(first)["session"] != structured(second)["session"]


@virtual
async def test_a_session_of_another_user_is_not_found_in_the_same_words_as_one_that_never_was() -> None:
    poet = agent("poet", ScriptedModel(say("mine")))
    ann = World({"poet": poet}, who=Principal("ann's key", user="ann"))
    bob = World({}, who=Principal("bob's key", user="bob"), manager=ann.manager)
    async with ann.client() as client:
        session = structured(await client.call_tool("poet", {"task": "hi"}))["session"]
    async with bob.client() as client:
        foreign = await client.call_tool("poet", {"task": "hi", "session": session})
        unknown = await client.call_tool("poet", {"task": "hi", "session": "never-was"})
    assert foreign.is_error
    assert unknown.is_error
    assert text_of(foreign) == text_of(unknown) == "Session not found. Leave `session` out to begin a new one."
    assert len(ann.manager.runs) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "write a task"),
        ({"task": "   "}, "at least one word"),
        ({"task": 7}, "task: "),
        ({"task": "a", "answers": {"b": 1}}, "one of them"),
        ({"answers": {"b": 1}}, "write the session that asked"),
        ({"answers": {}, "session": "s"}, "an answer for each id"),
        ({"task": "a", "session": "../x"}, "write 1 to 128 letters"),
        ({"task": "a", "more": 1}, "more: "),
    ],
)
@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_bad_arguments_are_told_as_a_tool_error_and_nothing_is_begun_or_stored(
    mode: Mode, arguments: dict[str, object], told: str
) -> None:
    world = World({"poet": agent("poet", ScriptedModel())})
    async with world.client(mode) as client:
        result = await client.call_tool("poet", arguments)
    assert result.is_error
    assert told in text_of(result)
    assert not world.manager.runs
    assert not await world.manager.storage.sessions.states("")


@virtual
async def test_an_unknown_tool_is_an_error_of_the_protocol() -> None:
    world = World({"poet": agent("poet", ScriptedModel())})
    async with world.client() as client:
        with pytest.raises(MCPError) as raised:
            await client.call_tool("painter", {"task": "a"})
    assert raised.value.error.code == INVALID_PARAMS


@virtual
async def test_a_run_that_fails_is_a_tool_error_that_names_the_cause() -> None:
    world = World({"poet": agent("poet", ScriptedModel(fail(RuntimeError("no ink"))))})
    async with world.client() as client:
        result = await client.call_tool("poet", {"task": "a"})
    assert result.is_error
    assert "no ink" in text_of(result)
    assert structured(result)["stopReason"] == "error"


@tool
async def look() -> str:
    """Look."""
    return "nothing"


@pytest.mark.parametrize(
    ("stop_reason", "model", "budget", "is_error"),
    [
        ("end_turn", lambda: ScriptedModel(say("half")), None, False),
        ("max_tokens", lambda: ScriptedModel(raw(TextDelta("half"), Finish("max_tokens"))), None, False),
        ("refused", lambda: ScriptedModel(raw(TextDelta("half"), Finish("refused"))), None, False),
        ("max_steps", lambda: ScriptedModel([say("half"), call("look")], call("look")), Budget(steps=1), True),
        ("budget", lambda: ScriptedModel([say("half"), call("look")], call("look")), Budget(tokens=1), True),
        ("error", lambda: ScriptedModel([say("half"), fail(RuntimeError("no ink"))]), None, True),
    ],
)
@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_how_a_run_ended_is_told_with_the_words_so_far(
    mode: Mode, stop_reason: str, model: Callable[[], ScriptedModel], budget: Budget | None, is_error: bool
) -> None:
    world = World({"poet": agent("poet", model(), look, budget=budget)})
    async with world.client(mode) as client:
        result = await client.call_tool("poet", {"task": "a"})
    assert structured(result)["stopReason"] == stop_reason
    assert result.is_error is is_error
    assert text_of(result).startswith("half")
    assert (text_of(result) == "half") is (stop_reason == "end_turn")


def test_every_stop_reason_has_its_cell_in_the_table() -> None:
    assert set(IS_ERROR) == {*map(str, StopReason), JOINED}


@virtual
async def test_a_busy_session_is_refused_unless_the_client_says_otherwise() -> None:
    nap = Nap()
    model = ScriptedModel(say("hello"), call("nap"), say("after all"))
    world = World({"poet": agent("poet", model, nap.tool())})
    async with world.client() as client:
        session = structured(await client.call_tool("poet", {"task": "hi"}))["session"]
        napping = asyncio.create_task(client.call_tool("poet", {"task": "nap", "session": session}))
        await nap.began.wait()
        refused = await client.call_tool("poet", {"task": "x", "session": session})
        wrong = await client.call_tool("poet", {"task": "x", "session": session}, meta=if_busy("fight"))
        instead = await client.call_tool("poet", {"task": "x", "session": session}, meta=if_busy("interrupt"))
        stopped = await napping
    assert refused.is_error
    assert "is live" in text_of(refused)
    assert wrong.is_error
    assert "write one of reject" in text_of(wrong)
    assert text_of(instead) == "after all"
    assert stopped.is_error
    assert structured(stopped)["stopReason"] == "cancelled"
    assert stopped.meta is not None
    assert stopped.meta["safepoint/receipt"]["calls"][0]["state"] == "cut"
