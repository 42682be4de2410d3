"""Strands Agents: a `Model` of our own, `agent.cancel()`, and `agent.messages`, which the agent keeps itself.

Its default retry strategy backs off from `ModelThrottledException`. It vends a shell tool. A model may watch the cancel
signal that it is handed, and close its connection; ours does, every 50 ms, as its Bedrock provider does.
"""

import asyncio
import json

from strands import Agent, tool
from strands.models import Model
from strands.tools.executors import SequentialToolExecutor
from strands.types.exceptions import ModelThrottledException
from strands.vended_tools.shell import make_shell

from bench.compare.contract import Call, End, Framework, Live, Note, Result, Say, Subject, Throttled, Used
from bench.compare.tracing import OpenTelemetrySpans


def read(messages):
    notes = []
    for message in messages:
        blocks = message["content"]
        results = [block["toolResult"] for block in blocks if "toolResult" in block]
        text = " ".join(block["text"] for block in blocks if "text" in block)
        calls = tuple(block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block)
        if results:
            told = (Result(r["toolUseId"], json.dumps(r["content"]), r.get("status", "")) for r in results)
            notes.append(Note("tool", results=tuple(told)))
        if text or calls or not results:
            notes.append(Note(message["role"], text, calls))
    return notes


def write(note):
    if note.role == "tool":
        results = [{"toolUseId": r.id, "status": "success", "content": [{"text": r.text}]} for r in note.results]
        return {"role": "user", "content": [{"toolResult": result} for result in results]}
    words = [{"text": note.text}] if note.text else []
    calls = [{"toolUse": {"toolUseId": call, "name": "nothing", "input": {}}} for call in note.calls]
    return {"role": note.role, "content": words + calls}


class Scripted(Model):
    def __init__(self, script):
        self._script = script

    def update_config(self, **model_config):
        pass

    def get_config(self):
        return {}

    def structured_output(self, *arguments, **options):
        raise NotImplementedError

    async def stream(self, messages, *arguments, cancel_signal=None, **options):
        watch = Watch(self._script, cancel_signal)
        try:
            async for event in self._events(messages):
                yield event
        finally:
            watch.end()

    async def _events(self, messages):
        answered = any("toolResult" in block for block in messages[-1]["content"])
        reason, open_text = "end_turn", False
        yield {"messageStart": {"role": "assistant"}}
        try:
            async for chunk in self._script.reply(answered=answered, read=lambda: read(messages)):
                if isinstance(chunk, Used):
                    total = chunk.input + chunk.output
                    usage = {"inputTokens": chunk.input, "outputTokens": chunk.output, "totalTokens": total}
                    yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}}
                elif isinstance(chunk, Say):
                    if not open_text:
                        open_text = True
                        yield {"contentBlockStart": {"start": {}}}
                    yield {"contentBlockDelta": {"delta": {"text": chunk.text}}}
                elif isinstance(chunk, Call):
                    reason = "tool_use"
                    yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": chunk.id, "name": chunk.name}}}}
                    yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(chunk.arguments)}}}}
                    yield {"contentBlockStop": {}}
        except Throttled as later:
            raise ModelThrottledException(str(later)) from later
        if self._script.hung_up.is_set():
            return
        if open_text:
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": reason}}
        usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}}


class Watch:
    def __init__(self, script, signal):
        self._script, self._signal, self._loop = script, signal, asyncio.get_running_loop()
        self._timer = self._loop.call_later(0.05, self._look)

    def _look(self):
        if self._signal is not None and self._signal.is_set():
            self._script.hung_up.set()
        else:
            self._timer = self._loop.call_later(0.05, self._look)

    def end(self):
        self._timer.cancel()


class StrandsAgent(Subject):
    def __init__(self, plan):
        self.plan = plan
        self._base = []
        tools = [make_shell(name=a.name) if a.command else tool(a.function, name=a.name) for a in plan.abilities]
        tools += [child.agent.as_tool(name=child.plan.name, description="A sub-agent.") for child in plan.children]
        executor = SequentialToolExecutor() if plan.one_by_one else None
        model = Scripted(plan.script)
        self.agent = Agent(model, tools=tools, name=plan.name, callback_handler=None, tool_executor=executor)

    def remember(self, notes):
        self._base = list(map(write, notes))

    async def call(self, prompt):
        self.agent.messages[:] = self._base
        return str(await self.agent.invoke_async(prompt)).strip()

    async def stream(self, prompt):
        self.agent.messages[:] = self._base
        async for event in self.agent.stream_async(prompt):
            if "result" in event:
                result = event["result"]
        return str(result).strip()

    def start(self, prompt):
        task = asyncio.create_task(self._end(prompt))
        return Live(task, self.agent.cancel, lambda: self.agent.cancel(after_current_tools=True))

    async def _end(self, prompt):
        result = await self.agent.invoke_async(prompt)
        used = result.metrics.latest_agent_invocation.usage
        return End(
            "stopped" if result.stop_reason == "cancelled" else "finished",
            lambda: read(self.agent.messages),
            text=str(result).strip(),
            used=(used["inputTokens"], used["outputTokens"]),
        )


class Adapter(Framework):
    package = "strands-agents"
    stopped_by = "`agent.cancel()`"
    backs_off = True

    def make(self, plan):
        return StrandsAgent(plan)

    def spans(self):
        return OpenTelemetrySpans.install()
