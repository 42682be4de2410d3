"""Agno: a `Model` of our own, `cancel_run(run_id)`, a session in its in-memory database.

Sub-agents are members of a team, which is how a stop reaches them. `Model.retries` gives it a back-off.
Its tracing is the OpenInference instrumentation that its documentation names.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.exceptions import ModelProviderError
from agno.metrics import MessageMetrics
from agno.models.base import Model
from agno.models.message import Message
from agno.models.response import ModelResponse
from agno.run.base import RunStatus
from agno.team import Team
from agno.tools import Function

from bench.compare.contract import Call, End, Framework, Live, Note, Result, Say, Subject, Throttled, Used
from bench.compare.tracing import OpenTelemetrySpans


def read(messages):
    notes = []
    for message in messages:
        if message.role == "tool":
            mark = "error" if message.tool_call_error else ""
            result = Result(message.tool_call_id, str(message.content), mark)
            before = notes.pop().results if notes and notes[-1].role == "tool" else ()
            notes.append(Note("tool", results=(*before, result)))
        elif message.role in ("user", "assistant"):
            calls = tuple(call["id"] for call in message.tool_calls or ())
            notes.append(Note(message.role, str(message.content or ""), calls))
    return notes


def write(note):
    if note.role == "tool":
        result = note.results[0]
        return Message(role="tool", content=result.text, tool_call_id=result.id, tool_name="nothing")
    calls = [{"id": c, "type": "function", "function": {"name": "nothing", "arguments": "{}"}} for c in note.calls]
    return Message(role=note.role, content=note.text or None, tool_calls=calls or None)


class Scripted(Model):
    def __init__(self, script, members):
        super().__init__(id="scripted", retries=2, delay_between_retries=60)
        self._script, self._members = script, members

    def _reply(self, messages):
        return self._script.reply(answered=messages[-1].role == "tool", read=lambda: read(messages))

    async def ainvoke(self, messages, *arguments, **options):
        words, calls = [], []
        async for chunk in self._reply(messages):
            if isinstance(chunk, Say):
                words.append(chunk.text)
            elif isinstance(chunk, Call):
                calls.append(self._call(chunk))
        usage = MessageMetrics(input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelResponse(role="assistant", content="".join(words) or None, tool_calls=calls, response_usage=usage)

    async def ainvoke_stream(self, messages, *arguments, **options) -> AsyncIterator[ModelResponse]:
        try:
            async for chunk in self._reply(messages):
                if isinstance(chunk, Say):
                    yield ModelResponse(role="assistant", content=chunk.text)
                elif isinstance(chunk, Call):
                    yield ModelResponse(role="assistant", tool_calls=[self._call(chunk)])
                elif isinstance(chunk, Used):
                    total = chunk.input + chunk.output
                    usage = MessageMetrics(input_tokens=chunk.input, output_tokens=chunk.output, total_tokens=total)
                    yield ModelResponse(response_usage=usage)
        except Throttled as later:
            raise ModelProviderError(str(later)) from later

    def _call(self, chunk):
        name, arguments = chunk.name, chunk.arguments
        if name in self._members:
            arguments = {"member_id": name, "task": "go"}
            name = "delegate_task_to_member"
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {"id": chunk.id, "type": "function", "function": function}

    def invoke(self, *arguments, **options):
        raise NotImplementedError

    invoke_stream = _parse_provider_response = _parse_provider_response_delta = invoke


class AgnoAgent(Subject):
    def __init__(self, plan):
        self.plan = plan
        self._base = []
        self._session = uuid.uuid4().hex
        model = Scripted(plan.script, [child.plan.name for child in plan.children])
        tools = [Function.from_callable(a.function, name=a.name) for a in plan.abilities]
        options = {"id": plan.name, "name": plan.name, "model": model, "tools": tools, "telemetry": False}
        kept = {"db": InMemoryDb(), "add_history_to_context": True}
        if plan.children:
            self.agent = self.kept = Team(members=[child.agent for child in plan.children], **options, **kept)
        else:
            self.agent, self.kept = Agent(**options), Agent(**options, **kept)

    def remember(self, notes):
        self._base = list(map(write, notes))

    def _input(self, prompt):
        return [*self._base, Message(role="user", content=prompt)] if self._base else prompt

    async def call(self, prompt):
        return (await self.agent.arun(self._input(prompt))).content

    async def stream(self, prompt):
        words = []
        async for event in self.agent.arun(self._input(prompt), stream=True, stream_events=True):
            if event.event == "RunContent":
                words.append(event.content)
        return "".join(words)

    def start(self, prompt):
        run = uuid.uuid4().hex
        return Live(asyncio.create_task(self._end(prompt, run)), lambda: self.kept.cancel_run(run))

    async def _end(self, prompt, run):
        output = None
        async for event in self.kept.arun(
            prompt, session_id=self._session, run_id=run, stream=True, stream_events=True, yield_run_output=True
        ):
            if hasattr(event, "status"):
                output = event
        messages = await self.kept.aget_session_messages(self._session)
        used = output.metrics
        how = {RunStatus.cancelled: "stopped", RunStatus.completed: "finished"}
        return End(
            how.get(output.status, "failed"),
            lambda: read(messages) or [Note("user", prompt)],
            text=str(output.content or ""),
            used=(used.input_tokens, used.output_tokens) if used else (0, 0),
        )


class Adapter(Framework):
    package = "agno"
    stopped_by = "`agent.cancel_run(run_id)`"
    backs_off = True

    def make(self, plan):
        return AgnoAgent(plan)

    def spans(self):
        from openinference.instrumentation.agno import AgnoInstrumentor

        spans = OpenTelemetrySpans.install()
        AgnoInstrumentor().instrument()
        return spans
