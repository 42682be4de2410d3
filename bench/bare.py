"""An agent by hand, in bare asyncio: what a run is measured against.

It has the shape of a run: a task for the agent, one for each model call, one for each tool call. Stopped with
`task.cancel()`, it cancels what it waits for, awaits that, collects what came of it, appends it to the conversation
(words so far, or one result per call, and a notice) and returns the conversation, built of the same parts as ours.

It has nothing else: no safe points and no reasons, no ledger, events, receipts, checkpoint or usage, no bound on how
long anything takes, no rules that the conversation is checked against. The ratio is the price of all that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import TypeAlias

from safepoint.agent.model import CallDelta, Model, ModelRequest, TextDelta
from safepoint.history.parts import Message, Notice, Text, ToolCall, ToolResult, user_message

BareTool: TypeAlias = Callable[[], Coroutine[object, object, str]]

NO_TOOLS: Mapping[str, BareTool] = {}
STOPPED = Notice("This run was stopped before it was done.")


class BareAgent:
    """A model and tools without parameters."""

    def __init__(self, model: Model, tools: Mapping[str, BareTool] = NO_TOOLS) -> None:
        self._model = model
        self._tools = tools

    async def run(self, prompt: str) -> list[Message]:
        """The conversation, once there is an answer. Cancellation: closes the conversation and returns it."""
        messages = [user_message(prompt)]
        while True:
            words: list[str] = []
            calls: list[ToolCall] = []
            try:
                await asyncio.create_task(self._read(messages, words, calls))
            except asyncio.CancelledError:
                messages.append(Message("assistant", (Text("".join(words), incomplete=True), STOPPED)))
                return messages
            if not calls:
                messages.append(Message("assistant", (Text("".join(words)),)))
                return messages
            messages.append(Message("assistant", tuple(calls)))
            if not await self._call(calls, messages):
                messages.append(Message("assistant", (STOPPED,)))
                return messages

    async def as_tool(self) -> str:
        """Its answer. Cancellation: as far as it has come."""
        return (await self.run("go"))[-1].text

    async def _read(self, messages: list[Message], words: list[str], calls: list[ToolCall]) -> None:
        async with self._model.stream(ModelRequest(tuple(messages))) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, TextDelta):
                    words.append(chunk.text)
                elif isinstance(chunk, CallDelta):
                    calls.append(ToolCall(chunk.id or "", chunk.name or "", json.loads(chunk.arguments)))

    async def _call(self, calls: list[ToolCall], messages: list[Message]) -> bool:
        """Carry them out side by side; False if they were cut. Cancellation: cuts them."""
        tasks = [asyncio.create_task(self._tools[call.name]()) for call in calls]
        done = True
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            done = False
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        messages.append(Message("tool", tuple(map(_result, calls, tasks))))
        return done


def _result(call: ToolCall, task: asyncio.Task[str]) -> ToolResult:
    if task.cancelled():
        return ToolResult(call.id, call.name, "This call was cut while running, outcome unknown.", "cut")
    if (error := task.exception()) is not None:
        return ToolResult(call.id, call.name, str(error), "failed")
    return ToolResult(call.id, call.name, task.result())
