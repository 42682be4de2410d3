"""The run of an agent that calls a model: between its beginning and its end, model calls and the tools they request."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, assert_never

from msgspec.structs import replace

from safepoint._core.asks import is_seconds
from safepoint._core.work import Failed, NeverRan, Returned, Work, WorkResult
from safepoint.agent.base_driver import BaseDriver
from safepoint.agent.budget import Meter
from safepoint.agent.events import Event, ModelCallEnded, RetryScheduled, TextStreamed
from safepoint.agent.freeze import Gate
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.model import Model, ModelRequest, ModelSettings, provider_names
from safepoint.agent.model_call import receive, usage_of
from safepoint.agent.open_calls import OpenCalls
from safepoint.agent.options import Instructions
from safepoint.agent.output import OUTPUT_TRIES, OutputTool, asks_again
from safepoint.agent.partial_reply import PartialReply
from safepoint.agent.preview import CancelQuery, Preview, preview
from safepoint.agent.result import NO_VALUE, StopReason
from safepoint.agent.resume import Resume
from safepoint.agent.run_context import RunContext
from safepoint.agent.steps import BackOff, CallModel, Close, Finalize, OwnStep, RunTools, Step
from safepoint.agent.tool_batch import NEW_MESSAGE, ToolBatch
from safepoint.agent.trim import Trim, trimmed
from safepoint.agent.usage import NO_USAGE, Usage
from safepoint.errors import AskPerson, ModelError, ModelMisbehaved, ModelUnavailable
from safepoint.history.closing import close_history
from safepoint.history.parts import Message, Text
from safepoint.history.wellformed import well_formed
from safepoint.tools.bad_arguments import BadArguments
from safepoint.tools.base import BaseTool


class ModelAgent(Protocol):
    """The agent as its driver needs it: models, instructions, settings and tools."""

    @property
    def models(self) -> Sequence[Model]: ...
    @property
    def instructions(self) -> Instructions[Any] | None: ...  # Any: dependencies of every type
    @property
    def tools(self) -> Mapping[str, BaseTool]: ...
    @property
    def settings(self) -> ModelSettings: ...
    @property
    def trim(self) -> Trim | None: ...
    @property
    def output_tool(self) -> OutputTool[Any] | None: ...  # Any: of every output type
    @property
    def retries(self) -> int: ...
    @property
    def max_parallel_tools(self) -> int | None: ...
    def has_handed_over(self, ledger: Iterable[LedgerEntry]) -> bool: ...


# Guidance that tools add to the instructions of their agent, as an MCP server's tools do.


def with_guidance(instructions: str | None, tools: Iterable[BaseTool]) -> str | None:
    """The instructions, followed by the guidance of the tools; guidance that several tools share appears once."""
    said = dict.fromkeys(tool.guidance for tool in tools if tool.guidance)
    return "\n\n".join(filter(None, [instructions, *said])) if said else instructions


def _names(model: Model) -> tuple[str, ...]:
    """By which a freeze may name it."""
    model_name = provider_names(model)[0]
    return (model.name,) if model_name is None else (model.name, model_name)


LONGEST_BACK_OFF = 30.0
_CUT_OFF = (StopReason.MAX_TOKENS, StopReason.REFUSED)


class Driver(BaseDriver[OwnStep]):
    """Drives one run of an agent that calls a model."""

    def __init__(self, agent: ModelAgent, record: RunContext, resume: Resume | None) -> None:
        super().__init__(record, resume)
        self._agent = agent
        # The calls of the last reply, until the conversation has their results.
        self.batch: ToolBatch | None = None
        self._unfit_answers = 0
        if resume is not None:
            self._restore(resume)

    def _restore(self, resume: Resume) -> None:
        """Set the driver to the state of the checkpoint."""
        record, checkpoint = self._record, resume.checkpoint
        record.steps_done, record.spent_before = checkpoint.step, checkpoint.spent
        last = record.messages[-1] if record.messages else None
        open_ids = {call.id for call in last.tool_calls} if last is not None else set[str]()
        for entry in checkpoint.ledger:
            if entry.call_id not in open_ids:
                record.ledger.open(entry)
        if last is not None and last.tool_calls:
            self.batch = ToolBatch(record, last, self._agent.max_parallel_tools, resume)
        amendment = resume.amendment()
        for message in (*checkpoint.pending, *((amendment,) if amendment is not None else ())):
            record.amendments.append(record.steering.add(message))
        if checkpoint.stop_reason in _CUT_OFF and not record.amendments and last is not None and self.batch is None:
            self._take_back(last)
        if record.meter is not None:
            record.meter.carry(checkpoint.used, record.ledger)

    def _take_back(self, last: Message) -> None:
        """Drop a reply that was cut off by a limit or refused: it is no answer, and the call is made again."""
        if last.role == "assistant":
            self._record.messages.pop()
            self._record.count_steps(-1)

    async def _act(self, step: OwnStep) -> Step:
        match step:
            case CallModel():
                gate = self._record.gate
                if gate is not None and gate.switch.freezes and not await self._pass(gate, step):
                    return Close(StopReason.CANCELLED)
                meters = [] if step.is_repeated else self._record.meters()
                if meters and not all(meter.allows_step() for meter in meters):
                    return self._last_step()
                if meters and self._at_soft_mark(meters):
                    return Close(StopReason.CANCELLED)
                return await self._call_model(step)
            case BackOff(seconds, then):
                await self.runner.perform(partial(asyncio.sleep, seconds), "back-off")
                return self._unless_stopped(then)
            case RunTools(batch):
                return await self._run_tools(batch)
            case _:
                assert_never(step)

    async def _pass(self, gate: Gate, step: CallModel) -> bool:
        """Wait until the model may be called; False if the run is to stop. Cancellation: as in `WorkRunner.wait`."""
        return await self.runner.pass_gate(partial(gate.of_model, *_names(self._agent.models[step.model])))

    def _first(self) -> Step:
        """The first step: a model call, or the step at which the run was stopped."""
        if self.batch is not None:
            return RunTools(self.batch)
        last = self._record.messages[-1]
        if last.role == "assistant" and not self._record.steering.waiting:
            again = self._unfit(last)
            if again is not None:
                return again
            return Finalize(StopReason.END_TURN) if self._node.answer() is None else Close(StopReason.CANCELLED)
        return CallModel()

    def _at_soft_mark(self, meters: Sequence[Meter]) -> bool:
        """Whether a budget has just asked and the run stops between these two steps."""
        asked = [meter.asks_before_step() for meter in meters]  # a list: `any` would stop at the first
        return any(asked) and self._record.check_safe_point("after_tools") is not None

    def _last_step(self) -> Step:
        return Close(StopReason.MAX_STEPS if self._node.answer() is None else StopReason.CANCELLED)

    # -- a model call --------------------------------------------------------------------------------------------------

    async def _call_model(self, step: CallModel) -> Step:
        record = self._record
        record.step = record.steps_done + 1
        failed = await self._save() if record.hear() else None
        if failed is not None:
            return failed
        if record.messages[-1].role == "assistant":  # the message that was to join was withdrawn
            return self._first()
        instructions = self._agent.instructions
        if callable(instructions) or self._agent.trim is not None or self.runner.has_hooks("before_model"):
            prepared = await self.runner.perform(self._prepare, "prepare")
            if not isinstance(prepared, Returned):
                return self._unprepared(prepared)
            request = prepared.value
        else:
            request = self._request(instructions)
        incoming, model = PartialReply(), self._agent.models[step.model]
        record.hub.say_under_way(record.node.id, partial(self._so_far, incoming))
        record.calling = _names(model) if record.gate is not None else ()
        outcome = await self.runner.perform(partial(receive, record, model, request, incoming), model.name)
        record.calling = ()
        record.hub.said(record.node.id)
        if isinstance(outcome, NeverRan):
            return Close(StopReason.CANCELLED)
        next_step = self._received(step, request, incoming, outcome)
        asks_for_tools = isinstance(next_step, RunTools)
        if not asks_for_tools:
            await self.runner.give_way()
        failed = await self._save() if asks_for_tools else None
        if failed is not None:
            return failed
        if self.runner.has_hooks("after_model") and (asks_for_tools or isinstance(next_step, Finalize)):
            await self.runner.run_hooks("after_model", record.messages[-1])
        if asks_for_tools:
            if not self._node.is_quiet:
                await self.runner.stand("after_model")
            if self._record.check_safe_point("after_model") is not None:
                return Close(StopReason.CANCELLED)
        return next_step

    async def _prepare(self) -> ModelRequest:
        """Build the request; the user's own code takes part. Cancellation: cuts that code; nothing is sent yet."""
        instructions = self._agent.instructions
        if callable(instructions):
            made = instructions(self._record.run)
            instructions = await made if inspect.isawaitable(made) else made
            if not isinstance(instructions, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
                raise TypeError(f"instructions returned {instructions!r}, which is no str")
        self._record.hear()
        request = self._request(instructions)
        if self._agent.trim is not None:
            request = replace(request, messages=await trimmed(self._agent.trim, request.messages))
        await self.runner.call_hooks("before_model", request)
        return request

    def _request(self, instructions: str | None) -> ModelRequest:
        agent = self._agent
        specs = tuple(tool.spec for tool in agent.tools.values())
        guidance = with_guidance(instructions, agent.tools.values())
        return ModelRequest(tuple(self._record.messages), guidance, specs, agent.settings)

    def _unprepared(self, outcome: WorkResult[ModelRequest]) -> Step:
        if self._node.check_stop() is not None:
            return Close(StopReason.CANCELLED)
        error = outcome.error if isinstance(outcome, Failed) else None
        if isinstance(error, AskPerson):
            return self._interrupted()
        return self._fail(error or ModelError("the request could not be prepared"), None)

    def _so_far(self, incoming: PartialReply) -> Event | None:
        text = incoming.kept_text
        return self._record.event(TextStreamed, step=self._record.step, text=text) if text else None

    def _received(
        self, step: CallModel, request: ModelRequest, incoming: PartialReply, outcome: WorkResult[None]
    ) -> Step:
        """The call has ended. Record it and return the next step, without an await in between."""
        record = self._record
        incoming.close()
        error = outcome.error if isinstance(outcome, Failed) and incoming.finish is None else None
        message: Message | None = None
        if incoming.finish is not None:
            try:
                message = incoming.reply(frozenset() if not incoming.has_calls else record.known_call_ids())
            except ModelMisbehaved as misbehaved:
                error = misbehaved
        # A call that failed before its first token may never have reached the model: its cost is unknown.
        unsent = isinstance(outcome, NeverRan) or (error is not None and incoming.empty)
        usage = NO_USAGE if unsent else usage_of(request, incoming)
        record.spend(usage)
        for meter in record.payers():
            meter.spent(self._agent.models[step.model].name, usage)
        complete = incoming.finish is not None and error is None
        reply = message if complete else incoming.kept()
        self._tell_model_call(reply, usage, complete=complete, error=error)
        if error is not None:
            return self._after_error(step, incoming, error)
        if incoming.finish is None:
            record.cut_usage = usage
            return Close(StopReason.CANCELLED, incoming=incoming)
        return self._after_reply(message, incoming)

    def _tell_model_call(
        self, message: Message | None, usage: Usage, *, complete: bool, error: BaseException | None
    ) -> None:
        node = self._node
        cut = node.stop.recorded(node.clock.wall()) if node.stop and not complete and error is None else None
        self._record.emit(
            ModelCallEnded,
            step=self._record.step,
            message=message,
            usage=usage,
            complete=complete,
            error=error,
            cancellation=cut,
        )

    def _after_reply(self, message: Message | None, incoming: PartialReply) -> Step:
        self._record.count_steps(1)
        self._record.hooked.pop("before_model", None)
        if message is not None:
            self._record.messages.append(message)
            if message.tool_calls:
                self._record.known_call_ids().update(call.id for call in message.tool_calls)
                self.batch = ToolBatch(self._record, message, self._agent.max_parallel_tools)
                self.batch.gives_way = self._record.steering.presses
                return RunTools(self.batch)
        if message is not None and incoming.stop_reason is StopReason.END_TURN:
            again = self._unfit(message)
            if again is not None:
                return again
        reason = incoming.stop_reason
        if self._node.answer() is not None:
            if message is None or reason is StopReason.END_TURN:
                return Close(StopReason.CANCELLED)
            self._take_back(message)
            return Close(StopReason.CANCELLED, incoming=incoming)
        return Finalize(reason) if message is not None else Close(reason)

    def _unfit(self, message: Message) -> Step | None:
        """The next step if an answer does not have the required type; None if it has."""
        output = self._agent.output_tool
        if output is None:
            return None
        try:
            output.read(message.text)
        except BadArguments as problem:
            failed = self._tried_in_vain(str(problem))
            if failed is not None:
                return failed
            self._record.messages.append(Message("user", (Text(asks_again(str(problem))),)))
            return self._unless_stopped(CallModel())
        return None

    def _tried_in_vain(self, problem: str) -> Step | None:
        """Count an answer that does not fit; the failure of the run if that was the last try."""
        self._unfit_answers += 1
        if self._unfit_answers < OUTPUT_TRIES:
            return None
        return self._fail(ModelMisbehaved(f"no answer of the required form in {OUTPUT_TRIES} tries: {problem}"), None)

    def _after_error(self, step: CallModel, incoming: PartialReply, error: BaseException) -> Step:
        """Retry, try the next model, or fail. Retries happen only before the first token and never after NOW."""
        if self._node.check_stop() is not None:
            return Close(StopReason.CANCELLED, incoming=incoming)
        agent = self._agent
        if incoming.empty and isinstance(error, ModelUnavailable) and step.attempt < agent.retries:
            pause = error.retry_after
            seconds = min(
                pause if pause is not None and is_seconds(pause) else 0.5 * 2**step.attempt,
                LONGEST_BACK_OFF,
            )
            self._record.emit(RetryScheduled, step=self._record.step, delay=seconds, error=error)
            return BackOff(seconds, CallModel(step.attempt + 1, step.model))
        if incoming.empty and isinstance(error, ModelError) and step.model + 1 < len(agent.models):
            return CallModel(0, step.model + 1)
        return self._fail(error, incoming)

    # -- tools ---------------------------------------------------------------------------------------------------------

    async def _run_tools(self, batch: ToolBatch) -> Step:
        self.runner.has_waited = False
        while True:
            while not batch.advance():
                if batch.held is not None:
                    await self.runner.wait_at(batch.held, idle=batch.is_idle)
                else:
                    await self.runner.wait()
            if not self._record.held_back:
                break
            await self.runner.stand(*self._record.held_back)
        # The safe point is decided in the step that ends the batch: if the loop turned in between, an ask that comes
        # later would take the place of the one that the run has stopped for. The run still stands there when the loop
        # has turned, so a message that a tool pushed takes effect before the next model call.
        step = self._after_batch(batch)
        if isinstance(step, CallModel):
            await self.runner.give_way()
            if batch.is_made_here and not self._node.is_quiet:
                await self.runner.stand("after_tool", "after_tools")
            if self._stops_after(batch):
                return Close(StopReason.CANCELLED)
        return step

    def _after_batch(self, batch: ToolBatch) -> Step:
        batch.end()
        if self._record.broken is not None:
            return self._fail(self._record.broken, None)
        if batch.waits:
            return self._interrupted()
        answer = batch.answer() if self._node.stop is None else None
        goes_on = answer is None or (self._record.steering.waiting and not batch.hands_over)
        if goes_on and self._stops_after(batch):
            return Close(StopReason.CANCELLED)
        messages = self._record.messages
        # The last message has the calls.
        messages[-1:] = close_history(messages[-1:], batch=batch.closed(NEW_MESSAGE if batch.gives_way else None))
        if batch.gives_way and batch.has_given_way:
            self._record.steering.has_room = True
        self.batch = None
        problem = batch.unfit_answer() if answer is None else None
        failed = self._tried_in_vain(problem) if problem is not None else None
        if failed is not None:
            return failed
        if answer is None or goes_on:
            return CallModel()
        messages.append(Message("assistant", (Text(well_formed(answer)),)))
        return Finalize(StopReason.END_TURN) if self._node.answer() is None else Close(StopReason.CANCELLED)

    def _stops_after(self, batch: ToolBatch) -> bool:
        """A run that continues at the end of a batch did not get there by its own work: it stops after the next one."""
        if not batch.is_made_here:
            return self._node.check_stop() is not None
        return self._record.check_safe_point("after_tool", "after_tools") is not None

    # -- what is left --------------------------------------------------------------------------------------------------

    def _remains(self, reason: str | None) -> OpenCalls:
        if self.batch is None:
            return OpenCalls({})
        self.batch.end()
        return self.batch.remains(reason)

    def _value(self, text: str) -> object:
        output = self._agent.output_tool
        if output is None or self._agent.has_handed_over(self._record.ledger):
            return NO_VALUE
        return output.read(text)

    def preview(self, query: CancelQuery) -> Preview:
        return preview(self.batch.calls if self.batch is not None else (), tuple(super().works()), query)

    def make_room(self) -> None:
        """A message cannot wait: the calls of this reply stop at points of their own, and queued ones never start."""
        if self.batch is not None:
            self.batch.make_room()
            self._record.wakeup.ring()

    def works(self) -> Iterator[Work[object]]:
        yield from super().works()
        for call in self.batch.calls if self.batch is not None else ():
            if call.work is not None:
                yield call.work

    def entry_of(self, work: Work[object]) -> LedgerEntry | None:
        calls = self.batch.calls if self.batch is not None else ()
        return next((call.entry for call in calls if call.work is work), None)
