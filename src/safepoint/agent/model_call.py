"""Reading one model reply, as the body of its own task.

Every chunk goes into `PartialReply` the moment it arrives and is emitted as an event, so a cut at any await loses
nothing that was received. A stream that never waits is read with pauses, where other tasks run and the
stream can be cut. Leaving the model's context manager closes the provider's connection.
"""

from __future__ import annotations

import asyncio
from types import AsyncGeneratorType

from safepoint._core.pace import Pace
from safepoint.agent.events import ModelCallStarted, ReasoningStreamed, TextStreamed
from safepoint.agent.model import Model, ModelRequest, TextDelta, provider_names
from safepoint.agent.partial_reply import PartialReply
from safepoint.agent.run_context import RunContext
from safepoint.agent.telemetry import describe
from safepoint.agent.usage import Usage
from safepoint.errors import ModelMisbehaved, ModelUnavailable
from safepoint.history.estimate import estimate_messages, estimate_tokens

# Used to estimate tokens while a reply streams; the tokens are counted when it has ended.
CHARS_PER_TOKEN = 4


async def receive(record: RunContext, model: Model, request: ModelRequest, incoming: PartialReply) -> None:
    """Read the whole reply into `incoming`.

    Cancellation: the stream is closed on the way out; `incoming` has what was received.
    """
    model_name, provider_name = provider_names(model)
    record.emit(
        ModelCallStarted, step=record.step, model=model.name, model_name=model_name, provider_name=provider_name
    )
    describe(model, request)
    first, idle = request.settings.timeout_first_token, request.settings.timeout_idle
    if first is None and idle is None:
        await _read(record, model, request, incoming, None)
    else:
        await _read_in_time(record, model, request, incoming, _Silence(first, idle))
    if incoming.finish is None and not incoming.closed:
        raise ModelMisbehaved(f"{model.name} ended its stream without a Finish: the reply was cut by the provider")
    if incoming.finish is not None:
        describe(incoming.finish)


class _Silence:
    """How long a model may be silent: before its first token, which includes connecting, and after each token."""

    def __init__(self, first: float | None, idle: float | None) -> None:
        self.seconds = first
        self.limit = asyncio.timeout(first)
        self._idle = idle

    def broken(self, now: float) -> None:
        """A token has arrived."""
        if self.limit.expired():  # a model that ignores the cut still counts as silent
            raise TimeoutError
        self.seconds = self._idle
        self.limit.reschedule(None if self._idle is None else now + self._idle)


async def _read_in_time(
    record: RunContext, model: Model, request: ModelRequest, incoming: PartialReply, silence: _Silence
) -> None:
    """Cancellation: as for `receive`."""
    try:
        async with silence.limit:
            await _read(record, model, request, incoming, silence)
    except TimeoutError as error:
        if not silence.limit.expired():
            raise  # the provider's own
        raise ModelUnavailable(f"the model was silent for {silence.seconds} s") from error


async def _read(
    record: RunContext, model: Model, request: ModelRequest, incoming: PartialReply, silence: _Silence | None
) -> None:
    """Cancellation: as for `receive`."""
    loop = asyncio.get_running_loop()
    pace, meters = Pace(loop), record.payers()
    try:
        async with model.stream(request) as chunks:
            try:
                async for chunk in chunks:
                    words = incoming.add(chunk)
                    if words is None:
                        return
                    if words and record.is_heard:
                        kind = TextStreamed if isinstance(chunk, TextDelta) else ReasoningStreamed
                        record.emit(kind, step=record.step, text=words)
                    for meter in meters:
                        meter.streaming(model.name, incoming.chars // CHARS_PER_TOKEN)
                    now = loop.time()
                    if silence is not None:
                        silence.broken(now)
                    if pace.is_due(now):
                        await asyncio.sleep(0)
            finally:
                # A generator that was not read to its end would be closed later, by a task of the loop.
                if isinstance(chunks, AsyncGeneratorType):
                    await chunks.aclose()
    finally:
        pace.close()


def usage_of(request: ModelRequest, incoming: PartialReply) -> Usage:
    """The cost of this call: the provider's own count if it gave one, otherwise our estimate."""
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
    """A provider's count, or None if the value is not a count."""
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0 else None
