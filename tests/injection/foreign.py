"""Agents of another framework: its loop, its calls, its threads and its own tasks, run, held, stopped and resumed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from safepoint import Checkpoint, Freeze, Hooks, Message, SafePoint, Switch, Text
from safepoint.adapters import Promises
from safepoint.agent.foreign import ForeignAgent, ForeignOptions
from safepoint.agent.foreign_loop import ForeignLoop, Outcome
from safepoint.agent.foreign_tool import in_call_thread, tool_context
from safepoint.agent.model import ModelRequest
from safepoint.errors import RunFailed, StoreError
from safepoint.history.parts import ToolCall
from safepoint.sessions import MemoryStore, Session
from safepoint.sessions.store import Change
from safepoint.tools.options import ToolOptions
from tests.injection.parts import A_MOMENT, A_WHILE, LONG, SlowHooks, SlowStore

Tool = Callable[[], Awaitable[object]]


async def _quick() -> str:
    await asyncio.sleep(0)
    return "quick"


async def _slow() -> str:
    try:
        await asyncio.sleep(A_WHILE)
    finally:
        await asyncio.sleep(A_MOMENT)
    return "slow"


async def _in_a_thread() -> str:
    return await in_call_thread(lambda: "from a thread")


async def _ask() -> object:
    return await tool_context().interrupt("really?")


TOOLS: dict[str, Tool] = {"quick": _quick, "slow": _slow, "thread": _in_a_thread, "ask": _ask}


class Toy(ForeignAgent[Any, str]):
    """Gives the nth reply to the nth question of a conversation, and makes the calls of a reply side by side."""

    promises = Promises(framework="Toy", tested=("1", "2"), steering=True)

    def __init__(self, *replies: tuple[str, ...] | str, hooks: tuple[Hooks, ...] = ()) -> None:
        facts = {"quick": ToolOptions.parse(effect="pure")}
        super().__init__(ForeignOptions(name="toy", tools=facts, hooks=hooks))
        self._replies = replies

    async def carry_out(self, loop: ForeignLoop) -> Outcome:
        """Cancellation: ends it."""
        if loop.reply_to_replay is not None:
            await self.make(loop, loop.reply_to_replay)
        while True:
            await loop.begin_model("toy-1")
            step = sum(message.role == "assistant" for message in loop.messages)
            reply = self._replies[min(step, len(self._replies) - 1)]
            if isinstance(reply, str):
                for word in reply.split():
                    loop.say(f"{word} ")
                    await asyncio.sleep(A_MOMENT)
                await loop.end_model(Message("assistant", (Text(reply),)))
                return Outcome()
            calls = tuple(ToolCall(f"call_{step}_{place}", name, {}) for place, name in enumerate(reply))
            message = Message("assistant", calls)
            await loop.end_model(message)
            await self.make(loop, message)

    async def make(self, loop: ForeignLoop, reply: Message) -> None:
        async with asyncio.TaskGroup() as group:
            for call in reply.tool_calls:
                group.create_task(self.call(loop, call))

    async def call(self, loop: ForeignLoop, call: ToolCall) -> object:
        async def perform(_args: Mapping[str, Any]) -> object:
            return await TOOLS[call.name]()

        return await loop.call_tool(call.id, call.name, call.args, perform)


async def _resumed(toy: Toy, checkpoint: Checkpoint | None, session: Session | None = None) -> None:
    while checkpoint is not None:
        answers = {question.id: True for question in checkpoint.questions}
        result = await toy.resume(Checkpoint.from_bytes(checkpoint.to_bytes()), answers=answers, session=session)
        checkpoint = result.checkpoint


async def foreign_loop() -> None:
    await Toy(("quick", "slow"), ("thread",), "all done").run("go")


async def foreign_loop_with_hooks() -> None:
    await Toy(("quick",), "done", hooks=(SlowHooks(),)).run("go")


async def foreign_loop_in_a_session() -> None:
    session = await Session.create(SlowStore(MemoryStore()), "s")
    await Toy(("quick", "slow"), "done").run("go", session=session)
    await Toy("more").run("on", session=session)


async def _stopped(at: SafePoint, *, after: float = 0) -> None:
    toy = Toy(("quick", "slow"), ("quick",), "all done")
    async with toy.start("go") as run:
        await asyncio.sleep(after)
        await run.cancel(at).wait()
    await _resumed(toy, run.result.checkpoint)


async def foreign_loop_stopped_after_its_reply() -> None:
    await _stopped(SafePoint.AFTER_MODEL)


async def foreign_loop_stopped_before_an_effect() -> None:
    await _stopped(SafePoint.BEFORE_EFFECT)


async def foreign_loop_stopped_after_a_call() -> None:
    await _stopped(SafePoint.AFTER_TOOL)


async def foreign_loop_stopped_after_its_calls() -> None:
    await _stopped(SafePoint.AFTER_TOOLS, after=A_MOMENT)


async def foreign_loop_cut() -> None:
    await _stopped(SafePoint.NOW, after=A_MOMENT)


async def foreign_loop_that_asks_a_person() -> None:
    toy = Toy(("ask",), "done")
    await _resumed(toy, (await toy.run("go")).checkpoint)


async def _held(at: SafePoint) -> None:
    async with Toy(("slow",), ("quick",), "done").start("go") as run:
        receipt = run.hold(at)
        await receipt.wait()
        await asyncio.sleep(A_MOMENT)
        receipt.release()


async def foreign_loop_held_after_its_reply() -> None:
    await _held(SafePoint.AFTER_MODEL)


async def foreign_loop_held_before_an_effect() -> None:
    await _held(SafePoint.BEFORE_EFFECT)


async def foreign_loop_held_after_its_calls() -> None:
    await _held(SafePoint.AFTER_TOOLS)


async def foreign_loop_steered() -> None:
    async with Toy(("slow", "quick"), ("quick",), "done").start("go") as run:
        await asyncio.sleep(A_MOMENT)
        await run.steer("faster", within=A_MOMENT).wait()


async def _frozen(freeze: Freeze) -> None:
    switch = Switch()
    switch.add(freeze)
    asyncio.get_running_loop().call_later(A_WHILE, switch.thaw)
    await Toy(("slow", "quick"), "done").run("go", switch=switch)


async def foreign_loop_whose_model_is_frozen() -> None:
    await _frozen(Freeze("the provider is down", model="toy-1"))


async def foreign_loop_whose_tool_is_frozen() -> None:
    await _frozen(Freeze("slow is broken", tool="slow"))


class GoesOn(Toy):
    """Starts the calls of a reply, and goes on without them."""

    async def make(self, loop: ForeignLoop, reply: Message) -> None:
        started = [asyncio.create_task(self.call(loop, call)) for call in reply.tool_calls]
        await asyncio.wait(started, timeout=A_MOMENT)


async def foreign_loop_that_goes_on_without_its_calls() -> None:
    await GoesOn(("slow", "quick"), "done").run("go")


class Ends(GoesOn):
    """Starts the calls of its reply, and ends."""

    async def carry_out(self, loop: ForeignLoop) -> Outcome:
        """Cancellation: ends it."""
        await loop.begin_model("toy-1")
        reply = Message("assistant", (Text("bye"), ToolCall("call_0", "slow", {})))
        await loop.end_model(reply)
        await self.make(loop, reply)
        return Outcome("bye")


async def foreign_loop_that_ends_before_its_calls() -> None:
    await Ends().run("go")


class Threaded(Toy):
    """Calls plain functions in threads: one that it waits for, and one that ends a moment after it was told."""

    async def carry_out(self, loop: ForeignLoop) -> Outcome:
        """Cancellation: ends it, and tells the thread."""
        go_on = threading.Event()
        asyncio.get_running_loop().call_later(A_MOMENT, go_on.set)
        await loop.begin_model("toy-1")
        await loop.in_thread(lambda: None, "plan")
        left = asyncio.create_task(loop.in_thread(go_on.wait, "left"))
        try:
            await asyncio.sleep(0)
            await loop.end_model(Message("assistant", (Text("done"),)))
        finally:
            left.cancel()
        return Outcome()


async def foreign_loop_with_threads() -> None:
    await Threaded().run("go")


class AtOnce(Toy):
    """Has its answer at hand, and waits for nothing."""

    async def carry_out(self, loop: ForeignLoop) -> Outcome:
        """Cancellation: ends it."""
        await loop.begin_model("toy-1")
        await loop.end_model(Message("assistant", (Text("done"),)))
        return Outcome()


async def foreign_loop_that_never_waits() -> None:
    await AtOnce().run("go")


class Careless(Toy):
    """Leaves a task behind, which takes a while to end."""

    async def carry_out(self, loop: ForeignLoop) -> Outcome:
        """Cancellation: ends it, and not what it has started."""
        left = asyncio.create_task(self._stay(loop))
        await asyncio.sleep(0)
        outcome = await super().carry_out(loop)
        assert left is not None
        return outcome

    async def _stay(self, loop: ForeignLoop) -> None:
        """Cancellation: takes a moment."""
        loop.visit()
        try:
            await asyncio.sleep(LONG)
        finally:
            await asyncio.sleep(A_MOMENT)


async def foreign_loop_that_leaves_a_task() -> None:
    await Careless("done").run("go")


class Stops(Hooks):
    """Stops the run before its second model call, once, and waits for nothing then."""

    def __init__(self) -> None:
        self._has_stopped = False

    async def before_model(self, run: Any, request: ModelRequest) -> None:  # Any: a run of any agent
        if len(request.messages) > 1 and not self._has_stopped:
            self._has_stopped = True
            run.cancel()


async def foreign_loop_stopped_by_a_hook() -> None:
    toy = Toy(("quick",), "done", hooks=(Stops(),))
    await _resumed(toy, (await toy.run("go")).checkpoint)


class FailsOnce(SlowStore):
    """A store that refuses what is written in the middle of the first run."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self._writes = 0

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        self._writes += 1
        if self._writes == 2:
            raise StoreError("not now")
        await super().append(session_id, epoch, changes)


async def foreign_loop_that_cannot_be_written() -> None:
    session = await Session.create(FailsOnce(), "s")
    with suppress(RunFailed, StoreError):
        await Toy(("quick",), "done").run("go", session=session)
