"""Models that play a script. They stream like real models, count their calls, and can misbehave on request.

A reply is one chunk-maker or a list of them: `say("Hello")`, `[say("One moment"), call("search", q="x")]`,
`[say("Once upon a"), stall()]`, `fail(ModelUnavailable("busy"))`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from safepoint.agent.model import CallDelta, Chunk, Finish, ModelRequest, ReasoningDelta, TextDelta
from safepoint.errors import SafepointError


class UnexpectedModelCall(SafepointError):
    """The model was called again after the end of its script."""


class UnusedReplies(SafepointError, AssertionError):
    """The script was not played to its end."""


@dataclass(frozen=True, slots=True)
class Say:
    text: str
    pieces: int = 1


@dataclass(frozen=True, slots=True)
class Think:
    text: str
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class CallTool:
    name: str
    args: Mapping[str, Any]  # Any: JSON
    id: str | None = None
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class Stall:
    on_reached: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    error: BaseException


@dataclass(frozen=True, slots=True)
class Raw:
    chunks: tuple[Chunk, ...]


Act: TypeAlias = Say | Think | CallTool | Stall | Fail | Raw
Reply: TypeAlias = Act | Sequence[Act]


def say(text: str, *, pieces: int = 1) -> Say:
    """Words, in that many chunks."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"say({text!r}): a model says words; write say('…')")
    return Say(text, pieces)


def think(text: str, *, signature: str | None = None) -> Think:
    """Reasoning; with a signature the block is sealed."""
    return Think(text, signature)


def call(tool: str, args: Mapping[str, Any] | None = None, /, **kwargs: Any) -> CallTool:  # Any: JSON
    """A tool call: `call("search", q="x")`, or `call("search", {"q": "x"})`."""
    if not isinstance(tool, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"call({tool!r}, …): a model knows a tool by its name; write call('name', …)")
    if not isinstance(args, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]  # as above
        raise ValueError(f"call({tool!r}, {args!r}): write the arguments as a dict or as keywords")
    if args is not None and kwargs:
        raise ValueError(f"call({tool!r}, …): write the arguments as a dict or as keywords, not both")
    return CallTool(tool, kwargs if args is None else args)


def stall(on_reached: Callable[[], object] | None = None) -> Stall:
    """Stay silent for ever."""
    return Stall(on_reached)


def fail(error: BaseException) -> Fail:
    """Raise, as a provider's client would."""
    if not isinstance(error, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]  # as above
        raise ValueError(f"fail({error!r}): write an exception, as in fail(ModelUnavailable('busy'))")
    return Fail(error)


def raw(*chunks: Chunk) -> Raw:
    """Exactly these chunks, without an added `Finish`: for models that misbehave."""
    return Raw(chunks)


@dataclass
class Player:
    """The shared part of both models: playing one reply as a stream."""

    name: str = "scripted"
    calls: int = field(default=0, init=False)
    requests: list[ModelRequest] = field(default_factory=list[ModelRequest], init=False)
    open_streams: int = field(default=0, init=False)

    @asynccontextmanager
    async def _playing(self, acts: Sequence[Act]) -> AsyncGenerator[AsyncIterator[Chunk]]:
        self.open_streams += 1
        try:
            await asyncio.sleep(0)  # a real model connects first, which can be cut and can fail
            async with aclosing(self._chunks(acts)) as chunks:
                yield chunks
        finally:
            self.open_streams -= 1

    async def _chunks(self, acts: Sequence[Act]) -> AsyncGenerator[Chunk]:
        number = 0
        for act in acts:
            match act:
                case Say(text, pieces):
                    for piece in _split(text, pieces):
                        yield TextDelta(piece)
                        await asyncio.sleep(0)
                case Think(text, signature):
                    yield ReasoningDelta(text, signature)
                case CallTool():
                    for chunk in self._call_chunks(act, number):
                        yield chunk
                    number += 1
                case Stall(on_reached):
                    if on_reached is not None:
                        on_reached()
                    await asyncio.get_running_loop().create_future()
                case Fail(error):
                    raise error
                case Raw(chunks):
                    for chunk in chunks:
                        yield chunk
        if not any(isinstance(act, Raw) for act in acts):
            yield Finish("tool_calls" if number else "end_turn")

    def _call_chunks(self, act: CallTool, number: int) -> list[Chunk]:
        id = act.id or f"call_{self.calls}_{number + 1}"
        text = act.raw if act.raw is not None else json.dumps(act.args)
        half = len(text) // 2
        return [CallDelta(number, id, act.name, text[:half]), CallDelta(number, arguments=text[half:])]


def _split(text: str, pieces: int) -> list[str]:
    size = max(1, -(-len(text) // max(1, pieces)))
    return [text[start : start + size] for start in range(0, len(text), size)] or [""]


def _acts(reply: Reply) -> Sequence[Act]:
    acts = reply if isinstance(reply, Sequence) else (reply,)
    given: list[object] = [reply] if isinstance(reply, str) else [*acts]  # a str is a sequence of letters
    for act in given:
        if not isinstance(act, Act):
            right = f"say({act!r})" if isinstance(act, str) else "say(…), call(…), think(…), stall(), fail(…) or raw(…)"
            raise ValueError(f"{act!r} is nothing that a model does: write {right}")
    return acts


class ScriptedModel(Player):
    """Plays its replies in order. `repeat` starts over at the end; otherwise one call too many is an error.

    `check_used()` raises if replies are left. `requests` lists the requests to the model.
    """

    def __init__(self, *replies: Reply, repeat: bool = False, name: str = "scripted") -> None:
        super().__init__(name)
        self._replies = [_acts(reply) for reply in replies]
        self._repeat = repeat

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        self.calls += 1
        self.requests.append(request)
        place = self.calls - 1
        if self._repeat and self._replies:
            place %= len(self._replies)
        if place >= len(self._replies):
            count = len(self._replies)
            raise UnexpectedModelCall(f"call {self.calls} of a script with {count} replies: add one, or repeat=True")
        return self._playing(self._replies[place])

    def check_used(self) -> None:
        """Raise unless every reply was played."""
        if self.calls < len(self._replies):
            raise UnusedReplies(f"{len(self._replies) - self.calls} of {len(self._replies)} replies were not used")


class RuleModel(Player):
    """Answers by the last user text; `otherwise` for any other text, and after a tool result."""

    def __init__(self, rules: Mapping[str, Reply], *, otherwise: Reply, name: str = "rules") -> None:
        super().__init__(name)
        self._rules = {text: _acts(reply) for text, reply in rules.items()}
        self._otherwise = _acts(otherwise)

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        self.calls += 1
        self.requests.append(request)
        last = request.messages[-1]
        return self._playing(self._rules.get(last.text, self._otherwise) if last.role == "user" else self._otherwise)
