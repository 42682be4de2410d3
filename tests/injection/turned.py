"""Loops of turns: preempted, stopped at a safe point, resumed by the next loop, and waiting for a person."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from safepoint import Agent, SafePoint, TurnLoop
from safepoint.agent.event_hub import EventReader
from safepoint.errors import CheckpointError, ModelError, StoreError
from safepoint.sessions import MemoryStore, Session
from safepoint.storage.loop_codec import decode
from safepoint.storage.loop_data import LoopChange, OpenedLoop, StoredLoop
from safepoint.testing import call, fail, say
from safepoint.turns import (
    ExitState,
    FailedTurn,
    ItemCodec,
    LoopReader,
    MemoryTurnStore,
    Plan,
    PlanContext,
    PushReceipt,
    ResumePlan,
    Retry,
    SqliteTurnStore,
    Turn,
)
from safepoint.turns.events import ItemsDropped, LoopEnded, TurnEnded
from safepoint.turns.store import StorageTurnStore
from tests.injection.parts import A_MOMENT, A_WHILE, SlowStorage, agent, look, post
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


class InSlowStorage(StorageTurnStore):
    """The rows of a storage that waits before it acts and after."""

    def __init__(self) -> None:
        super().__init__(SlowStorage())

    def peek(self) -> StoredLoop | None:
        table = tables_of(self).get("loop")
        return None if table is None else table.read()


class SlowBytes:
    """A store of a user's own, with one value per loop; it waits as well."""

    def __init__(self) -> None:
        self._records: dict[str, bytes] = {}
        self._claims: dict[str, str] = {}

    async def load(self, id: str) -> bytes | None:
        await asyncio.sleep(A_MOMENT)
        return self._records.get(id)

    async def save(self, id: str, record: bytes) -> None:
        await asyncio.sleep(A_MOMENT)
        self._records[id] = record
        await asyncio.sleep(0)

    async def delete(self, id: str) -> None:
        await asyncio.sleep(A_MOMENT)
        self._records.pop(id, None)
        await asyncio.sleep(0)

    async def claim(self, id: str, claimant: str) -> None:
        await asyncio.sleep(A_MOMENT)
        if self._claims.setdefault(id, claimant) != claimant:
            raise StoreError("another loop has it")

    async def release(self, id: str, claimant: str) -> None:
        await asyncio.sleep(A_MOMENT)
        if self._claims.get(id) == claimant:
            del self._claims[id]

    def peek(self) -> StoredLoop | None:
        data = self._records.get("loop")
        return None if data is None else decode(data)


AnyStore: TypeAlias = SlowTurnStore | InSlowStorage | SlowBytes


@dataclass(frozen=True, slots=True)
class _Account:
    """Of one loop. `requeues`: the items of a preempted turn wait once more."""

    reader: LoopReader[str]
    accepted: list[str]
    store: AnyStore
    requeues: bool


class Books:
    """What was accepted and what was told, until somebody has compared the two."""

    def __init__(self) -> None:
        self._open: list[tuple[TurnLoop[str], _Account]] = []

    def keep(self, loop: TurnLoop[str], accepted: list[str], store: AnyStore, *, requeues: bool) -> None:
        self._open.append((loop, _Account(loop.events(), accepted, store, requeues)))

    def balance(self) -> None:
        """The oracle: every accepted item is in exactly one place, and what is saved is what was said at the end."""
        books, self._open = self._open, []
        last = {id(account.store): loop for loop, account in books}  # only the last loop still finds its own record
        for loop, account in books:
            if loop.ended:
                asyncio.run(_balance(account, account.store if last[id(account.store)] is loop else None))


async def _balance(account: _Account, store: AnyStore | None) -> None:
    gone: list[str] = []
    exit: ExitState[str] | None = None
    async for event in account.reader:
        match event:
            case TurnEnded(outcome="ended", consumed=items) | ItemsDropped(items=items):
                gone += items
            case TurnEnded(outcome="preempted", consumed=items) if not account.requeues:
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
    accepted = account.accepted
    assert sorted(places) == sorted(accepted), f"{accepted} were accepted, and these are accounted for: {places}"
    if store is not None and exit.checkpoint == "saved":
        told = (exit.interrupted, exit.unhandled, told_failed)
        assert (interrupted, unhandled, failed) == told, f"{told} was told, and what is stored is another thing"


BOOKS = Books()


class Pushing:
    """A loop with slow callbacks, and its books."""

    def __init__(
        self,
        one: Agent,
        store: AnyStore,
        *,
        resumes: list[str] | None = None,
        session: Session | None = None,
        **options: Any,  # Any: of a loop
    ) -> None:
        self.loop: TurnLoop[str] = TurnLoop(
            plan=self._plan,
            prepare=lambda ctx, consumed: one,
            on_events=self._watch,
            store=store,
            checkpoint_id="loop",
            **options,
        )
        self._session = session
        self._accepted: list[str] = list(resumes or [])
        BOOKS.keep(self.loop, self._accepted, store, requeues=options.get("carry") == "requeue")

    def push(self, item: str, preempt: SafePoint | None = None, **options: Any) -> PushReceipt:  # Any: of a push
        receipt = self.loop.push(item, preempt=preempt, **options)
        if receipt.accepted:
            self._accepted.append(item)
        return receipt

    def withdraw(self, receipt: PushReceipt, item: str) -> None:
        if receipt.withdraw():
            self._accepted.remove(item)

    async def _plan(self, ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        await asyncio.sleep(A_MOMENT)
        return Plan(" ".join(items), items, session=self._session) if items != ["nothing"] else Plan(None, [])

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
    await _answered(Pushing(_asking(), SlowTurnStore(), on_interrupt="wait"))


async def a_turn_of_a_session_that_waits_for_a_person() -> None:
    session = await Session.create(MemoryStore())
    with suppress(CheckpointError):  # it was cancelled while it ended: then its question can't be answered any more
        await _answered(Pushing(_asking(), SlowTurnStore(), session=session, on_interrupt="wait"))


def _asking() -> Agent:
    return agent([call("asks"), call("look")], say("done"), tools=[asks, look])


async def _answered(pushing: Pushing) -> None:
    async with pushing.loop as loop:
        pushing.push("first")
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
    for store in (SlowTurnStore(), InSlowStorage(), SlowBytes()):
        pushing = Pushing(agent(say("never")), store)
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


async def a_preempted_turn_of_a_session_that_is_taken_back() -> None:
    session = await Session.create(MemoryStore())
    one = agent(call("post"), call("look"), say("done"), tools=[post, look])
    pushing = Pushing(one, SlowTurnStore(), session=session, carry="requeue")
    async with pushing.loop:
        pushing.push("first")
        await asyncio.sleep(A_MOMENT * 6)
        pushing.push("second", interrupt=True)
    assert sum(message.text.count("first") for message in session.messages if message.role == "user") <= 1


async def a_failed_turn_that_is_tried_again_and_then_kept() -> None:
    async def decide(failed: FailedTurn[str]) -> Retry | str:
        await asyncio.sleep(A_MOMENT)
        return Retry(delay=A_WHILE) if failed.attempt == 1 else "skip"

    one = agent(call("look"), fail(ModelError("down")), tools=[look], retries=0)
    pushing = Pushing(one, SlowTurnStore(), on_turn_error=decide)
    async with pushing.loop as loop:
        receipt = pushing.push("first")
        await receipt.result()
        loop.requeue()


async def items_that_join_are_withdrawn_and_waited_for() -> None:
    pushing = Pushing(agent(call("look"), call("look"), say("done"), tools=[look]), SlowTurnStore())
    async with pushing.loop:
        first = pushing.push("first")
        await asyncio.sleep(A_MOMENT * 3.5)
        joined, taken_back = pushing.push("second", join=True), pushing.push("third")
        await asyncio.sleep(A_MOMENT / 2)
        pushing.withdraw(taken_back, "third")
        with suppress(StoreError):  # the loop ended first
            await joined.saved(A_WHILE * 10)
        await first.result()
        await joined.wait()


async def a_loop_on_a_store_of_bytes_with_a_codec_of_its_own() -> None:
    store = SlowBytes()
    codec: ItemCodec[str] = ItemCodec(lambda item: json.dumps(item), lambda text: str(json.loads(text)))
    many = [f"item {number}" for number in range(120)]
    pushing = Pushing(agent(say("done")), store, codec=codec)
    for item in many:
        pushing.push(item)
    pushing.loop.stop()
    async with pushing.loop:
        pass
    if (await pushing.loop.wait()).checkpoint == "saved":
        pushing = Pushing(agent(say("done")), store, codec=codec, resumes=many)
        async with pushing.loop:
            pass


async def a_stopped_turn_whose_plan_makes_its_resumption() -> None:
    store, one = SlowTurnStore(), agent(call("look"), call("look"), say("done"), tools=[look])

    async def plan_resume(
        ctx: PlanContext[str], interrupted: list[str], unhandled: list[str], new: list[str]
    ) -> ResumePlan[str]:
        await asyncio.sleep(A_MOMENT)
        return ResumePlan(interrupted, keep_rest=True)

    pushing = Pushing(one, store)
    async with pushing.loop as loop:
        pushing.push("first")
        await asyncio.sleep(A_MOMENT * 4.5)
        loop.stop(SafePoint.NOW)
    exit = await pushing.loop.wait()
    if exit.checkpoint == "saved":
        pushing = Pushing(one, store, resumes=[*exit.interrupted, *exit.unhandled], plan_resume=plan_resume)
        async with pushing.loop:
            pass


async def a_loop_in_sqlite() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        store = SqliteTurnStore(Path(folder) / "loops.db")
        try:
            async with TurnLoop(agent(say("done")), store=store, checkpoint_id="loop") as loop:
                loop.push("first")
        finally:
            await store.aclose()
