"""Rules for storages that several processes share: what happens to the work of a worker whose lease is over."""

from __future__ import annotations

from safepoint.agent.journal import Said
from safepoint.errors import Superseded
from safepoint.storage.loop_data import ItemsAdded, StoredItem
from safepoint.storage.run_records import RecordMoved, RunState
from safepoint.testing.conformance.rules import Rules
from safepoint.testing.conformance.storage_maker import StorageMaker
from safepoint.testing.conformance.store_maker import refused
from safepoint.testing.conformance.store_samples import said

LAPSED: Rules[StorageMaker] = Rules()


@LAPSED.rule(
    "the runs of a worker whose lease is over are orphans, and taken by one",
    "orphans() lists open runs whose owner's lease is over; take() raises their epoch",
)
async def _runs(maker: StorageMaker) -> None:
    async with maker.after_death() as (dead, other):
        found = [each.run_id for each in await other.runs.orphans()]
        assert found == ["run_1"], f"the orphans are {found}"
        await other.runs.take("run_1", other.worker, epoch=0)
        assert await other.runs.orphans() == [], "it is an orphan after it was taken"
        await refused(RecordMoved, "a second take", other.runs.take("run_1", other.worker, epoch=0))
        await refused(RecordMoved, "a move by its old owner", dead.runs.move("run_1", RunState.ENDED, epoch=0))


@LAPSED.rule(
    "the session of a worker whose lease is over can be claimed, and its old claimant is refused",
    "in claim(), pass over an owner whose lease is over; raise the epoch",
)
async def _sessions(maker: StorageMaker) -> None:
    async with maker.after_death() as (dead, other):
        old = (await dead.sessions.load("s")).epoch
        epoch = await other.sessions.claim("s", "another")
        late = dead.sessions.append("s", old, [Said(0, said("late"))])
        await refused(Superseded, "a write of the old claimant", late)
        await other.sessions.append("s", epoch, [Said(0, said("next"))])
        await dead.sessions.release("s", "me")
        still = await other.sessions.claim("s", "another")
        assert still == epoch + 1, "its old claimant has released it"


@LAPSED.rule(
    "the loop of a worker whose lease is over can be opened, and its old claimant is refused",
    "in open(), pass over an owner whose lease is over; give a new epoch",
)
async def _loops(maker: StorageMaker) -> None:
    async with maker.after_death() as (dead, other):
        opened = await other.loops.open("loop", "another")
        await other.loops.apply("loop", opened.epoch, [ItemsAdded((StoredItem(1, "item"),))])
        late = dead.loops.apply("loop", opened.epoch - 1, [ItemsAdded((StoredItem(2, "late"),))])
        await refused(Superseded, "a write of the old claimant", late)
