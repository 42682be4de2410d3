"""The handle of one run: watch it, stop it, wait for it.

The handle is used by whoever started the run; the run itself lives in a task of its own. Entering the block starts it,
leaving the block normally waits for its end, leaving it by an exception stops it NOW, waits, and lets it go on.
"""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic

from safepoint._core.caller_cancellation import outlast, outlive
from safepoint._core.groups import CancelToken
from safepoint._core.ladder import Ladder
from safepoint._core.points import Level, SafePoint, check_point
from safepoint._core.reasons import Reason, Source
from safepoint._core.receipts import Receipt, check_wait, current_node
from safepoint._core.supervisor import Supervisor
from safepoint._core.tree import Node, NodeState
from safepoint.agent.budget import Budget
from safepoint.agent.event_hub import EventHub, EventReader, TextReader
from safepoint.agent.events import Event
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.live import register
from safepoint.agent.nested_journal import NestedJournal
from safepoint.agent.pause import Pause
from safepoint.agent.preview import Preview
from safepoint.agent.preview import joined as joined_previews
from safepoint.agent.result import OutT, RunResult
from safepoint.agent.resume import Resume, continued
from safepoint.agent.run_context import RunContext
from safepoint.agent.session_protocol import SessionProtocol
from safepoint.agent.steering import Steering, SteerReceipt
from safepoint.agent.stop_diagnostics import Holding, holding
from safepoint.agent.telemetry import trace
from safepoint.agent.validation import listed
from safepoint.errors import NotEnded, UsageError
from safepoint.history.check import check_history
from safepoint.history.parts import Message, Prompt, user_message
from safepoint.tools.context import DepsT

if TYPE_CHECKING:
    from safepoint.agent.base import BaseAgent
    from safepoint.agent.base_driver import BaseDriver
    from safepoint.agent.checkpoint import Checkpoint


# The live tree of a run, for people who want to stop one part of it.


class RunTree:
    """`walk()` lists live nodes; each has `kind`, `name`, `path` and `cancel(…)`."""

    def __init__(self, root: Node) -> None:
        self._root = root

    def walk(self) -> Iterator[Node]:
        """All live nodes, parents first."""
        return iter([node for node in self._root.walk() if not node.ended.is_set])

    def cancel_all_but(self, keep: Node, *, reason: str | Reason | None = None) -> list[Receipt]:
        """Stop every node now except this one, what is below it, and what it is part of."""
        if not self._root.holds(keep):
            raise ValueError(f"{keep!r} is not a node of this run: take one from run.tree.walk()")
        receipts: list[Receipt] = []
        branch: Node | None = self._root
        while branch is not None and branch is not keep:
            inside = next((child for child in branch.children if child.holds(keep)), None)
            others = [child for child in branch.children if child is not inside]
            receipts += [child.cancel(SafePoint.NOW, reason=reason) for child in others]
            branch = inside  # None: it has ended meanwhile, and there is nothing left to keep
        return receipts

    def __repr__(self) -> str:
        return "\n".join(repr(node) for node in self.walk())


class Inherit:
    """The default of `parent=`: a run started inside a tool joins that tool's tree. `parent=None` detaches it."""


INHERIT = Inherit()


@dataclass(frozen=True, slots=True)
class RunSetup(Generic[DepsT]):
    """What a run is started with."""

    messages: list[Message]
    deps: DepsT
    resume: Resume | None = None
    token: CancelToken | None = None
    ladder: Ladder = field(default_factory=Ladder)
    budget: Budget | None = None
    session: SessionProtocol | None = None
    parent: Node | None = None
    # For a child of a composite: what it is called there, and the run that it is a part of.
    label: str | None = None
    above: RunContext | None = None
    # For a run inside another one: where it writes its facts.
    inside: NestedJournal | None = None
    # For a run that goes on in another process: the id by which everybody knows it.
    id: str | None = None

    @staticmethod
    def opening(prompt: Prompt | None, history: Sequence[Message], resume: Resume | None) -> list[Message]:
        """Where the conversation begins: with a prompt, or with a checkpoint."""
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
        """The conversation a run starts from; a broken history is refused here, before anything runs."""
        messages = [*(history or ()), user_message(prompt)]
        check_history(messages)
        return messages


class Run(Generic[DepsT, OutT]):
    """One execution of one agent. Made by `agent.start(…)`; nothing runs before the block is entered."""

    # Somebody has tried to start it, also if that was refused: then it was not forgotten.
    _tried = True

    def __init__(self, agent: BaseAgent[DepsT, OutT], options: RunSetup[DepsT]) -> None:
        self.agent = agent
        self.deps = options.deps
        self.session = options.session
        self.id = options.id or f"run_{uuid.uuid4().hex}"
        parent = options.parent
        self.node = Node(self.id, options.label or agent.name, "run", parent=parent, propagation=agent.propagation)
        self._options = options
        self.hub = EventHub(self.node, _hub_above(parent))
        self._driver: BaseDriver[Any] | None = None  # Any: steps of every kind
        self.record: RunContext | None = None
        self._task: asyncio.Task[None] | None = None
        self._interrupt: KeyboardInterrupt | None = None
        # It has ended, and waits for a person.
        self.pause: Pause | None = None
        above = options.above.steering if options.above is not None else None
        self._steering = Steering(above, to_all=agent.tells_all, node=self.node)
        self._tried = False

    # -- asking --------------------------------------------------------------------------------------------------------

    def cancel(
        self,
        at: SafePoint = SafePoint.NOW,
        *,
        within: float | None = None,
        recursive: bool = False,
        reason: str | Reason | None = None,
    ) -> Receipt:
        """Ask this run to stop; the receipt tells the outcome. Safe from any thread, task, signal handler or tool.

        A run that waits for a person has ended, and its result stays: the cancel clears the pause, whatever `at` is.
        """
        receipt = self.node.cancel(at, within=within, recursive=recursive, reason=reason)
        if receipt.accepted or self.pause is None:
            return receipt
        return self.pause.cancel(receipt.asked)

    @property
    def cleared(self) -> Reason | None:
        """Why its pause was cleared, if it has waited for a person and was cancelled since."""
        clearing = self.pause.clearing if self.pause is not None else None
        return clearing.mark.reason if clearing is not None and clearing.cleared else None

    def await_person(self, checkpoint: Checkpoint | None) -> None:
        """It is about to end with questions. A run inside another one asks them through that one."""
        if checkpoint is not None and self._options.inside is None and self._options.above is None:
            self.pause = Pause(self.node, checkpoint, self.session)

    def clear_for_late_asks(self) -> None:
        """Those that came while the run closed itself to wait found it answered already: they mean the pause."""
        if self.pause is not None:
            self.pause.take_late()

    def interrupt(self, error: KeyboardInterrupt) -> None:
        """A KeyboardInterrupt came up inside the run: stop now, and raise it again where the run is waited for."""
        self._interrupt = error
        self.node.cancel(SafePoint.NOW, reason=Reason("KeyboardInterrupt", Source.CALLER))
        above = _run_above(self.node.parent) if self._task is None else None
        if above is not None:  # a sub-agent: nobody waits for it but the run that it is part of
            above.interrupt(error)

    def steer(self, message: Prompt) -> SteerReceipt:
        """Add a message before the next model call, without stopping anything. Safe from any thread.

        The receipt says `joined`, or `too_late` if no model call followed.
        """
        return self._steering.add(*RunSetup.of(message, None))

    def preview_cancel(self, at: SafePoint = SafePoint.NOW, *, recursive: bool = False) -> Preview:
        """What such a cancel would do right now: which calls it cuts, which must finish, which effects are in doubt."""
        level = check_point(at).level
        drivers = self._drivers() if recursive or level is not Level.SAFE else [self._driver]
        return joined_previews(driver.preview(at) for driver in drivers if driver is not None)

    def why_not_stopped(self) -> list[Holding]:
        """What holds a stopping run right now, with rung, time and stack. Safe from any thread."""
        return holding(self.node, self._drivers())

    def _drivers(self) -> list[BaseDriver[Any]]:  # Any: as above
        """The drivers of this run and of the runs below it."""
        runs = [run for node in self.node.walk() if (run := _run_of(node)) is not None]
        return [run._driver for run in runs if run._driver is not None]

    # -- watching ------------------------------------------------------------------------------------------------------

    @property
    def tree(self) -> RunTree:
        """The live nodes of this run, each of which can be stopped by itself."""
        return RunTree(self.node)

    def events(self, *, nested: bool = False) -> EventReader:
        """The events of this run from the first on, for `async for`; with `nested`, those of runs inside it as well.

        Runs inside it are those of sub-agents, of a composite's children, and of agents that its tools have started:
        `run_id` and `path` tell them apart. Breaking out only detaches this reader.
        """
        return self.hub.read(nested=nested)

    def text(self) -> TextReader:
        """The model's words as they come, for `async for`: also those before a tool call, not those of sub-agents.

        A composite's are the words of the child that gives its answer: the last of a sequence, every one of a hand-off.
        """
        return TextReader(self.hub.read(nested=True))

    def kept_events(self, *, nested: bool = False) -> tuple[Event, ...]:
        """The events so far but the pieces of text, which whole messages make up for; `nested` as for `events`."""
        return self.hub.kept(nested=nested)

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """What is known of each tool call, or of each child of a composite, so far."""
        return self._driver.ledger if self._driver is not None else ()

    @property
    def result(self) -> RunResult[OutT]:
        """What is left of the run. Raises `NotEnded` before its end."""
        result = self._driver.result if self._driver is not None else None
        if result is None:
            raise NotEnded(f"the run of {self.agent.name!r} has not ended: write `await run.wait()` first")
        return result  # type: ignore[return-value]  # OutT is str until structured output is asked for

    @property
    def ended(self) -> bool:
        return self.node.ended.is_set

    @property
    def ladder(self) -> Ladder:
        """How it is stopped, rung by rung."""
        return self._options.ladder

    @property
    def session_around(self) -> SessionProtocol | None:
        """Its session, or that of the run that it is a part of: the state there is for the tools of both."""
        above = _run_above(self.node.parent) if self.session is None else None
        return above.session_around if above is not None else self.session

    async def wait(self) -> RunResult[OutT]:
        """Wait for the end and return the result, also of a run that failed or was stopped.

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
        """Start the run. Cancellation: there is nothing to wait for."""
        self.launch()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the end; after an exception, stop NOW first.

        Cancellation: stops the run NOW, waits for it to close itself, then goes on.
        """
        if error is None:
            await self.join()
            return
        self._stop_for(error)
        try:
            await outlast(self._own_task())
        finally:
            self._raise_interrupt()

    async def join(self) -> None:
        """Wait until nothing of the run is left. Cancellation: as in `__aexit__`."""
        try:
            await outlive(self._own_task(), self._stop_for_caller)
        finally:
            self._raise_interrupt()  # stronger than the caller's own cancellation: the whole process is meant

    def _own_task(self) -> asyncio.Task[None]:
        """The task of the run, for whoever waits for it; elsewhere nobody would be woken when it is done."""
        assert self._task is not None
        if not self._task.done() and not self.node.runs_in_this_thread():
            raise UsageError(
                f"{self.node.path} was started on another event loop: leave its block there; from here write "
                "`await run.cancel().wait()`, or `await run.wait()`"
            )
        return self._task

    def launch(self) -> None:
        """Start the run's task. Refuses a second time."""
        driver, supervisor = self._prepare()
        self._task = supervisor.spawn(driver.drive(), self.node.path, copy_context())
        self._task.add_done_callback(driver.task_done)
        self.node.task = self._task

    def discard(self) -> None:
        """It will not be started, and that is no oversight. Does nothing to a run that has started."""
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

    def _prepare(self) -> tuple[BaseDriver[Any], Supervisor]:  # Any: as above
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
        record = self.record = RunContext(self, self.node, self.hub, options.messages, options.ladder, options.budget)
        record.steering, record.above, record.inside = self._steering, options.above, options.inside
        record.payer = _record_above(self.node.parent)
        self._driver = self._drive_or_give_back(record, claimed)
        self.node.owner = self
        self.agent.group.join(self.node)
        if options.token is not None:
            options.token.admit(self.node)
        record.supervisor.enrol(self.node)
        register(self)
        trace(self.hub)
        return self._driver, record.supervisor

    def _drive_or_give_back(self, record: RunContext, claimed: Resume | None) -> BaseDriver[Any]:  # Any: as above
        """The driver. If the checkpoint can't be continued by this agent after all, nothing was changed by trying."""
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


def _run_above(node: Node | None) -> Run[Any, Any] | None:  # Any: as above
    while node is not None:
        if (run := _run_of(node)) is not None:
            return run
        node = node.parent
    return None


def _record_above(node: Node | None) -> RunContext | None:
    """The run that pays for one inside it; not across threads, where its sums would be torn."""
    run = _run_above(node)
    return run.record if run is not None and run.node.runs_in_this_thread() else None


def _hub_above(node: Node | None) -> EventHub | None:
    """Where the events of a run inside another go as well; not across threads, where nobody could wait for them."""
    run = _run_above(node)
    return run.hub if run is not None and run.node.runs_in_this_thread() else None


def parent_of(parent: Run[Any, Any] | Inherit | None) -> Node | None:  # Any: a run of any agent
    """The node a new run is to live under."""
    if parent is None:
        return None
    if not isinstance(parent, Run | Inherit):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"parent={parent!r}: write parent=run, or parent=None to detach it")
    node = parent.node if isinstance(parent, Run) else current_node.get()
    if node is not None and node.state in (NodeState.LIVE, NodeState.STOPPING):
        return node
    if isinstance(parent, Run):
        raise UsageError(f"parent={parent!r} is not live, so nothing can be a part of it: write parent=None")
    return None
