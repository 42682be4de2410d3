"""One conversation, handed from agent to agent: permission, truth of the record, and where it can be stopped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from safepoint import (
    Agent,
    Budget,
    Checkpoint,
    Handoff,
    Notice,
    SafePoint,
    Sequential,
    StopReason,
    Text,
    ToolResult,
    check_history,
    tool,
)
from safepoint.agent.model import Finish, TextDelta
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, raw, say, stall
from tests.compose.world import A_SECOND, HALF_A_SECOND
from tests.virtual import virtual


def scripted(name: str, *replies: Any, **options: Any) -> Agent[None, str]:  # Any: as Agent takes them
    return Agent(name, model=ScriptedModel(*replies), **options)


def results(messages: Any) -> list[tuple[str, str, str]]:  # Any: a list of messages
    parts = [part for message in messages for part in message.parts if isinstance(part, ToolResult)]
    return [(part.name, str(part.state), part.content) for part in parts]


@virtual
async def test_the_target_continues_the_same_conversation_under_its_own_instructions() -> None:
    triage = scripted("triage", [say("One moment."), call("transfer_to_billing")], instructions="You sort.")
    model = ScriptedModel(say("It is paid."))
    billing = Agent("billing", model=model, instructions="You bill.")
    desk = Handoff("desk", triage, to={triage: [billing]})
    result = await desk.run("my bill?")
    check_history(result.messages)
    assert result.output == "It is paid."
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert results(result.messages) == [
        ("transfer_to_billing", "finished", "The conversation was handed over to 'billing'.")
    ]
    (asked,) = model.requests
    assert asked.instructions == "You bill."
    assert asked.tools == ()
    assert asked.messages == tuple(result.messages[:3])
    assert [child.path for child in result.children] == ["desk/triage#1", "desk/billing#2"]
    assert [message.author for message in result.messages] == [None, "triage", "triage", "billing"]


@virtual
async def test_messages_of_a_stopped_handoff_keep_their_authors_through_a_session_and_a_resume() -> None:
    triage = scripted("triage", say("Before."), [say("One moment."), call("transfer_to_billing")])
    billing = scripted("billing", [say("It is"), stall()], say("It is paid."))
    desk = Handoff("desk", triage, to={triage: [billing]})
    store = MemoryStore()
    session = await Session.create(store, "s")
    await desk.run("hello", session=session)
    async with desk.start("my bill?", session=session) as run:
        async for words in run.text():
            if words == "It is":
                break
        run.cancel(SafePoint.NOW)
    loaded = await Session.load(store, "s")
    said = [None, "triage", None, "triage", "triage", "billing"]
    assert [message.author for message in loaded.messages] == said
    assert loaded.checkpoint is not None
    resumed = await desk.resume(loaded.checkpoint, session=loaded)
    assert resumed.text == "It is paid."
    assert [message.author for message in resumed.messages] == said


@virtual
async def test_only_those_on_the_list_can_be_handed_to() -> None:
    triage = scripted("triage", call("transfer_to_vault"), say("I may not."))
    billing, vault = scripted("billing", say("b")), scripted("vault", say("gold"))
    desk = Handoff("desk", triage, to={triage: [billing], billing: [vault]})
    result = await desk.run("open the vault")
    assert result.output == "I may not."
    assert "There is no tool named 'transfer_to_vault'" in results(result.messages)[0][2]
    assert "transfer_to_billing" not in triage.tools


@virtual
async def test_two_transfers_at_once_are_one_transfer_and_one_that_did_not_happen() -> None:
    triage = scripted("triage", [call("transfer_to_a"), call("transfer_to_b")])
    a, b = scripted("a", say("from a")), scripted("b", say("from b"))
    result = await Handoff("desk", triage, to={triage: [a, b]}).run("go")
    assert result.output == "from a"
    assert [(name, state) for name, state, _ in results(result.messages)] == [
        ("transfer_to_a", "finished"),
        ("transfer_to_b", "failed"),
    ]


@virtual
async def test_going_round_in_circles_is_bounded() -> None:
    a, b = scripted("a", *[call("transfer_to_b")] * 9), scripted("b", *[call("transfer_to_a")] * 9)
    result = await Handoff("desk", a, to={a: [b], b: [a]}, max_transfers=4).run("go")
    assert (result.stop_reason, len(result.children)) == (StopReason.MAX_STEPS, 5)
    check_history(result.messages)
    a, b = scripted("a", *[call("transfer_to_b")] * 9), scripted("b", *[call("transfer_to_a")] * 9)
    result = await Handoff("desk", a, to={a: [b], b: [a]}, budget=Budget(steps=3)).run("go")
    assert (result.stop_reason, result.usage.model_calls) == (StopReason.MAX_STEPS, 3)
    check_history(result.messages)


@virtual
async def test_resume_goes_on_with_the_one_who_had_the_conversation() -> None:
    triage = scripted("triage", call("transfer_to_billing"))
    billing = scripted("billing", [say("Let me"), stall()], say("It is paid."))
    desk = Handoff("desk", triage, to={triage: [billing]})
    async with desk.start("my bill?") as run:
        await asyncio.sleep(A_SECOND)
        run.cancel(reason="a break")
    result = run.result
    check_history(result.messages)
    assert result.text == "Let me"
    assert results(result.messages)[0][1] == "finished"
    assert result.checkpoint is not None
    resumed = await desk.resume(Checkpoint.from_bytes(result.checkpoint.to_bytes()))
    assert resumed.output == "It is paid."
    assert [message.role for message in resumed.messages] == ["user", "assistant", "tool", "assistant"]


@virtual
async def test_the_words_of_the_one_who_was_stopped_are_there_once_and_called_incomplete() -> None:
    desk = scripted("desk", [say("Let me"), stall()])
    async with Handoff("house", Handoff("shop", desk, to={}), to={}).start("my bill?") as run:
        await asyncio.sleep(A_SECOND)
        run.cancel()
    words, notice = run.result.messages[-1].parts
    assert words == Text("Let me", incomplete=True)
    assert isinstance(notice, Notice)
    assert "The answer above is incomplete." in notice.text


@virtual
async def test_an_answer_that_was_cut_off_by_its_length_is_not_said_twice() -> None:
    billing = scripted("billing", raw(TextDelta("It is"), Finish("max_tokens")))
    result = await Handoff("desk", billing, to={}).run("my bill?")
    assert (result.stop_reason, result.text) == (StopReason.MAX_TOKENS, "It is")
    check_history(result.messages)


@virtual
async def test_a_stopped_conversation_goes_on_with_a_new_message() -> None:
    session = await Session.create(MemoryStore())
    triage = scripted("triage", call("transfer_to_billing"), say("Hello again."))
    billing = scripted("billing", [say("Let me"), stall()])
    desk = Handoff("desk", triage, to={triage: [billing]})
    async with desk.start("my bill?", session=session) as run:
        await asyncio.sleep(A_SECOND)
        run.cancel()
    check_history(session.messages)
    await desk.run("are you there?", session=session)
    assert session.messages[-1].text == "Hello again."
    check_history(session.messages)


@virtual
async def test_a_message_during_a_transfer_is_for_the_target() -> None:
    @tool
    async def slow() -> str:
        """Take a second."""
        await asyncio.sleep(A_SECOND)
        return "done"

    triage = scripted("triage", [call("transfer_to_billing"), call("slow")], tools=[slow])
    billing = scripted("billing", say("It is paid."))
    async with Handoff("desk", triage, to={triage: [billing]}).start("my bill?") as run:
        await asyncio.sleep(HALF_A_SECOND)
        receipt = run.steer("number 7")
    assert await receipt.wait() == "joined"
    assert [message.role for message in run.result.messages] == ["user", "assistant", "tool", "user", "assistant"]


class Order(BaseModel):
    number: int


@virtual
async def test_a_transfer_is_no_answer_of_a_typed_agent() -> None:
    triage = Agent("triage", model=ScriptedModel(call("transfer_to_orders")), output=Order)
    orders = Agent("orders", model=ScriptedModel(stall(), say('{"number": 7}')), output=Order)
    desk = Handoff("desk", triage, to={triage: [orders]})
    async with desk.start("my order?") as run:
        await asyncio.sleep(A_SECOND)
        run.cancel()
    assert run.result.checkpoint is not None
    assert (await desk.resume(Checkpoint.from_bytes(run.result.checkpoint.to_bytes()))).output == Order(number=7)


@virtual
async def test_a_composite_can_be_handed_to() -> None:
    triage = scripted("triage", call("transfer_to_research"))
    research = Sequential("research", scripted("search", say("found"))).then(scripted("write", say("written")))
    result = await Handoff("desk", triage, to={triage: [research]}).run("tell me")
    assert result.output == "written"
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]


@virtual
async def test_between_two_agents_is_a_safe_point_for_a_request_that_names_another() -> None:
    triage = scripted("triage", call("transfer_to_billing"))
    desk = Handoff("desk", triage, to={triage: [scripted("billing", say("paid"))]})
    run = desk.start("go")
    run.cancel(SafePoint.named("never marked"))
    async with run:
        pass
    assert run.result.stop_reason is StopReason.CANCELLED
    assert [child.name for child in run.result.children] == ["triage#1"]
    check_history(run.result.messages)


@virtual
async def test_the_words_of_everybody_are_heard() -> None:
    triage = scripted("triage", [say("One moment. "), call("transfer_to_billing")])
    desk = Handoff("desk", triage, to={triage: [scripted("billing", say("It is paid."))]})
    async with desk.start("go") as run:
        words = [piece async for piece in run.text()]
    assert "".join(words) == "One moment. It is paid."


def test_who_calls_no_model_cannot_hand_over() -> None:
    research = Sequential("research", scripted("search"))
    with pytest.raises(ValueError, match="calls no model"):
        Handoff("desk", research, to={research: [scripted("billing")]})


@pytest.mark.parametrize("listed", [True, False])
def test_a_permission_list_says_who_and_to_whom(listed: bool) -> None:
    one, other = scripted("one", say("x")), scripted("other", say("x"))
    wrong: Any = [other] if listed else {one: other}  # Any: wrong ones
    with pytest.raises(
        ValueError, match=r"^to.* write to={first: \[others\]}$" if listed else r"^to\[.*\]=.* is not a list"
    ):
        Handoff("desk", one, to=wrong)


@virtual
async def test_a_tool_of_the_users_own_may_be_named_like_a_transfer() -> None:
    @tool
    async def transfer_to_savings() -> str:
        """Move money."""
        return "moved"

    triage = scripted("triage", call("transfer_to_savings"), call("transfer_to_billing"), tools=[transfer_to_savings])
    billing = scripted("billing", say("It is paid."))
    result = await Handoff("desk", triage, to={triage: [billing]}).run("my bill?")
    assert result.output == "It is paid."
