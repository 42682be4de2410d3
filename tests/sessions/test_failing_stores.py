"""A store that fails or hangs: the run ends with the store's error, the session stays what it was, and usable."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from pathlib import Path

import pytest

from safepoint import Agent, Ladder, Message, SafePoint, Text, check_history, tool
from safepoint.errors import CheckpointError, SessionBusy, SessionNotFound, StoreError, Superseded
from safepoint.sessions import MemoryStore, Session, Store
from safepoint.testing import ScriptedModel, call, run_virtual, say, stall
from tests.injection.parts import SlowStore, StepModel
from tests.sessions.stores import Wrapped, both_stores, opened
from tests.sessions.test_nested_runs import around

APPENDS = 5  # opened; said; called twice; ended

A_LOOK = 0.1  # on the virtual clock


def worker(done: list[int]) -> Agent:
    @tool
    async def act(x: int) -> str:
        """Change the world."""
        done.append(x)
        return f"did {x}"

    return Agent("worker", model=ScriptedModel([say("I act"), call("act", x=1)], say("done")), tools=[act])


# Long enough for an end that was not stored to be stored after all.
RETRIES = 60.0


async def check_usable(store: Store, session: Session) -> None:
    """Both this object and one that another process would load can go on."""
    agent = Agent("next", model=ScriptedModel(say("hello"), repeat=True))
    stored = await store.load(session.id)
    if stored.runs and stored.runs[0].index == 0 and stored.messages[0].text == "before":
        assert (stored.runs[0].stop_reason, stored.runs[0].checkpoint) == ("end_turn", None), (
            "an older turn was changed"
        )
        assert [message.text for message in stored.messages[:2]] == ["before", "earlier"]
    for one in (await Session.load(store, session.id), session, await Session.load(store, session.id)):
        assert (await agent.run("are you there?", session=one)).text == "hello"
        check_history(one.messages)
    seen = await Session.load(store, session.id)
    assert seen.messages == (await store.load(session.id)).messages
    while seen.messages:
        await seen.rewind()
        check_history(seen.messages or say_something())


def say_something() -> list[Message]:
    return [Message("user", (Text("hi"),))]


async def with_a_past(store: Store) -> Session:
    """A session that has one turn already."""
    session = await Session.create(store, "s")
    await Agent("past", model=ScriptedModel(say("earlier"))).run("before", session=session)
    return session


@both_stores
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("number", range(1, APPENDS))
def test_a_write_that_fails_ends_the_run_with_that_error_and_leaves_the_session_usable(
    kind: str, number: int, past: bool, tmp_path: Path
) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as inner:
            store = Wrapped(inner)
            session = await with_a_past(store) if past else await Session.create(store, "s")
            store.counts.clear()
            store.fail_at("append", number)
            done: list[int] = []
            with pytest.raises(StoreError, match=f"append {number} failed"):
                await worker(done).run("work", session=session)
            assert len(done) == (1 if number > 3 else 0)
            await check_usable(inner, session)

    run_virtual(main)


@both_stores
def test_calls_that_run_side_by_side_are_written_without_reading_the_session_again(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as inner:
            store = Wrapped(SlowStore(inner))
            session = await with_a_past(store)
            store.counts.clear()

            @tool
            async def act(x: int) -> str:
                """Change the world, and the session's state."""
                session.state[f"x{x}"] = x
                return f"did {x}"

            model = ScriptedModel([call("act", x=x) for x in range(4)], say("done"))
            await Agent("worker", model=model, tools=[act]).run("work", session=session)
            assert store.counts.get("load") is None
            stored = await inner.load("s")
            assert (stored.messages, stored.runs) == (session.messages, session.runs)
            assert stored.state == session.state == {"x0": 0, "x1": 1, "x2": 2, "x3": 3}

    run_virtual(main)


def test_a_session_is_free_at_once_when_the_beginning_of_a_run_could_not_be_written() -> None:
    async def main() -> None:
        inner = MemoryStore()
        store = Wrapped(SlowStore(inner))
        session = await Session.create(store, "s")
        store.fail_at("append", 1)
        with pytest.raises(StoreError, match="append 1 failed"):
            await worker([]).run("work", session=session)
        await inner.claim("s", "somebody else")

    run_virtual(main)


def test_a_session_that_could_not_be_given_back_can_be_used_by_who_has_it() -> None:
    async def main() -> None:
        inner = MemoryStore()
        store = Wrapped(inner)
        session = await Session.create(store, "s")

        def before(name: str, number: int) -> None:
            if name == "release" and number <= 3:
                raise StoreError("not now")

        store.before = before
        session.state["kept"] = True
        await session.save_state()
        with pytest.raises(SessionBusy):
            await inner.claim("s", "somebody else")
        await Agent("one", model=ScriptedModel(say("hi"))).run("go", session=session)
        await inner.claim("s", "somebody else")

    run_virtual(main)


@both_stores
def test_a_run_gives_its_session_back_with_its_last_write(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as inner:
            store = Wrapped(inner)
            session = await Session.create(store, "s")
            await Agent("one", model=ScriptedModel(say("hi"))).run("go", session=session)
            assert "release" not in store.counts
            await inner.claim("s", "somebody else")

    run_virtual(main)


def test_a_claim_that_failed_and_happened_all_the_same_is_given_back() -> None:
    class Forgetful(Wrapped):
        async def claim(self, session_id: str, claimant: str) -> int:
            epoch = await super().claim(session_id, claimant)
            if self.counts["claim"] == 1:
                raise StoreError("no answer")
            return epoch

    async def main() -> None:
        inner = MemoryStore()
        session = await Session.create(Forgetful(inner), "s")
        agent = Agent("one", model=ScriptedModel(say("hi"), repeat=True))
        with pytest.raises(StoreError, match="no answer"):
            await agent.run("go", session=session)
        await agent.run("again", session=await Session.load(inner, "s"))

    run_virtual(main)


def test_an_error_of_the_store_s_own_kind_in_a_release_is_nobody_else_s() -> None:
    """The run never began, so its session is given back; an exception that nobody retrieves would be a complaint."""

    async def main() -> None:
        store = Wrapped(MemoryStore())
        session = await Session.create(store, "s")

        def before(name: str, number: int) -> None:
            if name in ("release", "append"):
                raise OSError("disk")

        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        store.before = before
        with pytest.raises(StoreError, match="disk"):
            await Agent("one", model=ScriptedModel(say("hi"))).run("go", session=session)
        await asyncio.sleep(0)
        gc.collect()
        assert complaints == []
        assert store.counts["release"] == 2

    run_virtual(main)


@both_stores
def test_an_end_that_cannot_be_saved_is_on_the_result_and_on_the_receipt(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as inner:
            store = Wrapped(inner)
            session = await Session.create(store, "s")
            store.fail_from("append", 2)
            reached = asyncio.Event()
            agent = Agent("teller", model=ScriptedModel([say("Once"), stall(reached.set)]))
            async with agent.start("tell", session=session) as run:
                await reached.wait()
                receipt = run.cancel()
                assert await receipt.wait() == "stopped"
                assert str(receipt.save_error) == "append 3 failed"
            assert str(run.result.save_error) == "append 3 failed"
            assert run.result.stop_reason == "cancelled"
            assert session.messages == tuple(run.result.messages)
            store.before = lambda name, number: None
            await asyncio.sleep(RETRIES)
            await check_usable(inner, session)

    run_virtual(main)


@both_stores
@pytest.mark.parametrize("what", ["claim", "load", "release"])
def test_a_store_that_fails_around_a_run_leaves_the_session_usable(kind: str, what: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as inner:
            await Session.create(inner, "s")
            store = Wrapped(inner)
            session = await Session.load(store, "s")
            other = await Session.load(inner, "s")
            await Agent("first", model=ScriptedModel(say("one"))).run("hi", session=other)
            store.fail_at(what, 2 if what == "load" else 1)
            agent = Agent("second", model=ScriptedModel(say("two")))
            if what == "release":
                result = await agent.run("hi", session=session)
                assert result.text == "two"
            else:
                with pytest.raises(StoreError, match="failed"):
                    await agent.run("hi", session=session)
            await asyncio.sleep(0)
            await check_usable(inner, session)

    run_virtual(main)


@both_stores
@pytest.mark.parametrize("where", [("claim", 1), ("append", 1), ("append", 2), ("append", 3)])
@pytest.mark.parametrize(("past", "at"), [(False, SafePoint.NOW), (True, SafePoint.NOW), (True, SafePoint.FORCE)])
def test_now_and_force_cut_a_write_that_hangs_and_the_end_is_recorded(
    kind: str, where: tuple[str, int], past: bool, at: SafePoint, tmp_path: Path
) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as inner:
            store = Wrapped(inner)
            session = await with_a_past(store) if past else await Session.create(store, "s")
            store.counts.clear()
            store.hangs_at = where
            loop = asyncio.get_running_loop()
            async with worker([]).start("work", session=session) as run:
                await store.reached.wait()
                before = loop.time()
                assert await run.cancel(at).wait() == "stopped"
                assert loop.time() - before <= 10.0
            assert run.result.stop_reason == "cancelled"
            check_history(run.result.messages)
            assert run.result.save_error is None
            assert session.messages == tuple(run.result.messages)
            assert session.checkpoint == run.result.checkpoint
            await check_usable(inner, session)

    run_virtual(main)


@both_stores
def test_an_end_that_hangs_is_given_up_in_time_and_told(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as inner:
            store = Wrapped(inner)
            session = await Session.create(store, "s")
            store.hangs_at = ("append", 2)
            before = asyncio.get_running_loop().time()
            result = await Agent("teller", model=ScriptedModel(say("one"))).run("tell", session=session)
            assert asyncio.get_running_loop().time() - before <= 2.0
            assert (result.text, type(result.save_error)) == ("one", StoreError)
            assert session.messages == tuple(result.messages)
            await asyncio.sleep(RETRIES)
            await check_usable(inner, session)

    run_virtual(main)


@both_stores
@pytest.mark.parametrize("hangs", ["enter", "end"])
def test_force_gives_up_a_store_that_hangs_in_time_and_tells(kind: str, hangs: str, tmp_path: Path) -> None:
    """It has what FORCE leaves a sub-agent to record its end."""

    async def main() -> None:
        async with opened(kind, tmp_path) as inner:
            store = Wrapped(inner)
            session = await Session.create(store, "s")
            store.hangs_at = ("claim", 1) if hangs == "enter" else ("append", 2)
            teller = Agent("teller", model=ScriptedModel([say("one"), stall()]))
            async with teller.start("tell", session=session) as run:
                if hangs == "enter":
                    await store.reached.wait()
                    store.hangs_at = ("claim", 2)
                else:
                    async for _ in run.text():
                        break
                before = asyncio.get_running_loop().time()
                receipt = run.cancel(SafePoint.FORCE)
                await receipt.wait()
                assert asyncio.get_running_loop().time() - before <= Ladder().kill
            assert run.result.stop_reason == "cancelled"
            assert type(run.result.save_error) is type(receipt.save_error) is StoreError
            store.hangs_at = None
            await asyncio.sleep(RETRIES)
            await check_usable(inner, session)

    run_virtual(main)


@both_stores
def test_a_run_whose_session_was_taken_over_is_refused_and_changes_nothing(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            reached = asyncio.Event()
            agent = Agent("old", model=ScriptedModel([say("Once"), stall(reached.set)]))
            async with agent.start("tell", session=session) as run:
                await reached.wait()
                epoch = await _take_over(store, session)
                run.cancel()
            assert isinstance(run.result.save_error, Superseded)
            assert epoch > 0
            check_history((await Session.load(store, "s")).messages)

    run_virtual(main)


async def _take_over(store: Store, session: Session) -> int:
    """What a process does that takes the owner for dead."""
    claimant = session._lease.claimant  # pyright: ignore[reportPrivateUsage]  # as if its lease had run out
    assert claimant is not None
    await store.release("s", claimant)
    return await store.claim("s", "somebody else")


@both_stores
def test_a_resume_that_the_store_refuses_changes_nothing(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            reached = asyncio.Event()
            model = ScriptedModel([say("Once"), stall(reached.set)], say("new"))
            agent = Agent("teller", model=model)
            async with agent.start("tell", session=session) as run:
                await reached.wait()
                run.cancel()
            old = run.result.checkpoint
            assert old is not None
            await agent.run("another thing", session=session)
            before = session.messages
            with pytest.raises(CheckpointError, match="moved on"):
                await agent.resume(old, session=session, fork=True)
            assert session.messages == before == (await Session.load(store, "s")).messages
            assert session.checkpoint is None
            await check_usable(store, session)

    run_virtual(main)


@both_stores
def test_a_session_that_was_deleted_under_a_live_run_ends_it_with_not_found(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")

            @tool
            async def removes() -> str:
                """Delete the session from elsewhere."""
                await store.delete("s")
                return "gone"

            agent = Agent("worker", model=ScriptedModel(call("removes")), tools=[removes])
            with pytest.raises(SessionNotFound):
                await agent.run("work", session=session)
            assert await store.list_ids() == []

    run_virtual(main)


@both_stores
def test_a_run_of_a_deleted_session_cannot_write_into_a_new_one_of_the_same_name(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            reached = asyncio.Event()
            agent = Agent("old", model=ScriptedModel([say("Once"), stall(reached.set)]))
            async with agent.start("tell", session=session) as run:
                await reached.wait()
                await store.delete("s")
                new = await Session.create(store, "s")
                await Agent("new", model=ScriptedModel(say("hello"))).run("hi", session=new)
                run.cancel()
            assert isinstance(run.result.save_error, StoreError)
            assert [message.text for message in (await Session.load(store, "s")).messages] == ["hi", "hello"]

    run_virtual(main)


def test_deleting_a_session_stops_its_live_run_first() -> None:
    async def main() -> None:
        store = MemoryStore()
        session = await Session.create(store, "s")
        reached = asyncio.Event()
        agent = Agent("teller", model=ScriptedModel([say("Once"), stall(reached.set)]))
        async with agent.start("tell", session=session) as run:
            await reached.wait()
            await session.delete()
            assert run.result.stop_reason == "cancelled"
        assert await store.list_ids() == []
        with pytest.raises(SessionNotFound):
            await Session.load(store, "s")

    run_virtual(main)


@pytest.mark.parametrize("number", range(1, 7))
def test_a_store_that_raises_an_error_of_its_own_ends_the_run_like_any_other(number: int) -> None:
    """Each write of the run in turn; nothing goes on with a call, or an answer, that was not kept."""

    async def main() -> None:
        def full(name: str, times: int) -> None:
            if (name, times) == ("append", number):
                raise OSError("the disk is full")

        store = Wrapped(MemoryStore(), full)
        session = await Session.create(store, "s")
        agent = Agent("a", model=ScriptedModel([call("look"), call("look")], say("done")), tools=[look])
        async with agent.start("go", session=session) as run:
            pass
        error = run.result.error or run.result.save_error
        assert isinstance(error, StoreError)
        assert "the disk is full" in str(error)

    @tool
    async def look() -> str:
        """Look."""
        return "dust"

    run_virtual(main)


RAISED: list[type[BaseException]] = [asyncio.CancelledError, SystemExit, OSError]


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize("shape", ["alone", "composite", "sub-agents"])
def test_whatever_a_write_raises_the_run_fails_there_and_nothing_builds_on_it(
    shape: str, error: type[BaseException]
) -> None:
    """Each write of the run in turn. A CancelledError that nobody asked for comes from the store's driver."""

    async def failed_at(number: int) -> bool:
        called = list[str]()

        @tool
        async def look() -> str:
            """Look."""
            called.append("look")
            return "dust"

        def breaks(name: str, times: int) -> None:
            if (name, times) == ("append", number):
                called.append("broken")
                raise error

        store = Wrapped(MemoryStore(), breaks)
        session = await Session.create(store, "s")
        worker = Agent("worker", model=StepModel(call("look"), call("look"), say("done")), tools=[look])
        other = Agent("other", model=StepModel(say("done")))
        async with (worker if shape == "alone" else around(shape, worker, other)).start("go", session=session) as run:
            pass
        if "broken" not in called:
            return False
        # Side by side another run may have begun its call, whose own facts are kept.
        assert shape != "alone" or called[-1] == "broken", f"write {number}: a tool ran after it"
        assert run.result.stop_reason in ("error", "end_turn")
        raised = run.result.error if run.result.stop_reason == "error" else run.result.save_error
        # The end of a run is tried once more before the run says that it could not be stored.
        stored_after_all = raised is None and not session.end_is_pending
        assert isinstance(raised, StoreError) or stored_after_all, f"write {number}: {raised!r}"
        check_history(run.result.messages)
        return True

    assert any(not run_virtual(partial(failed_at, number)) for number in range(1, 60)), "every write was tried"


@pytest.mark.parametrize("name", ["claim", "load"])
def test_a_session_that_cannot_be_taken_because_its_driver_was_cancelled_fails_the_run(name: str) -> None:
    async def main() -> None:
        def breaks(called: str, times: int) -> None:
            if called == name:
                raise asyncio.CancelledError

        store = Wrapped(MemoryStore())
        await Session.create(store, "s")
        session = await Session.load(store, "s")
        store.before = breaks
        with pytest.raises(StoreError, match="raised CancelledError"):
            await worker([]).run("work", session=session)
        store.before = lambda called, times: None
        assert (await worker([]).run("work", session=session)).text == "done"

    run_virtual(main)


@pytest.mark.parametrize("first", ["store", "stop"])
@pytest.mark.parametrize("shape", ["composite", "sub-agents"])
def test_a_store_that_hangs_holds_a_run_with_runs_inside_no_longer_than_any_other(shape: str, first: str) -> None:
    """At each write in turn. The run's own end has a second; nothing inside counts as something that did not stop."""

    @tool
    async def look() -> str:
        """Look."""
        await asyncio.sleep(A_LOOK)
        return "dust"

    async def hung(number: int) -> bool:
        store = Wrapped(MemoryStore())
        session = await Session.create(store, "s")
        worker = Agent("worker", model=StepModel(call("look"), say("done")), tools=[look])
        other = Agent("other", model=StepModel(call("look"), call("look"), say("done")), tools=[look])
        async with around(shape, worker, other).start("go", session=session) as run:
            if first == "stop":
                await asyncio.sleep(A_LOOK / 2)
                store.hangs_at = ("append", store.counts["append"] + number)
            else:
                store.hangs_at = ("append", number)
                reached = asyncio.ensure_future(store.reached.wait())
                await asyncio.wait((reached, asyncio.ensure_future(run.wait())), return_when="FIRST_COMPLETED")
                reached.cancel()
            began = asyncio.get_running_loop().time()
            run.cancel()
        took = asyncio.get_running_loop().time() - began
        assert took < 1.1, f"write {number}: {took} s"
        assert [orphan.name for orphan in run.result.orphans if orphan.name != "journal"] == []
        return store.counts["append"] >= store.hangs_at[1]

    assert any(not run_virtual(partial(hung, number)) for number in range(1, 40)), "it came to an end without a hang"
