"""A run through AG-UI, from a front end's request to the last event. Every frame passes the protocol's own models."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ag_ui.core import Event
from pydantic import TypeAdapter

from safepoint import Agent, AskFirst, Budget, Hooks, Run, ToolCall, ToolContext, tool
from safepoint._core.reasons import Reason, Source
from safepoint.history.check import check_history
from safepoint.sessions import Session
from safepoint.testing import ScriptedModel, call, say, stall
from tests.protocols.front_end import Exchange, FrontEnd, Json, front_end
from tests.protocols.mcp.world import Nap, sign
from tests.virtual import virtual

EVENTS: TypeAdapter[Any] = TypeAdapter(Event)  # Any: the union of the protocol
CLOSED = {"TEXT_MESSAGE": "END", "TOOL_CALL": "END", "REASONING_MESSAGE": "END", "STEP": "FINISHED"}


def given(*messages: Json | str, run: str = "r1", thread: str = "t1", version: str | None = "1.0", **more: Any) -> Json:
    """A `RunAgentInput`. A text is a message of the user."""
    listed = [
        {"id": f"m{number}", "role": "user", "content": each} if isinstance(each, str) else each
        for number, each in enumerate(messages)
    ]
    found: Json = {
        "threadId": thread,
        "runId": run,
        "messages": listed,
        "tools": [],
        "context": [],
        "state": {},
        **more,
    }
    return found if version is None else {**found, "protocolVersion": version}


def answered(text: str) -> Json:
    return {"id": "a", "role": "assistant", "content": text}


def checked(exchange: Exchange) -> list[Json]:
    """The frames of a whole stream: each is an event of the protocol, and all that was opened is closed."""
    assert exchange.status == 200, exchange.text
    frames: list[Json] = exchange.frames
    for frame in frames:
        EVENTS.validate_python(frame)
    types = [frame["type"] for frame in frames]
    assert types[0] == "RUN_STARTED"
    assert types[-1] in ("RUN_FINISHED", "RUN_ERROR")
    assert sum(type in ("RUN_FINISHED", "RUN_ERROR") for type in types) == 1
    for kind, end in CLOSED.items():
        started = "STARTED" if kind == "STEP" else "START"
        assert types.count(f"{kind}_{started}") == types.count(f"{kind}_{end}"), kind
    return frames


def text_in(frames: list[Json]) -> str:
    return "".join(frame["delta"] for frame in frames if frame["type"] == "TEXT_MESSAGE_CONTENT")


def clerk(*script: Any, tools: Any = (), **options: Any) -> dict[str, Agent[Any, Any]]:  # Any: what a test scripts
    return {"clerk": Agent("clerk", model=ScriptedModel(*script), tools=tools, **options)}


async def ran(world: FrontEnd, body: Json, query: str = "") -> list[Json]:
    return checked(await world.ask(f"/ag-ui/clerk{query}", body))


@virtual
async def test_a_run_is_told_from_its_start_to_its_end() -> None:
    async with front_end(clerk(say("Hello there"))) as world:
        frames = await ran(world, given("hi"))
        run = world.run
    assert [frame["type"] for frame in frames][:3] == ["RUN_STARTED", "STATE_SNAPSHOT", "STEP_STARTED"]
    assert text_in(frames) == "Hello there"
    assert (frames[0]["threadId"], frames[0]["runId"]) == ("t1", "r1")
    assert frames[-1]["outcome"] == {"type": "success"}
    assert frames[-1]["usage"][0]["outputTokens"] >= 0
    assert frames[-1]["metadata"]["safepoint"]["runId"] == run.id


@virtual
async def test_the_next_message_is_what_is_new_at_the_end_of_the_clients_list() -> None:
    async with front_end(clerk(say("one"), say("two"))) as world:
        await ran(world, given("a"))
        frames = await ran(world, given("a", answered("one"), "b", run="r2"))
        session = await world.manager.view(next(iter(world.manager.runs.values())).key)
    assert text_in(frames) == "two"
    assert [message.text for message in session.messages if message.role == "user"] == ["a", "b"]


@pytest.mark.parametrize(
    "messages",
    [
        ["something else", answered("one"), "b"],
        [answered("one"), "b"],
        ["a", answered("one")],
        ["a", answered("one"), "b", answered("never said"), "c"],
        [],
    ],
)
@virtual
async def test_a_list_that_contradicts_the_session_is_a_history_conflict_and_starts_nothing(
    messages: list[Any],
) -> None:
    async with front_end(clerk(say("one"), say("two"))) as world:
        await ran(world, given("a"))
        frames = await ran(world, given(*messages, run="r2"))
        count = len(world.manager.runs)
    assert [frame["type"] for frame in frames] == ["RUN_STARTED", "RUN_ERROR"]
    assert frames[-1]["code"] == "history_conflict"
    assert count == 1


@virtual
async def test_the_same_run_id_twice_is_one_run() -> None:
    async with front_end(clerk(say("one"), say("two"))) as world:
        first = await ran(world, given("a"))
        again = await ran(world, given("a"))
        assert len(world.manager.runs) == 1
    assert text_in(first) == text_in(again) == "one"


@pytest.mark.parametrize("version", ["1.0", None])
@virtual
async def test_a_stopped_run_is_cancelled_for_new_clients_and_an_abort_for_old_ones(version: str | None) -> None:
    nap = Nap()
    async with front_end(clerk([say("Wait. "), call("nap")], tools=[nap.tool()])) as world:
        stream = world.open("/ag-ui/clerk", given("sleep", version=version))
        await nap.began.wait()
        stopped = await world.ask("/ag-ui/clerk/stop", {"threadId": "t1", "runId": "r1", "reason": "lunch"})
        frames = checked(await stream.over())
        run = world.run
        session = await world.manager.view(run.key)
    assert stopped.json["status"] == "cancelled"
    last = frames[-1]
    if version is None:
        assert (last["type"], last["code"]) == ("RUN_ERROR", "abort")
    else:
        assert last["outcome"] == {"type": "cancelled"}
    assert last["metadata"]["safepoint"]["reason"] == {"text": "lunch", "source": "user", "by": "user"}
    assert [entry["state"] for entry in last["metadata"]["safepoint"]["ledger"]] == ["cut"]
    (result,) = [frame for frame in frames if frame["type"] == "TOOL_CALL_RESULT"]
    stored = [part.content for each in session.messages for part in each.parts if part.kind == "tool_result"]
    assert [result["content"]] == stored
    check_history(session.messages)
    assert run.reason == Reason("lunch", Source.USER, by="user")


@virtual
async def test_a_client_that_closes_its_request_stops_the_run_as_a_disconnect() -> None:
    reached = asyncio.Event()
    async with front_end(clerk([say("half a sen"), stall(reached.set)])) as world:
        stream = world.open("/ag-ui/clerk", given("write"))
        await reached.wait()
        await stream.until_type("TEXT_MESSAGE_CONTENT")
        stream.leave()
        await world.run.over.wait()
        session = await world.manager.view(world.run.key)
    assert world.run.reason is not None
    assert world.run.reason.source is Source.DISCONNECT
    (part,) = [part for part in session.messages[-1].parts if part.kind == "text"]
    assert (part.text, part.incomplete) == ("half a sen", True)


@virtual
async def test_a_client_may_leave_a_run_that_is_detached_and_come_back_for_it_by_its_id() -> None:
    nap = Nap()
    async with front_end(clerk(call("nap"), tools=[nap.tool()])) as world:
        stream = world.open("/ag-ui/clerk?onDisconnect=detach", given("sleep"))
        await nap.began.wait()
        await stream.until_type("TOOL_CALL_END")
        stream.leave()
        await stream.over()
        assert world.run.live
        again = world.open("/ag-ui/clerk", given("sleep"))
        await again.until_type("TOOL_CALL_END")
        await world.ask("/ag-ui/clerk/stop", {"threadId": "t1"})
        frames = checked(await again.over())
    assert frames[-1]["outcome"] == {"type": "cancelled"}


@virtual
async def test_a_stop_of_an_idle_thread_changes_nothing_and_of_an_unknown_one_is_not_found() -> None:
    async with front_end(clerk(say("one"), say("two"))) as world:
        assert (await world.ask("/ag-ui/clerk/stop", {"threadId": "t1"})).status == 404
        await ran(world, given("a"))
        assert (await world.ask("/ag-ui/clerk/stop", {"threadId": "t1"})).json == {"status": "idle", "runs": []}
        frames = await ran(world, given("a", "b", run="r2"))
    assert frames[-1]["outcome"] == {"type": "success"}


@virtual
async def test_a_stop_of_an_earlier_run_does_not_stop_a_later_one() -> None:
    nap = Nap()
    async with front_end(clerk(say("one"), call("nap"), tools=[nap.tool()])) as world:
        await ran(world, given("a"))
        stream = world.open("/ag-ui/clerk", given("a", "b", run="r2"))
        await nap.began.wait()
        stopped = await world.ask("/ag-ui/clerk/stop", {"threadId": "t1", "runId": "r1"})
        assert stopped.json["status"] == "idle"
        assert not stream.task.done()


@virtual
async def test_an_interrupt_is_answered_by_resume_and_the_call_goes_on() -> None:
    async with front_end(clerk(call("sign", text="it"), say("Signed."), tools=[sign])) as world:
        frames = await ran(world, given("sign"))
        (asked,) = frames[-1]["outcome"]["interrupts"]
        (started,) = [frame for frame in frames if frame["type"] == "TOOL_CALL_START"]
        assert (asked["reason"], asked["message"]) == ("input_required", "Sign it?")
        assert asked["toolCallId"] == started["toolCallId"]
        entry = {"interruptId": asked["id"], "status": "resolved", "payload": "yes"}
        frames = await ran(world, given("sign", run="r2", resume=[entry]))
        again = await ran(world, given("sign", run="r2", resume=[entry]))
        assert len(world.manager.runs) == 2
    (result,) = [frame for frame in frames if frame["type"] == "TOOL_CALL_RESULT"]
    assert (result["toolCallId"], result["content"]) == (started["toolCallId"], "they said yes")
    assert text_in(frames) == text_in(again) == "Signed."


@pytest.mark.parametrize(
    "entries", [[], [{"interruptId": "who", "status": "resolved"}], [{"interruptId": "who", "status": "cancelled"}]]
)
@virtual
async def test_a_resume_that_does_not_fit_is_refused_and_the_pause_stands(entries: list[Json]) -> None:
    async with front_end(clerk(call("sign", text="it"), say("Signed."), tools=[sign])) as world:
        (asked,) = (await ran(world, given("sign")))[-1]["outcome"]["interrupts"]
        frames = await ran(world, given("sign", run="r2", resume=entries))
        assert frames[-1]["code"] == ("bad_resume" if entries else "history_conflict")
        entry = {"interruptId": asked["id"], "status": "resolved", "payload": "yes"}
        frames = await ran(world, given("sign", run="r3", resume=[entry]))
    assert text_in(frames) == "Signed."


class Allowed(Hooks):
    def before_tool(self, run: Run[Any, Any], call: ToolCall) -> AskFirst:
        return AskFirst("May it?")


@tool(effect="irreversible")
async def pay() -> str:
    """Pay."""
    return "paid"


@pytest.mark.parametrize(
    ("status", "payload", "state"), [("resolved", True, "finished"), ("cancelled", None, "denied")]
)
@virtual
async def test_an_approval_is_given_or_denied(status: str, payload: object, state: str) -> None:
    async with front_end(clerk(call("pay"), say("So be it."), tools=[pay], hooks=[Allowed()])) as world:
        (asked,) = (await ran(world, given("pay")))[-1]["outcome"]["interrupts"]
        assert (asked["reason"], asked["responseSchema"]) == ("tool_call", {"type": "boolean"})
        entry = {"interruptId": asked["id"], "status": status, "payload": payload}
        frames = await ran(world, given("pay", run="r2", resume=[entry]))
    (result,) = [frame for frame in frames if frame["type"] == "TOOL_CALL_RESULT"]
    assert (result["content"] == "paid") is (state == "finished")
    assert frames[-1]["outcome"] == {"type": "success"}


@virtual
async def test_a_stop_of_a_run_that_waits_clears_its_pause() -> None:
    async with front_end(clerk(call("sign", text="it"), say("Hello."), tools=[sign])) as world:
        (asked,) = (await ran(world, given("sign")))[-1]["outcome"]["interrupts"]
        assert (await world.ask("/ag-ui/clerk/stop", {"threadId": "t1"})).json["status"] == "cancelled"
        entry = {"interruptId": asked["id"], "status": "resolved", "payload": "yes"}
        frames = await ran(world, given("sign", run="r2", resume=[entry]))
        assert frames[-1]["code"] == "bad_resume"
        frames = await ran(world, given("sign", "hi", run="r3"))
    assert text_in(frames) == "Hello."


@virtual
async def test_the_state_of_the_session_is_told_and_changed_by_both_sides() -> None:
    @tool
    async def count(ctx: ToolContext[None]) -> str:
        """Count, and look at what the front end lends."""
        assert isinstance(ctx.session, Session)
        ctx.session.state["count/er"] = 1
        return str(ctx.session.state["temp:ag_ui"]["context"][0]["value"])

    async with front_end(clerk(call("count"), say("ok"), say("ok"), tools=[count])) as world:
        context = [{"description": "page", "value": "home"}]
        frames = await ran(world, given("a", state={"theme": "dark"}, context=context))
        deltas = [frame["delta"] for frame in frames if frame["type"] == "STATE_DELTA"]
        later = await ran(world, given("a", "b", run="r2"))
    assert deltas == [[{"op": "add", "path": "/count~1er", "value": 1}]]
    assert [frame["content"] for frame in frames if frame["type"] == "TOOL_CALL_RESULT"] == ["home"]
    assert later[1]["snapshot"] == {"theme": "dark", "count/er": 1}


@virtual
async def test_a_message_for_a_live_thread_waits_for_its_turn_or_does_what_if_busy_says() -> None:
    nap = Nap()
    async with front_end(clerk(call("nap"), say("two"), say("three"), tools=[nap.tool()])) as world:
        first = world.open("/ag-ui/clerk", given("a"))
        await nap.began.wait()
        refused = await world.ask("/ag-ui/clerk?ifBusy=reject", given("a", "b", run="r2"))
        assert refused.status == 409
        queued = world.open("/ag-ui/clerk", given("a", "b", run="r2"))
        await queued.until_type("RUN_STARTED")
        last = world.open("/ag-ui/clerk", given("a", "b", "c", run="r3"))
        await last.until_type("RUN_STARTED")
        await world.ask("/ag-ui/clerk/stop", {"threadId": "t1", "runId": "r1"})
        assert checked(await first.over())[-1]["outcome"] == {"type": "cancelled"}
        assert text_in(checked(await queued.over())) == "two"
        assert text_in(checked(await last.over())) == "three"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"threadId": "t1", "runId": "r1"},
        given("a", thread="../x"),
        given("a", run=""),
        given({"id": "m", "role": "king", "content": "a"}),
        given({"id": "m", "role": "user", "content": [{"type": "image", "source": {"type": "data", "value": "%"}}]}),
        given({"id": "m", "role": "user", "content": [{"type": "song", "text": "la"}]}),
        given("a", resume=[{"interruptId": "x", "status": "perhaps"}]),
        b"[]",
        b"{oops",
    ],
)
@virtual
async def test_bad_input_is_refused_before_the_stream_and_leaves_nothing_behind(body: object) -> None:
    async with front_end(clerk(say("one"))) as world:
        answer = await world.ask("/ag-ui/clerk", body)
        assert answer.status == 422, answer.text
        assert not world.manager.runs
        assert not await world.manager.storage.sessions.states("")


@virtual
async def test_an_app_that_is_not_there_is_not_found_and_makes_no_session() -> None:
    async with front_end(clerk(say("one"))) as world:
        assert (await world.ask("/ag-ui/other", given("a"))).status == 404
        assert (await world.ask("/ag-ui/other/stop", {"threadId": "t1"})).status == 404
        assert not await world.manager.storage.sessions.states("")


@virtual
async def test_a_run_that_has_no_more_steps_is_an_error_with_that_code() -> None:
    nap = tool(_nothing, name="nothing")
    agents = clerk(call("nothing"), call("nothing"), tools=[nap], budget=Budget(steps=1))
    async with front_end(agents) as world:
        frames = await ran(world, given("a"))
    assert (frames[-1]["type"], frames[-1]["code"]) == ("RUN_ERROR", "max_steps")


async def _nothing() -> str:
    """Do nothing."""
    return "nothing"


@virtual
async def test_a_tool_of_the_front_end_is_pending_and_its_result_comes_with_the_next_request() -> None:
    tools: list[Json] = [
        {"name": "confetti", "description": "Throw it.", "parameters": {"type": "object", "properties": {}}}
    ]
    async with front_end(clerk(call("confetti"), say("Hooray."), say("Hello."))) as world:
        frames = await ran(world, given("celebrate", tools=tools))
        (pending,) = frames[-1]["outcome"]["pendingToolCallIds"]
        result = {"id": "x", "role": "tool", "toolCallId": pending, "content": "thrown"}
        frames = await ran(world, given("celebrate", result, run="r2", tools=tools))
        assert world.manager.session_agents == {}
        last = await ran(world, given("celebrate", result, answered("Hooray."), "hi", run="r3"))
    (told,) = [frame for frame in frames if frame["type"] == "TOOL_CALL_RESULT"]
    assert (told["toolCallId"], told["content"]) == (pending, "thrown")
    assert (text_in(frames), text_in(last)) == ("Hooray.", "Hello.")


@virtual
async def test_tools_of_one_name_are_refused_and_nothing_is_left_behind() -> None:
    async with front_end(clerk(say("one"), tools=[pay])) as world:
        answer = await world.ask("/ag-ui/clerk", given("a", tools=[{"name": "pay", "description": ""}]))
        assert answer.status == 400
        assert world.manager.session_agents == {}
        assert not await world.manager.storage.sessions.states("")
