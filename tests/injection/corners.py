"""Places that only trouble leads to: a connection slow to close, a release that fails, a result that is late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress

from safepoint import Agent, Ladder, SafePoint, tool
from safepoint._core.caller_cancellation import outlast
from safepoint._core.pace import MOST_AT_ONCE
from safepoint._core.supervisor import wind_down
from safepoint.agent.journal import Ended
from safepoint.agent.model import Chunk, Finish, ModelRequest, TextDelta
from safepoint.agent.work_runner import ANNOUNCED_AT_ONCE
from safepoint.errors import RunFailed, StoreError
from safepoint.sessions import MemoryStore, Session, Store
from safepoint.sessions.store import Change
from safepoint.testing import call, say
from safepoint.testing.models import Act, Player
from tests.injection.parts import A_MOMENT, A_WHILE, LONG, SlowStore, agent, look, post


class SlowToClose(Player):
    """A model whose connection takes a moment to open, and another to close."""

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        return self._connected([say("one two", pieces=2)])

    @asynccontextmanager
    async def _connected(self, acts: list[Act]) -> AsyncGenerator[AsyncIterator[Chunk]]:
        await asyncio.sleep(A_MOMENT)
        try:
            async with self._playing(acts) as chunks:
                yield chunks
        finally:
            await asyncio.sleep(A_MOMENT)


async def model_that_is_slow_to_close() -> None:
    await Agent("slow", model=SlowToClose("slow")).run("go")


class NeverWaits(Player):
    """A model that has its whole reply at hand."""

    def __init__(self, pieces: int) -> None:
        super().__init__("cached")
        self._pieces = pieces

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        return self._cached()

    @asynccontextmanager
    async def _cached(self) -> AsyncGenerator[AsyncIterator[Chunk]]:
        async def chunks() -> AsyncGenerator[Chunk]:
            for number in range(self._pieces):
                yield TextDelta(f"{number} ")
            yield Finish("end_turn")

        async with aclosing(chunks()) as cached:
            yield cached


async def model_that_never_waits() -> None:
    """It has more than is read without a pause."""
    await Agent("cached", model=NeverWaits(3 * MOST_AT_ONCE)).run("go")


async def model_with_a_short_answer_at_hand() -> None:
    await Agent("cached", model=NeverWaits(1)).run("go")


class TidiesUp(Player):
    """A model that always has a next chunk, and whose generator takes a moment to tidy up after itself."""

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        return self._talking()

    @asynccontextmanager
    async def _talking(self) -> AsyncGenerator[AsyncIterator[Chunk]]:
        async def chunks() -> AsyncGenerator[Chunk]:
            try:
                while True:
                    yield TextDelta("more ")
            finally:
                await asyncio.sleep(A_MOMENT)

        yield chunks()


async def model_that_tidies_up_when_cut_between_two_chunks() -> None:
    async with Agent("talks", model=TidiesUp("talks")).start("go") as run:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        run.cancel()


async def long_backlog_of_events() -> None:
    """A reader that comes late has more to read than is read without a pause."""
    async with agent(say("done")).start("go") as run:
        for _ in range(MOST_AT_ONCE):
            run.cancel(SafePoint.named("elsewhere"))
        await run.wait()
        async for _ in run.events():
            pass


async def late_result_is_stored(store: Store) -> None:
    """A call that nothing stops ends with a value after its run, and the store takes a moment to write it down."""

    @tool(ladder=Ladder(task=A_MOMENT))
    async def deaf() -> str:
        """Does not care about being cut, however often."""
        end = asyncio.get_running_loop().time() + LONG
        while (left := end - asyncio.get_running_loop().time()) > 0:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(left)
        return "after all"

    one = agent(call("deaf"), say("done"), say("more"), tools=[deaf])
    session = await Session.create(store, "s")
    async with one.start("first", session=session) as run:
        await asyncio.sleep(A_WHILE)
        run.cancel()
    await asyncio.sleep(2 * LONG)
    await one.run("second", session=session)


class FailsToEnd(SlowStore):
    """A store that refuses the first end of a run that it is to write, and with it the session that comes back."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self._has_refused = False

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        if not self._has_refused and any(isinstance(change, Ended) for change in changes):
            self._has_refused = True
            raise StoreError("not now")
        await super().append(session_id, epoch, changes)


async def more_asks_than_are_announced_at_once() -> None:
    """A run that ends announces the rest before."""
    async with agent(say("done")).start("go") as run:
        await asyncio.sleep(0)
        for _ in range(3 * ANNOUNCED_AT_ONCE):
            run.cancel(SafePoint.named("elsewhere"))


async def run_whose_end_cannot_be_written() -> None:
    one = agent(call("look"), say("done"), say("more"), tools=[look])
    session = await Session.create(FailsToEnd(), "s")
    with suppress(StoreError, RunFailed):
        await one.run("first", session=session)
    await one.run("second", session=session)


class FailsToBegin(SlowStore):
    """A store that refuses the first thing it is to write, or keeps it and fails all the same."""

    def __init__(self, *, keeps: bool = False, refused_releases: int = 0) -> None:
        super().__init__(MemoryStore())
        self._keeps = keeps
        self._refusals = 1
        self._refused_releases = refused_releases

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        self._refusals -= 1
        if self._refusals >= 0 and not self._keeps:
            raise StoreError("not now")
        await super().append(session_id, epoch, changes)
        if self._refusals >= 0:
            raise StoreError("perhaps")

    async def release(self, session_id: str, claimant: str) -> None:
        self._refused_releases -= 1
        if self._refused_releases >= 0:
            raise StoreError("not now")
        await super().release(session_id, claimant)


async def run_whose_beginning_cannot_be_written() -> None:
    one = agent(call("look"), say("done"), tools=[look])
    store = FailsToBegin()
    session = await Session.create(store, "s")
    with suppress(StoreError):
        await one.run("first", session=session)
    await one.run("second", session=await Session.load(store, "s"))


async def run_whose_beginning_was_written_although_it_failed() -> None:
    one = agent(call("look"), say("done"), tools=[look])
    session = await Session.create(FailsToBegin(keeps=True), "s")
    with suppress(StoreError):
        await one.run("first", session=session)
    await one.run("second", session=session)


async def _runs_twice(pause: float) -> None:
    """The session is given back in the background, even if the caller is gone: that is waited for."""
    one = agent(call("look"), say("done"), tools=[look])
    session = await Session.create(FailsToBegin(refused_releases=2), "s")
    try:
        with suppress(StoreError):
            await one.run("first", session=session)
        await asyncio.sleep(pause)
        await one.run("second", session=session)
    finally:
        await outlast(asyncio.create_task(asyncio.sleep(LONG)))


async def given_back_late() -> None:
    """The release is tried again in the background until it works."""
    await _runs_twice(LONG)


async def claimed_again_before_it_could_be_given_back() -> None:
    """The next run does not wait for the release that is tried again."""
    await _runs_twice(0)


async def wound_down() -> None:
    """The end of a loop of our own: a new run, a task slow to leave, a generator that starts one more."""

    async def numbers() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            last.append(asyncio.create_task(asyncio.sleep(A_MOMENT)))
            await asyncio.sleep(0)

    async def stubborn() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(LONG)
        await asyncio.sleep(A_MOMENT)

    last: list[asyncio.Task[None]] = []
    task = asyncio.create_task(stubborn())
    forgotten = numbers()
    await anext(forgotten)
    await asyncio.sleep(A_MOMENT)
    agent(call("post"), say("done"), tools=[post]).start("go").launch()
    await wind_down(Ladder())
    assert task.done()
