"""For a store of your own: the protocol `Store`, what it loads (`Stored`), and what it appends (each `Change`)."""

from safepoint.storage.protocol import Store
from safepoint.storage.session_data import (
    CHANGE,
    Change,
    Lasting,
    LateResult,
    LateSet,
    Released,
    SessionChanging,
    StateSet,
    Stored,
    StoredRun,
    Truncated,
    taken_by,
)

__all__ = [
    "CHANGE",
    "Change",
    "Lasting",
    "LateResult",
    "LateSet",
    "Released",
    "SessionChanging",
    "StateSet",
    "Store",
    "Stored",
    "StoredRun",
    "Truncated",
    "taken_by",
]
