"""What a failing store leaves open: a session that could not be given back, and a beginning that was kept all the same.

Both are put right as soon as the store works, and what is told of them is true meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from safepoint import Agent, Ladder, SafePoint, check_history, tool
from safepoint.errors import SessionBusy, StoreError
from safepoint.sessions import MemoryStore, Session
from safepoint.storage.session_data import Change
from safepoint.testing import ScriptedModel, call, pass_time, run_virtual, say
from tests.sessions.stores import Wrapped, both_stores, opened


def talker() -> Agent:
    return Agent("talker", model=ScriptedModel(say("hello")))


@both_stores
def test_a_session_that_could_not_be_given_back_is_given_back_as_soon_as_the_store_works(
    kind: str, tmp_path: Path
) -> None:
    """Nobody else could use it before its process ends, although nothing is live."""

    async def main() -> None:
        async with opened(kind, tmp_path) as inner:
            store = Wrapped(inner)
            session = await Session.create(store, "s")
            session.state["x"] = 1
            store.fail_from("release", 1)
            await session.save_state()
            del session
            await pass_time(30)
            assert store.counts["release"] > 3
            with pytest.raises(SessionBusy):
                await inner.claim("s", "somebody else")
            store.before = lambda name, number: None
            await pass_time(10)
            await inner.claim("s", "somebody else")

    run_virtual(main)


def test_a_session_that_is_used_again_is_not_given_back_under_its_run() -> None:
    async def main() -> None:
        inner, reached, gate = MemoryStore(), asyncio.Event(), asyncio.Event()
        store = Wrapped(inner)
        session = await Session.create(store, "s")
        session.state["x"] = 1
        store.fail_from("release", 1)
        await session.save_state()

        @tool
        async def wait() -> str:
            """Wait."""
            reached.set()
            await gate.wait()
            return "done"

        agent = Agent("one", model=ScriptedModel(call("wait"), say("hi")), tools=[wait])
        async with agent.start("go", session=session):
            await reached.wait()
            store.before = lambda name, number: None
            await pass_time(30)
            with pytest.raises(SessionBusy):
                await inner.claim("s", "somebody else")
            gate.set()
        await inner.claim("s", "somebody else")

    run_virtual(main)


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, OSError])
def test_whatever_a_release_or_a_late_result_raises_ends_nothing_else(error: type[BaseException]) -> None:
    async def main() -> None:
        def breaks(name: str, number: int) -> None:
            if name in ("release", "add_late") and number < 3:
                raise error

        store = Wrapped(MemoryStore(), breaks)
        session = await Session.create(store, "s")
        session.state["x"] = 1
        await session.save_state()

        @tool
        async def stays() -> str:
            """Swallow a cancel, and come back later."""
            for _ in range(3):
                with suppress(asyncio.CancelledError):
                    await pass_time(5)
            return "late"

        ladder = Ladder(task=0.1, cap=0.2)
        agent = Agent("one", model=ScriptedModel(call("stays"), say("hi")), tools=[stays], ladder=ladder)
        async with agent.start("go", session=session) as run:
            await pass_time(1)
            run.cancel()
        await pass_time(60)
        assert store.counts["add_late"] == 1
        assert [late.content for late in session.late] == ["late"]
        assert (await Agent("two", model=ScriptedModel(say("fine"))).run("on", session=session)).text == "fine"

    run_virtual(main)


@pytest.mark.parametrize("lies", ["append", "append and load", "append and release"])
def test_a_beginning_that_was_kept_although_it_failed_is_told_as_it_was(lies: str) -> None:
    """No process has died, so nobody is told that one did; and what was said is in the conversation once."""

    class Forgetful(Wrapped):
        async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
            await super().append(session_id, epoch, changes)
            if self.counts["append"] == 1:
                raise StoreError("no answer")

    async def main() -> None:
        inner = MemoryStore()
        store = Forgetful(inner)
        session = await Session.create(store, "s")
        store.fail_at(lies.rpartition(" ")[2], 1) if " " in lies else None
        with pytest.raises(StoreError, match="no answer"):
            await talker().run("first", session=session)
        if lies == "append":  # another process sees the same
            assert "no answer" in str((await Session.load(inner, "s")).messages[-1])
        await talker().run("second", session=session)
        stored = (await inner.load("s")).messages
        assert stored == session.messages
        check_history(stored)
        assert [message.text for message in stored if message.role == "user"] == ["first", "second"]
        assert "its beginning was not stored" in str(stored)
        assert "died" not in str(stored)

    run_virtual(main)


@pytest.mark.parametrize("at", [SafePoint.NOW, SafePoint.FORCE], ids=repr)
def test_an_end_that_brings_its_beginning_along_is_in_the_session_too(at: SafePoint) -> None:
    """The write of the beginning fails, its session cannot be given back, and a cancel cuts that."""

    async def main() -> None:
        inner = MemoryStore()
        store = Wrapped(inner)
        session = await Session.create(store, "s")
        store.fail_at("append", 1)
        store.hangs_at = ("release", 1)
        async with talker().start("first", session=session) as run:
            await store.reached.wait()
            run.cancel(at)
        assert run.result.save_error is None
        assert session.messages == (await inner.load("s")).messages == tuple(run.result.messages)
        await talker().run("second", session=session)
        stored = (await inner.load("s")).messages
        assert [message.text for message in stored if message.role == "user"] == ["first", "second"]

    run_virtual(main)
