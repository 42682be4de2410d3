"""Pydantic AI: `FunctionModel`, and a `CancellationToken` for each run, after which `RunCancelled` has the messages.

It has no back-off of its own: its documentation puts retries into the provider's HTTP client. Commands run in its
`LocalWorkspace`.
"""

import asyncio
import json

from pydantic_ai import Agent, CancellationToken, RunCancelled, RunContext, Tool
from pydantic_ai.capabilities import Instrumentation, LocalWorkspace
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.usage import RequestUsage

from bench.compare.contract import Call, End, Framework, Live, Note, Result, Say, Subject
from bench.compare.tracing import OpenTelemetrySpans


def read(messages):
    notes = []
    for message in messages:
        if isinstance(message, ModelResponse):
            calls = tuple(part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart))
            notes.append(Note("assistant", message.text or "", calls, mark=getattr(message, "state", "") or ""))
            continue
        results = [part for part in message.parts if isinstance(part, ToolReturnPart | RetryPromptPart)]
        if results:
            told = (Result(p.tool_call_id, str(p.content), getattr(p, "outcome", "")) for p in results)
            notes.append(Note("tool", results=tuple(told)))
        words = [str(part.content) for part in message.parts if isinstance(part, UserPromptPart)]
        if words:
            notes.append(Note("user", " ".join(words)))
    return notes


def write(note):
    if note.role == "user":
        return ModelRequest([UserPromptPart(note.text)])
    if note.role == "tool":
        return ModelRequest([ToolReturnPart("nothing", r.text, r.id) for r in note.results])
    return ModelResponse([TextPart(note.text)] if note.text else [ToolCallPart("nothing", {}, c) for c in note.calls])


class PydanticAgent(Subject):
    def __init__(self, plan):
        self.plan = plan
        self._history = []
        commands = any(ability.command for ability in plan.abilities)
        abilities = [(run_command if a.command else a.function, a.name) for a in plan.abilities]
        tools = [Tool(function, name=name, sequential=plan.one_by_one) for function, name in abilities]
        tools += [Tool(child.as_tool(), name=child.plan.name, description="A sub-agent.") for child in plan.children]
        model = FunctionModel(self._whole, stream_function=self._chunks)
        capabilities = [Instrumentation()] if plan.traced else []
        capabilities += [LocalWorkspace(".")] if commands else []
        self.agent = Agent(model, tools=tools, capabilities=capabilities)

    def _reply(self, messages):
        answered = any(isinstance(part, ToolReturnPart) for part in messages[-1].parts)
        return self.plan.script.reply(answered=answered, read=lambda: read(messages))

    async def _whole(self, messages, _info):
        parts = []
        async for chunk in self._reply(messages):
            if isinstance(chunk, Say):
                parts.append(TextPart(chunk.text))
            elif isinstance(chunk, Call):
                parts.append(ToolCallPart(chunk.name, chunk.arguments, chunk.id))
        return ModelResponse(parts, usage=RequestUsage(input_tokens=10, output_tokens=5))

    async def _chunks(self, messages, _info):
        calls = 0
        async for chunk in self._reply(messages):
            if isinstance(chunk, Say):
                yield chunk.text
            elif isinstance(chunk, Call):
                yield {calls: DeltaToolCall(chunk.name, json.dumps(chunk.arguments), tool_call_id=chunk.id)}
                calls += 1

    def as_tool(self):
        async def delegate(input: str) -> str:
            """Hand a task to the sub-agent."""
            return (await self.agent.run(input, event_stream_handler=drain)).output

        return delegate

    def remember(self, notes):
        self._history = list(map(write, notes))

    async def call(self, prompt):
        return (await self.agent.run(prompt, message_history=self._history)).output

    async def stream(self, prompt):
        return (await self.agent.run(prompt, message_history=self._history, event_stream_handler=drain)).output

    def start(self, prompt):
        token = CancellationToken()
        return Live(asyncio.create_task(self._end(prompt, token)), token.cancel)

    async def _end(self, prompt, token):
        how, text = "finished", ""
        try:
            outcome = await self.agent.run(
                prompt, message_history=self._history, cancellation_token=token, event_stream_handler=drain
            )
            text, usage = outcome.output, outcome.usage
        except RunCancelled as cancelled:
            how, outcome, usage = "stopped", cancelled, cancelled.usage
        usage = usage() if callable(usage) else usage
        self._history = outcome.all_messages()
        messages = self._history
        return End(how, lambda: read(messages), text=text, used=(usage.input_tokens, usage.output_tokens))


async def run_command(context: RunContext, command: str) -> str:
    """Run a command in a shell."""
    return str(await context.workspace.run(command, shell=True))


async def drain(_context, events):
    async for _ in events:
        pass


class Adapter(Framework):
    package = "pydantic-ai-slim"
    stopped_by = "`CancellationToken.cancel()`"

    def make(self, plan):
        return PydanticAgent(plan)

    def spans(self):
        return OpenTelemetrySpans.install()
