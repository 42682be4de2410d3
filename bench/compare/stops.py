"""The stop scenarios: from the framework's own stop until its messages were read and checked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from bench.compare.contract import Ability, End, Framework, Live, Plan, Script, Subject, flaws
from bench.compare.scripts import Answering, Failing, Flowing, Stalling

LIMIT = 5.0  # seconds after which a stop counts as never
DEAF = 2.2
SLOW = 2.0


@dataclass(frozen=True, slots=True)
class Track:
    """What tools really did: the truth that a framework's words are compared with."""

    begun: list[str] = field(default_factory=list[str])
    ended: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Place:
    """An agent, and where it is to be stopped. `ready` is set when it has come there."""

    subject: Subject
    script: Script
    ready: asyncio.Event
    track: Track = field(default_factory=Track)
    inner: Script | None = None


def silent(framework: Framework) -> Place:
    script = Stalling()
    return Place(framework.make(Plan(script)), script, script.ready)


def flowing(framework: Framework) -> Place:
    script = Flowing()
    return Place(framework.make(Plan(script)), script, script.ready)


def back_off(framework: Framework) -> Place:
    script = Failing(itself=not framework.backs_off)
    return Place(framework.make(Plan(script)), script, script.ready)


def async_tool(framework: Framework) -> Place:
    return tools(framework, slow=1)


def ten_parallel(framework: Framework) -> Place:
    return tools(framework, slow=10)


def tools(framework: Framework, *, slow: int, quick: int = 0, one_by_one: bool = False, traced: bool = False) -> Place:
    """Some calls that end at once and some that wait. Ready when every call that can begin has begun."""
    script = Answering(*["quick"] * quick, *["slow"] * slow, once=True)
    waiting = 1 if one_by_one else slow
    track = Track()

    async def wait() -> str:
        """Take some seconds."""
        track.begun.append("slow")
        if track.begun.count("slow") == waiting and len(track.ended) == quick:
            script.ready.set()
        await asyncio.sleep(SLOW)
        track.ended.append("slow")
        return "slow result"

    async def be_quick() -> str:
        """End at once."""
        track.begun.append("quick")
        track.ended.append("quick")
        if track.begun.count("slow") == waiting and len(track.ended) == quick:
            asyncio.get_running_loop().call_later(0.02, script.ready.set)  # after its result was recorded
        return "quick result"

    abilities = [Ability("slow", wait), *([Ability("quick", be_quick)] if quick else [])]
    plan = Plan(script, abilities, one_by_one=one_by_one, traced=traced)
    return Place(framework.make(plan), script, script.ready, track)


def deaf_thread(framework: Framework) -> Place:
    script = Answering("deaf", once=True)
    loop = asyncio.get_running_loop()
    track = Track()

    def deaf() -> str:
        """Block a thread and listen to nothing."""
        track.begun.append("deaf")
        loop.call_soon_threadsafe(script.ready.set)
        time.sleep(DEAF)
        track.ended.append("deaf")
        return "deaf result"

    return Place(framework.make(Plan(script, [Ability("deaf", deaf)])), script, script.ready, track)


def three_nested(framework: Framework) -> Place:
    last = Stalling()
    inner = framework.make(Plan(last, name="inner"))
    middle = framework.make(Plan(Answering("inner", arguments={"input": "go"}), children=[inner], name="middle"))
    first = Answering("middle", arguments={"input": "go"}, once=True)
    return Place(framework.make(Plan(first, children=[middle], name="outer")), first, last.ready, inner=last)


PLACES: dict[str, Callable[[Framework], Place]] = {
    "silent stream": silent,
    "flowing stream": flowing,
    "async tool": async_tool,
    "deaf thread": deaf_thread,
    "three nested": three_nested,
    "ten parallel": ten_parallel,
    "back-off": back_off,
}


async def reach(place: Place, prompt: str = "go") -> Live:
    """Start it and wait until it is where it is to be stopped. An agent that ends or hangs before that is an error."""
    live = place.subject.start(prompt)
    ready = asyncio.ensure_future(place.ready.wait())
    await asyncio.wait([live.task, ready], timeout=LIMIT, return_when=asyncio.FIRST_COMPLETED)
    if not ready.done():
        ready.cancel()
        how = live.task.result() if live.task.done() else "it hangs"
        raise RuntimeError(f"the agent did not come to where it is to be stopped: {how}")
    return live


async def ended(live: Live, limit: float = LIMIT) -> End | None:
    """How it ended; None if it did not end within the limit. Cancellation: it is left alone."""
    await asyncio.wait([live.task], timeout=limit)
    return live.task.result() if live.task.done() and not live.task.cancelled() else None


@dataclass(frozen=True, slots=True)
class Stop:
    """One measured stop. `valid`: the conversation that it left pairs every call with one result."""

    seconds: float
    valid: bool
    ended: bool


async def measure(framework: Framework, name: str) -> Stop:
    """Stop once, and read and check what is left. A stop beyond the limit counts as the limit."""
    place = PLACES[name](framework)
    live = await reach(place)
    guard = asyncio.get_running_loop().call_later(LIMIT, live.task.cancel)
    began = perf_counter()
    live.stop()
    stopped = True
    try:
        found = flaws((await live.task).read())
    except asyncio.CancelledError:
        found, stopped = [], False
    took = perf_counter() - began
    guard.cancel()
    await settle(place, live)
    return Stop(took, stopped and not found, stopped and took < LIMIT)


async def settle(place: Place, live: Live) -> None:
    """Leave nothing running that the next measurement would meet."""
    if not live.task.done():
        live.task.cancel()
        await asyncio.wait([live.task], timeout=LIMIT)
    await within(lambda: place.track.begun.count("deaf") == place.track.ended.count("deaf"), LIMIT)


async def within(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether it holds before so many seconds have passed. Processes and threads tell nobody, so it is looked at."""
    deadline = perf_counter() + seconds
    while not holds():
        if perf_counter() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True
