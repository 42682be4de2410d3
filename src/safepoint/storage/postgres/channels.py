"""What others notify on channels of their own, heard on the connection that listens for us."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from safepoint._core.clock import current_clock
from safepoint.errors import StoreError
from safepoint.storage.postgres.push import PushedChanges

_MOST = 1000


class ChannelPushes:
    """`async with` it, then iterate: (channel, payload). ("", "") says that some may have been missed: look once."""

    def __init__(self, changes: PushedChanges, channels: Sequence[str]) -> None:
        self._changes = changes
        self._channels = tuple(channels)
        self._heard: deque[tuple[str, str]] = deque(maxlen=_MOST)
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> ChannelPushes:
        """Cancellation: as if it had not been entered."""
        self._loop = asyncio.get_running_loop()
        with suppress(StoreError):  # its user polls as well
            await self._changes.on_thread(lambda: self._changes.listener().listen(self._channels, self._hear))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._changes.leave(lambda: self._changes.listener().unlisten(self._channels, self._hear))

    def __aiter__(self) -> ChannelPushes:
        return self

    async def __anext__(self) -> tuple[str, str]:
        """Cancellation: only the waiting ends."""
        while not self._heard:
            outside = current_clock().outside("postgres: engine")
            try:
                await self._woken.wait()
            finally:
                outside.done()
            self._woken.clear()
        return self._heard.popleft()

    def _hear(self, channel: str, payload: str) -> None:
        """In the storage's thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # that loop was closed
                loop.call_soon_threadsafe(self._take, channel, payload)

    def _take(self, channel: str, payload: str) -> None:
        self._heard.append((channel, payload))
        self._woken.set()
