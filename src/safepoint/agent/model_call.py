"""Reading one model reply, as the body of its own task.

Every chunk goes into `PartialReply` the moment it arrives and is emitted as an event, so a cut at any await loses
nothing that was received. A stream that never waits is read with pauses, where other tasks run and the
stream can be cut. Leaving the model's context manager closes the provider's connection.
"""

from __future__ import annotations

import asyncio

from safepoint._core.pace import Pace
from safepoint.agent.events import ModelCallStarted, ReasoningStreamed, TextStreamed
from safepoint.agent.model import Model, ModelRequest, TextDelta, provider_names
from safepoint.agent.partial_reply import PartialReply
from safepoint.agent.run_context import RunContext
from safepoint.agent.usage import Usage
from safepoint.errors import ModelMisbehaved, ModelUnavailable
from safepoint.history.estimate import estimate_messages, estimate_tokens

# While a reply comes in, its tokens are only guessed at; when it has ended they are counted.
CHARS_PER_TOKEN = 4


async def receive(record: RunContext, model: Model, request: ModelRequest, incoming: PartialReply) -> None:
    """Read the whole reply into `incoming`.

    Cancellation: the stream is closed on the way out; `incoming` has what was received.
    """
    model_name, provider_name = provider_names(model)
    record.emit(
        ModelCallStarted, step=record.step, model=model.name, model_name=model_name, provider_name=provider_name
    )
    settings, loop = request.settings, asyncio.get_running_loop()
    patience = settings.timeout_first_token  # connecting is part of the wait for a token
    limit, pace = asyncio.timeout(patience), Pace(loop)
    try:
        async with limit, model.stream(request) as chunks:
            async for chunk in chunks:
                words = incoming.add(chunk)
                if words is None:
                    return
                if words:
                    kind = TextStreamed if isinstance(chunk, TextDelta) else ReasoningStreamed
                    record.emit(kind, step=record.step, text=words)
                for meter in record.payers():
                    meter.streaming(model.name, incoming.chars // CHARS_PER_TOKEN)
                if limit.expired():  # a model that goes on when it is cut is silent all the same
                    raise TimeoutError
                patience, now = settings.timeout_idle, loop.time()
                limit.reschedule(None if patience is None else now + patience)
                if pace.is_due(now):
                    await asyncio.sleep(0)
    except TimeoutError as error:
        if not limit.expired():
            raise  # the provider's own
        raise ModelUnavailable(f"the model was silent for {patience} s") from error
    finally:
        pace.close()
    if incoming.finish is None:
        raise ModelMisbehaved(f"{model.name} ended its stream without a Finish: the reply was cut by the provider")


def usage_of(request: ModelRequest, incoming: PartialReply) -> Usage:
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
