"""The handle of one run: watch it, stop it, wait for it.

The caller that started the run uses the handle; the run itself lives in a task of its own. Entering the block starts
it. Leaving the block normally waits for its end; leaving it by an exception stops the run NOW, waits, and raises on.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from msgspec import field
from msgspec.structs import replace

from safepoint._core.caller_cancellation import outlast, outlive
from safepoint._core.groups import CancelToken
from safepoint._core.hold_receipts import HoldReceipt
from safepoint._core.holds import Held
from safepoint._core.ladder import Ladder
from safepoint._core.latch import Latch
from safepoint._core.points import UNWRITTEN, Level, SafePoint, check_point
from safepoint._core.reasons import Reason, Source
from safepoint._core.receipts import Receipt, check_wait, current_node
from safepoint._core.supervisor import Supervisor
from safepoint._core.tree import Node, NodeState
from safepoint._values import Value
from safepoint.agent.budget import Budget
from safepoint.agent.event_hub import EventHub, EventReader, TextReader
from safepoint.agent.events import Event
from safepoint.agent.freeze import Freeze, Gate
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.live import register
from safepoint.agent.nested_journal import NestedJournal
from safepoint.agent.pause import Pause
from safepoint.agent.preview import CancelQuery, Preview
from safepoint.agent.result import OutT, RunResult
from safepoint.agent.resume import Resume, continued
from safepoint.agent.run_context import RunContext
from safepoint.agent.session_protocol import SessionProtocol
from safepoint.agent.steering import Steering, SteerReceipt, check_steer
from safepoint.agent.stop_diagnostics import Holding, holding
from safepoint.agent.telemetry import trace
from safepoint.agent.validation import listed
from safepoint.errors import NotEnded, UsageError
from safepoint.history.check import check_continued
from safepoint.history.parts import Message, Prompt, user_message
from safepoint.history.wellformed import is_well_formed
from safepoint.tools.context import DepsT

if TYPE_CHECKING:
    from safepoint.agent.base import BaseAgent
    from safepoint.agent.base_driver import BaseDriver
    from safepoint.agent.checkpoint import Checkpoint


# The live tree of a run, for programs that stop one part of it.


class RunTree:
    """`walk()` lists live nodes; each has `kind`, `name`, `path` and `cancel(…)`."""

    def __init__(self, root: Node) -> None:
        self._root = root

    def walk(self) -> Iterator[Node]:
        """All live nodes, parents first."""
        return iter([node for node in self._root.walk() if not node.ended.is_set])

    def cancel_all_but(self, keep: Node, *, reason: str | Reason | None = None) -> list[Receipt]:
        """Stop every node now except this one, its descendants and its ancestors."""
        if not self._root.holds(keep):
            raise ValueError(f"{keep!r} is not a node of this run: take one from run.tree.walk()")
        receipts: list[Receipt] = []
        branch: Node | None = self._root
        while branch is not None and branch is not keep:
            inside = next((child for child in branch.children if child.holds(keep)), None)
            siblings = [child for child in branch.children if child is not inside]
            receipts += [child.cancel(SafePoint.NOW, reason=reason) for child in siblings]
            branch = inside  # None: the node to keep has ended meanwhile
        return receipts

    def __repr__(self) -> str:
        return "\n".join(repr(node) for node in self.walk())


class Inherit:
    """The default of `parent=`: a run started inside a tool joins that tool's tree. `parent=None` detaches it."""


INHERIT = Inherit()


class RunSetup(Value, Generic[DepsT], frozen=True):
    """The arguments with which a run is started."""

    messages: list[Message]
    deps: DepsT
    resume: Resume | None = None
    token: CancelToken | None = None
    ladder: Ladder = field(default_factory=Ladder)
    budget: Budget | None = None
    session: SessionProtocol | None = None
    parent: Node | None = None
    gate: Gate | None = None
    # For a child of a composite: its label there, and the run that it is part of.
    label: str | None = None
    above: RunContext | None = None
    # For a run inside another one: where it writes its facts.
    inside: NestedJournal | None = None
    # For a run that continues in another process: the id under which clients know it.
    id: str | None = None

    @staticmethod
    def opening(prompt: Prompt | None, history: Sequence[Message], resume: Resume | None) -> list[Message]:
        """The first messages of the conversation: from a prompt, or from a checkpoint."""
        if resume is None:
            if prompt is None:
                raise UsageError("a run begins with a prompt or a checkpoint: write agent.start('…')")
            return RunSetup.of(prompt, list(listed("history", history, "result.messages")))
        if prompt is not None or history:
            raise UsageError(
                "a checkpoint has its own conversation: to add a message write Resume(checkpoint, message=…)"
            )
        return resume.messages()

    @staticmethod
    def of(prompt: Prompt, history: list[Message] | None) -> list[Message]:
        """The conversation a run starts from. A broken history is refused here, before anything runs."""
        messages = [*(history or ()), user_message(prompt)]
        # A prompt of words alone was checked when it became a message, except for its surrogates.
        if history or not isinstance(prompt, str) or not is_well_formed(prompt):
            check_continued(messages)
        return messages


class Run(Generic[DepsT, OutT]):
    """One execution of one agent. Made by `agent.start(…)`; the run starts when the block is entered."""

    # Whether the caller tried to start it, even if the start was refused: then it was not forgotten.
    _tried = True

    def __init__(self, agent: BaseAgent[DepsT, OutT], options: RunSetup[DepsT]) -> None:
        self.agent = agent
        self.deps = options.deps
        self.session = options.session
        self.id = options.id or f"run_{os.urandom(16).hex()}"
        parent = options.parent
        self.node = Node(self.id, options.label or agent.name, "run", parent=parent, propagation=agent.propagation)
        self._options = options
        self.hub = EventHub(self.node, _hub_above(parent))
        self._driver: BaseDriver[Any] | None = None  # Any: steps of every kind
        self.record: RunContext | None = None
        self._task: asyncio.Task[None] | None = None
        self._interrupt: KeyboardInterrupt | None = None
        # Set once the run has ended and waits for a person.
        self.pause: Pause | None = None
        above = options.above.steering if options.above is not None else None
        self._steering = Steering(above, to_all=agent.tells_all, node=self.node)
        self._tried = False

    # -- asking --------------------------------------------------------------------------------------------------------

    def cancel(
        self,
        at: SafePoint = UNWRITTEN,
        *,
        within: float | None = None,
        recursive: bool = False,
        reason: str | Reason | None = None,
        escalate: bool = False,
    ) -> Receipt:
        """Ask this run to stop; the receipt reports the outcome. Safe from any thread, task, signal handler or tool.

        `escalate`: a press of a Stop button, each press one level harder than the request that stands:
        after the model call or tool that runs, then NOW, then FORCE. Presses within 300 ms count once.
        A run that waits for a person has ended, and its result stays: the cancel clears the pause, for any `at`.
        """
        self.agent.check_ask(check_point(at))
        ask = self.node.press if escalate else self.node.cancel
        receipt = ask(at, within=within, recursive=recursive, reason=reason)
        if receipt.accepted or self.pause is None:
            return receipt
        return self.pause.cancel(receipt.asked)

    @property
    def cleared(self) -> Reason | None:
        """Why its pause was cleared, if the run was cancelled while it waited for a person."""
        clearing = self.pause.clearing if self.pause is not None else None
        return clearing.mark.reason if clearing is not None and clearing.cleared else None

    def await_person(self, checkpoint: Checkpoint | None) -> None:
        """The run is about to end with questions. A run inside another one asks them through that one."""
        if checkpoint is not None and self._options.inside is None and self._options.above is None:
            self.pause = Pause(self.node, checkpoint, self.session)

    def clear_for_late_asks(self) -> None:
        """Asks that arrived while the run closed itself to wait came after its answer: they concern the pause."""
        if self.pause is not None:
            self.pause.take_late()

    def interrupt(self, error: KeyboardInterrupt) -> None:
        """A tool raised KeyboardInterrupt: stop now, and raise it again where the caller waits for the run."""
        self._interrupt = error
        self.node.cancel(SafePoint.NOW, reason=Reason("KeyboardInterrupt", Source.CALLER))
        above = _run_above(self.node.parent) if self._task is None else None
        if above is not None:  # a sub-agent: only the run that it is part of waits for it
            above.interrupt(error)

    def hold(
        self,
        at: SafePoint = SafePoint.ANY,
        *,
        within: float | None = None,
        recursive: bool = False,
        reason: str | Reason | None = None,
    ) -> HoldReceipt:
        """Let the run wait at a safe point, without ending: its id, tools' local state and connections stay.

        `run.resume()` lets it go on, a cancel ends the hold, and after `within` seconds the run stops there, with a
        checkpoint. Safe wherever `cancel` is.
        """
        return self.node.hold(at, within=within, recursive=recursive, reason=reason)

    def resume(self) -> bool:
        """Let a held run go on: release all holds except those of a policy, which whoever holds the receipt releases.

        False if there was none. Safe wherever `cancel` is.
        """
        holds = [hold for hold in self.node.log.standing().holds if hold.reason.source is not Source.POLICY]
        return [self.node.release(hold) for hold in holds].count(True) > 0

    @property
    def held(self) -> tuple[Held, ...]:
        """What waits for a hold now: the run itself, tools at points of their own, runs inside it. Empty if none."""
        stays = [node.stay for node in self.node.walk()]
        return tuple([stay.held for stay in stays if stay is not None])

    def steer(self, message: Prompt, *, at: SafePoint | None = None, within: float | None = None) -> SteerReceipt:
        """Add a message before the next model call, without stopping any work. Safe from any thread.

        `at`: before the first model call after that safe point. `within`: if the message still waits after so many
        seconds, calls give way to it at the next safe point. The receipt says which road it took: `joined`,
        `preempted`, or `too_late` if no model call followed.
        """
        self.agent.check_steer()
        check_steer(at, within)
        (said,) = RunSetup.of(message, None)
        receipt = self._steering.add(said, at)
        if within is not None and self.node.started and receipt.outcome is None:
            self.node.call_soon(partial(receipt.when_late, self.node.clock.now() + within, self._make_room))
        return receipt

    def _make_room(self, receipt: SteerReceipt) -> None:
        receipt.presses = True
        if receipt.outcome is None:
            self.make_room()

    def make_room(self) -> None:
        """A message cannot wait for the next model call of this run: get there sooner, at a safe point."""
        if self._driver is not None:
            self._driver.make_room()

    def preview_cancel(self, at: SafePoint = SafePoint.NOW, *, recursive: bool = False) -> Preview:
        """What such a cancel would do now: which calls it cuts, which must finish, which effects are in doubt."""
        reaches_inside = recursive or check_point(at).level is not Level.SAFE

        def of_run(node: Node) -> Preview:
            run = _run_of(node) if reaches_inside or node is self.node else None
            return run._driver.preview(query) if run is not None and run._driver is not None else Preview()

        query = CancelQuery(at, self.node.clock.now(), of_run)
        return of_run(self.node)

    def why_not_stopped(self) -> list[Holding]:
        """The work that a stopping run waits for, with rung, time and stack. Safe from any thread."""
        return holding(self.node, self._drivers())

    def is_calling(self, freeze: Freeze) -> bool:
        """Whether the tool or the model that the freeze names is under way, here or in a run inside."""
        if any(node.kind == "tool_call" and node.name == freeze.tool for node in self.node.walk()):
            return True
        records = [run.record for node in self.node.walk() if (run := _run_of(node)) is not None]
        return any(record is not None and freeze.model in record.calling for record in records)

    @property
    def held_by(self) -> Freeze | None:
        """The freeze that the run, or a run inside it, waits for; None if it waits for none."""
        records = [run.record for node in self.node.walk() if (run := _run_of(node)) is not None]
        return next((record.held for record in records if record is not None and record.held is not None), None)

    def _drivers(self) -> list[BaseDriver[Any]]:
        """The drivers of this run and of the runs below it."""
        runs = [run for node in self.node.walk() if (run := _run_of(node)) is not None]
        return [run._driver for run in runs if run._driver is not None]

    # -- watching ------------------------------------------------------------------------------------------------------

    @property
    def tree(self) -> RunTree:
        """The live nodes of this run, each of which can be stopped by itself."""
        return RunTree(self.node)

    def events(self, *, nested: bool = False) -> EventReader:
        """The events of this run from the first on, for `async for`; with `nested`, also of the runs inside it.

        The runs inside it are those of sub-agents, of a composite's children, and of agents that its tools have
        started: `run_id` and `path` tell them apart. Breaking out of the loop only detaches this reader.
        """
        return self.hub.read(nested=nested)

    def text(self) -> TextReader:
        """The model's words as they arrive, for `async for`: also those before a tool call, not those of sub-agents.

        For a composite, the words of the child that gives its answer: the last of a sequence, every one of a hand-off.
        """
        return TextReader(self.hub.read(nested=True))

    def kept_events(self, *, nested: bool = False) -> tuple[Event, ...]:
        """The events so far except pieces of text, which the whole messages repeat; `nested` as for `events`."""
        return self.hub.kept(nested=nested)

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """The state so far of each tool call, or of each child of a composite."""
        return self._driver.ledger if self._driver is not None else ()

    @property
    def result(self) -> RunResult[OutT]:
        """The result of the run. Raises `NotEnded` before its end."""
        result = self._driver.result if self._driver is not None else None
        if result is None:
            raise NotEnded(f"the run of {self.agent.name!r} has not ended: write `await run.wait()` first")
        return result  # type: ignore[return-value]  # OutT is str until structured output is asked for

    @property
    def ended(self) -> bool:
        return self.node.ended.is_set

    @property
    def ladder(self) -> Ladder:
        """The time limits by which it is stopped."""
        return self._options.ladder

    @property
    def continues(self) -> str | None:
        """The id of the stopped run that this one continues, if it continues one."""
        resume = self._options.resume
        return resume.checkpoint.run_id if resume is not None else None

    @property
    def outermost(self) -> Run[Any, Any]:  # Any: a run of any agent
        """The run that this one is part of, at the top of the tree; or this one."""
        above = _run_above(self.node.parent)
        return self if above is None else above.outermost

    @property
    def session_around(self) -> SessionProtocol | None:
        """Its session, or the session of the run that it is part of: the tools of both share its state."""
        above = _run_above(self.node.parent) if self.session is None else None
        return above.session_around if above is not None else self.session

    async def wait(self) -> RunResult[OutT]:
        """Wait for the end and return the result, also if the run failed or was stopped.

        Cancellation: only the waiting ends; leaving the run's block is what stops the run.
        """
        if not self.node.started:
            raise UsageError("the run has not started: write `async with agent.start(…) as run:` first")
        if not self.ended:
            check_wait(self.node)
            await self.node.ended.wait()
        return self.result

    # -- the block -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Run[DepsT, OutT]:
        """Start the run. Never waits. Cancellation: leaving the block is what stops the run."""
        self.launch()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the end; after an exception, stop the run NOW first.

        Cancellation: stops the run NOW, waits for it to close itself, then is raised again.
        """
        if error is None:
            await self.join()
            return
        self._stop_for(error)
        try:
            await outlast(self._own_task(), self._last_step)
        finally:
            self._raise_interrupt()

    async def join(self) -> None:
        """Wait until no work of the run is left. Cancellation: as in `__aexit__`."""
        try:
            await outlive(self._own_task(), self._stop_for_caller, self._last_step)
        finally:
            self._raise_interrupt()  # it outranks the caller's cancellation: Ctrl-C is for the whole process

    def _own_task(self) -> asyncio.Task[None]:
        """The task of the run, for a waiter on its own loop; on another loop the waiter would never be woken."""
        assert self._task is not None
        if not self._task.done() and not self.node.runs_in_this_thread():
            raise UsageError(
                f"{self.node.path} was started on another event loop: leave its block there; from here write "
                "`await run.cancel().wait()`, or `await run.wait()`"
            )
        return self._task

    @property
    def _last_step(self) -> Latch | None:
        return self._driver.last_step if self._driver is not None else None

    def launch(self) -> None:
        """Start the run's task, which begins at the next turn of the loop. Refuses a second start."""
        driver, supervisor = self._prepare()
        self._task = self.node.task = supervisor.spawn(driver.drive(), self.node.path, copy_context(), driver.task_done)

    def launch_eagerly(self) -> None:
        """Start the run's task and take its first step: for callers that only wait and have attached their readers."""
        driver, supervisor = self._prepare()
        self._task = supervisor.spawn_eagerly(driver.drive(), self.node.path, copy_context())
        self.node.task = self._task

    def discard(self) -> None:
        """The caller decided not to start the run. Does nothing to a run that has started."""
        self._tried = True

    def under(self, id: str) -> Run[DepsT, OutT]:
        """The same run, not started, under the id that it had in another process; this handle is discarded."""
        self.discard()
        return Run(self.agent, replace(self._options, id=id))

    async def drive_inside(self) -> RunResult[OutT]:
        """Run in the calling task, as a sub-agent does. Cancellation: the run closes itself and returns."""
        driver, _ = self._prepare()
        await driver.drive()
        return self.result

    def _prepare(self) -> tuple[BaseDriver[Any], Supervisor]:
        self._tried = True
        _check_loop()
        if self._driver is not None:
            raise UsageError("this run has started already: call agent.start(…) again for another one")
        options = self._options
        claimed = options.resume if options.session is None else None  # in a session, its store decides
        if claimed is not None:
            continued.claim(claimed)
        elif options.resume is not None:
            continued.refuse(options.resume)
        record = self.record = RunContext(
            self, self.node, self.hub, options.messages, self._steering, options.ladder, options.budget
        )
        record.above, record.inside = options.above, options.inside
        record.payer = _record_above(self.node.parent)
        record.gate = self._gate()
        self._driver = self._drive_or_give_back(record, claimed)
        self.node.owner = self
        self.agent.group.join(self.node)
        if options.token is not None:
            options.token.admit(self.node)
        record.supervisor.enrol(self.node)
        register(self)
        trace(self.hub)
        return self._driver, record.supervisor

    def _gate(self) -> Gate | None:
        """Its own; else that of the run around it; else its agent's. A freeze asks the outermost run to stop."""
        gate, around = self._options.gate, _run_above(self.node.parent)
        if gate is None and around is not None and around.record is not None:
            gate = around.record.gate
        if gate is None and self.agent.switch is not None:
            gate = self.agent.switch.of(app=self.agent.name)
        if gate is not None and around is None:
            gate.switch.join(self, gate)
        return gate

    def _drive_or_give_back(self, record: RunContext, claimed: Resume | None) -> BaseDriver[Any]:
        """Make the driver. If this agent cannot continue the checkpoint after all, release the claim on it."""
        try:
            return self.agent.driver(record, self._options.resume)
        except BaseException:
            if claimed is not None:
                continued.give_back(claimed)
            if record.meter is not None:
                record.meter.close()
            raise

    def _stop_for(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._stop_for_caller()
        else:
            self.node.cancel(reason=Reason(f"its block was left by {type(error).__name__}", Source.CALLER))

    def _stop_for_caller(self) -> None:
        self.node.cancel(reason=Reason("its caller was cancelled", Source.CALLER))

    def _raise_interrupt(self) -> None:
        if self._interrupt is not None:
            raise self._interrupt

    def __del__(self) -> None:
        if not self._tried:
            message = (
                f"agent.start(…) of {self.agent.name!r} was never entered: write `async with agent.start(…) as run:`"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.agent.name!r}, {self.node.state}>"


def _check_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "a run needs asyncio's event loop: start it inside asyncio.run(…), or anyio.run(…) with the backend "
            "'asyncio', not trio; without a loop write agent.run_sync(…)"
        ) from None


def _run_of(node: Node) -> Run[Any, Any] | None:  # Any: a run of any agent
    owner = node.owner
    return owner if isinstance(owner, Run) else None  # pyright: ignore[reportUnknownVariableType]  # of any agent


def _run_above(node: Node | None) -> Run[Any, Any] | None:
    while node is not None:
        if (run := _run_of(node)) is not None:
            return run
        node = node.parent
    return None


def _record_above(node: Node | None) -> RunContext | None:
    """The run that pays for a run inside it; not across threads, where the sums would race."""
    run = _run_above(node)
    return run.record if run is not None and run.node.runs_in_this_thread() else None


def _hub_above(node: Node | None) -> EventHub | None:
    """The hub that also gets the events of a run inside another; not across threads, where no reader could wait."""
    run = _run_above(node)
    return run.hub if run is not None and run.node.runs_in_this_thread() else None


def parent_of(parent: Run[Any, Any] | Inherit | None) -> Node | None:  # Any: a run of any agent
    """The node under which a new run is to live."""
    if parent is None:
        return None
    if not isinstance(parent, Run | Inherit):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"parent={parent!r}: write parent=run, or parent=None to detach it")
    node = parent.node if isinstance(parent, Run) else current_node.get()
    if node is not None and node.state in (NodeState.LIVE, NodeState.HELD, NodeState.STOPPING):
        return node
    if isinstance(parent, Run):
        raise UsageError(f"parent={parent!r} is not live, so nothing can be a part of it: write parent=None")
    return None
