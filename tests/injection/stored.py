"""Sessions: made, run, resumed, rewound, forked, deleted, and sent to while busy. Each with every store.

A scenario here takes its store as an argument; `entries` runs it with each kind of store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

from safepoint import Agent, Ladder, Receipt, SafePoint, ToolContext, tool
from safepoint._core.caller_cancellation import outlast
from safepoint._core.supervisor import Supervisor
from safepoint.agent.journal import Called, Ended, Opened, Said
from safepoint.agent.ledger import LedgerEntry
from safepoint.errors import CheckpointError, SessionBusy, SessionNotFound, StoreError
from safepoint.history.parts import Message, Text, ToolCall, user_message
from safepoint.history.states import LedgerState
from safepoint.sessions import LateResult, Session, SessionDispatcher, Storage, Store
from safepoint.sessions.dispatch import IfBusy
from safepoint.sessions.stores import StorageSessions
from safepoint.storage.changes import Changes
from safepoint.storage.loop_codec import encode
from safepoint.storage.loop_data import ItemsAdded, StoredItem, StoredLoop
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.operations import (
    AcceptRun,
    AppendChanges,
    ClaimSession,
    MoveRun,
    ReadShared,
    ReleaseSession,
    Statement,
)
from safepoint.storage.run_records import RunRecord, RunState
from safepoint.storage.session_data import Released, StateSet
from safepoint.storage.shared_state import Note
from safepoint.testing import call, say
from safepoint.turns.store import StorageTurnStore
from tests.injection.parts import A_MOMENT, A_WHILE, LONG, SlowHooks, SlowStorage, agent, look, pages, post
from tests.injection.resuming import asks
from tests.injection.tool_calls import three_deep

DEAD = "dead"


async def _resumed(one: Agent, session: Session) -> None:
    """Go on from wherever the session stands, until there is nothing left to do."""
    while (checkpoint := session.checkpoint) is not None:
        answers = {question.id: True for question in checkpoint.questions}
        await one.resume(checkpoint, answers=answers, session=session)


@tool
async def remembers(ctx: ToolContext, word: str = "x") -> str:
    """Writes into the state of its session."""
    assert isinstance(ctx.session, Session)
    ctx.session.state[word] = len(ctx.session.state)
    await asyncio.sleep(A_MOMENT)
    return word


async def two_turns(store: Store) -> None:
    one = agent(call("look"), say("done"), call("remembers"), say("done again"), tools=[look, remembers])
    session = await Session.create(store, "s", state={"n": 1})
    await one.run("first", session=session)
    await one.run("second", session=session)


async def turn_with_hooks(store: Store) -> None:
    session = await Session.create(store, "s")
    one = agent(call("post"), say("done"), tools=[post], hooks=[SlowHooks()])
    async with one.start("go", session=session) as run:
        async for _ in run.text():
            pass


async def loaded_again(store: Store) -> None:
    one = agent(call("look"), say("done"), say("more"), tools=[look])
    await one.run("first", session=await Session.create(store, "s"))
    await one.run("second", session=await Session.load(store, "s"))


async def two_views_of_one_session(store: Store) -> None:
    one = agent(say("done"), say("more"), say("and more"))
    here = await Session.create(store, "s")
    there = await Session.load(store, "s")
    await one.run("first", session=here)
    await one.run("second", session=there)
    await one.run("third", session=here)
    await there.refresh()


async def changed_by_another_while_a_run_begins(store: Store) -> None:
    one = agent(say("done"))
    here = await Session.create(store, "s")
    there = await Session.load(store, "s")
    there.state["by hand"] = True
    async with asyncio.TaskGroup() as group:
        group.create_task(there.save_state())
        await asyncio.sleep(0)  # the change is under way when the run begins
        await one.run("go", session=here)


async def resumed_in_its_session(store: Store) -> None:
    one = agent([call("look"), call("pages"), call("post")], say("done"), tools=[look, pages, post])
    session = await Session.create(store, "s")
    async with one.start("go", session=session) as run:
        run.cancel(SafePoint.named("page") | SafePoint.BEFORE_EFFECT)
    await _resumed(one, session)


async def resumed_three_deep_in_its_session(store: Store) -> None:
    one = three_deep()
    session = await Session.create(store, "s")
    async with one.start("go", session=session) as run:
        await run.cancel(SafePoint.AFTER_MODEL, recursive=True).wait()
    await _resumed(one, session)


async def answered_in_its_session(store: Store) -> None:
    one = agent([call("asks"), call("look")], say("done"), tools=[asks, look])
    session = await Session.create(store, "s")
    await one.run("go", session=session)
    await _resumed(one, session)


async def cancelled_while_it_waits(store: Store) -> None:
    one = agent([call("asks"), call("look")], say("done"), tools=[asks, look])
    session = await Session.create(store, "s")
    await one.run("go", session=session)
    receipt = session.cancel(reason="not now")
    await one.run("never mind", session=session)  # waits for it
    await receipt.wait()


async def cancelled_while_it_is_answered(store: Store) -> None:
    one = agent([call("asks"), call("look")], say("done"), tools=[asks, look])
    session = await Session.create(store, "s")
    async with one.start("go", session=session) as run:
        await run.wait()
    checkpoint, other = run.result.checkpoint, await Session.load(store, "s")
    if checkpoint is None or not checkpoint.questions:
        return  # stopped before it asked

    async def answer() -> None:
        with suppress(CheckpointError):
            await one.resume(checkpoint, answers={each.id: True for each in checkpoint.questions}, session=other)

    async with asyncio.TaskGroup() as group:
        group.create_task(answer())
        await asyncio.sleep(0)
        await _cleared(run.cancel(reason="not now"))


async def _cleared(receipt: Receipt) -> None:
    """Wait for it also after the caller has gone: clearing goes on by itself."""

    async def cleared() -> None:
        await receipt.wait()

    try:
        await cleared()
    finally:
        await outlast(Supervisor.current().spawn(cleared(), "cleared", None))


async def cancelled_while_another_has_it(store: Store) -> None:
    one = agent([call("asks"), call("look")], say("done"), tools=[asks, look])
    session = await Session.create(store, "s")
    await one.run("go", session=session)
    async with asyncio.TaskGroup() as group:
        try:
            await store.claim("s", "another")
            group.create_task(_cleared(session.cancel(reason="not now")))
            await asyncio.sleep(A_MOMENT * 3)
        finally:
            await outlast(Supervisor.current().spawn(store.release("s", "another"), "release", None))


async def cancelled_while_its_pause_is_stored(store: Store) -> None:
    one = agent(call("asks"), say("done"), tools=[asks])
    session = await Session.create(store, "s")
    async with one.start("go", session=session) as run:
        await asyncio.sleep(A_MOMENT * 6.75)  # in memory, the run has its questions, and its end is being stored
        await _cleared(run.cancel(reason="not now"))


async def read_before_anything_was_written(store: Store) -> None:
    with suppress(SessionNotFound):
        await store.load("s")


async def rewound(store: Store) -> None:
    one = agent(call("remembers"), say("done"), say("more"), tools=[remembers])
    session = await Session.create(store, "s")
    await one.run("first", session=session)
    await one.run("second", session=session)
    await session.rewind()
    await session.rewind()
    session.state["by hand"] = True
    await session.save_state()
    await one.run("other", session=session)


async def forked(store: Store) -> None:
    one = agent(call("look"), say("done"), say("more"), tools=[look])
    session = await Session.create(store, "s")
    await one.run("first", session=session)
    other = await session.fork("t")
    # One after the other: two threads of stores would race, and no two recordings were the same.
    await one.run("second", session=session)
    await one.run("other second", session=other)


async def deleted(store: Store) -> None:
    session = await Session.create(store, "s")
    await agent(say("done")).run("go", session=session)
    await session.delete()


async def deleted_while_live(store: Store) -> None:
    one = agent(call("post"), say("done"), tools=[post])
    session = await Session.create(store, "s")
    async with one.start("go", session=session):
        await asyncio.sleep(A_WHILE)
        await session.delete()


async def taken_over_from_a_dead_process(store: Store) -> None:
    """What a process that died has written is closed by whoever comes next, and can go on from there."""
    await store.create("s", {})
    epoch = await store.claim("s", DEAD)
    calls = (ToolCall("c1", "look", {"x": 1}), ToolCall("c2", "post", {"x": 2}))
    cut = LedgerEntry("c2", "post", {"x": 2}, state=LedgerState.RUNNING)
    opened = Opened(DEAD, "agent", 0, (user_message("go"),))
    await store.append("s", epoch, [opened, Said(1, Message("assistant", (Text("Well."), *calls))), Called(cut)])
    await store.release("s", DEAD)
    session = await Session.load(store, "s")
    await _resumed(agent(call("look"), say("done"), tools=[look, post]), session)


async def told_of_a_late_result(store: Store) -> None:
    """A call that did not stop comes back after its run; the next turn is told."""

    @tool(ladder=Ladder(task=A_MOMENT))
    async def deaf() -> str:
        """Does not care about being cut."""
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(LONG)
        await asyncio.sleep(A_WHILE)
        return "after all"

    one = agent(call("deaf"), say("done"), say("more"), tools=[deaf])
    session = await Session.create(store, "s")
    async with one.start("first", session=session) as run:
        await asyncio.sleep(A_WHILE)
        run.cancel()
    await asyncio.sleep(LONG)
    await one.run("second", session=session)


async def late_results_kept(store: Store) -> None:
    await store.create("s", {})
    await store.add_late("s", LateResult("c1", "post", "posted"))
    await store.list_ids()
    await store.states()
    session = await Session.load(store, "s")
    await agent(say("done")).run("go", session=session)


async def _sent_while_busy(store: Store, if_busy: IfBusy) -> None:
    """Three messages at once: the second and third find the first one's run live."""
    one = agent(call("post"), say("done"), call("look"), say("more"), say("and more"), tools=[post, look])
    session = await Session.create(store, "s")
    sender = SessionDispatcher(session)

    async def later(seconds: float, prompt: str) -> None:
        await asyncio.sleep(seconds)
        with suppress(SessionBusy):
            await sender.send(one, prompt, if_busy=if_busy)

    async with asyncio.TaskGroup() as group:
        group.create_task(sender.send(one, "first"))
        group.create_task(later(A_WHILE / 2, "second"))
        group.create_task(later(A_WHILE, "third"))


async def sent_while_busy_and_queued(store: Store) -> None:
    await _sent_while_busy(store, "queue")


async def sent_while_busy_and_joined(store: Store) -> None:
    await _sent_while_busy(store, "steer")


async def sent_while_busy_and_preempting(store: Store) -> None:
    await _sent_while_busy(store, "preempt")


async def sent_while_busy_and_interrupting(store: Store) -> None:
    await _sent_while_busy(store, "interrupt")


async def sent_while_busy_and_rolling_back(store: Store) -> None:
    await _sent_while_busy(store, "rollback")


async def sent_while_busy_and_refused(store: Store) -> None:
    await _sent_while_busy(store, "reject")


async def delivered_by_hand(store: Store) -> None:
    """Runs that somebody else has made, each told when its turn has come."""
    one = agent(call("post"), say("done"), say("more"), tools=[post])
    session = await Session.create(store, "s")
    sender = SessionDispatcher(session)

    async def on_turn() -> None:
        await asyncio.sleep(A_MOMENT)

    async with asyncio.TaskGroup() as group:
        for prompt in ("first", "second"):
            run = one.start(prompt, session=session)
            group.create_task(sender.deliver(run, prompt, if_busy="queue", on_turn=on_turn, on_over=on_turn))


async def changed_between_runs(store: Store) -> None:
    """Changes and a message that come while another change is under way wait for it, in their order."""
    one = agent(say("done"))
    session = await Session.create(store, "s", history=[user_message("hi"), Message("assistant", (Text("hello"),))])
    sender = SessionDispatcher(session)

    async def change() -> None:
        session.state["n"] = session.state.get("n", 0) + 1
        await session.save_state()

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(sender.between(change))
        group.create_task(sender.send(one, "go", if_busy="queue"))


async def recorded_runs(store: Store) -> None:
    """Every method of a registry of runs, of shared state, of loops, and a unit of work."""
    await store.create("s", {})
    storage = store.storage if isinstance(store, StorageSessions) else MemoryStorage()
    runs, here, there = storage.runs, "0" * 32, "1" * 32
    record = RunRecord("run_1", "s", RunState.QUEUED, 1.0, here, key="k", digest="d")
    await runs.accept(record, since=0.0)
    await runs.accept(record, since=0.0)
    assert await runs.by_key("s", "k", since=0.0) == record
    number = await runs.request_cancel("run_1", {"at": ["now"]})
    await runs.unheard_cancels(here)
    await runs.acknowledge_cancel(number)
    await runs.answer_cancel(number, {"outcome": "stopped"})
    assert await runs.cancel_answer(number) == {"outcome": "stopped"}
    await runs.orphans()
    taken = await runs.take("run_1", there, epoch=0)
    await runs.move("run_1", RunState.LIVE, epoch=taken.epoch)
    assert [await runs.get("run_1")] == await runs.find(session="s") == await runs.still_open()
    assert await runs.over(limit=1) == []
    await runs.cancel_requests("run_1")
    await runs.withdraw_cancel("run_1", "of another ask")
    await runs.touch("s", 4.0)
    await runs.touched("s")
    await runs.forget("s")
    shared = storage.shared
    await shared.share("app", {"x": 1, "y": None})
    await shared.shared(["app"])
    await shared.note("s", Note(1.0, {}))
    await shared.notes("s")
    await shared.forget("s")
    loops = storage.loops
    opened = await loops.open("loop", "me")
    await loops.apply("loop", opened.epoch, [ItemsAdded((StoredItem(1, "item"),))])
    assert not (await loops.read("loop")).empty
    await loops.replace("loop", StoredLoop())
    await loops.release("loop", "me")
    await _carried_elsewhere(StorageTurnStore(storage))
    async with storage.changes(run="run_2", session="s", every=A_MOMENT) as changes:
        async for _ in changes:
            if await runs.get("run_2") is not None:
                break
            await _one_unit_of_work(storage)
    await storage.check()


async def _carried_elsewhere(loops: StorageTurnStore) -> None:
    """The record of a loop as bytes."""
    await loops.claim("loop", "me")
    await loops.save("loop", encode(StoredLoop((StoredItem(1, "item"),))))
    assert await loops.load("loop") is not None
    await loops.delete("loop")
    await loops.release("loop", "me")


async def _one_unit_of_work(storage: Storage) -> None:
    if "s" not in await storage.sessions.list_ids():
        await storage.sessions.create("s", {})
    record = RunRecord("run_2", "s", RunState.LIVE, 2.0, storage.worker)
    await storage.commit(
        AcceptRun(record, 0.0, only_first=True),
        ClaimSession("s", "run_2"),
        AppendChanges("s", None, [StateSet({"n": 1}), Released("run_2")], 1),
        ReadShared(("app",)),
    )
    await storage.commit(MoveRun("run_2", RunState.ENDED, 0))


class _EndsLate(SlowStorage):
    """Fails to store the end of a run, so often."""

    failures = 0

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: of every result
        changes = [change for each in statements if isinstance(each, AppendChanges) for change in each.changes]
        if self.failures and any(isinstance(change, Ended) for change in changes):
            self.failures -= 1
            raise StoreError("the disk is full")
        return await super().commit(*statements)


@asynccontextmanager
async def _ended_late(failures: int) -> AsyncGenerator[tuple[_EndsLate, Session]]:
    """A session whose last end is not stored yet; it is when this is left, however that is."""
    storage = _EndsLate()
    session = await Session.create(storage, "s")
    storage.failures = failures
    try:
        await agent(say("done")).run("go", session=session)
        yield storage, session
    finally:
        storage.failures = 0
        await outlast(Supervisor.current().spawn(session.store_end(), "the end", None))


async def an_end_is_stored_by_itself_after_all() -> None:
    async with _ended_late(4):
        await asyncio.sleep(LONG)


async def an_end_is_stored_by_those_who_come_next() -> None:
    async with _ended_late(2) as (storage, _):
        await Session.load(storage, "s")
    async with _ended_late(2) as (_, session):
        await session.store_end()
    async with _ended_late(2) as (_, session):
        await agent(say("more")).run("and on", session=session)


async def storage_is_closed() -> None:
    sessions = StorageSessions(SlowStorage())
    await sessions.create("s", {})
    await sessions.load("s")
    await sessions.delete("s")
    await sessions.aclose()
    await SlowStorage().sessions.aclose()


async def changes_are_waited_for() -> None:
    """Those that this process makes, and those that it has to look for."""
    written = 0

    async def stamp() -> object:
        await asyncio.sleep(A_MOMENT)
        return written

    for changes in (Changes(), Changes(stamp)):
        async with changes.subscribe(session="s", every=A_WHILE) as rounds:
            await anext(rounds)
            waiting = asyncio.ensure_future(anext(rounds))
            try:
                await asyncio.sleep(A_WHILE * 2)
                written += 1
                changes.publish([ReleaseSession("s", "me")], [None])
                await asyncio.shield(waiting)
            finally:
                waiting.cancel()
                await asyncio.wait({waiting})
