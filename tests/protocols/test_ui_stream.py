"""A chat through the UI message stream, from the message to `[DONE]`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from safepoint import Agent, AskFirst, Hooks, Run, ToolCall, tool
from safepoint._core.reasons import Reason, Source
from safepoint.server.config import Limits, ServerConfig
from safepoint.testing import ScriptedModel, call, say, stall
from tests.protocols.front_end import Exchange, FrontEnd, Json, front_end
from tests.protocols.mcp.world import Nap, sign
from tests.virtual import virtual

# The types of the schema of `ai` 7, as far as they are sent; and ours.
TYPES = {
    *("start", "start-step", "finish-step", "finish", "abort", "error", "file", "steering-message", "data-safepoint"),
    *("text-start", "text-delta", "text-end", "reasoning-start", "reasoning-delta", "reasoning-end"),
    *("tool-input-start", "tool-input-available", "tool-output-available", "tool-output-error"),
    "tool-approval-request",
}


def user(*texts: str) -> Json:
    return {"id": "m", "role": "user", "parts": [{"type": "text", "text": text} for text in texts]}


def assistant(*parts: Json) -> Json:
    return {"id": "a", "role": "assistant", "parts": [{"type": "step-start"}, *parts]}


def given(*messages: Json | str, chat: str = "c1", **more: Any) -> Json:  # Any: JSON
    listed = [user(each) if isinstance(each, str) else each for each in messages]
    return {"id": chat, "messages": listed, "trigger": "submit-message", **more}


def clerk(*script: Any, tools: Any = (), **options: Any) -> dict[str, Agent[Any, Any]]:  # Any: what a test scripts
    return {"clerk": Agent("clerk", model=ScriptedModel(*script), tools=tools, **options)}


def checked(exchange: Exchange) -> list[Json]:
    """The chunks of a whole stream, without the last mark: known types, all paired, one end."""
    assert exchange.status == 200, exchange.text
    assert exchange.headers["x-vercel-ai-ui-message-stream"] == "v1"
    *chunks, done = exchange.frames
    assert done == "[DONE]"
    types = [chunk["type"] for chunk in chunks]
    assert set(types) <= TYPES
    assert types[0] == "start"
    assert types[-1] in ("finish", "error")
    assert sum(type in ("finish", "error") for type in types) == 1
    for kind in ("text", "reasoning"):
        assert types.count(f"{kind}-start") == types.count(f"{kind}-end")
    assert types.count("start-step") == types.count("finish-step")
    return chunks


def text_in(chunks: list[Json]) -> str:
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta")


async def ran(world: FrontEnd, body: Json, query: str = "") -> list[Json]:
    return checked(await world.ask(f"/ui/clerk/chat{query}", body))


@virtual
async def test_a_chat_is_answered_and_goes_on_with_what_is_new() -> None:
    async with front_end(clerk(say("one"), say("two"), say("three"))) as world:
        first = await ran(world, given("a"))
        second = await ran(world, given("a", assistant({"type": "text", "text": "one"}), "b"))
        third = await ran(world, {"id": "c1", "message": user("c")})
    assert [text_in(each) for each in (first, second, third)] == ["one", "two", "three"]
    assert first[-1] == {"type": "finish", "finishReason": "stop"}


@pytest.mark.parametrize(
    "messages", [["x", assistant(), "b"], [assistant(), "b"], ["a", assistant()], ["a", "b", assistant(), "c"], []]
)
@virtual
async def test_messages_that_contradict_the_session_are_refused_and_start_nothing(messages: list[Any]) -> None:
    async with front_end(clerk(say("one"), say("two"))) as world:
        await ran(world, given("a"))
        assert (await world.ask("/ui/clerk/chat", given(*messages))).status == 409
        assert len(world.manager.runs) == 1


@virtual
async def test_a_stop_closes_every_part_and_tells_the_receipt_before_the_abort() -> None:
    nap = Nap()
    async with front_end(clerk([say("Wait. "), call("nap")], tools=[nap.tool()])) as world:
        stream = world.open("/ui/clerk/chat?resume=1", given("sleep"))
        await nap.began.wait()
        stopped = await world.ask("/ui/clerk/chat/c1/stop", {"reason": "lunch"})
        chunks = checked(await stream.over())
        run = world.run
    assert stopped.json["status"] == "cancelled"
    assert [chunk["type"] for chunk in chunks[-5:]] == [
        "tool-output-error",
        "finish-step",
        "data-safepoint",
        "abort",
        "finish",
    ]
    assert chunks[-3]["data"]["reason"] == {"text": "lunch", "source": "user", "by": "user"}
    assert chunks[-2:] == [{"type": "abort", "reason": "lunch"}, {"type": "finish", "finishReason": "interrupted"}]
    assert run.reason == Reason("lunch", Source.USER, by="user")


@pytest.mark.parametrize("query", ["", "?resume=1"])
@virtual
async def test_a_client_that_leaves_stops_the_run_unless_it_may_come_back(query: str) -> None:
    reached = asyncio.Event()
    async with front_end(clerk([say("half"), stall(reached.set)])) as world:
        stream = world.open(f"/ui/clerk/chat{query}", given("write"))
        await reached.wait()
        await stream.until_type("text-delta")
        stream.leave()
        await stream.over()
        if query:
            assert world.run.live
            again = world.open("/ui/clerk/chat/c1/stream", method="GET")
            await again.until_type("text-delta")
            assert again.frames[0] == {"type": "start", "messageId": world.run.id}
            await world.ask("/ui/clerk/chat/c1/stop")
            assert text_in(checked(await again.over())) == "half"
        await world.run.over.wait()
        assert world.run.reason is not None
        assert world.run.reason.source is (Source.USER if query else Source.DISCONNECT)
        assert (await world.ask("/ui/clerk/chat/c1/stream", method="GET")).status == 204


@virtual
async def test_a_stop_cancels_the_message_it_names_and_no_later_one() -> None:
    nap = Nap()
    async with front_end(clerk(say("one"), call("nap"), tools=[nap.tool()])) as world:
        first = await ran(world, given("a"))
        stream = world.open("/ui/clerk/chat", given("a", "b"))
        await nap.began.wait()
        stopped = await world.ask("/ui/clerk/chat/c1/stop", {"messageId": first[0]["messageId"]})
        assert stopped.json == {"status": "idle", "runs": []}
        stopped = await world.ask("/ui/clerk/chat/c1/stop", {"messageId": stream.frames[0]["messageId"]})
        assert stopped.json["status"] == "cancelled"


@virtual
async def test_a_stop_of_an_idle_chat_changes_nothing_and_of_an_unknown_one_is_not_found() -> None:
    async with front_end(clerk(say("one"))) as world:
        assert (await world.ask("/ui/clerk/chat/c1/stop")).status == 404
        await ran(world, given("a"))
        assert (await world.ask("/ui/clerk/chat/c1/stop")).json == {"status": "idle", "runs": []}


class Allowed(Hooks):
    def before_tool(self, run: Run[Any, Any], call: ToolCall) -> AskFirst | None:
        return AskFirst("May it?") if call.name == "pay" else None


@tool(effect="irreversible")
async def pay() -> str:
    """Pay."""
    return "paid"


@pytest.mark.parametrize(
    ("script", "approval", "output"),
    [
        (call("pay"), {"approved": True}, "paid"),
        (call("sign", text="it"), {"approved": True, "reason": "gladly"}, "they said gladly"),
        (call("sign", text="it"), {"approved": False}, "they said False"),
        (call("pay"), {"approved": False, "reason": "too much"}, None),
    ],
)
@virtual
async def test_an_answer_is_a_part_of_the_last_message_and_the_message_goes_on(
    script: Any, approval: Json, output: str | None
) -> None:
    async with front_end(clerk(script, say("So be it."), tools=[pay, sign], hooks=[Allowed()])) as world:
        chunks = await ran(world, given("do it"))
        (asked,) = [chunk for chunk in chunks if chunk["type"] == "tool-approval-request"]
        assert chunks[-1]["finishReason"] == "tool-calls"
        part = {
            "type": "dynamic-tool",
            "state": "approval-responded",
            "approval": {"id": asked["approvalId"], **approval},
        }
        later = await ran(world, given("do it", assistant(part)))
        twice = await world.ask("/ui/clerk/chat", given("do it", assistant(part)))
        assert twice.status == 400
    assert later[0]["messageId"] == chunks[0]["messageId"]
    results = [chunk for chunk in later if chunk["type"].startswith("tool-output")]
    assert [each["toolCallId"] for each in results] == [asked["toolCallId"]]
    assert results[0].get("output") == output
    assert text_in(later) == "So be it."


@virtual
async def test_words_that_join_a_live_run_are_a_steering_message() -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        """Work until it is told to end."""
        began.set()
        await go.wait()
        return "worked"

    async with front_end(clerk(call("work"), say("as you say"), tools=[work])) as world:
        first = world.open("/ui/clerk/chat", given("a"))
        await began.wait()
        second = world.open("/ui/clerk/chat?ifBusy=steer", given("a", "faster"))
        await second.until_type("start")
        go.set()
        chunks, joined = checked(await first.over()), checked(await second.over())
    (steered,) = [chunk for chunk in chunks if chunk["type"] == "steering-message"]
    assert steered["parts"] == [{"type": "text", "text": "faster"}]
    assert text_in(chunks) == text_in(joined) == "as you say"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"id": "c1"},
        given("a", chat="../x"),
        given("a", trigger="regenerate-message"),
        given({"id": "m", "role": "user", "parts": [{"type": "data-x", "data": 1}]}),
        given({"id": "m", "role": "user", "parts": [{"type": "file", "mediaType": "image/png", "url": "file:///x"}]}),
        given({"id": "m", "role": "king", "parts": []}),
        b"{oops",
    ],
)
@virtual
async def test_bad_input_is_refused_and_leaves_nothing_behind(body: object) -> None:
    async with front_end(clerk(say("one"))) as world:
        assert (await world.ask("/ui/clerk/chat", body)).status == 422
        assert not world.manager.runs
        assert not await world.manager.storage.sessions.states("")


@virtual
async def test_what_one_protocol_starts_another_watches_and_stops() -> None:
    nap = Nap()
    async with front_end(clerk(call("nap"), tools=[nap.tool()])) as world:
        stream = world.open("/ag-ui/clerk", {"threadId": "c1", "runId": "r1", "messages": [user_of_ag_ui("sleep")]})
        await nap.began.wait()
        watched = world.open("/ui/clerk/chat/c1/stream", method="GET")
        await watched.until_type("tool-input-available")
        assert (await world.ask("/ui/clerk/chat/c1/stop")).json["status"] == "cancelled"
        assert checked(await watched.over())[-1]["finishReason"] == "interrupted"
        assert (await stream.over()).frames[-1]["code"] == "abort"


@virtual
async def test_a_stop_needs_no_seat_of_a_viewer() -> None:
    nap = Nap()
    config = ServerConfig(limits=Limits(viewers=1))
    async with front_end(clerk(call("nap"), tools=[nap.tool()]), config=config) as world:
        stream = world.open("/ui/clerk/chat", given("sleep"))
        await nap.began.wait()
        assert (await world.ask("/ui/clerk/chat/c1/stream", method="GET")).status == 503
        assert (await world.ask("/ui/clerk/chat/c1/stop")).json["status"] == "cancelled"
        assert checked(await stream.over())[-1]["finishReason"] == "interrupted"


def user_of_ag_ui(text: str) -> Json:
    return {"id": "m", "role": "user", "content": text}
