"""Cancel of a run that waits for a person: the pause is cleared, its result stays, and it asks again if it goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from safepoint import (
    Agent,
    AskFirst,
    Checkpoint,
    Handoff,
    Hooks,
    Reason,
    Resume,
    Run,
    RunResult,
    SafePoint,
    Sequential,
    Source,
    ToolCall,
    ToolContext,
    check_history,
    tool,
)
from safepoint.agent.base import BaseAgent
from safepoint.agent.journal import Ended
from safepoint.agent.resume import continued
from safepoint.errors import CheckpointError, StoreError, UsageError
from safepoint.sessions import MemoryStore, Session, SqliteStore
from safepoint.sessions.store import Change, Store
from safepoint.testing import ScriptedModel, call, say
from tests.virtual import rounds, virtual

done: list[str] = []


@tool
async def pay(ctx: ToolContext) -> str:
    """Pay, if a person agrees."""
    answer = str(await ctx.interrupt("pay?"))
    done.append(answer)
    return answer


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    done.clear()


def payer() -> Agent:
    return Agent("payer", model=ScriptedModel([say("I pay"), call("pay")], say("paid"), say("and on")), tools=[pay])


async def paused(agent: BaseAgent[None, str], session: Session | None = None) -> Run[None, str]:
    async with agent.start("go", session=session) as run:
        await run.wait()
    assert run.result.stop_reason == "interrupted"
    return run


def checkpoint_of(result: RunResult) -> Checkpoint:
    assert result.checkpoint is not None
    return result.checkpoint


def answers(checkpoint: Checkpoint, answer: object = "yes") -> dict[str, object]:
    return {question.id: answer for question in checkpoint.asked}


# -- a bare checkpoint -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [SafePoint.NOW, SafePoint.AFTER_TOOLS, SafePoint.named("x"), SafePoint.FORCE])
@virtual
async def test_a_cancel_clears_the_pause_and_the_answer_is_refused_with_the_reason(at: SafePoint) -> None:
    agent = payer()
    run = await paused(agent)
    before, events = run.result, run.kept_events()
    receipt = run.cancel(at, reason="too expensive")
    assert (receipt.accepted, await receipt.wait(), receipt.contributed) == (True, "stopped", True)
    assert run.result is before
    assert run.kept_events() == events, "its terminal event stays"
    checkpoint = checkpoint_of(before)
    with pytest.raises(CheckpointError, match=r"cancelled while it waited \(too expensive\): leave out answers"):
        await agent.resume(checkpoint, answers=answers(checkpoint))
    with pytest.raises(CheckpointError, match="too expensive"):
        await agent.resume(checkpoint, answers=answers(checkpoint), fork=True)
    assert done == []


@virtual
async def test_resumed_without_answers_it_asks_again_and_takes_the_answer_then() -> None:
    agent = payer()
    first = await paused(agent)
    first.cancel(reason="not now")
    again = await agent.resume(checkpoint_of(first.result))
    assert (again.stop_reason, [question.payload for question in again.questions]) == ("interrupted", ["pay?"])
    checkpoint = checkpoint_of(again)
    result = await agent.resume(checkpoint, answers=answers(checkpoint))
    assert (result.text, done) == ("paid", ["yes"])
    with pytest.raises(CheckpointError, match="was continued already"):
        await agent.resume(checkpoint_of(first.result))


@virtual
async def test_a_new_message_sees_that_it_was_stopped_and_by_what() -> None:
    agent = payer()
    run = await paused(agent)
    run.cancel(reason="too expensive")
    resumed = agent.start(checkpoint=checkpoint_of(run.result))
    resumed.cancel(reason="later")
    async with resumed:
        closed = resumed.result.messages if resumed.ended else (await resumed.wait()).messages
    check_history(closed)
    left = checkpoint_of(run.result).cleared(Reason("too expensive"), "x")
    check_history(left.messages)
    assert 'Reason: "too expensive"' in left.messages[-1].parts[-1].text  # type: ignore[union-attr]  # a notice
    assert "waits for the answer" not in str(left.messages)


@virtual
async def test_an_answer_that_came_first_is_not_cancelled_by_the_old_handle() -> None:
    agent = payer()
    run = await paused(agent)
    checkpoint = checkpoint_of(run.result)
    result = await agent.resume(checkpoint, answers=answers(checkpoint))
    receipt = run.cancel()
    assert (receipt.accepted, await receipt.wait()) == (False, "finished_first")
    assert (result.text, done) == ("paid", ["yes"])


@virtual
async def test_of_two_cancels_the_second_finds_the_pause_cleared() -> None:
    run = await paused(payer())
    first, second = run.cancel(), run.cancel()
    assert (first.accepted, second.accepted) == (True, False)
    assert (await first.wait(), await second.wait()) == ("stopped", "finished_first")
    assert not first.withdraw()


@virtual
async def test_an_answer_whose_handle_was_made_before_the_cancel_is_refused_when_it_is_entered() -> None:
    agent = payer()
    run = await paused(agent)
    checkpoint = checkpoint_of(run.result)
    answering = agent.start(checkpoint=Resume(checkpoint, answers=answers(checkpoint)))
    run.cancel(reason="no")
    with pytest.raises(CheckpointError, match="cancelled while it waited"):
        await answering.__aenter__()
    assert done == []


def test_a_pause_is_cleared_from_any_thread_also_when_its_loop_is_closed() -> None:
    run = asyncio.run(paused(payer()))
    outcomes: list[str] = []
    thread = threading.Thread(target=lambda: outcomes.append(run.cancel(reason="late").wait_sync(5)))
    thread.start()
    thread.join()
    assert outcomes == ["stopped"]


@virtual
async def test_agent_cancel_and_leaving_the_block_by_an_error_leave_the_pause_alone() -> None:
    agent = payer()
    run = agent.start("go")

    async def leave() -> None:
        async with run:
            await run.wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await leave()
    assert await agent.cancel().wait() == "finished_first"
    checkpoint = checkpoint_of(run.result)
    assert (await agent.resume(checkpoint, answers=answers(checkpoint))).text == "paid"


def test_racing_answers_and_cancels_have_one_winner() -> None:
    """In threads: whoever is first in the list of continued checkpoints."""
    seen: set[tuple[str, bool]] = set()
    for number in range(60):
        agent = payer()
        run = asyncio.run(paused(agent))
        checkpoint, ready = checkpoint_of(run.result), threading.Barrier(2)
        outcomes: list[str] = []

        def cancel(ready: threading.Barrier = ready, run: Run[None, str] = run, outcomes: list[str] = outcomes) -> None:
            ready.wait()
            outcomes.append(run.cancel().wait_sync(5))

        thread = threading.Thread(target=cancel)
        thread.start()
        if number % 2:
            ready.wait()
        done.clear()
        try:
            if not number % 2:
                ready.wait()
            agent.resume_sync(checkpoint, answers=answers(checkpoint))
        except CheckpointError:
            pass
        thread.join()
        seen.add((outcomes[0], bool(done)))
    assert seen <= {("stopped", False), ("finished_first", True)}


# -- what asks ---------------------------------------------------------------------------------------------------------


class Guard(Hooks):
    def before_tool(self, run: Run[None, str], call: ToolCall) -> AskFirst:
        return AskFirst("may it?")


def nested() -> Agent:
    return Agent("boss", model=ScriptedModel(call("payer", input="go"), say("all paid")), tools=[payer().as_tool()])


def in_sequence() -> Sequential[None, str]:
    return Sequential("both", Agent("first", model=ScriptedModel(say("hi")))).then(payer())


def handed() -> Handoff[None, str]:
    front = Agent("front", model=ScriptedModel(call("transfer_to_payer")))
    return Handoff("desk", front, to={front: [payer()]})


def guarded() -> Agent:
    return Agent("payer", model=ScriptedModel(call("pay"), say("paid")), tools=[pay], hooks=[Guard()])


@pytest.mark.parametrize("make", [nested, in_sequence, handed, guarded])
@virtual
async def test_questions_of_sub_agents_composites_and_hooks_are_cleared_and_asked_again(
    make: Callable[[], BaseAgent[None, str]],
) -> None:
    agent = make()
    run = await paused(agent)
    checkpoint = checkpoint_of(run.result)
    assert await run.cancel(reason="no").wait() == "stopped"
    with pytest.raises(CheckpointError, match="cancelled while it waited"):
        await agent.resume(checkpoint, answers=answers(checkpoint, answer=True))
    check_history(checkpoint.cleared(Reason("no"), "x").messages)
    again = await agent.resume(checkpoint)
    assert again.stop_reason == "interrupted"
    assert [question.payload for question in again.questions] == [question.payload for question in checkpoint.questions]


# -- a session ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def stored(kind: str, path: Path) -> AsyncGenerator[Store]:
    store: Store = MemoryStore() if kind == "memory" else SqliteStore(path / "chat.db")
    try:
        yield store
    finally:
        await store.aclose()


both = pytest.mark.parametrize("kind", ["memory", "sqlite"])


@both
@pytest.mark.parametrize("by", ["run", "session", "another session"])
def test_in_a_session_the_cancel_is_stored(kind: str, by: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(kind, tmp_path) as store:
            agent, session = payer(), await Session.create(store, "chat")
            run = await paused(agent, session)
            askers: dict[str, Run[None, str] | Session] = {"run": run, "session": session}
            asker = askers.get(by) or await Session.load(store, "chat")
            receipt = asker.cancel(reason=Reason("too expensive", by="ada"))
            assert receipt.accepted
            assert await receipt.wait() == "stopped"
            assert (run.result.stop_reason, receipt.save_error) == ("interrupted", None)
            again = await Session.load(store, "chat")
            assert again.runs[-1].stop_reason == "cancelled"
            check_history(again.messages)
            assert 'Asked by: "ada". Reason: "too expensive"' in str(again.messages[-1])
            checkpoint = checkpoint_of(run.result)
            with pytest.raises(CheckpointError, match="too expensive"):
                await agent.resume(checkpoint, answers=answers(checkpoint), session=again)
            assert again.checkpoint is not None
            with pytest.raises(CheckpointError, match="too expensive"):
                await agent.resume(again.checkpoint, answers=answers(checkpoint), session=again)
            asked = await agent.resume(again.checkpoint, session=again)
            assert asked.stop_reason == "interrupted"
            answered = checkpoint_of(asked)
            assert (await agent.resume(answered, answers=answers(answered), session=again)).text == "paid"
            assert done == ["yes"]

    asyncio.run(scenario())


@both
def test_another_process_that_brings_the_answer_is_refused_by_the_store(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(kind, tmp_path) as store:
            agent, session = payer(), await Session.create(store, "chat")
            run = await paused(agent, session)
            # As another process has it: nothing is known there of what this one has continued or cleared.
            elsewhere = Checkpoint.from_bytes(checkpoint_of(run.result).to_bytes())
            await session.cancel(reason="no").wait()
            continued.put_back(elsewhere.id)
            other = await Session.load(store, "chat")
            with pytest.raises(CheckpointError, match=r"cancelled while it waited \(no\)"):
                await agent.resume(elsewhere, answers=answers(elsewhere), session=other)
            assert done == []

    asyncio.run(scenario())


@both
def test_an_answer_that_was_stored_first_wins(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(kind, tmp_path) as store:
            agent, session = payer(), await Session.create(store, "chat")
            run = await paused(agent, session)
            other, checkpoint = await Session.load(store, "chat"), checkpoint_of(run.result)
            resume = Resume(checkpoint, answers=answers(checkpoint))
            async with agent.start(checkpoint=resume, session=other) as answering:
                await answering.wait()
            receipt = run.cancel()
            assert (receipt.accepted, await receipt.wait()) == (False, "finished_first")
            assert ((await Session.load(store, "chat")).runs[-1].stop_reason, done) == ("end_turn", ["yes"])

    asyncio.run(scenario())


@both
def test_a_message_right_after_an_unawaited_cancel_runs(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(kind, tmp_path) as store:
            agent, session = payer(), await Session.create(store, "chat")
            await paused(agent, session)
            receipt = session.cancel(reason="no")
            result = await agent.run("never mind", session=session)
            assert (receipt.outcome, result.text) == ("stopped", "paid")
            check_history(session.messages)

    asyncio.run(scenario())


@both
@pytest.mark.parametrize("first", ["answer", "cancel"])
def test_an_answer_and_a_cancel_at_once_have_one_winner(kind: str, first: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with stored(kind, tmp_path) as store:
            for steps in range(12):
                done.clear()
                agent, session = payer(), await Session.create(store)
                run = await paused(agent, session)
                checkpoint = checkpoint_of(run.result)
                other = session if steps % 2 else await Session.load(store, session.id)
                answering = asyncio.ensure_future(_answered(agent, checkpoint, other, first == "answer", steps))
                await rounds(steps if first == "answer" else 0)
                outcome = await run.cancel().wait()
                answered = await answering
                assert (outcome, answered, done) in [("stopped", False, []), ("finished_first", True, ["yes"])]
                left = await Session.load(store, session.id)
                check_history(left.messages)
                assert left.runs[-1].stop_reason == ("end_turn" if answered else "cancelled")

    asyncio.run(scenario())


async def _answered(agent: Agent, checkpoint: Checkpoint, session: Session, at_once: bool, steps: int) -> bool:
    await rounds(0 if at_once else steps)
    try:
        await agent.resume(checkpoint, answers=answers(checkpoint), session=session)
    except CheckpointError:
        return False
    return True


class Gated(MemoryStore):
    """Tells when the end of a paused run is being written, and waits there; or fails to clear a pause."""

    def __init__(self) -> None:
        super().__init__()
        self.writing, self.go = asyncio.Event(), asyncio.Event()
        self.broken = False

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        ended = next((change for change in changes if isinstance(change, Ended)), None)
        if ended is not None and ended.stop_reason == "interrupted":
            self.writing.set()
            await self.go.wait()
        if ended is not None and ended.stop_reason == "cancelled" and self.broken:
            raise StoreError("the disk is full")
        await super().append(session_id, epoch, changes)


@pytest.mark.parametrize("source", [Source.USER, Source.SHUTDOWN])
@virtual
async def test_an_ask_that_comes_while_the_run_closes_itself_to_wait_clears_the_pause(source: Source) -> None:
    store = Gated()
    agent, session = payer(), await Session.create(store, "chat")
    async with agent.start("go", session=session) as run:
        await store.writing.wait()
        receipt = run.cancel(reason=Reason("no", source))
        store.go.set()
        outcome = await receipt.wait()
    assert (receipt.accepted, run.result.stop_reason) == (True, "interrupted")
    # A shutdown means what runs; a question outlives it.
    expected = ("stopped", "cancelled") if source is Source.USER else ("finished_first", "interrupted")
    assert (outcome, session.runs[-1].stop_reason) == expected


@virtual
async def test_a_handle_knows_why_its_pause_was_cleared() -> None:
    run = await paused(payer())
    assert run.cleared is None
    run.cancel(reason="no")
    assert run.cleared == Reason("no")


@virtual
async def test_a_cancel_that_cannot_be_stored_counts_in_this_process_and_says_so() -> None:
    store = Gated()
    store.go.set()
    agent, session = payer(), await Session.create(store, "chat")
    run = await paused(agent, session)
    store.broken = True
    receipt = session.cancel(reason="no")
    assert await receipt.wait() == "stopped"
    assert "the disk is full" in str(receipt.save_error)
    store.broken = False
    checkpoint = checkpoint_of(run.result)
    with pytest.raises(CheckpointError, match="cancelled while it waited"):
        await agent.resume(checkpoint, answers=answers(checkpoint), session=session)
    assert (await agent.run("never mind", session=session)).text == "paid"


@virtual
async def test_session_cancel_asks_the_live_run_and_says_when_there_is_nothing_to_stop() -> None:
    started = asyncio.Event()

    @tool
    async def hang() -> None:
        """Hang."""
        started.set()
        await asyncio.get_running_loop().create_future()

    agent = Agent("a", model=ScriptedModel(call("hang"), say("hi")), tools=[hang])
    session = await Session.create(MemoryStore())
    empty = session.cancel()
    assert (empty.accepted, await empty.wait()) == (False, "finished_first")
    async with agent.start("go", session=session) as run:
        await started.wait()
        assert await session.cancel(reason="enough").wait() == "stopped"
    assert run.result.stop_reason == "cancelled"
    stopped = session.cancel()
    assert (stopped.accepted, await stopped.wait()) == (False, "finished_first")


def test_session_cancel_without_a_loop_says_what_to_write() -> None:
    async def make() -> Session:
        session = await Session.create(MemoryStore())
        await paused(payer(), session)
        return session

    session = asyncio.run(make())
    with pytest.raises(UsageError, match="needs the event loop"):
        session.cancel()
