"""Back to an earlier step: the run continues from there, and what it has done since is undone where it can be."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint import Agent, Checkpoint, Resume, SafePoint, Sequential, check_history, tool
from safepoint.errors import CheckpointError
from safepoint.history.parts import Message, ToolResult
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, say
from safepoint.testing.clock import run_virtual
from safepoint.tools.base import BaseTool
from tests.virtual import passes, rounds, virtual


class World:
    """What the tools have changed."""

    def __init__(self, *, undo_takes: float = 0.0, undo_fails: bool = False) -> None:
        self.booked: list[str] = []
        self.sent: list[str] = []
        self.order: list[str] = []

        async def unbook(city: str) -> None:
            await passes(undo_takes)
            if undo_fails:
                raise ValueError("the desk is closed")
            self.booked.remove(city)
            self.order.append(city)

        @tool(undo=unbook)
        async def book(city: str) -> str:
            """Book a room."""
            self.booked.append(city)
            return f"booked {city}"

        @tool(effect="irreversible")
        async def send(to: str) -> str:
            """Send a letter."""
            self.sent.append(to)
            return f"sent to {to}"

        @tool(effect="pure")
        async def look() -> str:
            """Look."""
            return "seen"

        self.tools: list[BaseTool] = [book, send, look]

    def agent(self, *replies: object) -> Agent[None]:
        return Agent("traveller", model=ScriptedModel(*replies), tools=self.tools)  # type: ignore[arg-type]  # replies


STEPS = (call("look"), call("book", city="Rome"), [call("book", city="Oslo"), call("send", to="Ann")], say("Booked."))


def results(messages: list[Message]) -> list[str]:
    return [part.content for message in messages for part in message.parts if isinstance(part, ToolResult)]


@virtual
@pytest.mark.parametrize("step", [0, 1, 2])
async def test_a_stopped_run_continues_from_an_earlier_step(step: int) -> None:
    world = World()
    async with world.agent(*STEPS).start("Plan a journey.") as run:
        assert await run.cancel(SafePoint.after_step(3)).wait() == "stopped"
    whole = run.result.checkpoint
    assert whole is not None
    back = whole.at(step)
    check_history(back.messages)
    assert (back.step, len(back.ledger)) == (step, step)
    assert back.id != whole.id
    since = [entry.args.get("city") or entry.args.get("to") for entry in back.since]
    assert since == (["Oslo", "Ann"] if step == 2 else ["Rome", "Oslo", "Ann"])
    assert world.booked == ["Rome", "Oslo"], "nothing is undone before a run continues it"

    result = await world.agent(say("Let me think again.")).resume(Checkpoint.from_bytes(back.to_bytes()))
    assert result.text == "Let me think again."
    assert (world.booked, world.sent) == ((["Rome"], ["Ann"]) if step == 2 else ([], ["Ann"]))
    assert world.order == (["Oslo"] if step == 2 else ["Oslo", "Rome"]), "the latest first"
    assert [str(entry.state) for entry in result.taken_back] == ["compensated"] * (len(since) - 1) + ["finished"]
    assert len(results(result.messages)) == step
    told = next(message.text for message in result.messages if "taken back" in message.text)
    assert '"book" (compensated)' in told
    assert 'What these calls did remains: "send" (finished).' in told
    check_history(result.messages)


@virtual
async def test_one_run_can_be_forked_from_many_steps_and_from_one_step_many_times() -> None:
    world = World()
    result = await world.agent(*STEPS).run("Plan a journey.")
    assert (result.stop_reason, result.steps) == ("end_turn", 4)
    texts = [(await world.agent(say(f"{step}")).resume(result.at(step))).text for step in (3, 1, 1, 0)]
    assert texts == ["3", "1", "1", "0"]
    back = result.at(2)
    await world.agent(say("a")).resume(back)
    with pytest.raises(CheckpointError, match="continued"):
        await world.agent(say("b")).resume(back)


@virtual
async def test_a_run_that_goes_back_can_go_back_again_and_nothing_is_undone_twice() -> None:
    world = World()
    result = await world.agent(*STEPS).run("Plan a journey.")
    second = await world.agent(call("book", city="Paris"), say("Paris then.")).resume(result.at(1))
    assert (world.booked, second.steps) == (["Paris"], 3)
    third = await world.agent(say("No journey.")).resume(second.at(1))
    assert (world.booked, third.text) == ([], "No journey.")
    assert world.order == ["Oslo", "Rome", "Paris"]


@virtual
async def test_an_undo_that_fails_or_takes_too_long_is_told_and_the_run_goes_on() -> None:
    for world in (World(undo_fails=True), World(undo_takes=60)):
        result = await world.agent(*STEPS).run("Plan a journey.")
        again = await world.agent(say("Well.")).resume(result.at(2))
        assert again.text == "Well."
        (book, _send) = again.taken_back
        assert book.state == "finished"
        assert book.error is not None
        assert "its undo failed" in book.error
        assert world.booked == ["Rome", "Oslo"]


@virtual
async def test_a_run_stopped_while_it_undoes_leaves_the_rest_to_its_checkpoint() -> None:
    world = World(undo_takes=1.0)
    result = await world.agent(*STEPS).run("Plan a journey.")
    async with world.agent(say("never said")).start(checkpoint=Resume(result.at(1))) as run:
        await passes(1.5)  # Oslo is undone, Rome is not yet
        assert await run.cancel().wait() == "stopped"
    assert world.booked == ["Rome"]
    left = run.result.checkpoint
    assert left is not None
    assert [entry.args for entry in left.since] == [{"city": "Rome"}]
    final = await world.agent(say("Well.")).resume(left)
    assert (final.text, world.booked) == ("Well.", [])


@virtual
async def test_a_message_that_joined_before_the_next_step_stays() -> None:
    world = World()
    async with world.agent(*STEPS).start("Plan a journey.") as run:
        run.steer("With a view.", at=SafePoint.after_step(1))
    back = run.result.at(1)
    assert [message.text for message in back.open_messages if message.role == "user"] == [
        "Plan a journey.",
        "With a view.",
    ]


@virtual
async def test_what_cannot_be_gone_back_to_is_refused_with_what_to_write() -> None:
    world = World()
    result = await world.agent(*STEPS).run("Plan a journey.")
    for wrong in (-1, 4, 99, True):
        with pytest.raises(ValueError, match="from 0 up"):
            result.at(wrong)
    first, second = (Agent(name, model=ScriptedModel(say(name))) for name in ("x", "y"))
    both = await Sequential("both", first).then(second).run("go")
    with pytest.raises(CheckpointError, match=r"result\.children"):
        both.at(1)
    assert both.children[1].result.at(0).step == 0


@virtual
async def test_a_session_is_forked_from_an_earlier_step_of_its_last_run() -> None:
    world = World()
    session = await Session.create(MemoryStore())
    await world.agent(say("Hello.")).run("Hello?", session=session)
    result = await world.agent(*STEPS).run("Plan a journey.", session=session)
    other = await session.fork(at=result.at(2))
    assert [message.text for message in other.messages[:3]] == ["Hello?", "Hello.", "Plan a journey."]
    assert len(results(list(other.messages))) == 2
    assert "taken back to the end of step 2" in other.messages[-1].parts[-1].text  # type: ignore[union-attr]  # a notice
    model = ScriptedModel(say("Oslo is off."))
    answer = await Agent("traveller", model=model, tools=world.tools).run("Without Oslo.", session=other)
    assert answer.text == "Oslo is off."
    check_history(list(other.messages))
    assert len(session.messages) > 6, "the session itself goes on as it was"
    strange = await world.agent(*STEPS).run("Another one.")
    with pytest.raises(CheckpointError, match="this session"):
        await session.fork(at=strange.at(1))


plans = st.lists(st.lists(st.sampled_from(["look", "book", "send"]), min_size=1, max_size=3), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(plans, st.integers(0, 9), st.booleans())
def test_going_back_anywhere_leaves_a_world_as_it_was_then(plan: list[list[str]], where: int, stopped: bool) -> None:
    """But for what has no undo; and the conversation is what the model saw at that step."""

    async def play() -> None:
        world, numbers = World(), iter(range(99))

        def made(name: str) -> object:
            args = {"look": {}, "book": {"city": f"c{next(numbers)}"}, "send": {"to": "x"}}
            return call(name, args[name])

        replies = [[made(name) for name in step] for step in plan]
        async with world.agent(*replies, say("done")).start("go") as run:
            if stopped:
                run.cancel(SafePoint.after_step(len(plan)))
        step = where % len(plan)
        model = ScriptedModel(say("back"))
        booked = list(world.booked)
        kept = sum(name == "book" for names in plan[:step] for name in names)
        back = run.result.at(step)
        result = await Agent("traveller", model=model, tools=world.tools).resume(back)
        assert world.booked == booked[:kept]
        assert len(world.sent) == sum(name == "send" for names in plan for name in names)
        assert len(results(result.messages)) == sum(len(names) for names in plan[:step])
        check_history(result.messages)
        check_history(back.messages)
        await rounds(1)

    run_virtual(play)


def test_a_checkpoint_of_before_says_nothing_of_calls_since() -> None:
    async def main() -> bytes:
        world = World()
        async with world.agent(*STEPS).start("go") as run:
            await run.cancel(SafePoint.after_step(1)).wait()
        assert run.result.checkpoint is not None
        return run.result.checkpoint.to_bytes()

    assert Checkpoint.from_bytes(asyncio.run(main())).since == ()
