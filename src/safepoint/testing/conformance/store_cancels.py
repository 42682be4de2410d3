"""Rules for stores: a call may be cancelled wherever it waits."""

from __future__ import annotations

import asyncio

from safepoint.agent.journal import Said
from safepoint.sessions.store import Change, LateResult, LateSet, StateSet, Store, Stored
from safepoint.storage.reducer import apply
from safepoint.testing.conformance.cutting import Cut, cut_everywhere
from safepoint.testing.conformance.rules import Rules
from safepoint.testing.conformance.store_maker import StoreMaker, plain, same
from safepoint.testing.conformance.store_samples import said

RULES: Rules[StoreMaker] = Rules()


@RULES.rule(
    "a cancelled call happens whole or not at all, and the store stays usable",
    "put the whole step into one transaction, and give locks and connections back in a `finally`",
)
async def _cut(maker: StoreMaker) -> None:
    async with maker.claimed(Said(0, said("old")), StateSet({"is": "old"})) as (store, epoch):
        before, half = await store.load("s"), LateResult("call_1", "look", "dust")
        changes: list[Change] = [Said(0, said("new")), StateSet({"is": "new"}), LateSet((half,))]
        after = before
        for change in changes:
            after = apply(after, change)

        async def whole(cut: Cut) -> None:
            found = await store.load("s")
            assert plain(found) in (plain(before), plain(after)), f"append, {cut}: only half of it is there"
            await store.append("s", epoch, [Said(0, said("old")), StateSet({"is": "old"}), LateSet(())])

        await cut_everywhere(lambda: store.append("s", epoch, changes), whole)
        await _cut_claims(store)
        await _cut_making(store)


async def _cut_claims(store: Store) -> None:
    """A claim that was cancelled may have happened: its claimant can still release it."""
    await store.create("claims", {})

    async def free(cut: Cut) -> None:
        await store.release("claims", "cancelled")
        await store.claim("claims", "next")
        await store.release("claims", "next")

    await cut_everywhere(lambda: store.claim("claims", "cancelled"), free)


async def _cut_making(store: Store) -> None:
    async def create_and_delete() -> None:
        await store.create("t", {"whole": True})
        await store.add_late("t", LateResult("call_1", "look", "dust"))
        await store.delete("t")

    async def there_or_not(cut: Cut) -> None:
        if "t" in await store.list_ids():
            same(await store.load("t"), Stored((), {"whole": True}), "state")
        await store.delete("t")

    await cut_everywhere(create_and_delete, there_or_not)


@RULES.rule("a cancellation is never swallowed", "let CancelledError out of every method, after cleaning up")
async def _swallowed(maker: StoreMaker) -> None:
    async def everything() -> None:
        async with maker.claimed(Said(0, said("hi"))) as (store, _):
            await store.load("s")
            await store.release("s", "me")
            await store.delete("s")

    async def let_out(cut: Cut) -> None:
        cancelled = isinstance(cut.ending, asyncio.CancelledError)
        assert not cut.reached or cancelled, f"{cut}, a store's method went on as if nothing had happened"

    await cut_everywhere(everything, let_out)
