"""Rules for stores: what a write means, and that it is kept whole and in order."""

from __future__ import annotations

import asyncio
from copy import deepcopy

from msgspec.structs import replace

from safepoint.agent.journal import Called, Fact, Inside, Said
from safepoint.agent.ledger import LedgerEntry
from safepoint.errors import CheckpointError
from safepoint.sessions.store import Change, LateResult, LateSet, StateSet, Stored, Truncated
from safepoint.testing.conformance import store_samples as sample
from safepoint.testing.conformance.rules import Rules
from safepoint.testing.conformance.store_maker import StoreMaker, compare, refused, same
from safepoint.testing.conformance.store_samples import said

RULES: Rules[StoreMaker] = Rules()


@RULES.rule("an append is all or nothing", "make the changes of one append in one transaction, and roll it back")
async def _atomic(maker: StoreMaker) -> None:
    async with maker.claimed(Said(0, said("before"))) as (store, epoch):
        changes: list[Change] = [Said(0, said("after")), StateSet({"x": 1}), sample.opening(continues="nobody's")]
        await refused(CheckpointError, "an append that can't be made", store.append("s", epoch, changes))
        same(await store.load("s"), Stored((said("before"),), {}), "messages", "state", "runs")


@RULES.rule("appends at the same time are all kept", "do not read, wait, and write back: an append in between is lost")
async def _overlapping(maker: StoreMaker) -> None:
    async with maker.claimed(sample.opening()) as (store, epoch):
        calls = [Called(LedgerEntry(f"call_{n}", "look")) for n in range(8)]
        await asyncio.gather(*(store.append("s", epoch, [each]) for each in calls))
        found = {entry.call_id for entry in (await store.load("s")).runs[-1].ledger}
        assert len(found) == 8, f"of 8 calls that were appended at once {len(found)} are there"


@RULES.rule("messages keep their places", "order them by number, and put a message that is said again in its old place")
async def _places(maker: StoreMaker) -> None:
    changes = [*(Said(n, said(f"message {n}")) for n in range(12)), Said(2, said("another 2"))]
    await compare(maker, changes, "messages")


@RULES.rule("messages keep when they were said", "store `at` of the fact; a message that is said again keeps its time")
async def _times(maker: StoreMaker) -> None:
    asked, *rest = sample.EVERYTHING
    opened, ended = replace(sample.opening(), at=10.0), replace(sample.ending(), at=20.0)
    later: list[Change] = [Said(1, rest[0], 11.5), Said(2, said("to be replaced"), 12.0), ended, Said(0, asked, 30.0)]
    await compare(maker, [opened, *later], "messages", "times")
    await compare(maker, [opened, *later, Truncated(1), replace(sample.opening("run_2", 1), at=40.0)], "times")


@RULES.rule("every part of a message comes back as it was", "encode all fields of all parts; see history.encoding")
async def _parts(maker: StoreMaker) -> None:
    await compare(maker, [Said(n, message) for n, message in enumerate(sample.EVERYTHING)], "messages")


@RULES.rule("a run is kept from its opening to its end", "store what Opened, Called and Ended say of the run")
async def _run(maker: StoreMaker) -> None:
    opened: list[Change] = [StateSet({"x": 1}), sample.opening(), StateSet({"x": 2})]
    await compare(maker, opened, "runs")
    await compare(maker, [*opened, Called(sample.RUNNING), Called(sample.FINISHED)], "runs")
    await compare(maker, [*opened, Called(sample.RUNNING), sample.ending()], "runs")


@RULES.rule(
    "what a run has used, and what runs inside it have written, is kept until it ends",
    "keep every Counted and Inside with the run, and forget them with Ended; `reducer.apply` says what they mean",
)
async def _inside(maker: StoreMaker) -> None:
    below = sample.opening("run_below", 1)
    written: list[Fact] = [below, Said(2, sample.CALLS), Called(sample.RUNNING, sample.MEMORY), Inside("call_1", below)]
    run: list[Change] = [sample.opening(), *(Inside("child", each) for each in written), sample.COUNTED]
    await compare(maker, run, "runs")
    stopped = Inside("child", sample.ending("run_below", 1, sample.checkpoint()))
    await compare(maker, [*run, Inside("child", sample.COUNTED), stopped], "runs")
    async with maker.claimed(*run, sample.ending()) as (store, _):
        ended = (await store.load("s")).runs[-1]
        assert ended.counted is None, f"after the end it still has {ended.counted!r}"
        assert not ended.inside, f"after the end it still has what {sorted(ended.inside)} wrote"


@RULES.rule("a call's memory is kept until there is a newer one", "Called(entry, None) leaves the memory as it is")
async def _memory(maker: StoreMaker) -> None:
    await compare(maker, [sample.opening(), Called(sample.RUNNING, sample.MEMORY), Called(sample.FINISHED)], "runs")


@RULES.rule(
    "opening and ending replace what follows their index", "forget the messages from `index` on, then add these"
)
async def _replaced(maker: StoreMaker) -> None:
    before = [Said(n, said(f"message {n}")) for n in range(9)]
    await compare(maker, [*before, sample.opening(index=3)], "messages")
    await compare(maker, [sample.opening(), *before, sample.ending()], "messages")


@RULES.rule("a checkpoint comes back whole", "store checkpoint.to_bytes() and read it with Checkpoint.from_bytes()")
async def _checkpoint(maker: StoreMaker) -> None:
    async with maker.claimed(sample.opening(), sample.ending(saved=sample.checkpoint())) as (store, _):
        runs = (await store.load("s")).runs
        assert runs, "the run is not there"
        assert runs[-1].checkpoint == sample.checkpoint(), f"it is now {runs[-1].checkpoint!r}"


@RULES.rule(
    "a continued run takes the place of the one before",
    "replace the last run; it keeps that run's state_before and origin, and `Opened.base` as `continued`",
)
async def _continued(maker: StoreMaker) -> None:
    saved = replace(sample.checkpoint(), pending=(), used={})
    stopped: list[Change] = [
        StateSet({"x": 1}),
        sample.opening(),
        StateSet({"x": 2}),
        sample.ending(saved=saved),
    ]
    again = replace(sample.opening("run_2", continues="checkpoint_1"), base=saved)
    await compare(maker, [*stopped, again], "runs", "messages")


@RULES.rule(
    "a new turn drops the open view of the one before",
    "an Opened that continues nothing leaves `checkpoint.drop()` of the last run's checkpoint",
)
async def _dropped(maker: StoreMaker) -> None:
    stopped: list[Change] = [sample.opening(), sample.ending(saved=sample.checkpoint())]
    async with maker.claimed(*stopped, sample.opening("run_2", 4)) as (store, _):
        runs = (await store.load("s")).runs
        assert len(runs) == 2, f"the stored runs: {runs!r}"
        assert runs[0].checkpoint == sample.checkpoint().drop(), f"it is now {runs[0].checkpoint!r}"


@RULES.rule("a checkpoint is continued once", "raise CheckpointError unless the last run has that very checkpoint")
async def _once(maker: StoreMaker) -> None:
    async with maker.claimed(sample.opening(), sample.ending(saved=sample.checkpoint())) as (store, epoch):
        await store.append("s", epoch, [sample.opening("run_2", continues="checkpoint_1")])
        again = store.append("s", epoch, [sample.opening("run_3", continues="checkpoint_1")])
        await refused(CheckpointError, "continuing it a second time", again)


@RULES.rule("a truncation forgets the runs that it cuts off", "Truncated(index) is a rewind: forget runs from there on")
async def _truncated(maker: StoreMaker) -> None:
    two: list[Change] = [sample.opening(), sample.ending(), sample.opening("run_2", 4), sample.ending("run_2", 4)]
    async with maker.claimed(*two, Truncated(4)) as (store, epoch):
        stored = await store.load("s")
        same(stored, Stored(sample.EVERYTHING, {}), "messages")
        assert [run.run_id for run in stored.runs] == ["run_1"], f"the stored runs: {stored.runs!r}"
        await store.append("s", epoch, [sample.opening("run_3", 4)])
        runs = [run.run_id for run in (await store.load("s")).runs]
        assert runs == ["run_1", "run_3"], f"after another run the stored runs are {runs!r}"


@RULES.rule("state is replaced whole", "StateSet gives the whole state: what is not in it is gone")
async def _state(maker: StoreMaker) -> None:
    await compare(maker, [StateSet({"old": 1}), StateSet(sample.STATE)], "state")


@RULES.rule("a fork has messages of its own", "copy messages; do not share them between sessions")
async def _forked(maker: StoreMaker) -> None:
    async with maker.claimed(Said(0, said("shared")), Said(1, said("past"))) as (store, epoch):
        await store.create("t", {})
        messages = (await store.load("s")).messages
        copies = [Said(n, message) for n, message in enumerate(messages)]
        await store.append("t", await store.claim("t", "fork"), copies)
        await store.append("s", epoch, [Said(2, said("only here"))])
        same(await store.load("t"), Stored((said("shared"), said("past")), {}), "messages")


@RULES.rule("what was loaded does not change", "hand out copies or frozen values")
async def _snapshot(maker: StoreMaker) -> None:
    async with maker.claimed(sample.opening(), StateSet({"a": [1]})) as (store, epoch):
        loaded = await store.load("s")
        before = deepcopy(loaded)
        await store.append("s", epoch, [Said(1, said("more")), StateSet({"a": [2]}), Called(sample.FINISHED)])
        assert loaded == before, "what load() gave has changed with a later append"


@RULES.rule("late results wait in order until they are told", "add_late() adds at the end; LateSet replaces the list")
async def _late(maker: StoreMaker) -> None:
    results = tuple(LateResult(f"call_{n}", "look", f"dust {n}") for n in range(3))
    async with maker.claimed() as (store, epoch):
        for late in results:
            await store.add_late("s", late)
        same(await store.load("s"), Stored((), {}, late=results), "late")
        await store.append("s", epoch, [LateSet(results[2:])])
        same(await store.load("s"), Stored((), {}, late=results[2:]), "late")


@RULES.rule("a late result disturbs no claim", "add_late() needs no claim and leaves the epoch as it is")
async def _late_outside(maker: StoreMaker) -> None:
    async with maker.claimed() as (store, epoch):
        await store.add_late("s", LateResult("call_1", "look", "dust"))
        await store.append("s", epoch, [Said(0, said("still mine"))])
