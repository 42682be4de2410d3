"""Safepoint, by the same rules as the others: documented calls only. `agent.start()` and `run.cancel()`."""

import asyncio
import json
from contextlib import asynccontextmanager

from bench.compare.contract import Call, End, Framework, Live, Note, Result, Say, Subject, Throttled
from bench.compare.tracing import OpenTelemetrySpans
from safepoint import Agent, Message, Notice, SafePoint, StopReason, Text, ToolCall, ToolResult, tool
from safepoint.agent.model import CallDelta, Finish, TextDelta
from safepoint.errors import ModelUnavailable
from safepoint.history.parts import user_message
from safepoint.tools import shell


def read(messages):
    return [
        Note(
            message.role,
            " ".join(part.text for part in message.parts if isinstance(part, Text | Notice)),
            tuple(part.id for part in message.parts if isinstance(part, ToolCall)),
            tuple(Result(p.call_id, p.content, p.state) for p in message.parts if isinstance(p, ToolResult)),
        )
        for message in messages
    ]


def write(note):
    if note.role == "user":
        return user_message(note.text)
    words = (Text(note.text),) if note.text else ()
    calls = [ToolCall(call, "nothing", {}) for call in note.calls]
    return Message(note.role, (*words, *calls, *(ToolResult(r.id, "nothing", r.text) for r in note.results)))


class Scripted:
    name = "scripted"

    def __init__(self, script):
        self._script = script

    @asynccontextmanager
    async def stream(self, request):
        yield self._chunks(request)

    async def _chunks(self, request):
        calls = 0
        answered = request.messages[-1].role == "tool"
        try:
            async for chunk in self._script.reply(answered=answered, read=lambda: read(request.messages)):
                if isinstance(chunk, Say):
                    yield TextDelta(chunk.text)
                elif isinstance(chunk, Call):
                    yield CallDelta(calls, chunk.id, chunk.name, json.dumps(chunk.arguments))
                    calls += 1
        except Throttled as later:
            raise ModelUnavailable(str(later), retry_after=60) from later
        yield Finish("tool_calls" if calls else "end_turn", input_tokens=10, output_tokens=5)


class SafepointAgent(Subject):
    def __init__(self, plan):
        self.plan = plan
        self._history = ()
        tools = [shell(name=a.name) if a.command else tool(a.function, name=a.name) for a in plan.abilities]
        tools += [child.agent.as_tool() for child in plan.children]
        limit = 1 if plan.one_by_one else None
        self.agent = Agent(plan.name, model=Scripted(plan.script), tools=tools, max_parallel_tools=limit)

    def remember(self, notes):
        self._history = tuple(map(write, notes))

    async def call(self, prompt):
        return (await self.agent.run(prompt, history=self._history)).text

    async def stream(self, prompt):
        async with self.agent.start(prompt, history=self._history) as run:
            async for _ in run.events():
                pass
        return run.result.text

    def start(self, prompt):
        run = self.agent.start(prompt, history=self._history)
        return Live(asyncio.create_task(self._wait(run)), run.cancel, lambda: run.cancel(SafePoint.AFTER_TOOLS))

    async def _wait(self, run):
        async with run:
            result = await run.wait()
        self._history = result.messages
        stopped = result.stop_reason is StopReason.CANCELLED
        return End(
            "stopped" if stopped else "finished" if result.stop_reason is StopReason.END_TURN else "failed",
            lambda: read(result.messages),
            text=result.text,
            used=(result.usage.input_tokens, result.usage.output_tokens),
            running=tuple(orphan.name for orphan in result.orphans),
            error=str(result.error or ""),
        )


class Adapter(Framework):
    package = "safepoint"
    stopped_by = "`run.cancel()`"
    backs_off = True

    def make(self, plan):
        return SafepointAgent(plan)

    def spans(self):
        return OpenTelemetrySpans.install()
