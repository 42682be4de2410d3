"""The run: a plain loop over a closed union of next steps.

The driver's own task is never cancelled by Safepoint. It decides in plain functions, performs everything that may wait
on its stage, and waits there. So NOW interrupts the work and never the bookkeeping, and closing needs no shield.
"""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import assert_never

from safepoint._core.asks import is_seconds
from safepoint._core.reasons import Reason, Source
from safepoint._core.receipts import current_node
from safepoint._core.work import Done, Failed, Outcome
from safepoint.agent.batch import Batch
from safepoint.agent.ending import close
from safepoint.agent.events import (
    Event,
    ModelCallEnded,
    ModelCallStarted,
    RetryScheduled,
    RunEnded,
    RunStarted,
    TextStreamed,
)
from safepoint.agent.incoming import Incoming
from safepoint.agent.model import ModelRequest
from safepoint.agent.model_call import receive, usage_of
from safepoint.agent.record import Record
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.stage import Stage
from safepoint.agent.steps import BackOff, Begin, CallModel, Close, Over, RunTools, Settle, Step
from safepoint.agent.usage import Usage
from safepoint.errors import ModelError, ModelMisbehaved, ModelUnavailable
from safepoint.history.closing import close_history
from safepoint.history.parts import Message, Text
from safepoint.history.wellformed import well_formed

LONGEST_BACK_OFF = 30.0


class Driver:
    """Drives one run from its first step to its seal."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._node = record.node
        self.stage = Stage(record)
        self.batch: Batch | None = None
        self.result: RunResult[str] | None = None

    async def drive(self) -> None:
        """Run to the end. Cancellation: taken for the caller's; the run closes itself and returns."""
        token = current_node.set(self._node)
        try:
            self._record.emit(RunStarted, agent=self._record.agent.name)
            self.stage.open()
            step: Step = Begin()
            while not isinstance(step, Over):
                step = await self._take(step)
            await self.stage.tell_the_end(self.result, stopped=self._node.stop is not None)
        finally:
            current_node.reset(token)

    async def _take(self, step: Step) -> Step:
        match step:
            case Begin():
                await self.stage.run_hooks("before_run")
                return self._unless_stopped(CallModel())
            case CallModel():
                return await self._call_model(step)
            case BackOff(seconds, then):
                await self.stage.perform(partial(asyncio.sleep, seconds), "back-off")
                return self._unless_stopped(then)
            case RunTools(batch):
                return await self._run_tools(batch)
            case Settle(stop_reason):
                await self.stage.run_hooks("after_run", self._record.messages[-1].text)
                return Close(stop_reason)
            case Close():
                await self.stage.quieten()
                return self._close(step)
            case Over():
                return step
            case _:
                assert_never(step)

    def _unless_stopped(self, step: Step) -> Step:
        return step if self._node.judge_now() is None else Close(StopReason.CANCELLED)

    # -- a model call --------------------------------------------------------------------------------------------------

    async def _call_model(self, step: CallModel) -> Step:
        record = self._record
        if step == CallModel():
            record.step += 1
        instructions = record.agent.instructions
        if callable(instructions) or self.stage.has_hooks("before_model"):
            prepared = await self.stage.perform(self._prepare, "prepare")
            if not isinstance(prepared, Done):
                return self._unprepared(prepared)
            request = prepared.value
        else:
            request = self._request(instructions)
        incoming, model = Incoming(), record.agent.models[step.model]
        record.emit(ModelCallStarted, step=record.step, model=model.name)
        record.hub.say_under_way(record.node.id, partial(self._so_far, incoming))
        outcome = await self.stage.perform(partial(receive, record, model, request, incoming), model.name)
        record.hub.said(record.node.id)
        next_step = self._received(step, request, incoming, outcome)
        if isinstance(next_step, RunTools | Settle):
            await self.stage.run_hooks("after_model", record.messages[-1])
        if isinstance(next_step, RunTools) and self._node.judge("after_model") is not None:
            next_step.batch.end()
            return Close(StopReason.CANCELLED, batch=next_step.batch)
        return next_step

    async def _prepare(self) -> ModelRequest:
        """The request, where the user's own code has a say. Cancellation: cuts that code; nothing was sent yet."""
        instructions = self._record.agent.instructions
        if callable(instructions):
            made = instructions(self._record.run)
            instructions = await made if inspect.isawaitable(made) else made
        request = self._request(instructions)
        await self.stage.call_hooks("before_model", request)
        return request

    def _request(self, instructions: str | None) -> ModelRequest:
        agent = self._record.agent
        specs = tuple(tool.spec for tool in agent.tools.values())
        return ModelRequest(tuple(self._record.messages), instructions, specs, agent.settings)

    def _unprepared(self, outcome: Outcome[ModelRequest]) -> Step:
        if self._node.judge_now() is not None:
            return Close(StopReason.CANCELLED)
        error = outcome.error if isinstance(outcome, Failed) else None
        return self._fail(error or ModelError("the request could not be prepared"), None)

    def _so_far(self, incoming: Incoming) -> Event | None:
        text = incoming.kept_text
        return self._record.event(TextStreamed, step=self._record.step, text=text) if text else None

    def _received(self, step: CallModel, request: ModelRequest, incoming: Incoming, outcome: Outcome[None]) -> Step:
        """The call is over, one way or another: record it, and say what is next. Record and answer are one act."""
        record = self._record
        incoming.close()
        error = outcome.error if isinstance(outcome, Failed) and incoming.finish is None else None
        message: Message | None = None
        if incoming.finish is not None:
            try:
                message = incoming.reply(self._call_ids())
            except ModelMisbehaved as misbehaved:
                error = misbehaved
        # A call that failed before its first token may never have reached the model: nothing is known to be spent.
        usage = Usage() if error is not None and incoming.empty else usage_of(request, incoming)
        record.spend(usage)
        complete = incoming.finish is not None and error is None
        record.emit(ModelCallEnded, step=record.step, message=message, usage=usage, complete=complete, error=error)
        if error is not None:
            return self._after_error(step, incoming, error)
        if incoming.finish is None:
            return Close(StopReason.CANCELLED, incoming=incoming)
        return self._after_reply(message, incoming)

    def _after_reply(self, message: Message | None, incoming: Incoming) -> Step:
        if message is not None:
            self._record.messages.append(message)
            if message.tool_calls:
                self.batch = Batch(self._record, message)
                return RunTools(self.batch)
        if self._node.answer() is not None:
            return Close(StopReason.CANCELLED)
        reason = incoming.stop_reason
        return Settle(reason) if message is not None else Close(reason)

    def _after_error(self, step: CallModel, incoming: Incoming, error: BaseException) -> Step:
        """Try again, try the next model, or fail. Only before the first token, and never once somebody said NOW."""
        if self._node.judge_now() is not None:
            return Close(StopReason.CANCELLED, incoming=incoming)
        agent = self._record.agent
        if incoming.empty and isinstance(error, ModelUnavailable) and step.attempt < agent.retries:
            wish = error.retry_after
            seconds = min(wish if wish is not None and is_seconds(wish) else 0.5 * 2**step.attempt, LONGEST_BACK_OFF)
            self._record.emit(RetryScheduled, step=self._record.step, delay=seconds, error=error)
            return BackOff(seconds, CallModel(step.attempt + 1, step.model))
        if incoming.empty and isinstance(error, ModelError) and step.model + 1 < len(agent.models):
            return CallModel(0, step.model + 1)
        return self._fail(error, incoming)

    def _fail(self, error: BaseException, incoming: Incoming | None) -> Step:
        if self._node.answer() is not None:
            return Close(StopReason.CANCELLED, incoming=incoming)
        return Close(StopReason.ERROR, incoming=incoming, error=error)

    def _call_ids(self) -> frozenset[str]:
        return frozenset(call.id for message in self._record.messages for call in message.tool_calls)

    # -- tools ---------------------------------------------------------------------------------------------------------

    async def _run_tools(self, batch: Batch) -> Step:
        while not batch.advance():
            await self.stage.wait()
        return self._after_batch(batch)

    def _after_batch(self, batch: Batch) -> Step:
        batch.end()
        answer = batch.answer() if self._node.stop is None else None
        if answer is None and (self._node.judge("after_tool") or self._node.judge("after_tools")):
            return Close(StopReason.CANCELLED, batch=batch)
        messages = self._record.messages
        messages[:] = close_history(messages, batch=batch.closed(None))
        if answer is None:
            return CallModel()
        messages.append(Message("assistant", (Text(well_formed(answer)),)))
        return Settle(StopReason.END_TURN) if self._node.answer() is None else Close(StopReason.CANCELLED)

    # -- the end -------------------------------------------------------------------------------------------------------

    def task_done(self, task: asyncio.Task[None]) -> None:
        if self.result is None:
            self.end_anyway(None if task.cancelled() else task.exception())

    def end_anyway(self, error: BaseException | None) -> None:
        """The last resort, so that nobody waits for ever: the task is over and the run is not.

        `error` is what broke it; None if the task was cancelled before its first step.
        """
        batch = self.batch if self._record.messages[-1].tool_calls else None
        for call in batch.calls if batch is not None else ():
            if call.work is not None:
                call.work.stop(force=True)
        if error is None:
            self._record.emit(RunStarted, agent=self._record.agent.name)
            self._node.cancel(reason=Reason("the task of the run was cancelled", Source.CALLER))
        stopped = self._node.judge_now() is not None
        self._close(Close(StopReason.CANCELLED if stopped else StopReason.ERROR, batch=batch, error=error))

    def _close(self, step: Close) -> Step:
        """Seal, tell, and let everybody who waits know, in this order and without a pause."""
        record = self._record
        closed = close(record, step)
        self.result = closed.result
        self._node.seal()
        result = closed.result
        record.emit(
            RunEnded,
            stop_reason=result.stop_reason,
            usage=result.usage,
            cancellation=result.cancellation,
            error=result.error,
        )
        record.sealed = True
        self._node.finish(closed.ending)
        return Over()
