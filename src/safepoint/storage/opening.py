"""A storage by its address: `memory:`, `sqlite:PATH` or `postgresql://…`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safepoint.errors import StoreError

if TYPE_CHECKING:
    from safepoint.storage.protocol import Storage

POSTGRES = ("postgresql://", "postgres://")
# What `--help` and refusals say, so that a new kind of storage is named here alone.
FORMS = "memory:, sqlite:PATH or postgresql://USER:PASSWORD@HOST/DATABASE"


def open_storage(address: str, *, listen_url: str | None = None, lease: float | None = None) -> Storage:
    """The storage of that address; nothing is read or written yet, `await storage.check()` does that.

    `listen_url`: a direct address of the same PostgreSQL, where the other one leads to a pooler. `lease`: how many
    seconds a worker there may be silent before others take over what it has, from 1 to 300. Raises `StoreError`, in one
    line and without the address, which may have a password in it; ValueError for such a lease.
    """
    if lease is not None and not address.startswith(POSTGRES):
        raise StoreError("a lease can be set for PostgreSQL: leave it out")
    if listen_url is not None and not address.startswith(POSTGRES):
        raise StoreError("a listen URL is for PostgreSQL: leave it out")
    if address == "memory:":
        from safepoint.storage.memory import MemoryStorage

        return MemoryStorage()
    if address.startswith("sqlite:"):
        return _open_sqlite(address.removeprefix("sqlite:"))
    if address.startswith(POSTGRES):
        return _open_postgres(address, listen_url, lease)
    raise StoreError(f"the address of the storage can't be read: write {FORMS}")


def _open_sqlite(path: str) -> Storage:
    from safepoint.storage.sqlite.storage import SqliteStorage

    if not path:
        raise StoreError("the address of the storage names no file: write sqlite:PATH")
    try:
        return SqliteStorage(path)
    except OSError as error:
        raise StoreError(f"the file {path} can't be opened: {error.strerror}") from error


def _open_postgres(address: str, listen_url: str | None, lease: float | None) -> Storage:
    try:
        from safepoint.storage.postgres.storage import LEASE, PostgresStorage
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("safepoint"):
            raise
        raise StoreError(f"PostgreSQL needs {error.name}: install safepoint[postgres]") from error
    return PostgresStorage(address, listen_url=listen_url, lease=LEASE if lease is None else lease)
