"""An agent: a reusable definition. It holds no state of any run; many runs at once are fine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType, NoneType
from typing import Any, Generic, Literal, TypeAlias

from safepoint._core.asks import make_ask
from safepoint._core.clock import current_clock
from safepoint._core.groups import CancelToken, Group, GroupReceipt
from safepoint._core.ladder import Ladder
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason
from safepoint.agent.as_tool import AgentTool
from safepoint.agent.budget import Budget
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.conversation import Conversation
from safepoint.agent.hooks import Hooks
from safepoint.agent.inputs import (
    checked_instructions,
    checked_kind,
    checked_ladder,
    checked_model,
    checked_tool_name,
    listed,
)
from safepoint.agent.model import Model, ModelSettings
from safepoint.agent.output import OutputTool
from safepoint.agent.result import OutT, RunResult, StopReason
from safepoint.agent.resume import Edit, OnUnknown, Resume
from safepoint.agent.run import INHERIT, Inherit, Run, RunOptions, parent_of
from safepoint.agent.streamed import Streamed, check_on_close
from safepoint.agent.sync import run_sync
from safepoint.errors import CheckpointError, RunFailed, StoreError, UsageError
from safepoint.history.parts import Message, Prompt
from safepoint.tools.base import BaseTool
from safepoint.tools.context import DepsT
from safepoint.tools.rendering import render_error

Instructions: TypeAlias = str | Callable[["Run[DepsT, Any]"], "str | Awaitable[str]"]

NO_DEPS: Any = None  # Any: fits every agent; right for those that declare no dependencies


class Agent(Generic[DepsT, OutT]):
    """A name, a model, instructions, tools and hooks.

    `model`: an object, or a str that chooses one, as `"anthropic:NAME"` or `"local"` do.
    `max_parallel_tools`: how many calls of one reply run at once; None is all of them, 1 is one by one.
    `retries`: how often a model call is tried again while nothing of its reply has arrived.
    """

    def __init__(
        self,
        name: str,
        *,
        model: Model | str,
        instructions: Instructions[DepsT] | None = None,
        tools: Sequence[BaseTool] = (),
        output: type[OutT] | None = None,
        settings: ModelSettings | None = None,
        retries: int = 2,
        fallback: Sequence[Model | str] = (),
        max_parallel_tools: int | None = None,
        budget: Budget | None = None,
        hooks: Sequence[Hooks] = (),
        ladder: Ladder | None = None,
    ) -> None:
        self.name = _checked_name(name)
        self.models = tuple(checked_model(model) for model in (model, *listed("fallback", fallback)))
        self.instructions = checked_instructions(instructions)
        self.output_tool = None if output in (None, str) else OutputTool(output)
        extra = () if self.output_tool is None else (self.output_tool,)
        self.tools: Mapping[str, BaseTool] = MappingProxyType(_by_name((*listed("tools", tools), *extra)))
        self.budget = self._checked_budget(budget)
        self.settings = checked_kind("settings", settings or ModelSettings(), ModelSettings, "ModelSettings(…)")
        self.retries = _count("retries", retries, least=0)
        limit = max_parallel_tools
        self.max_parallel_tools = None if limit is None else _count("max_parallel_tools", limit, least=1)
        self.hooks = tuple(_checked_hooks(each) for each in listed("hooks", hooks))
        self.ladder: Ladder = checked_ladder(ladder or Ladder(), self.tools.values()) or Ladder()
        self.group = Group()

    # -- running -------------------------------------------------------------------------------------------------------

    def start(
        self,
        prompt: Prompt | None = None,
        *,
        checkpoint: Checkpoint | Resume | None = None,
        history: Sequence[Message] = (),
        session: Conversation | None = None,
        deps: DepsT = NO_DEPS,
        token: CancelToken | None = None,
        budget: Budget | None = None,
        ladder: Ladder | None = None,
        parent: Run[Any, Any] | Inherit | None = INHERIT,
    ) -> Run[DepsT, OutT]:
        """The handle of a new run: `async with agent.start(…) as run:`. Nothing runs before the block is entered.

        With `checkpoint` instead of a prompt it is the handle of a run that goes on where another stopped.
        """
        resume = Resume(checkpoint) if isinstance(checkpoint, Checkpoint) else checkpoint
        if session is not None and history:
            raise UsageError("a session has its own history: leave out history=…, or leave out session=…")
        messages = RunOptions.opening(prompt, history, resume)
        if resume is not None:
            resume.check(self.name)
        options = RunOptions(
            messages,
            deps,
            resume,
            token=checked_kind("token", token, (CancelToken, NoneType), "CancelToken()"),
            ladder=checked_ladder(ladder, self.tools.values()) or self.ladder,
            budget=self._checked_budget(budget) or self.budget,
            session=session,
            parent=parent_of(parent),
        )
        return Run(self, options)

    async def run(
        self,
        prompt: Prompt,
        *,
        history: Sequence[Message] = (),
        session: Conversation | None = None,
        deps: DepsT = NO_DEPS,
        token: CancelToken | None = None,
        budget: Budget | None = None,
        ladder: Ladder | None = None,
        parent: Run[Any, Any] | Inherit | None = INHERIT,
    ) -> RunResult[OutT]:
        """Run to the end. A run that was cancelled returns normally; one that failed raises `RunFailed`.

        Cancellation: the run is stopped NOW and closes itself, bounded; then the caller's exception goes on.
        """
        run = self.start(
            prompt,
            history=history,
            session=session,
            deps=deps,
            token=token,
            budget=budget,
            ladder=ladder,
            parent=parent,
        )
        run.launch()
        await run.join()
        return unless_failed(run.result)

    async def resume(
        self,
        checkpoint: Checkpoint,
        *,
        message: Prompt | None = None,
        answers: Mapping[str, Any] | None = None,  # Any: whatever people answered
        edit: Edit | None = None,
        on_unknown: OnUnknown = "tell",
        fork: bool = False,
        session: Conversation | None = None,
        deps: DepsT = NO_DEPS,
    ) -> RunResult[OutT]:
        """Go on where a run was stopped; see `Resume` for the options. A finished effect never happens twice.

        Cancellation: as for `run`; the resumed run leaves a checkpoint of its own.
        """
        resume = Resume(checkpoint, message, answers or {}, edit, on_unknown, fork)
        run = self.start(checkpoint=resume, session=session, deps=deps)
        run.launch()
        await run.join()
        return unless_failed(run.result)

    def run_sync(
        self,
        prompt: Prompt,
        *,
        history: Sequence[Message] = (),
        session: Conversation | None = None,
        deps: DepsT = NO_DEPS,
        token: CancelToken | None = None,
        budget: Budget | None = None,
        ladder: Ladder | None = None,
    ) -> RunResult[OutT]:
        """`run` for programs without an event loop. Ctrl-C stops the run and raises `CtrlC`, a second one forces it."""
        steps = ladder or self.ladder
        return unless_failed(
            run_sync(
                lambda: self.start(
                    prompt, history=history, session=session, deps=deps, token=token, budget=budget, ladder=steps
                ),
                steps,
            )
        )

    def stream(
        self,
        prompt: Prompt,
        *,
        on_close: Literal["cancel", "detach"] = "cancel",
        history: Sequence[Message] = (),
        session: Conversation | None = None,
        deps: DepsT = NO_DEPS,
        token: CancelToken | None = None,
        budget: Budget | None = None,
        ladder: Ladder | None = None,
        parent: Run[Any, Any] | Inherit | None = INHERIT,
    ) -> Streamed[DepsT, OutT]:
        """The run as an async iterator of events. Leaving it early stops the run, or lets it go on: `on_close`."""
        check_on_close(on_close)
        run = self.start(
            prompt,
            history=history,
            session=session,
            deps=deps,
            token=token,
            budget=budget,
            ladder=ladder,
            parent=parent,
        )
        return Streamed(run, on_close)

    def _checked_budget(self, budget: Budget | None) -> Budget | None:
        if budget is not None:
            budget.check_models(model.name for model in self.models)
        return budget

    def as_tool(self, *, name: str | None = None, description: str | None = None) -> AgentTool:
        """This agent as a tool of another one; the model hands it its task as `input`."""
        return AgentTool(
            self, checked_tool_name(name or self.name), description or f"Hand a task to the agent {self.name!r}."
        )

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

        With none live the ask is kept for the next run if the agent has never run, or with `next_run=True`; otherwise
        the receipt says FINISHED_FIRST and no later run is touched.
        """
        clock = current_clock()
        ask = make_ask(at, within=within, recursive=recursive, reason=reason, now=clock.now(), wall=clock.wall())
        return self.group.ask(ask, keep=next_run or not self.group.has_run)

    def __repr__(self) -> str:
        return f"<Agent {self.name!r} on {self.models[0].name}>"


def unless_failed(result: RunResult[OutT]) -> RunResult[OutT]:
    if isinstance(result.error, StoreError | CheckpointError):
        raise result.error
    if result.stop_reason is StopReason.ERROR:
        why = render_error(result.error) if result.error is not None else "no error is known"
        raise RunFailed(f"the run failed: {why}", result) from result.error
    return result


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"Agent({name!r}): an agent needs a name, as in Agent('writer', model=…)")
    return name


def _checked_hooks(hooks: Hooks) -> Hooks:
    if not isinstance(hooks, Hooks):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"{hooks!r} is no Hooks object: derive its class from Hooks, and pass an instance")
    return hooks


def _by_name(tools: Sequence[BaseTool]) -> dict[str, BaseTool]:
    found: dict[str, BaseTool] = {}
    for tool in tools:
        if not isinstance(tool, BaseTool):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"{tool!r} is not a tool: write @tool above the function, or agent.as_tool()")
        if tool.name in found:
            raise ValueError(f"two tools are named {tool.name!r}: give one another name with @tool(name='…')")
        found[tool.name] = tool
    return found


def _count(option: str, value: int, *, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"{option}={value!r}: write a whole number from {least} up")
    return value
