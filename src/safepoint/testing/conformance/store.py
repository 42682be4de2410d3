"""`check_store`: what every session store has to do, whoever wrote it."""

from __future__ import annotations

from safepoint.testing.conformance import store_cancels, store_claims, store_writes
from safepoint.testing.conformance.rules import Rules
from safepoint.testing.conformance.store_maker import MakeStore, Reopen, Spoil, StoreMaker


def check_store(
    make: MakeStore, *, reopen: Reopen | None = None, spoil: Spoil | None = None, virtual: bool = True
) -> None:
    """Hold a session store to every rule, and raise one AssertionError that lists those that it breaks.

    `make` gives a new, empty store each time. `reopen(store)` gives another store on the same place, as another process
    would open it; leave it out for a store that forgets. `await spoil(store, session_id)` damages the stored messages
    of one session; without it the rule about that is left out. `virtual=False`: for a store behind a slow network.
    """
    rules = [*store_claims.RULES.all, *store_writes.RULES.all, *store_cancels.RULES.all]
    rules += store_claims.SHARED.all if reopen is not None else ()
    rules += store_claims.SPOILT.all if spoil is not None else ()
    Rules(*rules).hold("store", StoreMaker(make, reopen, spoil), virtual=virtual)
