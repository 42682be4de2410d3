"""One model call over a connection: opened, read event by event, and closed on every way out.

This is the part that all providers share; an adapter opens its stream, reads its events and translates its errors. The
invariant: after `stream()` is left, the provider's response is closed within `CLOSING` seconds. That is what stops a
model. Breaking off the iteration does not: the SDKs would leave the connection open, and the provider would compute to
the end.

A reply is complete once its provider has said how it ended. The rest of the stream (token counts, a last mark) is worth
a short wait, and its loss is no failure.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

import anyio

from safepoint.agent.model import Chunk, Finish, ModelRequest
from safepoint.errors import ModelMisbehaved, SafepointError

CLOSING = 2.0
"""Seconds that closing a response may take."""
TAIL = 2.0
"""Seconds to wait for the rest of a stream whose reply is complete."""


class Events(Protocol):
    """A provider's open response."""

    def __aiter__(self) -> AsyncIterator[object]: ...

    async def close(self) -> None: ...


class Reader(Protocol):
    """Turns the events of one reply into chunks. Plain code: no waiting, no network."""

    def read(self, event: object, /) -> Sequence[Chunk]: ...

    def finish(self) -> Finish | None:
        """How the reply ended; None until the provider has said it."""
        ...


class Upstream(ABC):
    """A model at the other end of a connection."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The str that chooses this model."""

    @abstractmethod
    async def _open(self, request: ModelRequest) -> tuple[Events, Reader]:
        """Send the request and wait for the response to begin. Cancellation: nothing stays open."""

    @abstractmethod
    def _failure(self, error: Exception) -> Exception:
        """Safepoint's error for an error of the SDK; any other error unchanged."""

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        """Open the stream of one reply. Cancellation: the provider's connection is closed on the way out."""
        try:
            events, reader = await self._open(request)
        except Exception as error:
            meant = error if isinstance(error, SafepointError) else self._failure(error)
            if meant is error:
                raise
            raise meant from error
        try:
            async with aclosing(self._chunks(events, reader)) as chunks:
                yield chunks
        finally:
            with anyio.move_on_after(CLOSING, shield=True):
                await events.close()

    async def _chunks(self, events: Events, reader: Reader) -> AsyncGenerator[Chunk]:
        iterator, until = aiter(events), None
        while True:
            if until is None and reader.finish() is not None:
                until = asyncio.get_running_loop().time() + TAIL
            try:
                async with asyncio.timeout_at(until):
                    event = await anext(iterator)
                chunks = reader.read(event)
            except StopAsyncIteration:
                break
            except Exception as error:
                if reader.finish() is not None:
                    break
                raise self._unread(error) from error
            for chunk in chunks:
                yield chunk
        if (finish := reader.finish()) is not None:
            yield finish

    def _unread(self, error: Exception) -> SafepointError:
        """Why an event could not be read. An SDK may raise anything for garbage: that is the provider's fault."""
        meant = error if isinstance(error, SafepointError) else self._failure(error)
        if isinstance(meant, SafepointError):
            return meant
        return ModelMisbehaved(f"{self.name} sent what cannot be read: {error!r}")
