"""The measurement: every contender does the same work, in rounds, one at a time, in an order that turns.

So a slow minute of the machine falls on all of them. What is kept is every value of every round.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.compare import score, speed, stops
from bench.compare.contender import Contender, NoAnswer
from bench.compare.contestants import CONTESTANTS, FLOOR, Contestant, NotInstalled, environment

Report = dict[str, Any]  # Any: JSON


class Prepare(Protocol):
    """Gives a contestant's Python, or raises `NotInstalled`."""

    def __call__(self, contestant: Contestant, /, *, renew: bool) -> Path: ...


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. `seconds` are for one speed measurement, `patience` for the stops of one round."""

    rounds: int
    seconds: float
    stops: int
    patience: float
    lengths: Sequence[int]
    growth_rounds: int


FULL = Size(rounds=7, seconds=0.5, stops=60, patience=2.0, lengths=speed.LENGTHS, growth_rounds=3)
QUICK = Size(rounds=2, seconds=0.1, stops=5, patience=0.5, lengths=(10, 100), growth_rounds=1)
TINY = Size(rounds=1, seconds=0.01, stops=1, patience=0.1, lengths=(10,), growth_rounds=1)
GROWTH_SAMPLES = 2
LIMIT = 180.0


class Measurement:
    """The contenders and what they answered so far."""

    def __init__(self, size: Size, tell: Callable[[str], None], prepare: Prepare = environment) -> None:
        self._size = size
        self._tell = tell
        self._prepare = prepare
        self._contenders: list[Contender] = []
        self._given_up: set[tuple[str, str]] = set()
        self.report: Report = {"machine": machine(), "frameworks": {}, "absent": {}, "missing": []}

    async def invite(self, names: Sequence[str], *, renew: bool) -> None:
        """Make the environments; whoever cannot take part is reported with the reason."""
        for contestant in CONTESTANTS:
            if contestant.name not in names:
                continue
            self._tell(f"environment: {contestant.title}")
            try:
                await self._welcome(contestant, renew=renew)
            except (NotInstalled, NoAnswer) as problem:
                self.report["absent"][contestant.title] = str(problem)
                self._tell(f"  absent: {problem}")

    async def _welcome(self, contestant: Contestant, *, renew: bool) -> None:
        python = await asyncio.to_thread(self._prepare, contestant, renew=renew)
        contender = Contender(contestant, python)
        facts = await contender.ask("hello", limit=LIMIT)
        entry: Report = {"title": contestant.title, **facts, "speed": {}, "growth": {}, "stop": {}, "score": {}}
        self.report["frameworks"][contestant.name] = entry
        self._contenders.append(contender)

    async def measure(self) -> None:
        """All of it. Cancellation: the workers are ended by `close`."""
        size = self._size
        for number in range(size.rounds):
            self._tell(f"speed, round {number + 1} of {size.rounds}")
            for mode in speed.MODES:
                for work in speed.TOOLS:
                    await self._all(number, "speed", f"{work}, {mode}", work=work, mode=mode, seconds=size.seconds)
        for number in range(size.growth_rounds):
            self._tell(f"growth, round {number + 1} of {size.growth_rounds}")
            for length in size.lengths:
                await self._all(number, "growth", str(length), length=length, samples=GROWTH_SAMPLES)
        for number in range(size.rounds):
            self._tell(f"stops, round {number + 1} of {size.rounds}")
            for place in stops.PLACES:
                arguments = {"samples": size.stops, "seconds": size.patience}
                await self._all(number, "stop", place, place=place, **arguments)
        await self._judge()
        self.report["machine"]["loadAfter"] = os.getloadavg()

    async def _all(self, number: int, do: str, key: str, **arguments: object) -> None:
        turn = number % len(self._contenders)
        for contender in (*self._contenders[turn:], *self._contenders[:turn]):
            if (contender.contestant.name, f"{do}, {key}") in self._given_up:
                continue
            values: list[object] = self.report["frameworks"][contender.contestant.name][do].setdefault(key, [])
            try:
                answer = await contender.ask(do, limit=LIMIT, **arguments)
            except NoAnswer as problem:
                self._miss(contender, f"{do}, {key}", problem)
            else:
                values += answer if isinstance(answer, list) else [answer]

    async def _judge(self) -> None:
        """The questions, in new processes: one of them turns tracing on, which nothing else is to pay for."""
        for contender in self._contenders:
            if contender.contestant.name == FLOOR:  # it is no framework: it has what a measurement needs
                continue
            self._tell(f"stop score: {contender.contestant.title}")
            await contender.close()
            answers = self.report["frameworks"][contender.contestant.name]["score"]
            for question in score.NAMES:
                try:
                    answers[question] = await contender.ask("judge", limit=LIMIT, question=question)
                except NoAnswer as problem:
                    answers[question] = {"yes": False, "why": str(problem)}

    def _miss(self, contender: Contender, what: str, problem: NoAnswer) -> None:
        """What had no answer once is not asked again."""
        self._given_up.add((contender.contestant.name, what))
        missing = {"framework": contender.contestant.title, "what": what, "why": str(problem)}
        self.report["missing"].append(missing)

    async def close(self) -> None:
        """End every worker. Cancellation: the rest of them end with this process's pipes."""
        for contender in self._contenders:
            await contender.close()


def machine() -> Report:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "loadBefore": os.getloadavg(),
    }
