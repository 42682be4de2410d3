"""The run of an agent of another framework: its loop is one piece of work, and each of its tool calls another.

    Begin ──▶ Perform ──the loop has ended──▶ Finalize ──▶ Close
                 └──halted, stopped, failed─────────────────▲

While the loop runs, this driver wakes when a call ends and lets the framework have its result. Once the run is to stop,
no call starts and no result is handed out: the loop waits inside `ForeignLoop` until the last call is over, and is
cancelled there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from msgspec.structs import replace

from safepoint._core.ladder import StopPolicy, WorkKind
from safepoint._core.orphans import Orphan
from safepoint._core.points import BETWEEN, Level
from safepoint._core.threads import in_thread
from safepoint._core.wake import call_soon
from safepoint._core.work import Abandoned, Cut, Failed, NeverRan, Returned, Work, WorkResult
from safepoint._values import Value
from safepoint.agent.base_driver import BaseDriver, Frame
from safepoint.agent.events import Event, ModelCallEnded, ModelCallStarted, ReasoningStreamed, TextStreamed
from safepoint.agent.foreign_loop import Answered, ForeignLoop, Outcome
from safepoint.agent.foreign_tool import CallResult
from safepoint.agent.freeze import Freeze, Gate
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.model import Finish, ReasoningDelta, TextDelta
from safepoint.agent.open_calls import OpenCalls
from safepoint.agent.partial_reply import PartialReply
from safepoint.agent.preview import CancelQuery, Preview, preview
from safepoint.agent.promises import Promises
from safepoint.agent.result import StopReason
from safepoint.agent.resume import Resume
from safepoint.agent.run_context import RunContext
from safepoint.agent.steps import Close, Finalize
from safepoint.agent.tool_batch import NEW_MESSAGE, ToolBatch
from safepoint.agent.tool_call import BatchedCall
from safepoint.agent.usage import NO_USAGE, Usage
from safepoint.errors import AskPerson, SafepointError
from safepoint.history.check import part_rank
from safepoint.history.closing import close_history, result_text
from safepoint.history.estimate import estimate_messages, estimate_tokens
from safepoint.history.parts import Message, Part, Text, ToolCall
from safepoint.history.states import LedgerState
from safepoint.history.wellformed import well_formed
from safepoint.tools.call_state import CallState

CHARS_PER_TOKEN = 4
T = TypeVar("T")


class LoopAgent(Protocol):
    """The agent as its driver needs it."""

    @property
    def promises(self) -> Promises: ...
    async def carry_out(self, loop: ForeignLoop) -> Outcome: ...
    def value_of(self, text: str) -> object: ...


class Perform(Value, frozen=True):
    """Run the foreign loop."""


Step: TypeAlias = Perform | Frame


class ForeignBatch(ToolBatch):
    """The calls of the last reply. The framework decides when each of them starts."""

    def find(self, call_id: str) -> BatchedCall | None:
        return next((call for call in self.calls if call.call.id == call_id), None)

    def start(self, call: BatchedCall) -> bool:
        """Start the call if it may start now. A decision."""
        if not self._may_start(call):
            return False
        call.begin()
        self._queued.remove(call)
        if call.running:
            self._running.append(call)
            call.take_first_step()
            if call.harvest():
                self._running.remove(call)
        return True

    def harvest(self) -> list[BatchedCall]:
        """The calls that have ended since the last time."""
        over = [call for call in self._running if call.harvest()]
        self._running = [call for call in self._running if call not in over]
        if over and (self._running or self._queued):
            self._record.check_safe_point("after_tool")
        return over

    @property
    def is_quiet(self) -> bool:
        return not self._running


class ForeignDriver(BaseDriver[Perform]):
    """Drives one run of an agent of another framework."""

    def __init__(self, agent: LoopAgent, record: RunContext, resume: Resume | None) -> None:
        super().__init__(record, resume)
        self._agent = agent
        self.loop = ForeignLoop(record, self)
        self.batch: ForeignBatch | None = None
        self._incoming: PartialReply | None = None
        self._model = ""
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        # Why the work is halted, if not because the run was asked to stop.
        self._ends_as: StopReason | None = None
        self._is_halted = False
        # The ids of the open calls here, by the framework's ids.
        self._ids: dict[str, str] = {}
        self._outcome = Outcome()
        # Something changed for what waits for a thaw.
        self._may_pass = asyncio.Event()
        # Plain functions of the framework's own loop.
        self._threads: list[Work[Any]] = []  # Any: of every function
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
            self.batch = ForeignBatch(record, last, None, resume)
        amendment = resume.amendment()
        for message in (*checkpoint.pending, *((amendment,) if amendment is not None else ())):
            record.amendments.append(record.steering.add(message))
        if record.meter is not None:
            record.meter.carry(checkpoint.used, record.ledger)
        if record.amendments and not self._agent.promises.steering:
            self.end_batch({})  # the message takes the place of the calls that are left

    def _first(self) -> Step:
        if self.batch is not None and self.batch.waits:
            return Close(StopReason.INTERRUPTED if self._node.pause() is None else StopReason.CANCELLED)
        if self.batch is not None and not self.batch.is_made_here:
            self.end_batch({})  # every call has its result: the framework goes on with the next model call
        if self.batch is None:
            self._record.hear()
            last = self._record.messages[-1]
            if last.role == "assistant":
                self._outcome = Outcome(last.text, self._agent.value_of(last.text))
                return Finalize(StopReason.END_TURN) if self._node.answer() is None else Close(StopReason.CANCELLED)
        return Perform()

    async def _act(self, step: Perform) -> Step:
        outcome = await self.runner.perform(
            partial(self._agent.carry_out, self.loop), self._agent.promises.framework, meanwhile=self._advance
        )
        self._advance()
        self.give_up_calls("the framework ended without the call")
        while self.batch is not None and not self.batch.is_quiet:
            await self.runner.wait()
            self._advance()
        await self._sweep()
        await self.runner.give_way()
        return self._after(outcome)

    async def in_thread(self, call: Callable[[], T], name: str) -> T:
        """Cancellation: ends the waiting; the thread is told, and listed if it does not end."""
        record, future = self._record, asyncio.get_running_loop().create_future()
        supervisor = record.supervisor

        def over() -> None:
            record.wakeup.ring()
            if not future.done():
                future.set_result(None)

        made: list[Work[T]] = []
        work = supervisor.begin(
            lambda: in_thread(made[0], call, supervisor.clock),
            name=name,
            path=f"{self._node.path}/{name}",
            ladder=record.ladder,
            stop_policy=StopPolicy(WorkKind.THREAD),
            context=copy_context(),
            on_end=over,
        )
        made.append(work)
        self._threads.append(work)
        await future
        self._threads.remove(work)
        match work.outcome:
            case Returned(value):
                return value
            case Failed(error) | Cut(BaseException() as error):
                raise error
            case _:
                raise asyncio.CancelledError

    async def _sweep(self) -> None:
        """Wait, bounded, for tasks of the framework's own that outlive its loop; what does not end is an orphan."""
        record, force = self._record, self._node.pushed is Level.FORCE
        await self._sweep_tasks()
        for work in self._threads:
            work.stop(force=force)
        while any(not work.ended for work in self._threads):
            await self.runner.wait()
        for work in self._threads:
            if isinstance(work.outcome, Abandoned):
                record.name_orphan(work.outcome.orphan)

    async def _sweep_tasks(self) -> None:
        record = self._record
        left = {task for task in self.loop.tasks if not task.done()}
        if not left:
            return
        clock, limit = (
            record.supervisor.clock,
            record.ladder.kill if self._node.pushed is Level.FORCE else record.ladder.task,
        )
        timer = clock.call_at(clock.now() + limit, record.wakeup.ring)
        for task in left:
            task.cancel()
            task.add_done_callback(lambda _task: record.wakeup.ring())
        while any(not task.done() for task in left) and clock.now() < timer.when():
            await self.runner.wait()
        timer.cancel()
        for task in left:
            if not task.done():
                name = task.get_name()
                record.name_orphan(Orphan(name, f"{self._node.path}/{name}", clock=clock, task=task))

    def _after(self, outcome: WorkResult[Outcome]) -> Step:
        """The foreign loop is over: how the run ends."""
        incoming = self._incoming
        if incoming is not None:
            self._tell_cut(outcome)
        if self._record.broken is not None:
            return self._fail(self._record.broken, incoming)
        if self._ends_as is not None and self._node.stop is None:
            return Close(self._ends_as if self._node.pause() is None else StopReason.CANCELLED, incoming=incoming)
        match outcome:
            case Returned(ended):
                return self._finished(ended)
            case Failed(error) if isinstance(error, AskPerson):
                return self._interrupted()
            case Failed(error):
                return self._fail(error, incoming)
            case Cut(error) if self._node.check_stop() is None:
                why = error or SafepointError(
                    f"the loop of {self._agent.promises.framework} was cancelled from outside"
                )
                return self._fail(why, incoming)
            case _:
                self._node.check_stop()
                return Close(StopReason.CANCELLED, incoming=incoming)

    def _finished(self, ended: Outcome) -> Step:
        messages = self._record.messages
        if self._node.stop is None:
            self.end_batch({})
        self._outcome = ended
        if self._node.stop is not None or self._node.answer() is not None:
            return Close(StopReason.CANCELLED)
        text = ended.text if ended.text is not None else messages[-1].text
        if messages[-1].role != "assistant":
            spoken = text if text.strip() else "(an answer without words)"
            messages.append(Message("assistant", (Text(well_formed(spoken)),)))
        if ended.stop_reason is not StopReason.END_TURN:
            return Close(ended.stop_reason)
        return Finalize(StopReason.END_TURN)

    async def stand(self, *places: str) -> None:
        """The loop stands at these places: wait there for as long as the run is held. Cancellation: ends the wait."""
        if not self._node.is_quiet:
            await self.runner.stand(*places, in_work=True)

    async def pass_gate(self, find: Callable[[Gate], Freeze | None]) -> bool:
        """Wait until no freeze is in the way of what the loop begins next; False if the run is to stop.

        Cancellation: ends the wait.
        """
        record, gate = self._record, self._record.gate
        if gate is None or not gate.switch.freezes:
            return True
        loop, changed = asyncio.get_running_loop(), self._may_pass
        try:
            with gate.switch.telling(lambda: call_soon(loop, changed.set)):
                while (freeze := find(gate)) is not None:
                    changed.clear()
                    record.obey(freeze)
                    quiet = self.batch is None or self.batch.is_quiet
                    if quiet and self._node.check_safe_point(BETWEEN) is not None:
                        break
                    await changed.wait()
        finally:
            record.held = None
        return self._node.stop is None

    # -- decisions, in the tasks of the framework ----------------------------------------------------------------------

    def stops_before_model(self) -> bool:
        """Whether the run ends here, before the next model call."""
        meters = tuple(self._record.meters())
        if self._record.check_safe_point("after_tool", "after_tools") is not None:
            return True
        if not all(meter.allows_step() for meter in meters):
            self._ends_as = StopReason.MAX_STEPS
            return True
        asked = [meter.asks_before_step() for meter in meters]  # a list: `any` would stop at the first
        return any(asked) and self._record.check_safe_point("after_tools") is not None

    def may_go_on(self) -> bool:
        return self._node.check_stop() is None and self._record.broken is None

    def hear(self) -> tuple[Message, ...]:
        """The messages that join the conversation before this model call."""
        if not self._agent.promises.steering and self._record.step:
            return ()
        before = len(self._record.messages)
        joined = self._record.messages[-1] if self._record.messages[-1].role == "user" else None
        if not self._record.hear():
            return ()
        if joined is not None and self._record.messages[before - 1] != joined:
            old = len(joined.parts)
            return (Message("user", self._record.messages[before - 1].parts[old:]), *self._record.messages[before:])
        return tuple(self._record.messages[before:])

    def open_model_call(self, model: str) -> None:
        record = self._record
        self._model, self._incoming = model, PartialReply()
        record.step = record.steps_done + 1
        record.emit(ModelCallStarted, step=record.step, model=model)
        record.hub.say_under_way(record.node.id, partial(self._so_far, self._incoming))

    def _so_far(self, incoming: PartialReply) -> Event | None:
        text = incoming.kept_text
        return self._record.event(TextStreamed, step=self._record.step, text=text) if text else None

    def receive(self, piece: TextDelta | ReasoningDelta) -> None:
        incoming, record = self._incoming, self._record
        words = incoming.add(piece) if incoming is not None and incoming.finish is None else None
        if incoming is None or not words:
            return
        if record.is_heard:
            kind = TextStreamed if isinstance(piece, TextDelta) else ReasoningStreamed
            record.emit(kind, step=record.step, text=words)
        for meter in record.payers():
            meter.streaming(self._model, incoming.chars // CHARS_PER_TOKEN)

    def close_model_call(self, message: Message | None, usage: Usage | None) -> None:
        """Record the reply, without an await in between."""
        incoming, record = self._incoming, self._record
        if incoming is None:
            return
        self._incoming = None
        incoming.add(Finish("end_turn"))
        record.hub.said(record.node.id)
        self._spend(usage if usage is not None else self._estimate(incoming, message))
        record.count_steps(1)
        record.hooked.pop("before_model", None)
        record.emit(
            ModelCallEnded,
            step=record.step,
            message=message,
            usage=self._last_usage,
            complete=True,
            error=None,
            cancellation=None,
        )
        if message is None:
            return
        if message.tool_calls:
            message = self._with_new_ids(message)
        last = record.messages[-1]
        if last.role == "assistant":  # two agents of the framework have spoken in turn: one message to any provider
            parts = sorted([*last.parts, *message.parts], key=part_rank)
            message = replace(last, parts=tuple(parts))
            record.replace_last(message)
        else:
            record.messages.append(message)
        if message.tool_calls:
            self.batch = ForeignBatch(record, message, None)
            self.batch.gives_way = record.steering.presses

    def _with_new_ids(self, message: Message) -> Message:
        """Some providers repeat the ids of calls; a conversation may not. The framework keeps its own."""
        known = self._record.known_call_ids()
        self._ids = {}
        parts: list[Part] = []
        for part in message.parts:
            if isinstance(part, ToolCall):
                id = part.id
                while id in known:
                    id += "_"
                known.add(id)
                self._ids[part.id] = id
                part = replace(part, id=id) if id != part.id else part
            parts.append(part)
        return replace(message, parts=tuple(parts)) if any(a != b for a, b in self._ids.items()) else message

    def fail_model_call(self, error: BaseException) -> None:
        """The call failed; the framework may make another one. What was streamed of it stays only if it is the last."""
        incoming, record = self._incoming, self._record
        if incoming is None:
            return
        record.hub.said(record.node.id)
        usage = NO_USAGE if incoming.empty else self._estimate(incoming, None)
        self._spend(usage)
        record.emit(
            ModelCallEnded,
            step=record.step,
            message=incoming.kept(),
            usage=usage,
            complete=False,
            error=error,
            cancellation=None,
        )
        incoming.close()

    def _tell_cut(self, outcome: WorkResult[Outcome]) -> None:
        """The loop ended inside a model call."""
        incoming, record, stop = self._incoming, self._record, self._node.stop
        if incoming is None or incoming.closed:
            return
        incoming.close()
        record.hub.said(record.node.id)
        usage = NO_USAGE if isinstance(outcome, NeverRan) else self._estimate(incoming, None)
        self._spend(usage)
        cut = stop.recorded(self._node.clock.wall()) if stop is not None else None
        error = outcome.error if isinstance(outcome, Failed) else None
        record.emit(
            ModelCallEnded,
            step=record.step,
            message=incoming.kept(),
            usage=usage,
            complete=False,
            error=error,
            cancellation=cut,
        )

    _last_usage = NO_USAGE

    def _spend(self, usage: Usage) -> None:
        self._last_usage = usage
        self._record.spend(usage)
        for meter in self._record.payers():
            meter.spent(self._model, usage)

    def _estimate(self, incoming: PartialReply, message: Message | None) -> Usage:
        received = incoming.all_received if message is None else "".join(map(str, message.parts))
        spent_in = estimate_messages(self._record.messages, None, ())
        return Usage(spent_in, estimate_tokens(received), 1, True)

    def prepare_call(self, call_id: str, name: str, args: Mapping[str, Any]) -> BatchedCall:
        """The call of the last reply with this id."""
        call = self.batch.find(self._ids.get(call_id, call_id)) if self.batch is not None else None
        if call is None:
            asked = ", ".join(each.id for each in self.loop.open_calls) or "none"
            raise SafepointError(f"{name!r} was called as {call_id!r}, but the last reply has the calls: {asked}")
        return call

    def memory(self, call_id: str) -> CallState:
        call = self.batch.find(call_id) if self.batch is not None else None
        return call.memory if call is not None else CallState()

    @property
    def gives_way(self) -> bool:
        """Whether the calls of this reply that have not started never will, because a message cannot wait."""
        return self.batch is not None and self.batch.gives_way

    def start_call(self, call: BatchedCall) -> bool:
        batch = self.batch
        assert batch is not None, "the call is one of its calls"
        for meter in self._record.meters() if self._node.stop is None else ():
            meter.calling(call.call)
        started = batch.start(call)
        if started and not call.running:
            self._record.wakeup.ring()  # it ended in its first step
        return started

    def give_up_calls(self, why: str) -> None:
        """Cut the calls that still run, although the framework does not wait for them."""
        for call in self.batch.calls if self.batch is not None and self._node.stop is None else ():
            if call.running and call.execution is not None:
                call.execution.node.cancel(reason=why)

    async def end_calls(self, why: str) -> None:
        """Cut the calls that still run, and wait until they are over. Cancellation: ends the waiting."""
        batch = self.batch
        if batch is None or batch.is_quiet:
            return
        self.give_up_calls(why)
        for call in batch.calls:
            while call.running:
                await self.turn_of(call)

    async def turn_of(self, call: BatchedCall) -> None:
        """Wait until the call may be over. Cancellation: ends the waiting."""
        future = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(call.call.id, []).append(future)
        await future

    def holds(self, call: BatchedCall) -> bool:
        """Whether the framework does not get the call's result, because the run ends with this step."""
        if call.waits:
            self._ends_as = StopReason.INTERRUPTED
            return True
        return self._node.stop is not None or self._record.broken is not None

    def result_of(self, call: BatchedCall) -> CallResult:
        entry = call.entry
        failed = entry.state not in (LedgerState.FINISHED, LedgerState.FINISHED_LATE)
        return CallResult(result_text(call.closed(None)), failed)

    def halt(self) -> None:
        """End the work once no call runs any more."""
        self._is_halted = True
        self._record.wakeup.ring()

    def _advance(self) -> None:
        """The run woke while the work goes on: harvest its calls, and end the work if it is halted."""
        batch = self.batch
        self._may_pass.set()
        for call in batch.harvest() if batch is not None else ():
            for future in self._waiters.pop(call.call.id, ()):
                if not future.done():
                    future.set_result(None)
        quiet = batch is None or batch.is_quiet
        if self._is_halted and quiet and self.runner.work is not None:
            self.runner.work.stop()

    def end_batch(self, answered: Mapping[str, Answered]) -> None:
        """The framework goes on after its calls: their results join the conversation."""
        batch = self.batch
        if batch is None or self._node.stop is not None:
            return
        for id, answer in answered.items():
            call = batch.find(self._ids.get(id, id))
            if call is not None and call.queued:
                self._settle(call, answer)
        batch.end()
        messages = self._record.messages
        messages[-1:] = close_history(messages[-1:], batch=batch.closed(NEW_MESSAGE if batch.gives_way else None))
        if batch.gives_way and batch.has_given_way:
            self._record.steering.has_room = True
        self.batch = None

    def _settle(self, call: BatchedCall, answer: Answered) -> None:
        """The framework answered the call without making it."""
        ledger, id = self._record.ledger, call.call.id
        if answer.failed:
            ledger.move(id, LedgerState.FAILED, error=answer.text)
        else:
            ledger.move(id, LedgerState.RUNNING)
            ledger.move(id, LedgerState.FINISHED, content=answer.text)
        call.skip()

    # -- what is left --------------------------------------------------------------------------------------------------

    def _remains(self, reason: str | None) -> OpenCalls:
        if self.batch is None:
            return OpenCalls({})
        self.batch.end()
        return self.batch.remains(reason)

    def _value(self, text: str) -> object:
        return self._outcome.value

    def preview(self, query: CancelQuery) -> Preview:
        calls = self.batch.calls if self.batch is not None else ()
        return preview(calls, tuple(super().works()), query)

    def make_room(self) -> None:
        """A message cannot wait: the calls of this reply stop at points of their own, and the others never start."""
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
