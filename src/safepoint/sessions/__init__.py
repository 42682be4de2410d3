"""Conversations that outlive a run, in memory or in a SQLite file."""

from safepoint.sessions.busy import Delivery, Sender, Sent
from safepoint.sessions.memory import MemoryStore
from safepoint.sessions.rewinding import Rewound
from safepoint.sessions.session import Session
from safepoint.sessions.sqlite import SqliteStore
from safepoint.sessions.store import LateResult, Store, Stored

__all__ = [
    "Delivery",
    "LateResult",
    "MemoryStore",
    "Rewound",
    "Sender",
    "Sent",
    "Session",
    "SqliteStore",
    "Store",
    "Stored",
]
