"""One connection to the database file, and whether that file is still there."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safepoint.errors import StoreError

_LOOK_AGAIN = 0.5


class DatabaseFile:
    """Opened by the first use; a file that failed to open is tried again by the next. Used by one thread.

    A deleted file goes on existing for those who have it open: everything would seem to work, and nothing would remain.
    So the path is looked at again, twice a second at most.
    """

    def __init__(self, path: Path, connect: Callable[[], sqlite3.Connection]) -> None:
        self._path = path
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._looked_at = 0.0

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def open(self) -> None:
        """As `get`."""
        self.get()

    def get(self) -> sqlite3.Connection:
        """Raises `StoreError` if the file cannot be opened, or is gone."""
        if self._connection is None:
            try:
                self._connection = self._connect()
                self._identity = self._look()
            except (sqlite3.Error, OSError) as error:
                self.close()
                raise StoreError(f"the session store could not be opened: {error}") from error
        elif time.monotonic() - self._looked_at >= _LOOK_AGAIN:
            self.verify()
        return self._connection

    def verify(self) -> None:
        """Raise `StoreError` if the path does not lead to the file that was opened."""
        try:
            found = self._look()
        except OSError as error:
            raise StoreError(f"the database file {self._path} is gone: {error.strerror}") from error
        if self._identity is not None and found != self._identity:
            raise StoreError(f"the database file {self._path} was replaced by another one: restart to use that")

    def _look(self) -> tuple[int, int]:
        self._looked_at = 0.0  # until the look has succeeded, every use looks again
        found = os.stat(self._path)
        self._looked_at = time.monotonic()
        return found.st_dev, found.st_ino

    def close(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None
