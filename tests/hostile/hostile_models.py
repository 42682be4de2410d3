"""Hostile models. Each is hostile in its first call only, so that the next run shows whether the agent still works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from safepoint.agent.model import CallDelta, Chunk, Finish, ModelRequest, ReasoningDelta, TextDelta
from safepoint.testing import ScriptedModel, say
from tests.hostile.visit import World

Open = Callable[["World"], AbstractAsyncContextManager[AsyncIterator[Chunk]]]


class Once:
    """Plays the hostile stream once, then says "fine"."""

    name = "hostile_model"

    def __init__(self, world: World, open_: Open) -> None:
        self._world = world
        self._open: Open | None = open_
        self._then = ScriptedModel(say("fine"), repeat=True)

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        if self._open is None:
            return self._then.stream(request)
        open_, self._open = self._open, None
        return open_(self._world)


# -- models that hang, and are pushed ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hanging:
    """After NOW it is gone within `seconds`, an orphan or not; after FORCE at once. `text` is kept."""

    open: Open
    seconds: float = 0.0
    orphan: bool = True
    text: str = ""
    stop_reason: str = "cancelled"

    @property
    def name(self) -> str:
        return self.open.__name__


async def _swallow(world: World) -> None:
    while not world.over.is_set():
        try:
            await world.over.wait()
        except asyncio.CancelledError:
            continue


@asynccontextmanager
async def swallows_in_the_stream(world: World) -> AsyncGenerator[AsyncIterator[Chunk]]:
    async def chunks() -> AsyncGenerator[Chunk]:
        yield TextDelta("Once")
        world.reach()
        await _swallow(world)
        yield TextDelta(" too late")
        yield Finish("end_turn")

    yield chunks()


@asynccontextmanager
async def talks_on_when_cut(world: World) -> AsyncGenerator[AsyncIterator[Chunk]]:
    async def chunks() -> AsyncGenerator[Chunk]:
        yield TextDelta("Once")
        world.reach()
        try:
            await world.over.wait()
        except asyncio.CancelledError:
            yield TextDelta(" more")
        await _swallow(world)
        yield Finish("end_turn")

    yield chunks()


@asynccontextmanager
async def finishes_when_cut(world: World) -> AsyncGenerator[AsyncIterator[Chunk]]:
    async def chunks() -> AsyncGenerator[Chunk]:
        yield TextDelta("Once")
        world.reach()
        try:
            await world.over.wait()
        except asyncio.CancelledError:
            yield TextDelta(" upon a time")
            yield Finish("end_turn")

    yield chunks()


@asynccontextmanager
async def hangs_on_entering(world: World) -> AsyncGenerator[AsyncIterator[Chunk]]:
    world.reach()
    await world.over.wait()
    yield _silence(world)


@asynccontextmanager
async def swallows_on_entering(world: World) -> AsyncGenerator[AsyncIterator[Chunk]]:
    world.reach()
    await _swallow(world)
    yield _silence(world)


async def _silence(world: World) -> AsyncGenerator[Chunk]:
    await world.over.wait()
    yield Finish("end_turn")


@asynccontextmanager
async def hangs_on_leaving(world: World) -> AsyncGenerator[AsyncIterator[Chunk]]:
    async def chunks() -> AsyncGenerator[Chunk]:
        yield TextDelta("Once")
        world.reach()
        await world.over.wait()

    try:
        yield chunks()
    finally:
        await _swallow(world)


@asynccontextmanager
async def hangs_on_leaving_a_whole_reply(world: World) -> AsyncGenerator[AsyncIterator[Chunk]]:
    async def chunks() -> AsyncGenerator[Chunk]:
        yield TextDelta("Once")
        yield Finish("end_turn")

    try:
        yield chunks()
    finally:
        world.reach()
        await world.over.wait()


@asynccontextmanager
async def goes_on_after_its_finish(world: World) -> AsyncGenerator[AsyncIterator[Chunk]]:
    async def chunks() -> AsyncGenerator[Chunk]:
        yield TextDelta("Once")
        yield Finish("end_turn")
        world.reach()
        await world.over.wait()

    yield chunks()


@asynccontextmanager
async def raises_when_cut(world: World) -> AsyncGenerator[AsyncIterator[Chunk]]:
    async def chunks() -> AsyncGenerator[Chunk]:
        yield TextDelta("Once")
        world.reach()
        try:
            await world.over.wait()
        except asyncio.CancelledError:
            raise ConnectionError("broken pipe") from None

    yield chunks()


HANGING: list[Hanging] = [
    Hanging(swallows_in_the_stream, 1, text="Once"),
    Hanging(talks_on_when_cut, 1, text="Once more"),
    Hanging(finishes_when_cut, 0, orphan=False, text="Once upon a time"),
    Hanging(hangs_on_entering, 0, orphan=False),
    Hanging(swallows_on_entering, 1),
    Hanging(hangs_on_leaving, 1, text="Once"),
    Hanging(hangs_on_leaving_a_whole_reply, 0, orphan=False, text="Once"),
    Hanging(goes_on_after_its_finish, 0, orphan=False, text="Once"),
    Hanging(raises_when_cut, 0, orphan=False, text="Once"),
]


# -- models that end by themselves, in nonsense ------------------------------------------------------------------------


def sends(*chunks: object, then: BaseException | None = None) -> Open:
    """A stream of exactly these objects, whatever they are; `then` is raised at its end."""

    @asynccontextmanager
    async def open_(_world: World) -> AsyncGenerator[AsyncIterator[Chunk]]:
        async def play() -> AsyncGenerator[Chunk]:
            for chunk in chunks:
                yield cast(Chunk, chunk)
                await asyncio.sleep(0)
            if then is not None:
                raise then

        yield play()

    return open_


def opens(thing: Any) -> Open:  # Any: whatever is no stream
    return lambda _world: thing


def raises(error: BaseException) -> Open:
    def open_(_world: World) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        raise error

    return open_


def raises_on_entering(error: BaseException) -> Open:
    @asynccontextmanager
    async def open_(_world: World) -> AsyncGenerator[AsyncIterator[Chunk]]:
        raise error
        yield  # pyright: ignore[reportUnreachable]  # makes it a generator

    return open_


def raises_on_leaving(error: BaseException, *chunks: Chunk) -> Open:
    @asynccontextmanager
    async def open_(_world: World) -> AsyncGenerator[AsyncIterator[Chunk]]:
        async def play() -> AsyncGenerator[Chunk]:
            for chunk in chunks:
                yield chunk

        yield play()
        raise error

    return open_


@asynccontextmanager
async def yields_no_iterator(_world: World) -> AsyncGenerator[AsyncIterator[Chunk]]:
    yield cast(AsyncIterator[Chunk], 42)


_wrong = cast(Any, object())  # Any: what no type checker would let pass
_text = TextDelta("Once")
_end = Finish("end_turn")
_calls = Finish("tool_calls")
GARBAGE: dict[str, Open] = {
    "nothing": sends(),
    "none": sends(None),
    "number": sends(42, _end),
    "object": sends(_text, _wrong, _end),
    "class": sends(TextDelta, _end),
    "text_none": sends(TextDelta(cast(Any, None)), _end),
    "text_number": sends(_text, TextDelta(cast(Any, 5)), _end),
    "text_bytes": sends(TextDelta(cast(Any, b"x")), _end),
    "text_object": sends(TextDelta(_wrong)),
    "reasoning_none": sends(ReasoningDelta(cast(Any, None)), _text, _end),
    "reasoning_blank_seal": sends(ReasoningDelta("hm", ""), _text, _end),
    "reasoning_wrong_seal": sends(ReasoningDelta("hm", cast(Any, 7)), _text, _end),
    "reasoning_half_surrogate": sends(ReasoningDelta("\ud83d", "seal"), _text, _end),
    "reasoning_unsealed_half_surrogate": sends(ReasoningDelta("\ud83d"), _text, _end),
    "reasoning_only": sends(ReasoningDelta("hm", "seal"), _end),
    "call_index_none": sends(CallDelta(cast(Any, None), "a", "quick"), CallDelta(1, "b", "quick"), _calls),
    "call_index_list": sends(CallDelta(cast(Any, []), "a", "quick"), _calls),
    "call_id_number": sends(CallDelta(0, cast(Any, 7), "quick"), _calls),
    "call_id_blank": sends(CallDelta(0, " ", "quick"), _calls),
    "call_id_half_surrogate": sends(CallDelta(0, "\ud83d", "quick"), _calls),
    "call_ids_equal": sends(
        CallDelta(0, "a", "quick"), CallDelta(1, "a", "quick"), CallDelta(2, "a_", "quick"), _calls
    ),
    "call_id_none": sends(CallDelta(0, None, "quick"), CallDelta(1, None, "quick"), _calls),
    "call_name_none": sends(CallDelta(0, "a"), _calls),
    "call_name_number": sends(CallDelta(0, "a", cast(Any, 7)), _calls),
    "call_name_illegal": sends(CallDelta(0, "a", "functions.quick now!"), _calls),
    "call_name_endless": sends(CallDelta(0, "a", "x" * 100), _calls),
    "call_name_half_surrogate": sends(CallDelta(0, "a", "\ud83d"), _calls),
    "call_name_unknown": sends(CallDelta(0, "a", "nobody"), _calls),
    "call_arguments_none": sends(CallDelta(0, "a", "quick", cast(Any, None)), _calls),
    "call_arguments_broken": sends(CallDelta(0, "a", "quick", '{"a": '), _calls),
    "call_arguments_nan": sends(CallDelta(0, "a", "quick", '{"a": NaN}'), _calls),
    "call_arguments_half_surrogate": sends(CallDelta(0, "a", "quick", '{"a": "\\ud83d"}'), _calls),
    "call_in_a_cut_reply": sends(CallDelta(0, "a", "quick"), Finish("max_tokens")),
    "finish_unknown": sends(_text, Finish(cast(Any, "whatever"))),
    "finish_list": sends(_text, Finish(cast(Any, []))),
    "finish_wrong_count": sends(_text, Finish("end_turn", cast(Any, "many"), cast(Any, None))),
    "finish_negative_count": sends(_text, Finish("end_turn", -5, -5)),
    "finish_twice": sends(_text, _end, _end),
    "chunk_after_finish": sends(_text, _end, TextDelta(" more")),
    "blank_reply": sends(TextDelta(" \n "), _end),
    "empty_reply": sends(TextDelta(""), _end),
    "half_surrogate": sends(TextDelta("half \ud83d"), _end),
    "refused_without_a_word": sends(Finish("refused")),
    "no_finish": sends(_text),
    "no_stream_but_a_number": opens(42),
    "no_stream_but_an_object": opens(object()),
    "no_stream_inside": yields_no_iterator,
}
