"""What a run tells and asks while its caller waits: progress, and questions to a person."""

from __future__ import annotations

import asyncio

import pytest
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult

from safepoint import AskFirst, Hooks, Run, ToolCall, ToolContext, tool
from safepoint.testing import ScriptedModel, call, say
from tests.protocols.mcp.frames import connected
from tests.protocols.mcp.world import MODES, Mode, World, agent, sign, structured, text_of
from tests.virtual import virtual


def clerk() -> World:
    return World({"clerk": agent("clerk", ScriptedModel(call("sign", text="the lease"), say("Done.")), sign)})


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_steps_and_what_a_tool_tells_are_progress(mode: Mode) -> None:
    @tool
    async def climb(ctx: ToolContext[None]) -> str:
        """Climb."""
        ctx.tell("half way")
        await asyncio.sleep(0)
        return "up"

    told: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message))

    world = World({"climber": agent("climber", ScriptedModel(call("climb"), say("Here.")), climb)})
    async with world.client(mode) as client:
        await client.call_tool("climber", {"task": "up"}, progress_callback=hear)
    assert [number for number, _ in told] == sorted({number for number, _ in told})
    assert {"step 1: calls climb", "climb: half way"} <= {message for _, message in told}


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_a_client_with_elicitation_is_asked_and_the_run_goes_on_with_its_answer(mode: Mode) -> None:
    asked: list[str] = []

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"answer": "yes"})

    world = clerk()
    async with world.client(mode, elicitation_callback=answer) as client:
        result = await client.call_tool("clerk", {"task": "sign"})
    assert asked == ["Sign the lease?"]
    assert text_of(result) == "Done."
    *_, last = world.manager.runs.values()
    assert "they said yes" in str(last.run.result.messages)


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_a_question_that_a_person_leaves_open_is_in_the_result(mode: Mode) -> None:
    async def dismiss(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="cancel")

    world = clerk()
    async with world.client(mode, elicitation_callback=dismiss) as client:
        result = await client.call_tool("clerk", {"task": "sign"})
    assert structured(result)["stopReason"] == "interrupted"
    assert not result.is_error


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_a_client_without_elicitation_reads_the_question_and_calls_again_with_answers(mode: Mode) -> None:
    world = clerk()
    async with world.client(mode) as client:
        paused = await client.call_tool("clerk", {"task": "sign"})
        (question,) = structured(paused)["questions"]
        session = structured(paused)["session"]
        wrong = await client.call_tool("clerk", {"session": session, "answers": {"other": "yes"}})
        result = await client.call_tool("clerk", {"session": session, "answers": {question["id"]: "yes"}})
    assert question["payload"] == {"question": "Sign the lease?"}
    assert question["id"] in text_of(paused)
    assert wrong.is_error
    assert text_of(result) == "Done."


@virtual
async def test_a_person_who_declines_to_allow_a_call_has_denied_it() -> None:
    class Careful(Hooks):
        def before_tool(self, run: Run[object, object], call: ToolCall) -> AskFirst | None:
            return AskFirst("Allow it?")

    ran: list[str] = []

    @tool
    async def wipe() -> str:
        """Wipe."""
        ran.append("wipe")
        return "wiped"

    async def decline(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="decline")

    model = ScriptedModel(call("wipe"), say("I left it."))
    world = World({"clerk": agent("clerk", model, wipe, hooks=[Careful()])})
    async with world.client("legacy", elicitation_callback=decline) as client:
        result = await client.call_tool("clerk", {"task": "wipe"})
    assert (text_of(result), ran) == ("I left it.", [])


@virtual
async def test_a_request_that_is_cancelled_while_a_person_thinks_clears_the_pause() -> None:
    shown = asyncio.Event()

    async def think(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        shown.set()
        await asyncio.Event().wait()
        raise AssertionError

    world = clerk()
    async with world.client("legacy", elicitation_callback=think) as client:
        asking = asyncio.create_task(client.call_tool("clerk", {"task": "sign"}))
        await shown.wait()
        asking.cancel()
        await asyncio.wait([asking])
    record = await world.manager.storage.runs.get(next(iter(world.manager.runs)))
    assert record is not None
    assert record.outcome == "cancelled"
    assert record.ended


@virtual
async def test_the_state_of_a_foreign_run_is_not_found() -> None:
    world = clerk()
    async with connected(world.server, "auto") as frames:
        await frames.request(1, "tools/call", name="clerk", arguments={"task": "x"}, requestState="run_nowhere")
        answer = await frames.answer(1)
    assert answer["result"]["isError"]
    assert "Run not found" in answer["result"]["content"][0]["text"]
