"""Sessions on every store: create, load, continue, fork, rewind, delete; messages and state after each kind of end."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from safepoint import Agent, Budget, Ladder, Message, SafePoint, Text, ToolContext, check_history, tool
from safepoint.agent.model import Finish, TextDelta
from safepoint.errors import (
    CheckpointError,
    ModelError,
    RunFailed,
    SessionBusy,
    SessionExists,
    SessionNotFound,
)
from safepoint.history.encoding import Lost
from safepoint.sessions import LateResult, MemoryStore, Session, Store
from safepoint.testing import ScriptedModel, call, fail, run_virtual, say, stall
from safepoint.testing.models import Reply, raw
from tests.sessions.stores import Wrapped, both_stores, opened


@tool
async def remember(key: str, value: int, context: ToolContext) -> str:
    """Write into the session's state."""
    assert isinstance(context.session, Session)
    context.session.state[key] = value
    return str(context.session.state)


@tool(effect="pure")
async def look() -> str:
    """Look."""
    return "seen"


@tool
async def ask(context: ToolContext) -> str:
    """Ask."""
    answer: str = await context.interrupt("well?")
    return answer


def agent(*replies: Reply) -> Agent:
    return Agent("a", model=ScriptedModel(*replies), tools=[remember, look, ask])


@both_stores
def test_sessions_are_made_found_listed_and_deleted(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            with pytest.raises(SessionNotFound, match="no session 'a': create it first"):
                await Session.load(store, "a")
            await Session.create(store, "b", state={"x": 1})
            first = await Session.create(store, "a")
            with pytest.raises(SessionExists, match="'a' is there already"):
                await Session.create(store, "a")
            assert await store.list_ids() == ["a", "b"]
            assert (await Session.load(store, "b")).state == {"x": 1}
            await first.delete()
            await first.delete()
            assert await store.list_ids() == ["b"]
            assert (await Session.create(store)).id.startswith("session_")
            with pytest.raises(ValueError, match=r"^id='': write a str that is not empty, or leave it out$"):
                await Session.create(store, "")

    run_virtual(main)


ENDS: dict[str, list[Reply]] = {
    "end_turn": [say("done")],
    "cancelled": [[say("Once"), stall()]],
    "interrupted": [call("ask")],
    "max_steps": [call("look")] * 3,
    "max_tokens": [raw(TextDelta("Once"), Finish("max_tokens"))],
    "budget": [call("remember", key="k", value=1)] * 3,
    "refused": [raw(Finish("refused"))],
    "error": [fail(ModelError("no"))],
}


@both_stores
@pytest.mark.parametrize("end", sorted(ENDS))
def test_after_each_kind_of_end_the_session_has_the_messages_of_the_result(kind: str, end: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            await agent(say("hello")).run("hi", session=session)
            budget = Budget(repeats=2) if end == "budget" else Budget(steps=2)
            async with agent(*ENDS[end]).start("go", session=session, budget=budget) as run:
                if end == "cancelled":
                    async for _ in run.text():
                        run.cancel()
            assert run.result.stop_reason == end
            check_history(session.messages)
            loaded = await Session.load(store, "s")
            assert session.messages == loaded.messages == tuple(run.result.messages)
            assert [m.text for m in session.messages[:3]] == ["hi", "hello", "go"]
            assert session.checkpoint == loaded.checkpoint == run.result.checkpoint
            assert (await agent(say("next")).run("and now?", session=loaded)).text == "next"
            check_history(loaded.messages)
            assert loaded.checkpoint is None, "a new message drops what was open"

    run_virtual(main)


@both_stores
def test_state_is_written_by_tools_saved_with_the_run_and_taken_back_by_a_rewind(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s", state={"a": 0})
            session.state["mine"] = 1
            await agent(call("remember", key="b", value=2), say("ok")).run("go", session=session)
            assert (await Session.load(store, "s")).state == session.state == {"a": 0, "mine": 1, "b": 2}
            rewound = await session.rewind()
            assert [m.text for m in rewound.messages if m.role == "user"] == ["go"]
            assert [entry.name for entry in rewound.effects] == ["remember"]
            assert (await Session.load(store, "s")).state == session.state == {"a": 0, "mine": 1}
            assert session.messages == (await Session.load(store, "s")).messages == ()
            session.state["c"] = 3
            await session.save_state()
            assert (await Session.load(store, "s")).state == {"a": 0, "mine": 1, "c": 3}
            assert (await session.rewind()).messages == ()

    run_virtual(main)


@both_stores
def test_two_who_change_the_state_change_their_own_values_and_keep_the_others(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            here = await Session.create(store, "s", state={"same": 0, "goes": 0, "both": 0})
            there = await Session.load(store, "s")
            there.state |= {"theirs": 1, "both": 1}
            await there.save_state()
            here.state |= {"mine": 2, "both": 2, "temp:x": 3}
            del here.state["goes"]
            await here.save_state()
            assert here.state == {"same": 0, "theirs": 1, "mine": 2, "both": 2, "temp:x": 3}
            assert (await Session.load(store, "s")).state == {"same": 0, "theirs": 1, "mine": 2, "both": 2}
            there.state["asked"] = 4
            await agent(call("remember", key="told", value=5), say("ok")).run("go", session=there)
            stored = (await Session.load(store, "s")).state
            assert stored == {"same": 0, "theirs": 1, "mine": 2, "both": 2, "asked": 4, "told": 5}

    run_virtual(main)


@both_stores
def test_a_state_that_cannot_be_stored_costs_only_itself(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            session.state.update({"good": 1, "$lost": {"$bytes": 2}, "bad": object(), "nan": math.nan})
            await agent(say("ok")).run("go", session=session)
            state: dict[str, Any] = (await Session.load(store, "s")).state  # Any: JSON values
            assert (state["good"], state["$lost"]) == (1, {"$bytes": 2})
            assert isinstance(state["bad"], Lost)

    run_virtual(main)


@both_stores
def test_a_rewind_lists_what_ran_and_leaves_out_what_never_did(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            calls = [call("look"), call("remember", key="k", value=1), call("remember"), call("nothing"), call("ask")]
            await agent(calls).run("go", session=session)
            assert [entry.name for entry in (await session.rewind()).effects] == ["remember", "ask"]

    run_virtual(main)


@both_stores
def test_a_rewind_takes_back_what_another_object_has_added(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            await agent(say("1")).run("one", session=session)
            turn = session.runs[-1].run_id
            await agent(say("2")).run("two", session=await Session.load(store, "s"))
            assert (await session.rewind(turn=turn)).messages == (), "it is not the last any more"
            assert [m.text for m in session.messages] == ["one", "1", "two", "2"]
            assert [m.text for m in (await session.rewind()).messages] == ["two", "2"]
            assert [m.text for m in session.messages] == ["one", "1"]

    run_virtual(main)


@both_stores
def test_a_refresh_shows_what_others_have_written_and_writes_nothing(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            await agent(say("1")).run("one", session=session)
            there = await Session.load(store, "s")
            there.state["theirs"] = 1
            await agent(say("2")).run("two", session=there)
            session.state["mine"] = 2
            stored = await store.load("s")
            await session.refresh()
            assert [m.text for m in session.messages] == ["one", "1", "two", "2"]
            assert session.state == {"theirs": 1, "mine": 2}
            assert await store.load("s") == stored
            await agent(say("3")).run("three", session=session)
            assert session.messages == (await Session.load(store, "s")).messages
            assert (await Session.load(store, "s")).state == {"theirs": 1, "mine": 2}

    run_virtual(main)


@both_stores
def test_who_loaded_a_session_while_it_was_live_learns_how_that_ended(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            reached, go_on = asyncio.Event(), asyncio.Event()

            @tool
            async def wait() -> str:
                """Wait."""
                reached.set()
                await go_on.wait()
                return "waited"

            first = Agent("a", model=ScriptedModel(call("wait"), say("1")), tools=[wait])
            async with first.start("one", session=session) as run:
                await reached.wait()
                other = await Session.load(store, "s")
                go_on.set()
            assert run.result.text == "1"
            await agent(say("2")).run("two", session=other)
            assert [m.text for m in other.messages if m.text] == ["one", "1", "two", "2"]
            assert [run.stop_reason for run in other.runs] == ["end_turn", "end_turn"]

    run_virtual(main)


@both_stores
def test_a_new_message_drops_the_open_view_for_good_and_what_was_asked_stays_known(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            paused = await agent(call("ask")).run("go", session=session)
            before = session.checkpoint
            assert before is not None
            await agent(say("well")).run("never mind", session=session)
            for one in (session, await Session.load(store, "s")):
                kept = one.runs[0].checkpoint
                assert kept is not None
                assert (kept.questions, kept.stop_reason) == (paused.questions, "interrupted")
                assert len(kept.to_bytes()) < 1000 < len(before.to_bytes())
                with pytest.raises(CheckpointError, match="a new message came after this checkpoint"):
                    await agent().resume(kept)
            await session.rewind()
            for one in (session, await Session.load(store, "s")):
                assert one.checkpoint is None
                with pytest.raises(CheckpointError, match="moved on"):
                    await agent().resume(before, session=one, answers={paused.questions[0].id: "yes"})
                check_history(one.messages)

    run_virtual(main)


@both_stores
def test_a_fork_goes_its_own_way(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            await agent(call("remember", key="k", value=1), say("ok")).run("go", session=session)
            other = await session.fork("t")
            other.state["k"] = 2
            await agent(say("there")).run("elsewhere", session=other)
            assert [m.text for m in (await Session.load(store, "t")).messages][-2:] == ["elsewhere", "there"]
            assert (await Session.load(store, "t")).state == {"k": 2}
            assert (session.messages[-1].text, session.state) == ("ok", {"k": 1})
            await session.delete()
            assert len((await Session.load(store, "t")).messages) == 6

    run_virtual(main)


@both_stores
def test_a_fork_has_what_is_true_now_and_never_half_a_turn(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            inside, release = asyncio.Event(), asyncio.Event()

            @tool
            async def wait() -> str:
                """Wait."""
                inside.set()
                await release.wait()
                return "waited"

            one = Agent("a", model=ScriptedModel(call("wait"), say("done")), tools=[wait])
            async with one.start("go", session=session):
                await inside.wait()
                elsewhere = await Session.load(store, "s")  # as another process would see it
                with pytest.raises(SessionBusy):
                    await elsewhere.fork("early")
                release.set()
            fork = await elsewhere.fork("late")
            assert [m.role for m in fork.messages] == ["user", "assistant", "tool", "assistant"]
            assert await store.list_ids() == ["late", "s"]

    run_virtual(main)


@both_stores
def test_who_only_changes_a_session_is_waited_for_but_not_for_ever(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            watched, hung = Wrapped(store), Wrapped(store)
            session = await Session.create(watched, "s")
            changing = await Session.load(hung, "s")
            changing.state["theirs"] = 1
            hung.hangs_at = ("append", 1)
            change = asyncio.create_task(changing.save_state())
            await hung.reached.wait()
            session.state["mine"] = 2
            with pytest.raises(SessionBusy):
                await session.save_state()
            again = asyncio.Event()
            watched.counts.clear()
            watched.before = lambda name, number: again.set() if (name, number) == ("claim", 3) else None
            waiting = asyncio.create_task(agent(say("ok")).run("go", session=session))
            await asyncio.wait({waiting, asyncio.ensure_future(again.wait())}, return_when=asyncio.FIRST_COMPLETED)
            change.cancel()
            await asyncio.wait({change})
            assert (await waiting).text == "ok"
            assert (await Session.load(store, "s")).state == {"mine": 2}

    run_virtual(main)


@both_stores
def test_one_live_run_at_a_time_and_a_refused_one_disturbs_nothing(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            reached = asyncio.Event()
            async with agent([say("x"), stall(reached.set)]).start("go", session=session) as run:
                await reached.wait()
                for one in (session, await Session.load(store, "s")):
                    with pytest.raises(SessionBusy):
                        await agent(say("never")).run("me too", session=one)
                for refused in (session.rewind, session.fork, session.save_state):
                    with pytest.raises(SessionBusy, match="live"):
                        await refused()
                run.cancel()
            assert run.result.save_error is None
            assert [m.text for m in (await Session.load(store, "s")).messages] == ["go", "x"]

    run_virtual(main)


@both_stores
def test_a_cancel_while_the_session_is_claimed_leaves_it_free_for_everybody(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as inner:
            store = Wrapped(inner)
            session = await Session.create(store, "s")
            await agent(say("other")).run("hi", session=await Session.load(inner, "s"))
            store.hangs_at = ("load", 1)  # the claim is made; what others wrote is being read
            async with agent(say("never")).start("go", session=session) as run:
                await store.reached.wait()
                assert await run.cancel().wait() == "stopped"
            assert (await agent(say("ok")).run("now", session=await Session.load(inner, "s"))).text == "ok"
            assert (await agent(say("ok")).run("now", session=session)).text == "ok"

    run_virtual(main)


@both_stores
@pytest.mark.parametrize("at", [SafePoint.NOW, SafePoint.FORCE])
def test_a_run_that_was_stopped_before_its_start_has_its_input_in_the_session(
    kind: str, at: SafePoint, tmp_path: Path
) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            asker = agent(say("hello"))
            asker.cancel(at, reason="not yet")
            stopped = await asker.run("hi", session=session)
            assert stopped.stop_reason == "cancelled"
            assert [m.text for m in session.messages if m.role == "user"] == ["hi"]
            loaded = await Session.load(store, "s")
            assert loaded.checkpoint is not None
            assert (await asker.resume(loaded.checkpoint, session=loaded)).text == "hello"

    run_virtual(main)


# -- late results ------------------------------------------------------------------------------------------------------


async def late_session(store: Store) -> tuple[Session, Agent]:
    """A session whose last run left a call behind that has come back since."""
    session = await Session.create(store, "s")
    gate, inside = asyncio.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        """Go on after a cancel."""
        inside.set()
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()
        return "late news"

    model = ScriptedModel(call("stubborn"), say("I see"), say("again"))
    holder = Agent("a", model=model, tools=[stubborn], ladder=Ladder(task=0.1))
    async with holder.start("go", session=session) as run:
        await inside.wait()
        run.cancel()
    assert [entry.still_running for entry in run.result.ledger] == [True]
    gate.set()
    while not (await store.load("s")).late:  # noqa: ASYNC110  # the store has no event to wait for
        await asyncio.sleep(0)
    return session, holder


@both_stores
@pytest.mark.parametrize("same_object", [True, False])
def test_a_late_result_is_told_to_the_next_run_and_only_once(kind: str, same_object: bool, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session, _ = await late_session(store)
            assert session.late == (LateResult("call_1_1", "stubborn", "late news"),)
            session = session if same_object else await Session.load(store, "s")
            model = ScriptedModel(say("one"), say("two"))
            for prompt in ("what now?", "and now?"):
                await Agent("b", model=model).run(prompt, session=session)
            told = [str(request.messages).count("late news") for request in model.requests]
            assert told == [1, 1], "the note is part of the conversation, once"
            assert session.late == (await store.load("s")).late == ()
            check_history(session.messages)

    run_virtual(main)


def abandoned_by_its_run(leaves: Callable[[ToolContext], str]) -> Agent:
    """An agent whose first call times out, is abandoned, and has come back before its second call is over."""
    timed_out, back = threading.Event(), threading.Event()

    @tool(timeout=0.1, grace=0.1)
    def slow(ctx: ToolContext) -> str:
        """Look at nothing for a while."""
        try:
            timed_out.wait(30)
            return leaves(ctx)
        finally:
            back.set()

    @tool
    async def waits(ctx: ToolContext) -> str:
        """Let the other one go, and wait until it has come back."""
        timed_out.set()
        await asyncio.to_thread(back.wait, 30)
        while any(name.startswith("safepoint:") and "slow" in name for name in thread_names()):  # noqa: ASYNC110  # a thread has no event
            await asyncio.sleep(0)
        return "waited"

    return Agent("a", model=ScriptedModel(call("slow"), call("waits"), say("done"), say("next")), tools=[slow, waits])


def thread_names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def told_late(leaves: Callable[[ToolContext], str]) -> tuple[tuple[LateResult, ...], str]:
    """What the session has for its next run, and what that run's model was told."""

    async def main() -> tuple[tuple[LateResult, ...], str]:
        session = await Session.create(MemoryStore(), "s")
        agent = abandoned_by_its_run(leaves)
        assert (await agent.run("go", session=session)).text == "done"
        late = session.late
        session = await Session.load(session.store, "s")  # it is stored with the end of its run
        assert session.late == late
        await agent.run("and?", session=session)
        model = agent.models[0]
        assert isinstance(model, ScriptedModel)
        return late, str(model.requests[-1].messages)

    return asyncio.run(main())


def test_a_thread_that_came_back_while_its_run_went_on_is_told_to_the_next_run() -> None:
    late, told = told_late(lambda ctx: "late news")
    assert late == (LateResult("call_1_1", "slow", "late news"),)
    assert 'The call slow finished after all: \\"late news\\"' in told or 'finished after all: "late news"' in told


def test_a_thread_that_heard_of_the_stop_after_all_brings_nothing() -> None:
    def leaves(ctx: ToolContext) -> str:
        ctx.check()
        return "never"

    late, told = told_late(leaves)
    assert late == ()
    assert "finished after all" not in told


@both_stores
def test_a_run_that_continues_takes_a_late_result_for_the_result_of_its_call(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session, holder = await late_session(store)
            assert session.checkpoint is not None
            final = await holder.resume(session.checkpoint, session=session)
            assert [(entry.state, entry.content) for entry in final.ledger] == [("finished_late", "late news")]
            assert final.text == "I see"
            assert session.late == (await store.load("s")).late == ()
            assert not any(part.is_error for m in final.messages for part in m.parts if part.kind == "tool_result")

    run_virtual(main)


@both_stores
def test_a_failed_run_raises_and_its_session_can_be_resumed(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            broken = agent(fail(ModelError("no")), say("ok"))
            with pytest.raises(RunFailed):
                await broken.run("go", session=session)
            assert session.checkpoint is not None
            assert (await broken.resume(session.checkpoint, session=session)).text == "ok"
            assert [m.text for m in (await Session.load(store, "s")).messages] == ["go", "ok"]

    run_virtual(main)


@both_stores
def test_a_history_that_ends_with_the_users_words_is_gone_on_with_in_one_message(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s", history=[Message("user", (Text("one"),))])
            model = ScriptedModel(say("Both."))
            result = await Agent("a", model=model).run("two", session=session)
            assert model.requests[0].messages == (Message("user", (Text("one"), Text("two"))),)
            check_history(result.messages)
            assert (await store.load("s")).messages == session.messages == tuple(result.messages)

    run_virtual(main)
