"""`check_storage`: what every storage has to do: all rules of `check_store`, and the rules of its other parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

from safepoint.sessions.stores import StorageSessions
from safepoint.storage.protocol import Storage, Store, missing_parts
from safepoint.testing.conformance import (
    storage_leases,
    storage_parts,
    storage_runs,
    storage_units,
    store_cancels,
    store_claims,
    store_writes,
)
from safepoint.testing.conformance.rules import Rule, Rules
from safepoint.testing.conformance.storage_maker import StorageMaker
from safepoint.testing.conformance.store_maker import MakeStore, Reopen, Spoil, StoreMaker

# `check_store`: what every session store has to do.


def check_store(
    make: MakeStore, *, reopen: Reopen | None = None, spoil: Spoil | None = None, virtual: bool = True
) -> None:
    """Hold a session store to every rule, and raise one AssertionError that lists the rules it breaks.

    `make` returns a new, empty store each time. `reopen(store)` returns another store on the same data, as another
    process would open it; leave it out for a store in memory. `await spoil(store, session_id)` damages the stored
    messages of one session; without it that rule is skipped. `virtual=False`: for a store behind a slow network.
    """
    rules = [*store_claims.RULES.all, *store_writes.RULES.all, *store_cancels.RULES.all]
    rules += store_claims.SHARED.all if reopen is not None else ()
    rules += store_claims.SPOILT.all if spoil is not None else ()
    Rules(*rules).hold("store", StoreMaker(make, reopen, spoil), virtual=virtual)


MakeStorage: TypeAlias = Callable[[], Storage]
ReopenStorage: TypeAlias = Callable[[Storage], Storage]
SpoilStorage: TypeAlias = Callable[[Storage, str], Awaitable[object]]
LapseStorage: TypeAlias = Callable[[Storage], Awaitable[object]]


def check_storage(
    make: MakeStorage,
    *,
    reopen: ReopenStorage | None = None,
    spoil: SpoilStorage | None = None,
    lapse: LapseStorage | None = None,
    virtual: bool = True,
) -> None:
    """Hold a storage to every rule, and raise one AssertionError that lists the rules it breaks.

    `make` returns a new, empty storage each time. `reopen(storage)` returns another storage on the same data, as
    another process would open it; leave it out for a storage in memory. `await spoil(storage, session_id)` damages the
    stored messages of one session; without it that rule is skipped. `await lapse(storage)` ends the lease of its
    worker, as if its process had been killed and the lease had expired; without it, or without `reopen`, those rules
    are skipped. `virtual=False`: for a storage behind a slow network.
    """
    maker = StorageMaker(make, reopen, lapse)
    rules: list[Rule[StorageMaker]] = [_of_sessions(rule, spoil) for rule in _session_rules(reopen, spoil)]
    rules += [*storage_units.RULES.all, *storage_runs.RULES.all, *storage_parts.RULES.all]
    rules += [*storage_runs.SHARED.all, *storage_parts.SHARED.all] if reopen is not None else []
    rules += storage_leases.LAPSED.all if reopen is not None and lapse is not None else []
    Rules(_WHOLE, *rules).hold("storage", maker, virtual=virtual)


async def _is_whole(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        missing = missing_parts(storage)
        assert not missing, f"it lacks {', '.join(missing)}"
        await storage.check()


_WHOLE: Rule[StorageMaker] = Rule(
    "it has every part, and says that it works", "have every attribute of the protocol `Storage`", _is_whole
)


def _session_rules(reopen: ReopenStorage | None, spoil: SpoilStorage | None) -> list[Rule[StoreMaker]]:
    rules = [*store_claims.RULES.all, *store_writes.RULES.all, *store_cancels.RULES.all]
    rules += store_claims.SHARED.all if reopen is not None else ()
    rules += store_claims.SPOILT.all if spoil is not None else ()
    return rules


def _of_sessions(rule: Rule[StoreMaker], spoil: SpoilStorage | None) -> Rule[StorageMaker]:
    """Apply a rule for session stores to the sessions of a storage."""

    async def spoil_store(store: Store, session_id: str) -> object:
        assert spoil is not None
        return await spoil(cast("StorageSessions", store).storage, session_id)

    async def check(maker: StorageMaker) -> Callable[[], object] | None:
        def made() -> Store:
            return StorageSessions(maker.make())

        def reopened(store: Store) -> Store:
            assert maker.reopen is not None
            return StorageSessions(maker.reopen(cast("StorageSessions", store).storage))

        stores = StoreMaker(made, reopened if maker.reopen is not None else None, spoil_store)
        return await rule.check(stores)

    return Rule(f"sessions: {rule.name}", rule.advice, check)
