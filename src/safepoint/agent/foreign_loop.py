"""What the loop of another framework tells Safepoint and asks of it, from inside its run.

The framework decides what happens next; Safepoint records it, and stops it. Each method that waits is a place where
the run can stop: then it never returns, and the loop is cancelled where it waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from safepoint._values import Value
from safepoint.agent.foreign_tool import Body, ForeignTool, in_call_thread, is_inside_call
from safepoint.agent.model import ModelRequest, ReasoningDelta, TextDelta
from safepoint.agent.result import NO_VALUE, StopReason
from safepoint.agent.usage import Usage
from safepoint.history.parts import Message, ToolCall
from safepoint.history.states import LedgerState
from safepoint.tools.call_state import CallState

if TYPE_CHECKING:
    from safepoint.agent.foreign_driver import ForeignDriver
    from safepoint.agent.run_context import RunContext


T = TypeVar("T")


class Outcome(Value, frozen=True):
    """How the foreign loop ended. `value`: its typed answer, if that is not the text of the last message."""

    text: str | None = None
    value: object = NO_VALUE
    stop_reason: StopReason = StopReason.END_TURN


class Answered(Value, frozen=True):
    """A call that the framework answered itself, as with arguments that do not fit."""

    text: str
    failed: bool = False


class ForeignLoop:
    """What a foreign loop tells and asks. Its methods are called inside `carry_out`, in any task of the framework's."""

    def __init__(self, record: RunContext, driver: ForeignDriver) -> None:
        self._record = record
        self._driver = driver
        # The tasks of the framework that have been here: what is left of them at the end is awaited, or listed.
        self.tasks: set[asyncio.Task[Any]] = set()  # Any: any task

    @property
    def run_id(self) -> str:
        return self._record.node.id

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation. The last message may have calls that are still to be made, see `open_calls`."""
        return tuple(self._record.messages)

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the last message that have no result in the conversation, of a run that continues."""
        batch = self._driver.batch
        return tuple(call.call for call in batch.calls) if batch is not None else ()

    @property
    def closed_messages(self) -> tuple[Message, ...]:
        """The same without the open calls, and without the message that has them."""
        messages = self.messages
        return messages[:-1] if self.open_calls else messages

    @property
    def reply_to_replay(self) -> Message | None:
        """The last reply, if its calls are still to be made: hand it to the framework in place of a model call."""
        return self._record.messages[-1] if self.open_calls else None

    def memory(self, call_id: str) -> CallState:
        """What an open call remembers of the run that this one continues: answers of persons among it."""
        return self._driver.memory(call_id)

    @property
    def deps(self) -> Any:  # Any: the user's own
        return self._record.deps

    @property
    def session_id(self) -> str | None:
        """The id of the session that the run belongs to."""
        found = getattr(self._record.session, "id", None)
        return found if isinstance(found, str) else None

    @property
    def is_heard(self) -> bool:
        return self._record.is_heard

    @property
    def is_inside_call(self) -> bool:
        """Whether the framework calls from inside a tool of this run: then it is a sub-agent's business."""
        return is_inside_call(self.run_id)

    # -- model calls ---------------------------------------------------------------------------------------------------

    async def begin_model(self, model: str, answered: Mapping[str, Answered] | None = None) -> tuple[Message, ...]:
        """A model call is about to start. A safe point; `answered`: how the framework answered calls itself.

        Returns messages of a person that join the conversation here; only where `promises.steering` holds.
        Cancellation: lands here if the run stops.
        """
        self.visit()
        driver, record = self._driver, self._record
        await driver.end_calls("the framework went on without the call")
        driver.end_batch(answered or {})
        await driver.stand("after_tool", "after_tools")
        if not await driver.pass_gate(lambda gate: gate.of_model(model)) or driver.stops_before_model():
            await self._park()
        heard = driver.hear()
        await self._save()
        if driver.runner.has_hooks("before_model"):
            await driver.runner.call_hooks("before_model", ModelRequest(tuple(record.messages)))
        if not driver.may_go_on():
            await self._park()
        driver.open_model_call(model)
        return heard

    def say(self, text: str) -> None:
        """More words of the answer."""
        self._driver.receive(TextDelta(text))

    def think(self, text: str, signature: str | None = None) -> None:
        """More thinking."""
        self._driver.receive(ReasoningDelta(text, signature))

    async def end_model(self, message: Message | None, usage: Usage | None = None) -> None:
        """The reply is complete; None if it has nothing that can be kept. A safe point, if the reply has calls.

        Cancellation: as above.
        """
        self.visit()
        driver, record = self._driver, self._record
        driver.close_model_call(message, usage)
        await self._save()
        if message is not None and driver.runner.has_hooks("after_model"):
            await driver.runner.call_hooks("after_model", message)
        if driver.batch is not None:
            await driver.stand("after_model")
        if driver.batch is not None and record.check_safe_point("after_model") is not None:
            await self._park()

    def fail_model(self, error: BaseException) -> None:
        """The model call failed."""
        self._driver.fail_model_call(error)

    # -- tools ---------------------------------------------------------------------------------------------------------

    async def call_tool(
        self,
        call_id: str,
        name: str,
        args: Mapping[str, Any],
        perform: Body,
        render: Callable[[object], object] | None = None,
    ) -> object:
        """Make a tool call of the last reply. `perform` is the framework's own tool, with the arguments.

        Returns what that returned, raises what it raised, or returns `CallResult` where Safepoint has the result.
        Cancellation: the framework gives the call up; the call is cut.
        """
        self.visit()
        call = self._driver.prepare_call(call_id, name, args)
        tool = call.tool
        assert isinstance(tool, ForeignTool), "its batch has made it"
        raw = call.call.args

        async def made(given: Mapping[str, Any]) -> object:
            return await perform(args if given == raw else given)  # a hook may have replaced them

        tool.perform = made
        if render is not None:
            tool.render = render
        if not call.queued or self._driver.gives_way:
            return self._driver.result_of(call)
        if not call.mild:
            await self._driver.stand("before_effect")
        if not await self._driver.pass_gate(lambda gate: gate.of_tool(name)) or not self._driver.start_call(call):
            await self._park()
        try:
            while not call.over:
                await self._driver.turn_of(call)
        except asyncio.CancelledError:
            if call.execution is not None and not call.over and self._record.node.stop is None:
                call.execution.node.cancel(reason="the framework cancelled the call")
            raise
        if self._driver.holds(call):
            await self._park()
        if tool.error is not None and call.entry.state is LedgerState.FAILED:
            raise tool.error
        if tool.has_value and call.entry.state is LedgerState.FINISHED:
            return tool.value
        return self._driver.result_of(call)

    async def _save(self) -> None:
        """Write what was recorded, if there is a journal. Cancellation: all of it is written, or nothing."""
        if self._record.journal is not None and (facts := self._record.unsaved()):
            await self._record.note(*facts)

    async def in_thread(self, call: Callable[[], T], name: str) -> T:
        """Run a plain function of the framework's in a daemon thread that is listed if it does not end.

        Cancellation: ends the waiting.
        """
        return await (in_call_thread(call) if self.is_inside_call else self._driver.in_thread(call, name))

    # -- waiting -------------------------------------------------------------------------------------------------------

    def visit(self) -> None:
        """Tell of a task of the framework's own. What is left of it when the loop has ended is awaited, or listed."""
        task = asyncio.current_task()
        if task is not None:
            self.tasks.add(task)

    async def _park(self) -> None:
        """Wait for the cancellation that the driver sends once no call runs any more. Cancellation: that one."""
        self._driver.halt()
        await asyncio.get_running_loop().create_future()
