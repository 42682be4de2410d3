"""Loops of turns: preempted, stopped at a safe point, resumed by the next loop, and waiting for a person."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from safepoint import Agent, SafePoint, TurnLoop
from safepoint.agent.event_hub import EventReader
from safepoint.errors import StoreError
from safepoint.storage.loop_data import LoopChange, OpenedLoop, StoredLoop
from safepoint.testing import call, say
from safepoint.turns import ExitState, LoopReader, MemoryTurnStore, Plan, PlanContext, PushReceipt, Turn
from safepoint.turns.events import ItemsDropped, LoopEnded, TurnEnded
from tests.injection.parts import A_MOMENT, A_WHILE, agent, look, post
from tests.injection.resuming import asks
from tests.turns.parts import stored_places, tables_of


class SlowTurnStore(MemoryTurnStore):
    """Waits before it acts, and once more before it says so: what is cancelled may have happened."""

    async def open(self, id: str, claimant: str) -> OpenedLoop:
        await asyncio.sleep(A_MOMENT)
        opened = await super().open(id, claimant)
        await asyncio.sleep(0)
        return opened

    async def apply(self, id: str, epoch: int, changes: Sequence[LoopChange]) -> None:
        await asyncio.sleep(A_MOMENT)
        await super().apply(id, epoch, changes)
        await asyncio.sleep(0)

    async def release(self, id: str, claimant: str) -> None:
        await asyncio.sleep(A_MOMENT)
        await super().release(id, claimant)
        await asyncio.sleep(0)

    def peek(self) -> StoredLoop | None:
        table = tables_of(self).get("loop")
        return None if table is None else table.read()


class FailsOnce(SlowTurnStore):
    """The second write is not taken; the next one is."""

    def __init__(self) -> None:
        super().__init__()
        self._writes = 0

    async def apply(self, id: str, epoch: int, changes: Sequence[LoopChange]) -> None:
        self._writes += 1
        if self._writes == 2:
            await asyncio.sleep(A_MOMENT)
            raise StoreError("not now")
        await super().apply(id, epoch, changes)


class Books:
    """What was accepted and what was told, until somebody has compared the two."""

    def __init__(self) -> None:
        self._open: list[tuple[TurnLoop[str], LoopReader[str], list[str], SlowTurnStore]] = []

    def keep(self, loop: TurnLoop[str], accepted: list[str], store: SlowTurnStore) -> None:
        self._open.append((loop, loop.events(), accepted, store))

    def balance(self) -> None:
        """The oracle: every accepted item is in exactly one place, and what is saved is what was said at the end."""
        books, self._open = self._open, []
        last = {id(store): loop for loop, _, _, store in books}  # only the last loop still finds its own record
        for loop, reader, accepted, store in books:
            if loop.ended:
                asyncio.run(_balance(reader, accepted, store if last[id(store)] is loop else None))


async def _balance(reader: LoopReader[str], accepted: list[str], store: SlowTurnStore | None) -> None:
    gone: list[str] = []
    exit: ExitState[str] | None = None
    async for event in reader:
        match event:
            case TurnEnded(outcome="ended" | "preempted", consumed=items) | ItemsDropped(items=items):
                gone += items
            case LoopEnded(exit=found):
                exit = found
            case _:
                pass
    assert exit is not None
    interrupted, unhandled, failed = stored_places(store.peek() if store is not None else None)
    told_failed = [item for turn in exit.failed for item in turn.items]
    places = [*gone, *exit.interrupted, *exit.unhandled, *told_failed]
    if exit.checkpoint == "failed":  # the record was not read, so it is as it was
        places += [item for item in (*interrupted, *unhandled, *failed) if item not in places]
    assert sorted(places) == sorted(accepted), f"{accepted} were accepted, and these are accounted for: {places}"
    if store is not None and exit.checkpoint == "saved":
        assert (interrupted, unhandled, failed) == (exit.interrupted, exit.unhandled, told_failed)


BOOKS = Books()


class Pushing:
    """A loop with slow callbacks, and its books."""

    def __init__(self, one: Agent, store: SlowTurnStore, *, resumes: list[str] | None = None) -> None:
        self.loop = TurnLoop(
            plan=self._plan,
            prepare=lambda ctx, consumed: one,
            on_events=self._watch,
            store=store,
            checkpoint_id="loop",
        )
        self._accepted: list[str] = list(resumes or [])
        BOOKS.keep(self.loop, self._accepted, store)

    def push(self, item: str, preempt: SafePoint | None = None) -> PushReceipt:
        receipt = self.loop.push(item, preempt=preempt)
        if receipt.accepted:
            self._accepted.append(item)
        return receipt

    async def _plan(self, ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        await asyncio.sleep(A_MOMENT)
        return Plan(" ".join(items), items) if items != ["nothing"] else Plan(None, [])

    async def _watch(self, turn: Turn[str], events: EventReader) -> None:
        async for _ in events:
            pass


async def three_turns_a_preempt_and_a_graceful_stop() -> None:
    store = SlowTurnStore()
    pushing = Pushing(agent(call("post"), call("look"), say("done"), tools=[post, look]), store)
    async with pushing.loop as loop:
        pushing.push("first")
        await asyncio.sleep(A_WHILE / 2)
        pushing.push("second", SafePoint.AFTER_TOOLS)
        await asyncio.sleep(A_WHILE * 2)
        pushing.push("third")
        await asyncio.sleep(A_WHILE / 2)
        loop.stop(SafePoint.ANY)


async def a_turn_that_goes_on_in_the_next_loop() -> None:
    store, one = SlowTurnStore(), agent(call("look"), call("look"), say("done"), tools=[look])
    pushing = Pushing(one, store)
    async with pushing.loop as loop:
        pushing.push("first")
        await asyncio.sleep(A_MOMENT * 4.5)
        pushing.push("second")
        loop.stop(SafePoint.ANY)
    exit = await pushing.loop.wait()
    if exit.checkpoint == "saved":
        pushing = Pushing(one, store, resumes=[*exit.interrupted, *exit.unhandled])
        async with pushing.loop as loop:
            pushing.push("third")
            loop.stop(idle_for=A_WHILE)


async def a_turn_that_waits_for_a_person() -> None:
    one = agent([call("asks"), call("look")], say("done"), tools=[asks, look])
    async with TurnLoop(one, on_interrupt="wait") as loop:
        loop.push("first")
        for _ in range(3):
            await asyncio.sleep(A_WHILE)
            for question in loop.questions if not loop.ended else ():
                loop.answer(question.id, True)
        loop.stop(idle_for=A_WHILE)


async def a_loop_that_others_watch_and_wait_for() -> None:
    pushing = Pushing(agent(call("post"), say("done"), tools=[post]), SlowTurnStore())

    async def watch(events: LoopReader[str]) -> None:
        async for _ in events:
            pass

    async with asyncio.TaskGroup() as group, pushing.loop as loop:
        group.create_task(watch(loop.events()))
        group.create_task(loop.wait())
        with suppress(StoreError):  # the loop ended first
            await pushing.push("first").saved()
        await asyncio.sleep(A_WHILE / 2)
        await pushing.push("second", SafePoint.ANY).wait()
        loop.stop(idle_for=A_WHILE)


async def a_loop_whose_record_is_deleted() -> None:
    pushing = Pushing(agent(say("never")), SlowTurnStore())
    async with pushing.loop as loop:
        pushing.push("nothing")
        loop.stop(idle_for=A_WHILE)


async def a_loop_whose_record_is_saved_at_the_second_try() -> None:
    pushing = Pushing(agent(call("post"), say("done"), tools=[post]), FailsOnce())
    with suppress(StoreError):
        async with pushing.loop as loop:
            pushing.push("first")
            await asyncio.sleep(A_WHILE * 2)
            pushing.push("second")
            loop.stop()


async def a_loop_that_is_forced_to_end_before_its_record_was_read() -> None:
    pushing = Pushing(agent(say("never")), SlowTurnStore())
    async with pushing.loop as loop:
        pushing.push("first")
        await asyncio.sleep(A_MOMENT / 2)
        loop.stop(SafePoint.FORCE)
