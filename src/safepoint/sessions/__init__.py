"""Conversations that outlive a run, in memory or in a SQLite file."""

from safepoint.sessions.dispatch import Delivery, Sent, SessionDispatcher
from safepoint.sessions.rewind import Rewound
from safepoint.sessions.session import Session
from safepoint.sessions.store import LateResult, Store, Stored
from safepoint.sessions.stores import MemoryStore, SqliteStore
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.protocol import Storage
from safepoint.storage.sqlite.storage import SqliteStorage

Sender = SessionDispatcher  # its name before 0.2

__all__ = [
    "Delivery",
    "LateResult",
    "MemoryStorage",
    "MemoryStore",
    "Rewound",
    "Sender",
    "Sent",
    "Session",
    "SessionDispatcher",
    "SqliteStorage",
    "SqliteStore",
    "Storage",
    "Store",
    "Stored",
]
