"""An agent of another framework, under Safepoint: the same agent as beside it, adapted, and stopped by `run.cancel()`.

`Adapter(name)` takes the agents of `peers/<name>.py`. Nested agents are the framework's own.
"""

import asyncio
import importlib
from dataclasses import replace

from bench.compare.contract import End, Framework, Live, Note, Result, Subject
from safepoint import Message, SafePoint, StopReason, Text, ToolCall, ToolResult
from safepoint.adapters import adapt
from safepoint.tools import as_callable

NATIVE = {"langgraph": "graph"}


def read(messages):
    notes = []
    for message in messages:
        results = tuple(Result(p.call_id, p.content, p.state) for p in message.parts if isinstance(p, ToolResult))
        words = " ".join(getattr(part, "text", "") for part in message.parts if part.kind in ("text", "notice"))
        if results:
            notes.append(Note("tool", results=results))
        else:
            notes.append(Note(message.role, words, tuple(call.id for call in message.tool_calls)))
    return notes


def write(note):
    if note.role == "tool":
        return Message("tool", tuple(ToolResult(each.id, "nothing", each.text) for each in note.results))
    calls = tuple(ToolCall(call, "nothing", {}) for call in note.calls)
    words = (Text(note.text),) if note.text else ()
    return Message(note.role, (*words, *calls))


class AdaptedAgent(Subject):
    def __init__(self, plan, name, framework):
        self.plan = plan
        children = [child.inner for child in plan.children]
        abilities = [_with_command(ability) for ability in plan.abilities]
        self.inner = framework.make(replace(plan, children=children, abilities=abilities))
        self.agent = adapt(getattr(self.inner, NATIVE.get(name, "agent")), name=plan.name)
        self._history = []

    def remember(self, notes):
        self._history = list(map(write, notes))

    async def call(self, prompt):
        return (await self.agent.run(prompt, history=self._history)).text

    async def stream(self, prompt):
        async with self.agent.start(prompt, history=self._history) as run:
            async for _ in run.events():
                pass
        return run.result.text

    def start(self, prompt):
        run = self.agent.start(prompt, history=self._history)
        task = asyncio.create_task(self._end(run))
        return Live(task, run.cancel, lambda: run.cancel(SafePoint.AFTER_TOOLS))

    async def _end(self, run):
        async with run:
            pass
        result = run.result
        self._history = result.messages
        how = {StopReason.END_TURN: "finished", StopReason.CANCELLED: "stopped"}.get(result.stop_reason, "failed")
        used = result.usage
        return End(
            how,
            lambda: read(result.messages),
            text=result.text,
            used=(used.input_tokens, used.output_tokens),
            running=tuple(orphan.name for orphan in result.orphans),
            error=str(result.error or ""),
        )


def _with_command(ability):
    """A command is run by Safepoint's shell, as a function of the framework's."""
    if not ability.command:
        return ability
    from safepoint.tools import shell

    run = as_callable(shell(name=ability.name))
    command = " ".join(ability.command)

    async def execute(command: str = command) -> str:
        """Run a command."""
        return str(await run(command=command))

    return replace(ability, function=execute, command=())


class Adapter(Framework):
    stopped_by = "`run.cancel()`"

    def __init__(self, name):
        self._name = name
        self._framework = importlib.import_module(f"bench.peers.{name}").Adapter()
        self.package = self._framework.package
        self.backs_off = self._framework.backs_off

    def make(self, plan):
        return AdaptedAgent(plan, self._name, self._framework)

    def spans(self):
        return self._framework.spans()
