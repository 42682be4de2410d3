"""What every agent has: a name, live runs, and the ways to start, watch, stop and continue one.

An agent holds no state of any run; many runs at once are fine. Agents differ only in the driver of their runs: a single
agent calls a model, a composite runs other agents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, Unpack

from safepoint._core.asks import make_ask
from safepoint._core.clock import current_clock
from safepoint._core.groups import CancelToken, Group, GroupReceipt
from safepoint._core.ladder import Ladder
from safepoint._core.points import SafePoint, check_point
from safepoint._core.reasons import Reason
from safepoint._core.tree import Propagation
from safepoint.agent.as_tool import AgentTool
from safepoint.agent.budget import Budget
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.freeze import Gate, Switch
from safepoint.agent.hooks import Hooks
from safepoint.agent.options import OF_A_MODEL, RunOptions, check_names
from safepoint.agent.result import OutT, RunResult, StopReason
from safepoint.agent.resume import Edit, OnUnknown, Resume, continued
from safepoint.agent.run import INHERIT, Run, RunSetup, parent_of
from safepoint.agent.run_stream import RunStream, check_on_close
from safepoint.agent.session_protocol import SessionProtocol
from safepoint.agent.sync import refuse_loop, run_sync
from safepoint.agent.sync_streamed import SyncStreamed
from safepoint.agent.validation import (
    checked_hooks,
    checked_kind,
    checked_ladder,
    checked_name,
    checked_tool_name,
    listed,
)
from safepoint.errors import CheckpointError, RunFailed, StoreError, UsageError
from safepoint.history.parts import Prompt
from safepoint.history.rendering import render_error
from safepoint.tools.base import BaseTool
from safepoint.tools.context import DepsT

if TYPE_CHECKING:
    from safepoint.agent.base_driver import BaseDriver
    from safepoint.agent.run_context import RunContext

NO_DEPS: Any = None  # Any: fits every agent; right for those that declare no dependencies


class BaseAgent(ABC, Generic[DepsT, OutT]):
    """The part of an agent that does not depend on what it does. `Agent` and the composites derive from it."""

    # Which safe-point asks go from a run of this agent to its children.
    propagation: Propagation = Propagation.TO_CALLS
    # Whether a message that is added to a run goes to all its children, or to the first child that takes it.
    tells_all: bool = False
    tools: Mapping[str, BaseTool] = MappingProxyType({})
    example = "Agent('writer', model=…)"
    # What freezes its runs, if a switch was made for it.
    switch: Switch | None = None

    def __init__(
        self,
        name: str,
        *,
        tools: Mapping[str, BaseTool] | None = None,
        budget: Budget | None = None,
        hooks: Sequence[Hooks] = (),
        ladder: Ladder | None = None,
    ) -> None:
        self.name = checked_name(type(self).__name__, name, self.example)
        if tools is not None:
            self.tools = tools
        self.budget = self.checked_budget(budget)
        self.hooks = tuple(checked_hooks(each) for each in listed("hooks", hooks))
        self.ladder: Ladder = checked_ladder(ladder, self.tools.values()) or Ladder()
        self.group = Group()

    @abstractmethod
    def driver(self, record: RunContext, resume: Resume | None) -> BaseDriver[Any]:  # Any: steps of its own
        """The driver that carries out one run of this agent."""

    @abstractmethod
    def model_names(self) -> Iterable[str]:
        """The models that a run of this agent may call, for a budget that needs their prices."""

    def member(self, key: str) -> BaseAgent[Any, Any]:  # Any: children of every type
        """The child with that key. An agent that calls a model has none."""
        raise KeyError(f"{self.name!r} has no child {key!r}")

    def check_children(self, checkpoint: Checkpoint) -> None:
        """Raise `CheckpointError` if the checkpoint has children that this agent does not have."""

    def check_ask(self, at: SafePoint) -> None:
        """Raise `UsageError` for a request that no run of this agent could ever carry out."""

    def check_steer(self) -> None:
        """Raise `UsageError` if no message can be added to a run of this agent."""

    @abstractmethod
    def output_of(self, result: RunResult[Any]) -> OutT:  # Any: as it was stored
        """The typed answer of a finished run, restored from its checkpoint."""

    # -- running -------------------------------------------------------------------------------------------------------

    def start(
        self,
        prompt: Prompt | None = None,
        *,
        checkpoint: Checkpoint | Resume | None = None,
        **options: Unpack[RunOptions[DepsT]],
    ) -> Run[DepsT, OutT]:
        """Make the handle of a new run: `async with agent.start(…) as run:`. The run starts when the block is entered.

        With `checkpoint` instead of a prompt, the run continues where another one stopped. A token that is already
        cancelled refuses the run here; a token that is cancelled later stops it, even before it starts.
        """
        check_names(options)
        agent = self.for_run(options)
        resume = checkpoint if checkpoint is None or isinstance(checkpoint, Resume) else Resume(checkpoint)
        if resume is not None:
            resume = continued.as_it_stands(resume)
        session, history = options.get("session"), options.get("history", ())
        if session is not None:
            checked_kind("session", session, SessionProtocol, "await Session.create(store)")
        if session is not None and history:
            raise UsageError("a session has its own history: leave out history=…, or leave out session=…")
        messages = RunSetup.opening(prompt, history, resume)
        if resume is not None:
            resume.check(agent.name)
            agent.check_children(resume.checkpoint)
        token = options.get("token")
        if token is not None:
            checked_kind("token", token, CancelToken, "CancelToken()")
        if token is not None:
            token.refuse_if_cancelled()
        setup = RunSetup(
            messages,
            options.get("deps", NO_DEPS),
            resume,
            token=token,
            ladder=checked_ladder(options.get("ladder"), agent.tools.values()) or agent.ladder,
            budget=agent.checked_budget(options.get("budget")) or agent.budget,
            session=session,
            gate=self._gate_of(options.get("switch")),
            parent=parent_of(options.get("parent", INHERIT)),
        )
        return Run(agent, setup)

    def _gate_of(self, switch: Switch | Gate | None) -> Gate | None:
        """The gate that the options of a run ask for; without one it has that of the run around it, or the agent's."""
        if switch is None or isinstance(switch, Gate):
            return switch
        return checked_kind("switch", switch, Switch, "Switch()").of(app=self.name)

    def for_run(self, options: RunOptions[DepsT]) -> BaseAgent[DepsT, OutT]:
        """The agent that these options ask for. An agent without a model of its own refuses a model's options."""
        if given := [name for name in OF_A_MODEL if options.get(name) is not None]:
            raise UsageError(
                f"{self.name!r} is made of agents and has no {given[0]} of its own: give {given[0]}=… to those agents"
            )
        return self

    async def run(self, prompt: Prompt, **options: Unpack[RunOptions[DepsT]]) -> RunResult[OutT]:
        """Run to the end. A run that was cancelled returns normally; a run that failed raises `RunFailed`.

        Cancellation: the run is stopped NOW and closes itself in bounded time; then the caller's exception is raised.
        """
        run = self.start(prompt, **options)
        run.launch_eagerly()
        await run.join()
        return unless_failed(run.result)

    async def resume(
        self,
        checkpoint: Checkpoint,
        *,
        message: Prompt | None = None,
        answers: Mapping[str, Any] | None = None,  # Any: a person's answer
        edit: Edit | None = None,
        on_unknown: OnUnknown = "tell",
        fork: bool = False,
        **options: Unpack[RunOptions[DepsT]],
    ) -> RunResult[OutT]:
        """Continue a stopped run; `Resume` describes the arguments. A finished effect never happens twice.

        For a handle: `agent.start(checkpoint=Resume(…), …)`.
        Cancellation: as for `run`; the resumed run leaves a checkpoint of its own.
        """
        resume = Resume(checkpoint, message, answers or {}, edit, on_unknown, fork)
        run = self.start(checkpoint=resume, **options)
        run.launch_eagerly()
        await run.join()
        return unless_failed(run.result)

    def run_sync(self, prompt: Prompt, **options: Unpack[RunOptions[DepsT]]) -> RunResult[OutT]:
        """`run` for programs without an event loop. Ctrl-C stops the run and raises `CtrlC`; a second one forces it."""
        refuse_loop("run_sync()", "await agent.run(…)")
        return unless_failed(run_sync(self.start(prompt, **options)))

    def resume_sync(
        self,
        checkpoint: Checkpoint,
        *,
        message: Prompt | None = None,
        answers: Mapping[str, Any] | None = None,
        edit: Edit | None = None,
        on_unknown: OnUnknown = "tell",
        fork: bool = False,
        **options: Unpack[RunOptions[DepsT]],
    ) -> RunResult[OutT]:
        """`resume` for programs without an event loop. Ctrl-C as in `run_sync`."""
        refuse_loop("resume_sync()", "await agent.resume(…)")
        resume = Resume(checkpoint, message, answers or {}, edit, on_unknown, fork)
        return unless_failed(run_sync(self.start(checkpoint=resume, **options)))

    def stream(
        self,
        prompt: Prompt,
        *,
        on_close: Literal["cancel", "detach"] = "cancel",
        nested: bool = False,
        **options: Unpack[RunOptions[DepsT]],
    ) -> RunStream[DepsT, OutT]:
        """The run as an async iterator of its events; with `nested`, also of the events of runs inside it.

        `on_close` says whether leaving the iterator early stops the run or lets it continue.
        """
        check_on_close(on_close)
        return RunStream(self.start(prompt, **options), on_close, nested=nested)

    def stream_sync(
        self, prompt: Prompt, *, nested: bool = False, **options: Unpack[RunOptions[DepsT]]
    ) -> SyncStreamed[DepsT, OutT]:
        """`stream` for programs without an event loop: `with agent.stream_sync(…) as events: for event in events:`.

        Leaving it early stops the run. Ctrl-C works as in `run_sync` while the program waits for the next event.
        """
        refuse_loop("stream_sync()", "async for event in agent.stream(…)")
        return SyncStreamed(self.start(prompt, **options), nested=nested)

    def checked_budget(self, budget: Budget | None) -> Budget | None:
        if budget is not None:
            checked_kind("budget", budget, Budget, "Budget(…)")
            budget.check_models(self.model_names())
        return budget

    def as_tool(self, *, name: str | None = None, description: str | None = None) -> AgentTool:
        """This agent as a tool of another one; the model passes the task as `input`."""
        text = description or f"Hand a task to the agent {self.name!r}."
        return AgentTool(self, checked_tool_name(name or self.name), checked_kind("description", text, str, "'…'"))

    # -- asking --------------------------------------------------------------------------------------------------------

    def cancel(
        self,
        at: SafePoint = SafePoint.NOW,
        *,
        within: float | None = None,
        recursive: bool = False,
        reason: str | Reason | None = None,
        next_run: bool = False,
    ) -> GroupReceipt:
        """Ask every live run of this agent; safe from any thread.

        If no run is live, the ask is kept for the next run if the agent has never run, or with `next_run=True`.
        Otherwise the receipt says FINISHED_FIRST and no later run is affected.
        """
        self.check_ask(check_point(at))
        clock = current_clock()
        ask = make_ask(at, within=within, recursive=recursive, reason=reason, now=clock.now(), wall=clock.wall())
        return self.group.ask(ask, clock, keep=next_run or not self.group.has_run)


def unless_failed(result: RunResult[OutT]) -> RunResult[OutT]:
    if result.error is not None and isinstance(result.error, StoreError | CheckpointError):
        raise result.error
    if result.stop_reason is StopReason.ERROR:
        why = render_error(result.error) if result.error is not None else "no error is known"
        raise RunFailed(f"the run failed: {why}", result) from result.error
    return result
