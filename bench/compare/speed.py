"""The speed scenarios: whole runs whose model and tools cost nothing."""

from __future__ import annotations

import gc
import inspect
from time import perf_counter

from bench.compare.contract import Ability, Framework, Note, Plan, Result, Subject
from bench.compare.scripts import ANSWER, Answering

TOOLS = {"plain": 0, "1 tool": 1, "10 tools": 10}
MODES = ("called", "streamed")
LENGTHS = (10, 100, 1_000, 10_000)


async def nothing() -> str:
    """Do nothing."""
    return "nothing"


def make(framework: Framework, tools: int) -> Subject:
    script = Answering(*["nothing"] * tools)
    return framework.make(Plan(script, [Ability("nothing", nothing)] if tools else []))


def conversation(length: int) -> list[Note]:
    """An even number of messages: turns of a question, a call, its result and an answer. The last may be short."""
    notes: list[Note] = []
    for number in range(length // 4):
        call = f"old_{number}"
        notes += [
            Note("user", f"question {number}"),
            Note("assistant", calls=(call,)),
            Note("tool", results=(Result(call, "nothing"),)),
            Note("assistant", f"answer {number}"),
        ]
    return [*notes, Note("user", "one more"), Note("assistant", "answer")] if length % 4 else notes


async def rate(subject: Subject, mode: str, seconds: float) -> float:
    """Runs per second, one after the other, for about so long."""
    act = subject.call if mode == "called" else subject.stream
    for _ in range(3):
        assert await act("go") == ANSWER
    gc.collect()
    runs, began = 0, perf_counter()
    while (took := perf_counter() - began) < seconds:
        await act("go")
        runs += 1
    return runs / took


async def long_run(framework: Framework, length: int, samples: int) -> list[float]:
    """Seconds of one more run, called, after a conversation of so many messages."""
    took: list[float] = []
    subject = make(framework, 1)
    notes = conversation(length)
    for number in range(samples + 1):
        remembered = subject.remember(notes)
        if inspect.isawaitable(remembered):
            await remembered
        began = perf_counter()
        assert await subject.call("go") == ANSWER
        if number:
            took.append(perf_counter() - began)
    return took
