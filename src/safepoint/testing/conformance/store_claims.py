"""Rules for stores: sessions are made, found, claimed by one at a time, and deleted."""

from __future__ import annotations

import asyncio

from safepoint.agent.journal import Said
from safepoint.errors import SessionBusy, SessionExists, SessionNotFound, StoreCorrupt, StoreError, Superseded
from safepoint.sessions.store import LateResult, Released, StateSet, Stored
from safepoint.testing.conformance import store_samples as sample
from safepoint.testing.conformance.rules import Rules
from safepoint.testing.conformance.store_maker import StoreMaker, refused, same, uses
from safepoint.testing.conformance.store_samples import said

RULES: Rules[StoreMaker] = Rules()
# Only for a store that other stores can share, and for one that can be spoilt on purpose.
SHARED: Rules[StoreMaker] = Rules()
SPOILT: Rules[StoreMaker] = Rules()


@RULES.rule("a new session is empty and has its state", "store the state that create() was given, and nothing else")
async def _new(maker: StoreMaker) -> None:
    async with maker.opened() as store:
        await store.create("s", sample.STATE)
        same(await store.load("s"), Stored((), sample.STATE), "messages", "state", "runs", "late")


@RULES.rule("an id that is taken is refused", "raise SessionExists in create(), and leave what is there as it is")
async def _take_over(maker: StoreMaker) -> None:
    async with maker.opened() as store:
        await store.create("s", {"first": 1})
        await refused(SessionExists, "a second create('s')", store.create("s", {"second": 2}))
        same(await store.load("s"), Stored((), {"first": 1}), "state")


@RULES.rule("an unknown session is not found", "raise SessionNotFound in load, claim, append and add_late")
async def _unknown(maker: StoreMaker) -> None:
    async with maker.opened() as store:
        for what, wait in uses(store, "nobody", epoch=1):
            await refused(SessionNotFound, f"{what} of a session that is not there", wait())
        await store.release("nobody", "me")


@RULES.rule("the ids are complete and sorted", "return every id once, in the order of sorted()")
async def _listed(maker: StoreMaker) -> None:
    async with maker.opened() as store:
        for id in ("b", "a", "c"):
            await store.create(id, {})
        found = await store.list_ids()
        assert list(found) == ["a", "b", "c"], f"after create of b, a, c, list_ids() gives {found!r}"
        for id in ("b/1", "b_", "B/2"):
            await store.create(id, {})
        found = await store.list_ids("b/")
        assert list(found) == ["b/1"], f"of b, b/1, b_ and B/2, list_ids('b/') gives {found!r}"


@RULES.rule("states are listed as they are stored", "states() gives what load() gives, for the ids of list_ids()")
async def _states(maker: StoreMaker) -> None:
    async with maker.claimed(StateSet({"x": [1]})) as (store, _):
        for id in ("t", "s2"):
            await store.create(id, {"is": id})
        found = await store.states("s")
        assert {id: dict(state) for id, state in found.items()} == {"s": {"x": [1]}, "s2": {"is": "s2"}}, f"{found!r}"
        assert list(await store.states()) == ["s", "s2", "t"], "they are not in the order of list_ids()"


@RULES.rule("sessions do not touch each other", "keep everything by session id")
async def _apart(maker: StoreMaker) -> None:
    async with maker.claimed() as (store, epoch):
        await store.create("t", {"mine": 1})
        other = await store.claim("t", "me too")
        await store.append("s", epoch, [sample.opening(), StateSet({"x": 1})])
        await store.add_late("s", LateResult("call_1", "look", "dust"))
        same(await store.load("t"), Stored((), {"mine": 1}), "messages", "state", "runs", "late")
        await store.append("t", other, [Said(0, said("hi"))])
        same(await store.load("s"), Stored((sample.ASKED,), {"x": 1}), "messages", "state")


@RULES.rule("what is stored is a copy", "copy the state that you are given: its owner goes on changing it")
async def _copied(maker: StoreMaker) -> None:
    async with maker.opened() as store:
        first, second = {"a": [1]}, {"a": [2]}
        await store.create("s", first)
        first["a"].append(0)
        same(await store.load("s"), Stored((), {"a": [1]}), "state")
        await store.append("s", await store.claim("s", "me"), [StateSet(second)])
        second["a"].append(0)
        same(await store.load("s"), Stored((), {"a": [2]}), "state")


@RULES.rule("a session has one claimant at a time", "raise SessionBusy in claim() until the claimant has released it")
async def _exclusive(maker: StoreMaker) -> None:
    async with maker.claimed() as (store, _):
        await refused(SessionBusy, "a claim by another", store.claim("s", "another"))
        await store.release("s", "me")
        await store.claim("s", "another")


@RULES.rule("of many claims at once one succeeds", "look and take in one step: no await between them, or a transaction")
async def _at_once(maker: StoreMaker) -> None:
    async with maker.opened() as store:
        await store.create("s", {})
        found = await asyncio.gather(*(store.claim("s", f"claimant {n}") for n in range(8)), return_exceptions=True)
        won = [each for each in found if isinstance(each, int)]
        assert len(won) == 1, f"of 8 claims at once {len(won)} succeeded"
        lost = [each for each in found if not isinstance(each, int | SessionBusy)]
        assert not lost, f"a claim that lost raised {lost[0]!r}, not SessionBusy"


@RULES.rule("a claimant may claim again", "let the one that has the session claim it again, with a new epoch")
async def _again(maker: StoreMaker) -> None:
    async with maker.claimed() as (store, epoch):
        second = await store.claim("s", "me")
        assert second > epoch, f"the epoch of the second claim is {second}, of the first {epoch}"


@RULES.rule("load tells the epoch of the last claim", "keep the epoch with the session")
async def _epoch(maker: StoreMaker) -> None:
    async with maker.claimed() as (store, epoch):
        found = (await store.load("s")).epoch
        assert found == epoch, f"claim gave {epoch}, load says {found}"


@RULES.rule("a release by another claimant does nothing", "release only what this claimant has")
async def _not_yours(maker: StoreMaker) -> None:
    async with maker.claimed() as (store, _):
        await store.release("s", "another")
        await refused(SessionBusy, "after a release by another, a claim", store.claim("s", "a third"))


@RULES.rule("a write can give the session back", "release in append() too, for the claimant of a Released")
async def _with_a_write(maker: StoreMaker) -> None:
    async with maker.claimed(Said(0, said("first"))) as (store, epoch):
        await store.append("s", epoch, [Said(1, said("second")), Released("another")])
        await refused(SessionBusy, "after a release by another, a claim", store.claim("s", "a third"))
        await store.append("s", epoch, [Said(2, said("third")), Released("me")])
        await store.claim("s", "another")
        same(await store.load("s"), Stored((said("first"), said("second"), said("third")), {}), "messages")


@RULES.rule("a write with an old epoch is refused", "compare the epoch in the same step as the write; raise Superseded")
async def _old_epoch(maker: StoreMaker) -> None:
    async with maker.claimed(Said(0, said("first"))) as (store, epoch):
        await store.release("s", "me")
        newer = await store.claim("s", "another")
        await refused(Superseded, "an append with the old epoch", store.append("s", epoch, [Said(1, said("late"))]))
        await store.append("s", newer, [Said(1, said("second"))])
        same(await store.load("s"), Stored((said("first"), said("second")), {}), "messages")


@RULES.rule(
    "a deleted session is gone", "forget all of it; afterwards it is not found, and deleting it again is no error"
)
async def _deleted(maker: StoreMaker) -> None:
    async with maker.claimed(sample.opening()) as (store, epoch):
        await store.delete("s")
        await store.delete("s")
        for what, wait in uses(store, "s", epoch):
            await refused(SessionNotFound, f"{what} of a deleted session", wait())
        assert await store.list_ids() == [], "its id is still listed"


@RULES.rule(
    "a new session under an old id is new", "no epoch, claim, message or late result of the old one counts for it"
)
async def _reborn(maker: StoreMaker) -> None:
    async with maker.claimed(sample.opening()) as (store, epoch):
        await store.add_late("s", LateResult("call_1", "look", "dust"))
        await store.delete("s")
        await store.create("s", {})
        same(await store.load("s"), Stored((), {}), "messages", "runs", "late")
        await store.claim("s", "another")
        old = store.append("s", epoch, [Said(0, said("a ghost"))])
        await refused(Superseded, "an append by a run of the old session", old)


@RULES.rule("a closed store refuses everything", "raise StoreError after aclose(); closing twice is no error")
async def _closed(maker: StoreMaker) -> None:
    async with maker.opened() as store:
        await store.create("s", {})
        await store.aclose()
        await refused(StoreError, "load('s') after aclose()", store.load("s"))
        await refused(StoreError, "list_ids() after aclose()", store.list_ids())


@SHARED.rule("another store on the same place sees what was written", "make an append durable before it returns")
async def _durable(maker: StoreMaker) -> None:
    async with maker.claimed(sample.opening(), StateSet(sample.STATE)) as (store, _):
        await store.add_late("s", LateResult("call_1", "look", "dust"))
        expected = await store.load("s")
        async with maker.reopened(store) as other:
            assert await other.list_ids() == ["s"], "it does not list the session"
            same(await other.load("s"), expected, "messages", "state", "runs", "late")


@SHARED.rule("a session that another store holds is busy", "keep claims and epochs where all stores see them")
async def _held(maker: StoreMaker) -> None:
    async with maker.claimed() as (store, epoch), maker.reopened(store) as other:
        await refused(SessionBusy, "a claim through the other store", other.claim("s", "another"))
        await store.release("s", "me")
        await other.claim("s", "another")
        old = store.append("s", epoch, [Said(0, said("late"))])
        await refused(Superseded, "an append after the other store's claim", old)


@SPOILT.rule(
    "what can't be read is told, and left as it is", "raise StoreCorrupt; never repair or drop what you can't read"
)
async def _spoilt(maker: StoreMaker) -> None:
    assert maker.spoil is not None
    async with maker.claimed(sample.opening()) as (store, _):
        await store.create("t", {"well": 1})
        await maker.spoil(store, "s")
        for _ in range(2):
            await refused(StoreCorrupt, "a load of what was spoilt", store.load("s"))
        same(await store.load("t"), Stored((), {"well": 1}), "state")
