"""A tool, arguments that fit it, and a way to call it in a run: once, twice at once, or cut at one of its waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from safepoint.agent.agent import Agent
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import RunResult
from safepoint.history.states import LedgerState
from safepoint.testing.clock import VirtualLoop
from safepoint.testing.conformance.cutting import Cut, cuts
from safepoint.testing.frames import describe
from safepoint.testing.models import ScriptedModel, call, say
from safepoint.tools.base import BaseTool
from safepoint.tools.context import CallContext

MakeTool: TypeAlias = Callable[[], BaseTool]
Args: TypeAlias = Mapping[str, Any]  # Any: JSON
_SETTLING = 10


@dataclass(slots=True)
class Seen:
    """What was seen of a run with calls of the tool."""

    result: RunResult[Any]  # Any: of no particular type
    values: list[object] = field(default_factory=list[object])

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        return self.result.ledger

    @property
    def was_cut(self) -> bool:
        return any(entry.state not in (LedgerState.FINISHED, LedgerState.FAILED) for entry in self.entries)


@dataclass(frozen=True, slots=True)
class ToolCase:
    """What `check_tool` was given."""

    make: MakeTool
    args: Args
    bad: Sequence[Args] = ()
    deps: Any = None  # Any: the user's own type
    oracles: Sequence[Callable[[], object]] = ()

    async def call(self, tool: BaseTool, *, times: int = 1, cut: Cut | None = None) -> Seen:
        """A run that calls it so many times at once, and is stopped NOW where the cut says. Cancellation: stops it."""
        values: list[object] = []
        calls = [call(tool.name, self.args) for _ in range(times)]
        watched = _watched(tool, values, cut, lambda: run.cancel(reason="check_tool"))
        agent: Agent[Any, Any] = Agent(
            "check_tool", model=ScriptedModel(calls, say("Done.")), tools=[watched]
        )  # Any: as above
        async with agent.start("Go.", deps=self.deps) as run:
            pass
        return Seen(run.result, values)

    async def cut_everywhere(self, then: Callable[[BaseTool, Seen, Cut], Coroutine[Any, Any, None]]) -> None:
        """Cut a call at each wait of the tool, in each moment. Cancellation: stops the run that is under way."""
        for cut in cuts():
            tool = self.make()
            seen = await self.call(tool, cut=cut)
            if not cut.reached:
                return
            if cut.landed or seen.was_cut:  # the call may have ended by itself at that very moment
                await then(tool, seen, cut)


def _watched(tool: BaseTool, values: list[object], cut: Cut | None, act: Callable[[], object]) -> BaseTool:
    """The same tool, with somebody at its side who sees what it returns, and may act at one of its waits."""
    watched = copy(tool)

    async def body(context: CallContext[Any], args: dict[str, Any]) -> object:  # Any: as in BaseTool
        inner: Awaitable[object] = tool.body(context, args)
        values.append(await (inner if cut is None else cut.watch(inner, act)))
        return values[-1]

    vars(watched)["body"] = body
    return watched


async def left_in_loop() -> list[str]:
    """Tasks and connections that are there besides the one that asks. Cancellation: only the looking ends."""
    loop, own = asyncio.get_running_loop(), asyncio.current_task()
    for _ in range(_SETTLING):
        if asyncio.all_tasks() == {own}:
            break
        await asyncio.sleep(0)
    left = [f"a task is left: {describe(task)}" for task in asyncio.all_tasks() if task is not own]
    fds = loop.open_fds() if isinstance(loop, VirtualLoop) else []
    return left + [f"a connection is left: file descriptor {fd}" for fd in fds]
