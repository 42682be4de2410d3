"""One framework, as the tests see it: a scripted agent of its own, adapted, and a model that refuses bad requests.

The framework's scripted model and the reading of its messages are those of the benchmarks (`bench/peers`).
`SAFEPOINT_FRAMEWORK` says which one: each has an environment of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import operator
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from bench.compare.contract import Ability, Call, Chunk, Framework, Note, Plan, Read, Say, Script, Subject, Used, flaws
from safepoint.adapters import ForeignAgent, adapt

FRAMEWORK = os.environ.get("SAFEPOINT_FRAMEWORK", "")
# What the framework calls an agent, of a subject of the benchmarks.
_NATIVE: dict[str, Callable[[object], object]] = {"langgraph": operator.attrgetter("graph")}


class Refused(Exception):
    """The provider refuses a conversation in which a call has no result."""


@dataclass(frozen=True, slots=True)
class Hang:
    """The stream says nothing more."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The stream says a word in each turn of the loop, for ever."""


Turn = Sequence[Chunk | Hang | Flow]


class Talk(Script):
    """What the model says, turn by turn; the last turn is repeated. It refuses what a strict provider refuses."""

    def __init__(self, *turns: Turn) -> None:
        super().__init__()
        self._turns = turns
        self.faults: list[str] = []
        self.calls: int = 0

    async def reply(self, *, answered: bool, read: Read) -> AsyncGenerator[Chunk]:
        """Cancellation: counted."""
        notes = read()
        self.requests.append(notes)
        self.faults += flaws(notes)
        if self.faults:
            raise Refused(f"{self.faults} in {notes}")
        turn = self._turns[min(self.calls, len(self._turns) - 1)]
        self.calls += 1
        try:
            yield Used(10, 0)
            for chunk in turn:
                if isinstance(chunk, Hang):
                    self.ready.set()
                    await asyncio.get_running_loop().create_future()
                elif isinstance(chunk, Flow):
                    while True:
                        yield Say("word ")
                        self.ready.set()
                        await asyncio.sleep(0)
                else:
                    yield chunk
            yield Used(0, 5)
        finally:
            self.closed += 1

    def chunks(self, *, answered: bool) -> AsyncGenerator[Chunk]:
        raise NotImplementedError


@dataclass(slots=True)
class Tools:
    """Tools that tell what they have really done."""

    begun: list[str] = field(default_factory=list[str])
    ended: list[str] = field(default_factory=list[str])
    seen: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def slow(self, name: str = "slow") -> Ability:
        """Waits at the gate."""

        async def slow() -> str:
            """Wait for a while."""
            self.begun.append(name)
            self.seen.set()
            await self.gate.wait()
            self.ended.append(name)
            return f"{name} result"

        return Ability(name, slow)

    def quick(self, name: str = "quick") -> Ability:
        """Ends at once."""

        async def quick() -> str:
            """End at once."""
            self.begun.append(name)
            self.ended.append(name)
            return f"{name} result"

        return Ability(name, quick)


def calls(*names: str, turn: int = 0) -> list[Chunk]:
    return [Call(f"call_{turn}_{place}", name, {}) for place, name in enumerate(names)]


def framework() -> Framework:
    return cast("Framework", importlib.import_module(f"bench.peers.{FRAMEWORK}").Adapter())


def subject(
    script: Script, abilities: Sequence[Ability] = (), children: Sequence[Subject] = (), **more: Any
) -> Subject:
    return framework().make(Plan(script, abilities, children, **more))


def native(made: Subject) -> object:
    get = _NATIVE.get(FRAMEWORK, operator.attrgetter("agent"))
    return get(made)


def agent(
    script: Script,
    *abilities: Ability,
    children: Sequence[Subject] = (),
    effects: Mapping[str, Any] | None = None,
    **options: Any,
) -> ForeignAgent[Any, Any]:
    """An adapted agent of the framework."""
    made = native(subject(script, abilities, children))
    return adapt(made, name="worker", effects=effects or {}, **options)


def said(notes: Sequence[Note]) -> str:
    """Every word of a request."""
    results = (result.text for note in notes for result in note.results)
    return " ".join([*(note.text for note in notes), *results])
