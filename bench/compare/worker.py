"""The process that is measured: `python -m bench.compare.worker ADAPTER`, in the framework's own environment.

It reads a request from each line of its input and writes one line of JSON for it. Frameworks that print cannot spoil
that: their output goes to the error stream.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
import logging
import os
import sys
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from time import perf_counter
from typing import Any, TypeAlias, cast

from bench.compare import score, speed, stops
from bench.compare.contract import Framework, Subject

Answered: TypeAlias = Callable[..., Awaitable[Any]]  # Any: JSON


class Worker:
    """One framework. What is asked of it has the name of a method."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._framework: Framework | None = None
        self._subjects: dict[str, Subject] = {}

    @property
    def framework(self) -> Framework:
        if self._framework is None:
            self._framework = cast("Framework", importlib.import_module(f"bench.peers.{self._name}").Adapter())
        return self._framework

    async def hello(self) -> dict[str, Any]:
        package = self.framework.package
        version = importlib.metadata.version(package) if package else ""
        return {"version": version, "stoppedBy": self.framework.stopped_by, "backsOff": self.framework.backs_off}

    async def speed(self, work: str, mode: str, seconds: float) -> float:
        if work not in self._subjects:
            self._subjects[work] = speed.make(self.framework, speed.TOOLS[work])
        return await speed.rate(self._subjects[work], mode, seconds)

    async def growth(self, length: int, samples: int) -> list[float]:
        return await speed.long_run(self.framework, length, samples)

    async def stop(self, place: str, samples: int, seconds: float) -> list[dict[str, Any]]:
        """So many stops, or fewer if so many seconds have passed."""
        deadline = perf_counter() + seconds
        found: list[stops.Stop] = []
        while len(found) < samples and (not found or perf_counter() < deadline):
            found.append(await stops.measure(self.framework, place))
        return [asdict(stop) for stop in found]

    async def judge(self, question: str) -> dict[str, Any]:
        return asdict(await score.judge(self.framework, question))


async def serve(worker: Worker) -> None:
    """Answer until the input ends. Cancellation: ends it."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, _context: None)  # tasks that a framework left behind are not our news
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked: dict[str, Any] = json.loads(line)
        act: Answered = getattr(worker, asked.pop("do"))
        try:
            answer = {"answer": await act(**asked)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main(name: str) -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    asyncio.run(serve(Worker(name)))


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # threads that a framework left behind must not hold the process
