"""Hooks that misbehave once, at one moment, and then never again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from safepoint import Agent, Hooks
from safepoint.agent.hooks import AnyRun
from safepoint.testing import ScriptedModel, call, say
from tests.hostile.visit import LADDER, World, nap, quick


class Misbehaving(Hooks):
    """`act` is called at `moment`; what it returns is awaited if it can be."""

    def __init__(self, moment: str, act: Callable[[AnyRun], object]) -> None:
        self._moment: str | None = moment
        self._act = act

    async def _at(self, moment: str, run: AnyRun) -> object:
        if moment != self._moment:
            return None
        self._moment = None
        answer = self._act(run)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def before_run(self, run: AnyRun) -> object:
        return await self._at("before_run", run)

    async def before_model(self, run: AnyRun, request: object) -> object:
        return await self._at("before_model", run)

    async def after_model(self, run: AnyRun, message: object) -> object:
        return await self._at("after_model", run)

    async def before_tool(self, run: AnyRun, call: object) -> object:
        return await self._at("before_tool", run)

    async def after_tool(self, run: AnyRun, entry: object) -> object:
        return await self._at("after_tool", run)

    async def after_run(self, run: AnyRun, text: str) -> object:
        return await self._at("after_run", run)

    async def on_cancel_requested(self, run: AnyRun, ask: object) -> object:
        return await self._at("on_cancel_requested", run)

    async def on_stopped(self, run: AnyRun, result: object) -> object:
        return await self._at("on_stopped", run)


async def hang(run: AnyRun) -> None:
    run.deps.reach()
    await run.deps.over.wait()


async def swallow(run: AnyRun) -> None:
    run.deps.reach()
    while not run.deps.over.is_set():
        try:
            await run.deps.over.wait()
        except asyncio.CancelledError:
            continue


def hooked(*hooks: Hooks, tools: int = 1) -> Agent[World]:
    """An agent with these hooks that calls `quick`, and says "done" and, in the next run, "fine"."""
    model = ScriptedModel([call("quick")] * tools, say("done"), repeat=True)
    return Agent("hooked", model=model, tools=[quick, nap], hooks=hooks, ladder=LADDER)
