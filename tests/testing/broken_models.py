"""A model that keeps every rule, and models that break one each. A class's docstring is the rule that it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from typing import Any, cast

from safepoint.errors import ModelError, ModelUnavailable
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from safepoint.testing import Situation

ARGUMENTS = '{"place": "attic"}'


class Good:
    """None."""

    name = "good"

    def __init__(self, situation: Situation) -> None:
        self.situation = situation
        self.open = 0

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        return self._streaming()

    @asynccontextmanager
    async def _streaming(self) -> AsyncGenerator[AsyncIterator[Chunk]]:
        self.open += 1
        try:
            await self._connect()
            async with aclosing(self._chunks()) as chunks:
                yield chunks
        finally:
            self.open -= 1

    async def _connect(self) -> None:
        await asyncio.sleep(0)
        if self.situation is Situation.BUSY:
            raise ModelUnavailable("429")

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        if self.situation is Situation.SILENT:
            await self._hear_nothing()
        if self.situation is Situation.TOOL_CALL:
            for call in self._call():
                await asyncio.sleep(0)
                yield call
            yield self._end("tool_calls")
            return
        for word in ("Dust ", "and ", "mice."):
            yield TextDelta(word)
            await asyncio.sleep(0)
            if self.situation is not Situation.ANSWER:
                break
        if self.situation is Situation.STALLS:
            await self._hear_nothing()
        if self.situation is Situation.BREAKS:
            raise self._lost()
        if self.situation is Situation.ANSWER:
            yield self._end("end_turn")

    def _call(self) -> list[Chunk]:
        return [
            CallDelta(0, "call_7", "look"),
            CallDelta(0, arguments=ARGUMENTS[:5]),
            CallDelta(0, arguments=ARGUMENTS[5:]),
        ]

    def _end(self, reason: Any) -> Finish:  # Any: one of the finish reasons, or none of them
        return Finish(reason, 10, 5)

    def _lost(self) -> Exception:
        return ModelError("the connection was lost")

    async def _hear_nothing(self) -> None:
        await asyncio.get_running_loop().create_future()


class Nameless(Good):
    """it has a name"""

    name = ""


class SendsText(Good):
    """a reply is made of chunks"""

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        async with aclosing(super()._chunks()) as chunks:
            async for chunk in chunks:
                yield chunk
                if isinstance(chunk, TextDelta) and self.situation is Situation.ANSWER:
                    yield cast("Chunk", chunk.text)


class GoesOn(Good):
    """a reply ends with one Finish"""

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        async with aclosing(super()._chunks()) as chunks:
            async for chunk in chunks:
                yield chunk
                if isinstance(chunk, Finish):
                    yield TextDelta("")


class AlwaysMaxTokens(Good):
    """an answer in words is an end_turn"""

    def _end(self, reason: Any) -> Finish:  # Any: as above
        return super()._end("max_tokens" if reason == "end_turn" else reason)


class HalfArguments(Good):
    """a tool call has an id, a name and JSON arguments"""

    def _call(self) -> list[Chunk]:
        return super()._call()[:-1]


class Guesses(Good):
    """token counts are whole numbers, or None"""

    def _end(self, reason: Any) -> Finish:  # Any: as above
        return Finish(reason, 10, cast("int", 2.5))


class Gathers(Good):
    """words are passed on as they come"""

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        async with aclosing(super()._chunks()) as chunks:
            if self.situation is not Situation.STALLS:
                async for chunk in chunks:
                    yield chunk
            else:
                for chunk in [chunk async for chunk in chunks]:
                    yield chunk


class Mixes(Good):
    """two streams at once do not mix"""

    def __init__(self, situation: Situation) -> None:
        super().__init__(situation)
        self.streams = 0

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        self.streams += 1
        try:
            async with aclosing(super()._chunks()) as chunks:
                async for chunk in chunks:
                    yield TextDelta("?") if self.streams > 1 and isinstance(chunk, TextDelta) else chunk
        finally:
            self.streams -= 1


class ConnectsEarly(Good):
    """nothing is opened before the block is entered"""

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        self.open += 1
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[AsyncIterator[Chunk]]:
        try:
            async with self._streaming() as chunks:
                yield chunks
        finally:
            self.open -= 1


class ClosesOnlyAfterTheEnd(Good):
    """leaving the block closes the connection"""

    @asynccontextmanager
    async def _streaming(self) -> AsyncGenerator[AsyncIterator[Chunk]]:
        self.open += 1
        try:
            await self._connect()
            async with aclosing(self._chunks()) as chunks:
                yield chunks
        except BaseException as error:
            self.open -= isinstance(error, asyncio.CancelledError | ModelError)
            raise
        else:
            self.open -= 1


class SwallowsErrors(Good):
    """an exception in the block goes on"""

    @asynccontextmanager
    async def _streaming(self) -> AsyncGenerator[AsyncIterator[Chunk]]:
        async with super()._streaming() as chunks:
            try:
                yield chunks
            except Exception as error:
                if isinstance(error, ModelError):
                    raise


class LeaksWhenCut(Good):
    """a cancel at any wait closes the connection"""

    async def _connect(self) -> None:
        try:
            await super()._connect()
        except asyncio.CancelledError:
            self.open += 1
            raise


class Swallows(Good):
    """a cancellation is never swallowed"""

    async def _connect(self) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        await super()._connect()


class KeepsItsLock(Good):
    """it is usable at once after a cancel"""

    def __init__(self, situation: Situation) -> None:
        super().__init__(situation)
        self.cut = False

    @asynccontextmanager
    async def _streaming(self) -> AsyncGenerator[AsyncIterator[Chunk]]:
        async with super()._streaming() as chunks:
            try:
                yield chunks
            except asyncio.CancelledError:
                self.cut = True
                raise

    async def _connect(self) -> None:
        await super()._connect()
        if self.cut:
            raise ModelError("a request is still under way")


class ReadsToTheEnd(Good):
    """a silent stream is cut at once"""

    async def _hear_nothing(self) -> None:
        try:
            await super()._hear_nothing()
        finally:
            await asyncio.get_running_loop().create_future() if self.situation is Situation.SILENT else None


class RaisesItsClientsError(Good):
    """a provider that is busy is ModelUnavailable"""

    async def _connect(self) -> None:
        try:
            await super()._connect()
        except ModelUnavailable:
            raise ConnectionError("429") from None


class LosesItsTemper(Good):
    """a connection that breaks is a ModelError"""

    def _lost(self) -> Exception:
        return ConnectionResetError("by peer")


class CallsItComplete(Good):
    """a stream that ends early is no complete reply"""

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        async with aclosing(super()._chunks()) as chunks:
            async for chunk in chunks:
                yield chunk
        if self.situation is Situation.ENDS_EARLY:
            yield self._end("end_turn")


class LeaksWhenRefused(Good):
    """an error closes the connection"""

    async def _connect(self) -> None:
        try:
            await super()._connect()
        except ModelUnavailable:
            self.open += 1
            raise


BROKEN: list[type[Good]] = [
    Nameless,
    SendsText,
    GoesOn,
    AlwaysMaxTokens,
    HalfArguments,
    Guesses,
    Gathers,
    Mixes,
    ConnectsEarly,
    ClosesOnlyAfterTheEnd,
    SwallowsErrors,
    LeaksWhenCut,
    Swallows,
    KeepsItsLock,
    ReadsToTheEnd,
    RaisesItsClientsError,
    LosesItsTemper,
    CallsItComplete,
    LeaksWhenRefused,
]
