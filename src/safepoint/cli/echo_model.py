"""A stand-in for a language model: it makes the same speech to everybody, one word at a time.

It streams as a model does, so that there is something to stop, and it reads the conversation as a model does, so that
one can see that it was told about the stop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from safepoint.agent.model import Chunk, Finish, ModelRequest, TextDelta

STOPPED_BEFORE = "You stopped me before I was done, and I can see it in our conversation."
SPEECH = (
    "I am a script, not a language model: I say this to everybody, one word at a time, so that there is time to stop "
    "me. Press Ctrl-C. What I have said until then stays on your screen, and in our conversation, marked as "
    "incomplete. Then write to me again; I shall know that I was stopped. If you let me, I count to twenty: one, two, "
    "three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen, sixteen, "
    "seventeen, eighteen, nineteen, twenty. That was all."
)


class EchoModel:
    """A `Model`. `pause` is awaited after each word."""

    name = "parrot"

    def __init__(self, pause: Callable[[], Awaitable[object]]) -> None:
        self._pause = pause

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        """Open the stream of one reply. Cancellation: closes it; the words so far have been received."""
        async with aclosing(self._chunks(reply_to(request))) as chunks:
            yield chunks

    async def _chunks(self, reply: str) -> AsyncGenerator[Chunk]:
        for word in reply.split(" "):
            yield TextDelta(f"{word} ")
            await self._pause()
        yield Finish("end_turn")


def reply_to(request: ModelRequest) -> str:
    """What the parrot says next."""
    *earlier, last = request.messages
    stopped = bool(earlier) and any(part.kind == "notice" for part in earlier[-1].parts)
    heard = f'You said "{last.text.strip()}".'
    return " ".join([STOPPED_BEFORE, heard, SPEECH] if stopped else [heard, SPEECH])
