"""The stop score: 24 questions, each a scenario judged by code. `bench/README.md` says how each one is judged.

A judgement looks at facts: what the framework sends to the model in the next run, what the caller is handed, what is
still alive. Where a question is about a conversation, it is judged by the next request: a framework may repair its
history as late as that.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

from bench.compare import stops
from bench.compare.contract import Ability, End, Framework, Live, Note, Plan, Result, Spans, flaws
from bench.compare.scripts import ANSWER, WORD, Answering, Failing
from bench.compare.stops import Place, within

PROMPT = 1.5  # seconds in which a stop has to be through where nothing has a right to more
AGAIN = "and now?"
_TOLD = re.compile(r"cancel|stop|interrupt|abort|cut|incomplete|not completed", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Answer:
    """Yes or no, and what was seen."""

    yes: bool
    why: str = ""


Judge = Callable[[Framework], Awaitable[Answer]]


async def stop_at(place: Place, limit: float = stops.LIMIT) -> tuple[Live, End | None]:
    """Run to the place, stop there, wait. None: it did not end within the limit."""
    place.script.keep = True
    live = await stops.reach(place)
    live.stop()
    return live, await stops.ended(live, limit)


async def next_request(place: Place, live: Live) -> list[Note]:
    """What the model is sent by the next run of the same conversation, in which it answers."""
    await stops.settle(place, live)
    if isinstance(place.script, Failing):
        place.script.mended = True
    before = len(place.script.requests)
    again = place.subject.start(AGAIN)
    end = await stops.ended(again)
    if end is None:
        await stops.settle(place, again)
        raise RuntimeError("the next run did not end")
    if len(place.script.requests) == before:
        raise RuntimeError(f"the next run sent nothing to the model: {end.ended} {end.error}")
    return place.script.requests[before]


async def valid(make: Callable[[Framework], Place], framework: Framework) -> Answer:
    place = make(framework)
    live, end = await stop_at(place)
    if end is None:
        await stops.settle(place, live)
        return Answer(False, f"the stop was not through after {stops.LIMIT:g} s")
    if end.ended == "finished":
        return Answer(False, "the run went on to its end")
    found = flaws(await next_request(place, live))
    return Answer(not found, "; ".join(found))


async def partial_text(framework: Framework) -> Answer:
    place = stops.flowing(framework)
    live, _ = await stop_at(place)
    sent = await next_request(place, live)
    return Answer(any(WORD in note.text for note in sent if note.role == "assistant"), _shown(sent))


async def model_told(framework: Framework) -> Answer:
    place = stops.flowing(framework)
    live, _ = await stop_at(place)
    sent = await next_request(place, live)
    said = [f"{note.text} {note.mark}" for note in sent if AGAIN not in note.text]
    return Answer(any(_TOLD.search(text) for text in said), _shown(sent))


async def siblings_kept(framework: Framework) -> Answer:
    place = stops.tools(framework, slow=1, quick=2)
    live, _ = await stop_at(place)
    sent = await next_request(place, live)
    kept = sum("quick result" in result.text for note in sent for result in note.results)
    return Answer(kept == 2, f"{kept} of 2 finished results were sent to the model")


async def usage_finished(framework: Framework) -> Answer:
    place = stops.async_tool(framework)
    live, end = await stop_at(place)
    await stops.settle(place, live)
    used = end.used if end else (0, 0)
    return Answer(used[0] > 0 and used[1] > 0, f"told {used} tokens in and out")


async def usage_cut(framework: Framework) -> Answer:
    place = stops.flowing(framework)
    live, end = await stop_at(place)
    await stops.settle(place, live)
    used = end.used if end else (0, 0)
    return Answer(sum(used) > 0, f"told {used}; the cut call had used 10 tokens and said twenty words")


async def told_apart(framework: Framework) -> Answer:
    place = stops.tools(framework, slow=2, quick=1, one_by_one=True)
    live, _ = await stop_at(place)
    sent = await next_request(place, live)
    results = [result for note in sent for result in note.results][:3]
    truths = ["finished", *_truths(place)]
    if len(results) != len(truths):
        return Answer(False, f"{len(results)} results for {len(truths)} calls")
    kinds: dict[str, set[tuple[str, str]]] = {}
    for truth, result in zip(truths, results, strict=True):
        kinds.setdefault(truth, set()).add(_words(result))
    seen: list[tuple[str, str]] = [words for kind in kinds.values() for words in kind]
    return Answer(len(set(seen)) == len(seen) and len(kinds) > 1, f"{kinds}")


def _truths(place: Place) -> list[str]:
    """What really became of the two slow calls."""
    begun, ended = place.track.begun.count("slow"), place.track.ended.count("slow")
    return ["finished"] * ended + ["cut"] * (begun - ended) + ["not started"] * (2 - begun)


def _words(result: Result) -> tuple[str, str]:
    """The result without what names its own call."""
    return result.state, result.text.replace(result.id, "")


async def caller_told(framework: Framework) -> Answer:
    place = stops.flowing(framework)
    live, end = await stop_at(place)
    await stops.settle(place, live)
    other = await stops.ended(framework.make(Plan(Answering())).start("go"))
    told = end is not None and end.ended == "stopped" and other is not None and other.ended == "finished"
    return Answer(told, f"stopped: {end and end.ended}; not stopped: {other and other.ended}")


async def orphans_named(framework: Framework) -> Answer:
    place = stops.deaf_thread(framework)
    live, end = await stop_at(place)
    alive = "deaf" not in place.track.ended
    named = end is not None and any("deaf" in name for name in end.running)
    await stops.settle(place, live)
    if not alive:
        return Answer(end is not None, "nothing was left running: the stop waited for the thread")
    return Answer(named, f"the thread went on; named: {end.running if end else ()}")


async def safe_point(framework: Framework) -> Answer:
    place = stops.async_tool(framework)
    place.script.keep = True
    live = await stops.reach(place)
    if live.softly is None:
        await stops.settle(place, live)
        return Answer(False, "no documented stop that waits for a safe point")
    live.softly()
    end = await stops.ended(live, stops.SLOW + stops.LIMIT)
    calls = place.script.calls
    sent = await next_request(place, live)
    kept = any("slow result" in result.text for note in sent for result in note.results)
    yes = end is not None and place.track.ended == ["slow"] and kept and calls == 1
    return Answer(yes, f"tool ended: {place.track.ended}; result kept: {kept}; model calls before the stop: {calls}")


async def stream_closed(framework: Framework) -> Answer:
    place = stops.silent(framework)
    began = perf_counter()
    live, end = await stop_at(place, PROMPT)
    closed = await within(lambda: place.script.closed == 1, PROMPT)
    took = perf_counter() - began
    await stops.settle(place, live)
    return Answer(end is not None and closed, f"{took * 1e3:.0f} ms; the upstream was closed: {closed}")


async def deaf_does_not_hold(framework: Framework) -> Answer:
    place = stops.deaf_thread(framework)
    live, end = await stop_at(place, PROMPT)
    await stops.settle(place, live)
    return Answer(end is not None and end.ended == "stopped", f"through within {PROMPT:g} s: {end is not None}")


async def child_reached(framework: Framework) -> Answer:
    place = stops.three_nested(framework)
    live, end = await stop_at(place, PROMPT)
    inner = place.inner
    assert inner is not None
    closed = await within(lambda: inner.closed == 1, PROMPT)
    await stops.settle(place, live)
    return Answer(end is not None and closed, f"the innermost stream was closed: {closed}")


async def processes_dead(framework: Framework) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "pids"
        command = f"sleep 300 & echo $$ $! > {told}.new && mv {told}.new {told}; wait"
        script = Answering("command", arguments={"command": command})
        subject = framework.make(Plan(script, [Ability("command", run_command, (command,))]))
        live = subject.start("go")
        if not await within(told.exists, stops.LIMIT):
            raise RuntimeError(f"the command did not begin: {live.task}")
        pids = [int(word) for word in told.read_text().split()]
        live.stop()
        await stops.ended(live)
        dead = await within(lambda: not any(map(_alive, pids)), 4.0)
        left = [pid for pid in pids if _alive(pid)]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not live.task.done():
            live.task.cancel()
            await asyncio.wait([live.task], timeout=stops.LIMIT)
        return Answer(dead, f"{len(left)} of {len(pids)} processes were left")


async def run_command(command: str) -> str:
    """Run a command in a shell, as a tool for it is written by hand."""
    process = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    return printed.decode()


async def reusable(framework: Framework) -> Answer:
    place = stops.flowing(framework)
    live = await stops.reach(place)
    live.stop()
    if await stops.ended(live, PROMPT) is None:
        await stops.settle(place, live)
        return Answer(False, f"the stop was not through after {PROMPT:g} s")
    end = await stops.ended(place.subject.start(AGAIN), PROMPT)
    return Answer(end is not None and end.ended == "finished" and end.text == ANSWER, f"the next run: {end}")


async def late_stop(framework: Framework) -> Answer:
    subject = framework.make(Plan(Answering()))
    live = subject.start("go")
    if await stops.ended(live) is None:
        raise RuntimeError("a run without a stop did not end")
    with suppress(Exception):
        live.stop()
    end = await stops.ended(subject.start(AGAIN))
    return Answer(end is not None and end.ended == "finished", f"the next run: {end and end.ended}")


async def callers_cancel(framework: Framework) -> Answer:
    place = stops.async_tool(framework)
    task = asyncio.ensure_future(place.subject.call("go"))
    await asyncio.wait([task, asyncio.ensure_future(place.ready.wait())], return_when=asyncio.FIRST_COMPLETED)
    task.cancel()
    await asyncio.wait([task], timeout=PROMPT)
    swallowed = "the call did not end" if not task.done() else "" if task.cancelled() else f"it returned {task}"
    if not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=stops.LIMIT)
    return Answer(not swallowed, swallowed)


async def spans_ended(framework: Framework, spans: Spans | None) -> Answer:
    if spans is None:
        return Answer(False, "no documented tracing")
    place = stops.tools(framework, slow=1, traced=True)
    live, _ = await stop_at(place)
    await stops.settle(place, live)
    await within(lambda: len(spans.begun) == len(spans.ended), PROMPT)
    left = list(spans.begun)
    for name in spans.ended:
        left.remove(name)
    return Answer(bool(spans.begun) and not left, f"{len(spans.begun)} begun; not ended: {left}")


def _alive(pid: int) -> bool:
    """A process that has ended and was not waited for yet is dead."""
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(told.strip()) and not told.strip().startswith("Z")


def _shown(notes: list[Note]) -> str:
    return " | ".join(
        f"{note.role}: {str(note.text or note.calls or note.results)[-80:]} {note.mark}" for note in notes
    )


def five_of_ten(framework: Framework) -> Place:
    return stops.tools(framework, slow=5, quick=5)


QUESTIONS: dict[str, Judge] = {
    "history valid: silent stream": partial(valid, stops.silent),
    "history valid: flowing stream": partial(valid, stops.flowing),
    "history valid: async tool": partial(valid, stops.async_tool),
    "history valid: deaf thread": partial(valid, stops.deaf_thread),
    "history valid: five of ten tools finished": partial(valid, five_of_ten),
    "history valid: three nested agents": partial(valid, stops.three_nested),
    "history valid: back-off": partial(valid, stops.back_off),
    "text so far is kept": partial_text,
    "the model is told that it was stopped": model_told,
    "results of finished siblings are kept": siblings_kept,
    "usage of finished calls is told": usage_finished,
    "usage of the cut call is told": usage_cut,
    "not started, cut and finished are told apart": told_apart,
    "the caller is told that it was stopped": caller_told,
    "what still runs is named": orphans_named,
    "a stop can wait for a safe point": safe_point,
    "a silent stream is closed at once": stream_closed,
    "a deaf thread does not hold the stop": deaf_does_not_hold,
    "the innermost of three agents is reached": child_reached,
    "the processes of a tool are dead": processes_dead,
    "usable again at once": reusable,
    "a late stop does not hit the next run": late_stop,
    "the caller's own cancel is not swallowed": callers_cancel,
}
SPANS = "every span is ended"
NAMES = (*QUESTIONS, SPANS)


async def judge(framework: Framework, name: str) -> Answer:
    """The answer to one question. A scenario that cannot be carried out is a no, with the reason."""
    try:
        if name == SPANS:
            return await spans_ended(framework, framework.spans())
        return await QUESTIONS[name](framework)
    except Exception as error:
        return Answer(False, f"{type(error).__name__}: {error}"[:300])
