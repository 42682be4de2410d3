"""Reading one model reply, as the body of its own task.

Every chunk goes into `Incoming` the moment it arrives and is told as an event, so a cut at any await loses nothing that
was received. Leaving the model's context manager closes the provider's connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from typing import TypeVar

from safepoint.agent.events import ModelCallStarted, ReasoningStreamed, TextStreamed
from safepoint.agent.incoming import Incoming
from safepoint.agent.model import Chunk, Model, ModelRequest, ReasoningDelta, TextDelta
from safepoint.agent.record import Record
from safepoint.agent.usage import Usage
from safepoint.errors import ModelMisbehaved, ModelUnavailable
from safepoint.history.estimate import estimate_messages, estimate_tokens

T = TypeVar("T")

# While a reply comes in, its tokens are only guessed at; when it has ended they are counted.
CHARS_PER_TOKEN = 4


async def receive(record: Record, model: Model, request: ModelRequest, incoming: Incoming) -> None:
    """Read the whole reply into `incoming`.

    Cancellation: the stream is closed on the way out; `incoming` has what was received.
    """
    record.emit(ModelCallStarted, step=record.step, model=model.name)
    settings = request.settings
    patience = _Patience(settings.timeout_first_token)  # from here on: connecting is part of the wait for a token
    async with AsyncExitStack() as stack:
        chunks = await patience.spent_on(stack.enter_async_context(model.stream(request)))
        iterator = aiter(chunks)
        while (chunk := await patience.spent_on(anext(iterator, None))) is not None:
            if not incoming.add(chunk):
                return
            _tell(record, chunk)
            if record.meter is not None:
                record.meter.streaming(incoming.chars // CHARS_PER_TOKEN)
            patience = _Patience(settings.timeout_idle)
    if incoming.finish is None:
        raise ModelMisbehaved(f"{model.name} ended its stream without a Finish: the reply was cut by the provider")


class _Patience:
    """So many seconds from now on, for one wait or several; None is for ever."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._until = None if seconds is None else asyncio.get_running_loop().time() + seconds

    async def spent_on(self, wait: Awaitable[T]) -> T:
        """What the wait gives. Cancellation: lands in the model's own code."""
        limit = asyncio.timeout_at(self._until)
        try:
            async with limit:
                return await wait
        except TimeoutError as error:
            if not limit.expired():
                raise  # the provider's own
            raise ModelUnavailable(f"the model was silent for {self._seconds} s") from error


def _tell(record: Record, chunk: Chunk) -> None:
    if isinstance(chunk, TextDelta) and chunk.text:
        record.emit(TextStreamed, step=record.step, text=chunk.text)
    elif isinstance(chunk, ReasoningDelta) and chunk.text:
        record.emit(ReasoningStreamed, step=record.step, text=chunk.text)


def usage_of(request: ModelRequest, incoming: Incoming) -> Usage:
    """What this call cost: the provider's own count where it said, our estimate where it could not."""
    finish = incoming.finish
    spent_in = _count(finish.input_tokens) if finish is not None else None
    spent_out = _count(finish.output_tokens) if finish is not None else None
    estimated = spent_in is None or spent_out is None
    if spent_in is None:
        spent_in = estimate_messages(request.messages, request.instructions, request.tools)
    if spent_out is None:
        spent_out = estimate_tokens(incoming.all_received)
    cached = (_count(finish.cached_tokens) or 0) if finish is not None else 0
    thought = (_count(finish.reasoning_tokens) or 0) if finish is not None else 0
    return Usage(spent_in, spent_out, 1, estimated, cached, thought)


def _count(tokens: object) -> int | None:
    """A provider's count, unless it is none."""
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0 else None
