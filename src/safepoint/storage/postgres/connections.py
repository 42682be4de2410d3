"""The connections of one storage, all on the loop of its own thread.

psycopg's pool is not used: after a failed connect it waits twice as long each time, up to minutes, where a storage has
a patience of seconds; and it tells a caller that time is over, where this tells what the server said. Nothing here is
ever cancelled: a statement that was cancelled may have been committed all the same, and psycopg's cancel needs a
second connection, which takes seconds on a network that is silent. A statement that is not answered in time loses its
socket instead, and is sent again.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus

T = TypeVar("T")
Connection: TypeAlias = AsyncConnection[tuple[Any, ...]]  # Any: the columns of a row

# Half-open connections are noticed by the system within 5 s, and by `deadline` where a proxy answers for the server.
_KEEP_ALIVE: dict[str, Any] = {  # Any: as psycopg takes them
    "keepalives": 1,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
}
_CONNECT = 30  # a server that answers in 3 s needs several answers for a log-in


async def connect(conninfo: str, name: str) -> Connection:
    """One connection in autocommit. Nothing is prepared: a pooler gives each transaction another connection."""
    return await AsyncConnection.connect(
        conninfo,
        autocommit=True,
        prepare_threshold=None,
        application_name=name,
        connect_timeout=_CONNECT,
        **_KEEP_ALIVE,
    )


def cut(connection: Connection) -> None:
    """Tell the callers that wait for an answer on it, at once, that there will be none."""
    with suppress(OSError, psycopg.Error):
        descriptor = os.dup(connection.pgconn.socket)
        with socket.socket(fileno=descriptor) as wire:
            wire.shutdown(socket.SHUT_RDWR)


class Connections:
    """At most `size` at a time; those that are idle are used again, the last one first."""

    def __init__(self, conninfo: str, size: int, name: str) -> None:
        self._conninfo = conninfo
        self._name = name
        self._slots = asyncio.Semaphore(size)
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._closed = False

    async def run(self, work: Callable[[Connection], Awaitable[T]], deadline: float) -> T:
        """What `work` returns. Raises psycopg's errors; a connection whose state is not clear is closed."""
        async with self._slots:
            connection = self._idle.pop() if self._idle else await connect(self._conninfo, self._name)
            self._busy.add(connection)
            timer = asyncio.get_running_loop().call_later(deadline, cut, connection)
            try:
                return await work(connection)
            finally:
                timer.cancel()
                self._busy.discard(connection)
                if self._is_clean(connection) and not self._closed:
                    self._idle.append(connection)
                else:
                    await _discard(connection)

    @staticmethod
    def _is_clean(connection: Connection) -> bool:
        return not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE

    async def drop_idle(self) -> None:
        """After a lost connection the idle ones are likely lost too: each would fail one more try."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await _discard(connection)

    async def aclose(self) -> None:
        """Close the idle connections. Connections in use, or being made, are closed by their users."""
        self._closed = True
        for connection in self._busy:
            cut(connection)
        await self.drop_idle()


async def _discard(connection: Connection) -> None:
    with suppress(psycopg.Error):
        await connection.close()
