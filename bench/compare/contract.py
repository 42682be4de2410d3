"""What an adapter gives: one framework, seen through the same few verbs.

An adapter is a file `bench/peers/<name>.py` with a class `Adapter(Framework)`. It turns neutral words (`Chunk`) into
the framework's own stream, and the framework's own messages into neutral ones (`Note`). It adds nothing: a stop is
the framework's documented stop, a conversation is kept the way the framework documents.

This module and those that a worker imports need the standard library only: they run in the peers' environments.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Say:
    """Words of the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A whole tool call of the model."""

    id: str
    name: str
    arguments: dict[str, str]


@dataclass(frozen=True, slots=True)
class Used:
    """Tokens, as a provider tells them: the input at the beginning of a stream, the output at its end."""

    input: int
    output: int


Chunk: TypeAlias = Say | Call | Used


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one call, as a conversation holds it. `state`: a mark that the framework puts beside the text."""

    id: str
    text: str
    state: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """One message of a conversation. `calls` are ids. `mark`: a mark that the framework puts beside the text."""

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    calls: tuple[str, ...] = ()
    results: tuple[Result, ...] = ()
    mark: str = ""


Read: TypeAlias = Callable[[], list[Note]]


class Script(ABC):
    """What the model says, in any framework. `ready` is set when there is something to stop.

    `requests` keeps what the model was sent, where a scenario asks for it (`keep`); a speed scenario does not, so that
    translating a conversation is no part of what is measured.
    """

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.hung_up = asyncio.Event()  # set by a client that closes the connection under the stream
        self.keep = False
        self.requests: list[list[Note]] = []
        self.calls = 0
        self.closed = 0

    async def reply(self, *, answered: bool, read: Read) -> AsyncGenerator[Chunk]:
        """The stream of one model call. `answered`: the last message is a tool result. Cancellation: counted."""
        self.calls += 1
        if self.keep:
            self.requests.append(read())
        try:
            async for chunk in self.chunks(answered=answered):
                yield chunk
        finally:
            self.closed += 1

    @abstractmethod
    def chunks(self, *, answered: bool) -> AsyncGenerator[Chunk]: ...


class Throttled(Exception):
    """The provider asks to come back later. An adapter whose framework backs off raises the framework's own error."""


Function: TypeAlias = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Ability:
    """A tool without parameters: an async function, or a plain one that blocks its thread.

    `command`: the tool runs this command instead; a framework with a documented tool for commands uses that one.
    """

    name: str
    function: Function
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """How an agent is made. `children` are agents that it calls as tools, by their names."""

    script: Script
    abilities: Sequence[Ability] = ()
    children: Sequence[Subject] = ()
    name: str = "agent"
    one_by_one: bool = False
    traced: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended, as its caller learns it. `running`: what the framework says still runs."""

    ended: Literal["finished", "stopped", "failed"]
    read: Read
    text: str = ""
    used: tuple[int, int] = (0, 0)
    running: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Live:
    """A run under way. `stop` is the framework's documented stop; `softly` the one that waits for a safe point."""

    task: asyncio.Task[End]
    stop: Callable[[], object]
    softly: Callable[[], object] | None = None


@dataclass(slots=True)
class Spans:
    """Names of spans begun and ended, in the framework's documented tracing."""

    begun: list[str] = field(default_factory=list[str])
    ended: list[str] = field(default_factory=list[str])


class Subject(ABC):
    """An agent of the framework, with one conversation. Runs of `start` go on from where the last one left it."""

    plan: Plan

    @abstractmethod
    async def call(self, prompt: str) -> str:
        """The answer. The conversation begins with what `remember` was given, else with nothing."""

    @abstractmethod
    async def stream(self, prompt: str) -> str:
        """The same, by reading every event of the stream."""

    @abstractmethod
    def start(self, prompt: str) -> Live: ...

    @abstractmethod
    def remember(self, notes: Sequence[Note]) -> Awaitable[None] | None: ...


class Framework(ABC):
    """One framework. The class attributes are shown in the report."""

    package: str
    stopped_by: str
    backs_off = False  # it has a back-off of its own, which an adapter's model can bring about

    @abstractmethod
    def make(self, plan: Plan) -> Subject: ...

    def spans(self) -> Spans | None:
        """Of agents whose plan is `traced`; None if the framework has no documented tracing."""
        return None


def flaws(notes: Sequence[Note]) -> list[str]:
    """Why a provider would refuse this conversation: calls and results that do not pair up, or nothing asked."""
    found: list[str] = []
    waiting: dict[str, int] = {}
    for place, note in enumerate(notes):
        for result in note.results:
            if waiting.pop(result.id, None) is None:
                found.append(f"message {place} answers {result.id}, which nobody asked or which was answered before")
        if note.role != "tool":
            found += [f"call {call} has no result" for call in waiting]
            waiting = dict.fromkeys(note.calls, place)
            if len(waiting) != len(note.calls):
                found.append(f"message {place} has two calls of one id")
    found += [f"call {call} has no result" for call in waiting]
    if not any(note.role == "user" for note in notes):
        found.append("no user message")
    return found
