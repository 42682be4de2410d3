"""Scenarios grown from a seed: trees of agents, tools of every kind, hooks, asks of every kind in the middle, resume.

One seed is one scenario, and everything in it is decided when it is grown, so that every run of it is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from safepoint import Agent, Deny, Hooks, Ladder, Run, SafePoint, ToolCall, ToolContext, tool
from safepoint.errors import ModelUnavailable
from safepoint.testing import call, fail, say
from safepoint.testing.faults import Faults
from safepoint.testing.models import Act
from safepoint.tools.base import BaseTool
from tests.injection.parts import A_MOMENT, StepModel

POINTS = (
    SafePoint.NOW,
    SafePoint.FORCE,
    SafePoint.ANY,
    SafePoint.AFTER_MODEL,
    SafePoint.AFTER_TOOL,
    SafePoint.AFTER_TOOLS,
    SafePoint.BEFORE_EFFECT,
    SafePoint.named("page"),
    SafePoint.AFTER_TOOLS | SafePoint.named("page"),
)


class Checks(Hooks):
    async def before_tool(self, run: Run[Any, Any], call: ToolCall) -> Deny | None:
        await asyncio.sleep(0)
        return Deny("not today") if call.args.get("n") == 3 else None

    async def after_model(self, run: Run[Any, Any], message: object) -> None:
        await asyncio.sleep(0)


class Grower:
    """Grows one scenario."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.faults = Faults()
        self._agents = 0
        self._asks: list[tuple[SafePoint, bool, float | None]] = []

    def grow(self) -> Callable[[], Coroutine[Any, Any, None]]:
        """The scenario; the agent is made anew each time, from the same plan."""
        plan = self._plan(depth=0)
        resume, streamed = self._random.random() < 0.6, self._random.random() < 0.3

        async def scenario() -> None:
            self.faults.clear()
            agent = self._agent(plan)
            if streamed:
                async for _ in self.faults.reading(agent.stream("go")):
                    pass
                return
            async with agent.start("go") as run:
                await run.wait()
            if resume and run.result.checkpoint is not None:
                await agent.resume(run.result.checkpoint, on_unknown="rerun")

        return scenario

    def _plan(self, depth: int) -> dict[str, Any]:  # Any: a plan is plain data
        random = self._random
        self._agents += 1
        steps: list[list[tuple[str, int]]] = []
        children: dict[str, dict[str, Any]] = {}  # Any: as above
        for _ in range(random.randint(1, 3)):
            calls: list[tuple[str, int]] = []
            for _ in range(random.randint(0, 3)):
                if depth < 2 and random.random() < 0.25:
                    child = self._plan(depth + 1)
                    children[child["name"]] = child
                    calls.append((child["name"], 0))
                else:
                    calls.append((random.choice(KINDS), random.randint(0, 4)))
            steps.append(calls)
        return {
            "name": f"agent{self._agents}",
            "steps": steps,
            "children": children,
            "one_by_one": random.random() < 0.3,
            "hooks": random.random() < 0.3,
            "busy": random.random() < 0.2,
            "ask": (random.choice(POINTS), random.random() < 0.5, random.choice((None, None, 0.05))),
            "asks": random.random() < 0.4,
        }

    def _agent(self, plan: dict[str, Any]) -> Agent:  # Any: as above
        replies: list[list[Act]] = [
            [say("so", pieces=2), *(_act(name, n) for name, n in calls)] for calls in plan["steps"]
        ]
        replies.append([say("the end", pieces=2)])
        model = self.faults.model(StepModel(*replies))
        busy = StepModel(fail(ModelUnavailable("busy", retry_after=A_MOMENT)))
        tools: list[BaseTool] = [
            *self._tools(plan),
            *(self._agent(child).as_tool() for child in plan["children"].values()),
        ]
        return Agent(
            plan["name"],
            model=busy if plan["busy"] else model,
            fallback=[model] if plan["busy"] else (),
            retries=1,
            tools=tools,
            hooks=[Checks()] if plan["hooks"] else (),
            max_parallel_tools=1 if plan["one_by_one"] else None,
            ladder=Ladder(task=0.2, thread=0.2, undo=0.2, cap=2),
        )

    def _tools(self, plan: dict[str, Any]) -> list[BaseTool]:  # Any: as above
        faults = self.faults
        at, recursive, within = plan["ask"]
        asked = [not plan["asks"]]

        def perhaps_ask(context: ToolContext) -> None:
            if not asked[0]:
                asked[0] = True
                limit = within if at not in (SafePoint.NOW, SafePoint.FORCE) else None
                context.run.cancel(at, within=limit, recursive=recursive)

        async def steps(n: int) -> None:
            for _ in range(n):
                await asyncio.sleep(A_MOMENT)
                faults.strike("tool")

        @tool(effect="pure")
        async def look(n: int, ctx: ToolContext) -> int:
            """Look."""
            perhaps_ask(ctx)
            await steps(n)
            return n

        @tool
        async def act(n: int, ctx: ToolContext) -> int:
            """Act."""
            await steps(n)
            perhaps_ask(ctx)
            return n

        @tool(effect="idempotent")
        async def pages(n: int, ctx: ToolContext) -> int:
            """Read pages, one after the other."""
            for page in range(ctx.saved or 0, n):
                await asyncio.sleep(A_MOMENT)
                await ctx.safe_point("page", save=page)
            return n

        return [look, act, pages, *_stoppable(steps)]


def _stoppable(steps: Callable[[int], Coroutine[Any, Any, None]]) -> list[BaseTool]:  # Any: what a coroutine yields
    """Tools that differ in how they take being stopped."""

    @tool(on_cancel="finish", grace=0.2)
    async def finish(n: int) -> int:
        """Be left to finish."""
        await steps(n)
        return n

    @tool(effect="idempotent")
    async def shielded(n: int, ctx: ToolContext) -> int:
        """Have a critical section."""
        async with ctx.shield(0.5):
            await steps(n)
        await asyncio.sleep(0)
        return n

    async def take_back(n: int) -> None:
        await asyncio.sleep(A_MOMENT)

    @tool(undo=take_back)
    async def undone(n: int) -> int:
        """Be taken back when cut."""
        await steps(n)
        return n

    @tool(timeout=2 * A_MOMENT)
    async def hurried(n: int) -> int:
        """Have little time."""
        await steps(n)
        return n

    @tool
    async def broken(n: int) -> int:
        """Fail."""
        await steps(n)
        raise RuntimeError("broken")

    return [finish, shielded, undone, hurried, broken]


KINDS = ("look", "act", "pages", "finish", "shielded", "undone", "hurried", "broken")


def _act(name: str, n: int) -> Act:
    return call(name, n=n) if name in KINDS else call(name, input="go")
