"""The floor: an agent by hand in bare asyncio, in the shape that every framework has.

A task for the run, one for each model call, one for each tool call. Stopped with `task.cancel()`, it cancels what it
waits for, awaits that, and closes the conversation: the words so far, or one result per call. It has nothing else: no
safe points, no usage, no telemetry, no back-off, nothing that bounds a wait. No framework can be faster than this.
"""

import asyncio
import inspect

from bench.compare.contract import Call, End, Framework, Live, Note, Result, Say, Subject


class BareAgent(Subject):
    def __init__(self, plan):
        self.plan = plan
        self._history = []
        self._tools = {ability.name: ability.function for ability in plan.abilities}
        self._tools |= {child.plan.name: child.answer for child in plan.children}

    def remember(self, notes):
        self._history = list(notes)

    async def call(self, prompt):
        return (await self._run([*self._history, Note("user", prompt)]))[0][-1].text

    async def answer(self, input):
        return await self.call(input)

    stream = call

    def start(self, prompt):
        task = asyncio.create_task(self._end(prompt))
        return Live(task, task.cancel)

    async def _end(self, prompt):
        self._history, stopped = await self._run([*self._history, Note("user", prompt)])
        return End("stopped" if stopped else "finished", lambda: self._history, text=self._history[-1].text)

    async def _run(self, messages):
        """The conversation, and whether it was stopped. Cancellation: closes the conversation and returns it."""
        while True:
            words, calls = [], []
            try:
                await asyncio.create_task(self._read(messages, words, calls))
            except asyncio.CancelledError:
                messages.append(Note("assistant", "".join(words) + " (stopped)"))
                return messages, True
            if not calls:
                messages.append(Note("assistant", "".join(words)))
                return messages, False
            messages.append(Note("assistant", "".join(words), tuple(call.id for call in calls)))
            tasks = [asyncio.create_task(self._act(call)) for call in calls]
            stopped = False
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError:
                stopped = True
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            results = (Result(c.id, "cut" if t.cancelled() else t.result()) for c, t in zip(calls, tasks, strict=True))
            messages.append(Note("tool", results=tuple(results)))
            if stopped:
                messages.append(Note("assistant", "(stopped)"))
                return messages, True

    async def _read(self, messages, words, calls):
        chunks = self.plan.script.reply(answered=messages[-1].role == "tool", read=lambda: list(messages))
        async for chunk in chunks:
            if isinstance(chunk, Say):
                words.append(chunk.text)
            elif isinstance(chunk, Call):
                calls.append(chunk)

    async def _act(self, call):
        function = self._tools[call.name]
        if inspect.iscoroutinefunction(function):
            return await function(**call.arguments)
        return await asyncio.to_thread(function, **call.arguments)


class Adapter(Framework):
    package = ""
    stopped_by = "`task.cancel()`"

    def make(self, plan):
        return BareAgent(plan)
