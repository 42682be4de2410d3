"""A worker, seen from the program that asks it: one process, one question at a time, each with a time limit."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from bench.compare.contestants import ROOT, Contestant, variables

_LINE = 2**24


class NoAnswer(Exception):
    """The worker failed, ended or was too slow. It has a new process for the next question."""


class Contender:
    """A framework in its process, started by the first question, and anew after a question without an answer."""

    def __init__(self, contestant: Contestant, python: Path) -> None:
        self.contestant = contestant
        self._command = [str(python), "-m", "bench.compare.worker", contestant.name]
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, do: str, *, limit: float, **arguments: object) -> Any:  # Any: JSON
        """What the worker answers. Cancellation: ends the worker."""
        process = self._process or await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            line = await asyncio.wait_for(process.stdout.readline(), limit)
        except (TimeoutError, ConnectionError) as problem:
            await self.close()
            raise NoAnswer(f"no answer within {limit:g} s") from problem
        except BaseException:
            await self.close()
            raise
        if not line:
            await self.close()
            raise NoAnswer("its process ended")
        answer = json.loads(line)
        if "error" in answer:
            raise NoAnswer(answer["error"])
        return answer["answer"]

    async def _start(self) -> asyncio.subprocess.Process:
        pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=nowhere, cwd=ROOT, env=variables(), limit=_LINE
        )
        return self._process

    async def close(self) -> None:
        """End the process. Cancellation: it is killed first."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
