"""Conversations that outlive a run, in memory or in a SQLite file."""

from safepoint.sessions.busy import Delivery, Sender, Sent
from safepoint.sessions.rewinding import Rewound
from safepoint.sessions.session import Session
from safepoint.sessions.store import LateResult, Store, Stored
from safepoint.sessions.stores import MemoryStore, SqliteStore
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.protocol import Storage
from safepoint.storage.sqlite.storage import SqliteStorage

__all__ = [
    "Delivery",
    "LateResult",
    "MemoryStorage",
    "MemoryStore",
    "Rewound",
    "Sender",
    "Sent",
    "Session",
    "SqliteStorage",
    "SqliteStore",
    "Storage",
    "Store",
    "Stored",
]
