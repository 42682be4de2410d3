"""OpenAI Agents SDK: a `Model` of our own, `Runner.run_streamed` and `result.cancel()`, then `result.to_input_list()`.

Its runner retries model calls with a back-off where `ModelSettings.retry` says so. Commands run in a `SandboxAgent`,
locally.
"""

import asyncio
import json

import agents
from agents import Agent, Model, ModelResponse, ModelSettings, RunConfig, Runner, Usage, function_tool
from agents.retry import ModelRetrySettings, RetryDecision
from agents.run_config import SandboxRunConfig, ToolExecutionConfig
from agents.sandbox import SandboxAgent
from agents.sandbox.capabilities import Shell
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.tracing import TracingProcessor, set_trace_processors
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)

from bench.compare.contract import Call, End, Framework, Live, Note, Result, Say, Spans, Subject, Throttled


def read(items):
    if isinstance(items, str):
        return [Note("user", items)]
    notes, last = [], None
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            if last == kind:
                note = notes.pop()
                notes.append(Note("assistant", calls=(*note.calls, item["call_id"])))
            else:
                notes.append(Note("assistant", calls=(item["call_id"],)))
        elif kind == "function_call_output":
            result = Result(item["call_id"], str(item["output"]), item.get("status") or "")
            before = notes.pop().results if last == kind else ()
            notes.append(Note("tool", results=(*before, result)))
        elif kind == "message":
            content = item["content"]
            text = content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)
            notes.append(Note(item["role"], text, mark=item.get("status") or ""))
        last = kind
    return notes


def write(note):
    if note.role == "user":
        return [{"role": "user", "content": note.text}]
    if note.role == "tool":
        return [{"type": "function_call_output", "call_id": r.id, "output": r.text} for r in note.results]
    if note.text:
        return [{"role": "assistant", "content": note.text}]
    return [{"type": "function_call", "call_id": call, "name": "nothing", "arguments": "{}"} for call in note.calls]


class Scripted(Model):
    def __init__(self, script):
        self._script = script

    def _reply(self, items):
        answered = not isinstance(items, str) and items[-1].get("type") == "function_call_output"
        return self._script.reply(answered=answered, read=lambda: read(items))

    async def get_response(self, system_instructions, input, *rest, **options):
        words, output = [], []
        async for chunk in self._reply(input):
            if isinstance(chunk, Say):
                words.append(chunk.text)
            elif isinstance(chunk, Call):
                output.append(_call(chunk))
        used = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
        return ModelResponse(output=output or [_message("".join(words))], usage=used, response_id=None)

    async def stream_response(self, system_instructions, input, *rest, **options):
        words, output, number = [], [], 0
        async for chunk in self._reply(input):
            number += 1
            if isinstance(chunk, Say):
                words.append(chunk.text)
                yield ResponseTextDeltaEvent(
                    content_index=0,
                    delta=chunk.text,
                    item_id="message",
                    logprobs=[],
                    output_index=0,
                    sequence_number=number,
                    type="response.output_text.delta",
                )
            elif isinstance(chunk, Call):
                output.append(_call(chunk))
                yield ResponseOutputItemDoneEvent(
                    item=output[-1],
                    output_index=len(output) - 1,
                    sequence_number=number,
                    type="response.output_item.done",
                )
        if not output:
            output = [_message("".join(words))]
            yield ResponseOutputItemDoneEvent(
                item=output[0], output_index=0, sequence_number=number, type="response.output_item.done"
            )
        details = {"cached_tokens": 0, "cache_write_tokens": 0}
        usage = ResponseUsage(
            input_tokens=10,
            output_tokens=5,
            total_tokens=15,
            input_tokens_details=details,
            output_tokens_details={"reasoning_tokens": 0},
        )
        response = Response(
            id="response",
            created_at=0,
            model="scripted",
            object="response",
            output=output,
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=True,
            usage=usage,
        )
        yield ResponseCompletedEvent(response=response, sequence_number=number + 1, type="response.completed")


def _call(chunk):
    name, arguments = chunk.name, json.dumps(chunk.arguments)
    if "command" in chunk.arguments:
        name, arguments = "exec_command", json.dumps({"cmd": chunk.arguments["command"], "login": False})
    return ResponseFunctionToolCall(
        id=f"item_{chunk.id}", call_id=chunk.id, name=name, arguments=arguments, type="function_call"
    )


def _message(text):
    part = ResponseOutputText(text=text, type="output_text", annotations=[], logprobs=[])
    return ResponseOutputMessage(id="message", type="message", role="assistant", content=[part], status="completed")


def _retry(context):
    return RetryDecision(retry=isinstance(context.error, Throttled), delay=60.0)


class OpenAIAgent(Subject):
    def __init__(self, plan):
        self.plan = plan
        self._history = []
        commands = any(ability.command for ability in plan.abilities)
        tools = [function_tool(a.function, name_override=a.name) for a in plan.abilities if not a.command]
        tools += [c.agent.as_tool(c.plan.name, "A sub-agent.", on_stream=_ignore) for c in plan.children]
        settings = ModelSettings(retry=ModelRetrySettings(max_retries=2, policy=_retry))
        options = {"name": plan.name, "model": Scripted(plan.script), "tools": tools, "model_settings": settings}
        self.agent = SandboxAgent(**options, capabilities=[Shell()]) if commands else Agent(**options)
        limit = ToolExecutionConfig(max_function_tool_concurrency=1) if plan.one_by_one else None
        sandbox = SandboxRunConfig(client=UnixLocalSandboxClient()) if commands else None
        self._config = RunConfig(tracing_disabled=not plan.traced, tool_execution=limit, sandbox=sandbox)

    def remember(self, notes):
        self._history = [item for note in notes for item in write(note)]

    def _input(self, prompt):
        return [*self._history, {"role": "user", "content": prompt}] if self._history else prompt

    async def call(self, prompt):
        return (await Runner.run(self.agent, self._input(prompt), run_config=self._config)).final_output

    async def stream(self, prompt):
        result = Runner.run_streamed(self.agent, self._input(prompt), run_config=self._config)
        async for _ in result.stream_events():
            pass
        return result.final_output

    def start(self, prompt):
        result = Runner.run_streamed(self.agent, self._input(prompt), run_config=self._config)
        task = asyncio.create_task(self._end(result))
        return Live(task, result.cancel, lambda: result.cancel(mode="after_turn"))

    async def _end(self, result):
        async for _ in result.stream_events():
            pass
        self._history = history = result.to_input_list()
        used = result.context_wrapper.usage
        # A cancelled result has no mark of its own: it is complete and has no final output.
        how = "finished" if result.final_output is not None else "stopped"
        return End(
            how,
            lambda: read(history),
            text=result.final_output or "",
            used=(used.input_tokens, used.output_tokens),
        )


async def _ignore(_event):
    pass


class Counting(TracingProcessor):
    def __init__(self):
        self.seen = Spans()

    def on_trace_start(self, trace):
        self.seen.begun.append(trace.trace_id)

    def on_trace_end(self, trace):
        self.seen.ended.append(trace.trace_id)

    def on_span_start(self, span):
        self.seen.begun.append(f"{span.span_data.type} {span.span_id}")

    def on_span_end(self, span):
        self.seen.ended.append(f"{span.span_data.type} {span.span_id}")

    def shutdown(self):
        pass

    def force_flush(self):
        pass


class Adapter(Framework):
    package = "openai-agents"
    stopped_by = "`result.cancel()`"
    backs_off = True

    def __init__(self):
        agents.set_tracing_disabled(False)
        set_trace_processors([])

    def make(self, plan):
        return OpenAIAgent(plan)

    def spans(self):
        counting = Counting()
        set_trace_processors([counting])
        return counting.seen
