"""What happens to a message for a session whose run is live, by policy, in an order that gates force."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from safepoint import Agent, check_history, tool
from safepoint.errors import SessionBusy
from safepoint.sessions import Delivery, MemoryStore, Sent, Session, SessionDispatcher
from safepoint.testing import RuleModel, ScriptedModel, call, say, stall
from safepoint.testing.models import Reply
from tests.sessions.stores import Wrapped
from tests.virtual import passes, rounds, virtual


class Gated:
    """An agent that, told `wait`, runs a tool until its gate opens, and answers everything else at once."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.inside = asyncio.Event()

        @tool
        async def hold() -> str:
            """Wait for the gate."""
            self.inside.set()
            await self.gate.wait()
            return "held"

        rules: dict[str, Reply] = {"wait": call("hold"), **{name: say(f"answer to {name}") for name in "abcdef"}}
        self.model = RuleModel(rules, otherwise=say("done"))
        self.agent = Agent("gated", model=self.model, tools=[hold])


async def begin(gated: Gated) -> tuple[Session, SessionDispatcher, asyncio.Task[Sent[str]]]:
    session = await Session.create(MemoryStore(), "s")
    dispatcher = SessionDispatcher(session)
    first = asyncio.ensure_future(dispatcher.send(gated.agent, "wait"))
    await gated.inside.wait()
    return session, dispatcher, first


def texts(session: Session) -> list[str]:
    check_history(session.messages)
    return [message.text for message in session.messages if message.role == "user"]


@virtual
async def test_reject_raises_and_leaves_the_live_run_alone() -> None:
    gated = Gated()
    session, dispatcher, first = await begin(gated)
    with pytest.raises(SessionBusy, match="live"):
        await dispatcher.send(gated.agent, "a")
    gated.gate.set()
    await first
    assert texts(session) == ["wait"]


@virtual
async def test_an_idle_session_runs_the_message_under_every_policy() -> None:
    gated = Gated()
    dispatcher = SessionDispatcher(await Session.create(MemoryStore(), "s"))
    for policy in ("reject", "queue", "steer", "preempt", "interrupt", "rollback"):
        sent = await dispatcher.send(gated.agent, "a", if_busy=policy)
        assert (sent.delivery, sent.result.text) == (Delivery.RAN, "answer to a")


@virtual
async def test_queued_messages_run_in_the_order_they_came() -> None:
    gated = Gated()
    session, dispatcher, first = await begin(gated)
    waiting = [asyncio.ensure_future(dispatcher.send(gated.agent, name, if_busy="queue")) for name in "abc"]
    await rounds(5)
    gated.gate.set()
    sent = await asyncio.gather(*waiting)
    assert [one.delivery for one in sent] == [Delivery.QUEUED] * 3
    assert [one.result.text for one in sent] == ["answer to a", "answer to b", "answer to c"]
    assert texts(session) == ["wait", "a", "b", "c"]
    await first


@virtual
async def test_messages_that_come_at_once_to_an_idle_session_are_queued_too() -> None:
    gated = Gated()
    session = await Session.create(MemoryStore(), "s")
    dispatcher = SessionDispatcher(session)
    sent = await asyncio.gather(*(dispatcher.send(gated.agent, name, if_busy="queue") for name in "abc"))
    assert [one.result.text for one in sent] == ["answer to a", "answer to b", "answer to c"]
    assert texts(session) == ["a", "b", "c"]


@virtual
async def test_a_queue_waits_for_a_run_that_did_not_come_through_the_sender() -> None:
    gated = Gated()
    session = await Session.create(MemoryStore(), "s")
    dispatcher = SessionDispatcher(session)
    async with gated.agent.start("wait", session=session):
        await gated.inside.wait()
        waiting = [asyncio.ensure_future(dispatcher.send(gated.agent, name, if_busy="queue")) for name in "ab"]
        await rounds(5)
        gated.gate.set()
        await asyncio.gather(*waiting)
    assert texts(session) == ["wait", "a", "b"]


@virtual
async def test_a_queued_message_whose_sender_is_cancelled_leaves_the_line() -> None:
    gated = Gated()
    session, dispatcher, first = await begin(gated)
    waiting = [asyncio.ensure_future(dispatcher.send(gated.agent, name, if_busy="queue")) for name in "abc"]
    await rounds(5)
    waiting[0].cancel()
    await rounds(2)
    gated.gate.set()
    await asyncio.gather(*waiting[1:])
    assert waiting[0].cancelled()
    assert texts(session) == ["wait", "b", "c"]
    await first


@virtual
async def test_a_message_whose_turn_has_just_come_is_cancelled_and_the_next_one_runs() -> None:
    gated = Gated()
    session, dispatcher, first = await begin(gated)
    waiting = [asyncio.ensure_future(dispatcher.send(gated.agent, name, if_busy="queue")) for name in "ab"]
    await rounds(5)
    first.add_done_callback(lambda task: waiting[0].cancel())
    gated.gate.set()
    assert (await waiting[1]).result.text == "answer to b"
    assert texts(session)[-1] == "b"


@virtual
async def test_a_run_that_fails_does_not_hold_the_queue() -> None:
    gated = Gated()
    dispatcher = SessionDispatcher(await Session.create(MemoryStore(), "s"))
    broken = Agent("broken", model=ScriptedModel())
    results = await asyncio.gather(
        dispatcher.send(broken, "x", if_busy="queue"),
        dispatcher.send(gated.agent, "a", if_busy="queue"),
        return_exceptions=True,
    )
    assert isinstance(results[0], Exception)
    assert not isinstance(results[1], BaseException)
    assert results[1].result.text == "answer to a"


@virtual
async def test_a_steered_message_joins_and_its_sender_gets_the_result_of_the_live_run() -> None:
    gated = Gated()
    _, dispatcher, first = await begin(gated)
    steered = asyncio.ensure_future(dispatcher.send(gated.agent, "a", if_busy="steer"))
    await rounds(3)
    gated.gate.set()
    sent = await steered
    assert (sent.delivery, sent.result.text) == (Delivery.JOINED, "answer to a")
    assert gated.model.calls == 2
    await first


@virtual
async def test_a_message_that_is_too_late_to_join_runs_next() -> None:
    store = Wrapped(MemoryStore())
    session = await Session.create(store, "s")
    dispatcher = SessionDispatcher(session)
    gated = Gated()
    late: list[asyncio.Task[object]] = []

    def before(name: str, number: int) -> None:
        if (name, number) == ("append", 2):  # the answer is complete and the run's end is being written
            late.append(asyncio.ensure_future(dispatcher.send(gated.agent, "b", if_busy="steer")))

    store.before = before
    await dispatcher.send(gated.agent, "a")
    await late[0]
    assert texts(session) == ["a", "b"]


@virtual
async def test_preempt_stops_at_a_safe_point_and_then_runs() -> None:
    gated = Gated()
    session, dispatcher, first = await begin(gated)
    sent = asyncio.ensure_future(dispatcher.send(gated.agent, "a", if_busy="preempt"))
    await rounds(5)
    assert not first.done()
    gated.gate.set()
    assert (await sent).delivery is Delivery.PREEMPTED
    result = (await first).result
    assert (result.stop_reason, [entry.state for entry in result.ledger]) == ("cancelled", ["finished"])
    assert result.cancellation is not None
    assert result.cancellation.reason.source == "preempt"
    assert texts(session) == ["wait", "a"]


@virtual
async def test_interrupt_stops_now_and_goes_before_the_queue() -> None:
    gated = Gated()
    session, dispatcher, first = await begin(gated)
    queued = asyncio.ensure_future(dispatcher.send(gated.agent, "b", if_busy="queue"))
    await rounds(3)
    sent = await dispatcher.send(gated.agent, "a", if_busy="interrupt")
    assert (sent.delivery, sent.result.text) == (Delivery.PREEMPTED, "answer to a")
    assert (await first).result.stop_reason == "cancelled"
    await queued
    assert texts(session) == ["wait", "a", "b"]


@virtual
async def test_rollback_takes_the_stopped_turn_back_also_with_a_queue_behind_it() -> None:
    gated = Gated()
    session, dispatcher, first = await begin(gated)
    queued = asyncio.ensure_future(dispatcher.send(gated.agent, "b", if_busy="queue"))
    await rounds(3)
    sent = await dispatcher.send(gated.agent, "a", if_busy="rollback")
    assert sent.result.text == "answer to a"
    await queued
    await first
    assert texts(session) == ["a", "b"]


@virtual
async def test_of_two_interrupts_the_later_one_has_the_last_word() -> None:
    gated = Gated()
    session, dispatcher, first = await begin(gated)
    sends = [asyncio.ensure_future(dispatcher.send(gated.agent, name, if_busy="interrupt")) for name in "ab"]
    a, b = await asyncio.gather(*sends)
    assert (a.result.stop_reason, b.result.stop_reason) == ("cancelled", "end_turn")
    assert texts(session) == ["wait", "a", "b"]
    await first


@virtual
async def test_an_interrupt_reaches_a_run_that_has_only_just_been_sent() -> None:
    session = await Session.create(MemoryStore(), "s")
    dispatcher = SessionDispatcher(session)
    agent = Agent("slow", model=ScriptedModel(stall(), say("b")))
    first = asyncio.ensure_future(dispatcher.send(agent, "a"))
    await rounds(1)
    fast = Agent("fast", model=ScriptedModel(say("b")))
    sent = await dispatcher.send(fast, "b", if_busy="interrupt")
    assert sent.result.text == "b"
    assert (await first).result.stop_reason == "cancelled"
    assert texts(session) == ["a", "b"]


@virtual
async def test_a_policy_with_a_typing_error_is_refused_by_name() -> None:
    gated = Gated()
    dispatcher = SessionDispatcher(await Session.create(MemoryStore(), "s"))
    with pytest.raises(ValueError, match="if_busy='que': write one of 'reject', 'queue'"):
        await dispatcher.send(gated.agent, "a", if_busy="que")  # type: ignore[arg-type]  # that is the point


@virtual
async def test_a_run_of_ones_own_is_delivered_when_its_turn_has_come_and_not_before() -> None:
    gated = Gated()
    session, dispatcher, first = await begin(gated)
    turns: list[bool] = []

    async def on_turn() -> None:
        turns.append(dispatcher.busy)

    run = gated.agent.start("a", session=session)
    sending = asyncio.ensure_future(dispatcher.deliver(run, "a", if_busy="queue", on_turn=on_turn))
    await rounds(5)
    assert (turns, run.node.started) == ([], False)
    gated.gate.set()
    sent = await sending
    await first
    assert (turns, sent.delivery, run.result.text) == ([True], Delivery.QUEUED, "answer to a")


@virtual
async def test_a_delivered_message_that_joins_says_which_run_it_has_joined() -> None:
    gated = Gated()
    session, dispatcher, first = await begin(gated)
    joined: list[str] = []
    run = gated.agent.start("a", session=session)
    sending = asyncio.ensure_future(
        dispatcher.deliver(run, "a", if_busy="steer", on_joined=lambda live: joined.append(live.id))
    )
    await rounds(5)
    gated.gate.set()
    sent = await sending
    await first
    assert (sent.delivery, joined) == (Delivery.JOINED, [sent.result.run_id])
    assert not run.node.started


@virtual
async def test_a_run_whose_turn_fails_is_not_started_and_hands_the_turn_on() -> None:
    gated = Gated()
    session, dispatcher, first = await begin(gated)

    async def on_turn() -> None:
        raise OSError("the book is full")

    run = gated.agent.start("a", session=session)
    sending = asyncio.ensure_future(dispatcher.deliver(run, "a", if_busy="queue", on_turn=on_turn))
    await rounds(5)
    gated.gate.set()
    with pytest.raises(OSError, match="full"):
        await sending
    await first
    assert not run.node.started
    assert (await dispatcher.send(gated.agent, "b")).result.text == "answer to b"
    assert texts(session) == ["wait", "b"]


@virtual
async def test_messages_and_changes_that_come_during_a_change_wait_for_it() -> None:
    session = await Session.create(MemoryStore())
    dispatcher, order = SessionDispatcher(session), list[str]()

    async def change(name: str) -> None:
        order.append(f"{name} begins")
        await passes(1)
        order.append(f"{name} ends")

    async def send() -> None:
        await dispatcher.send(Agent("a", model=ScriptedModel(say("hi"))), "hello")
        order.append("message")

    tasks = [asyncio.create_task(dispatcher.between(partial(change, name))) for name in ("one", "two")]
    await rounds(1)
    assert not dispatcher.busy
    tasks += [asyncio.create_task(send())]
    await rounds(1)
    assert dispatcher.busy
    with pytest.raises(SessionBusy):
        await dispatcher.between(lambda: change("three"))
    await asyncio.gather(*tasks)
    assert order == ["one begins", "one ends", "two begins", "two ends", "message"]


@virtual
async def test_a_change_that_is_given_up_while_it_waits_holds_nobody() -> None:
    session = await Session.create(MemoryStore())
    dispatcher = SessionDispatcher(session)
    first = asyncio.create_task(dispatcher.between(lambda: passes(1)))
    await rounds(1)
    second = asyncio.create_task(dispatcher.between(lambda: passes(1)))
    await rounds(1)
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    await dispatcher.between(lambda: passes(1))
    assert not dispatcher.busy
