"""An agent that calls a model: a reusable definition, of which any number of runs may be live."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from types import MappingProxyType, NoneType
from typing import Any, cast

from safepoint._core.ladder import Ladder
from safepoint.agent.base import BaseAgent
from safepoint.agent.budget import Budget
from safepoint.agent.driver import Driver
from safepoint.agent.hooks import Hooks
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.model import Model, ModelSettings
from safepoint.agent.options import OF_A_MODEL, Instructions, RunOptions
from safepoint.agent.output import OutputTool
from safepoint.agent.result import OutT, RunResult
from safepoint.agent.resume import Resume
from safepoint.agent.run_context import RunContext
from safepoint.agent.tool_choice import check_tool_choice, comes_later
from safepoint.agent.trim import Trim, checked_trim
from safepoint.agent.validation import (
    checked_count,
    checked_instructions,
    checked_kind,
    checked_ladder,
    checked_model,
    listed,
)
from safepoint.history.states import LedgerState
from safepoint.tools.base import BaseTool
from safepoint.tools.context import DepsT


class Agent(BaseAgent[DepsT, OutT]):
    """A name, a model, instructions, tools and hooks.

    `model`: an object, or a str that chooses one, as `"anthropic:NAME"` or `"local"` do.
    `max_parallel_tools`: how many calls of one reply run at once; None means all of them, 1 means one by one.
    `retries`: how often a model call is retried while no part of its reply has arrived.
    `trim`: which part of a long conversation the model sees, as `keep_last(20)`; the stored conversation stays whole.
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
        trim: Trim | None = None,
        max_parallel_tools: int | None = None,
        budget: Budget | None = None,
        hooks: Sequence[Hooks] = (),
        ladder: Ladder | None = None,
    ) -> None:
        self.models = tuple(checked_model(model) for model in (model, *listed("fallback", fallback)))
        self.instructions = checked_instructions(instructions)
        self.output_tool = None if output in (None, str) else OutputTool(output)
        extra = () if self.output_tool is None else (self.output_tool,)
        self.settings = _checked_settings(settings) or ModelSettings()
        self.trim = checked_trim(trim)
        self.retries = checked_count("retries", retries, least=0)
        limit = max_parallel_tools
        self.max_parallel_tools = None if limit is None else checked_count("max_parallel_tools", limit, least=1)
        every = MappingProxyType(_by_name((*listed("tools", tools), *extra)))
        if not comes_later(self.settings.tool_choice):
            check_tool_choice(self.settings.tool_choice, every)
        super().__init__(name, tools=every, budget=budget, hooks=hooks, ladder=ladder)

    def driver(self, record: RunContext, resume: Resume | None) -> Driver:
        return Driver(self, record, resume)

    def for_run(self, options: RunOptions[DepsT]) -> Agent[DepsT, OutT]:
        """A copy of the agent for one run whose options differ. A cancel of the agent reaches that run too."""
        if not options or all(options.get(name) is None for name in OF_A_MODEL):
            return self
        agent, model, tools = copy(self), options.get("model"), options.get("tools")
        if model is not None:
            agent.models = (checked_model(model), *self.models[1:])
        if tools is not None:
            extra = () if self.output_tool is None else (self.output_tool,)
            agent.tools = MappingProxyType(_by_name((*listed("tools", tools), *extra)))
        agent.settings = _checked_settings(options.get("settings")) or self.settings
        if (instructions := options.get("instructions")) is not None:
            agent.instructions = checked_instructions(instructions)
        if not comes_later(agent.settings.tool_choice):
            check_tool_choice(agent.settings.tool_choice, agent.tools)
        checked_ladder(agent.ladder, agent.tools.values())
        agent.checked_budget(agent.budget)
        return agent

    def model_names(self) -> Iterable[str]:
        inside = (name for tool in self.tools.values() for name in tool.model_names())
        return [*(model.name for model in self.models), *inside]

    def output_of(self, result: RunResult[Any]) -> OutT:  # Any: as it was stored
        output = self.output_tool
        typed = output is not None and not self.has_handed_over(result.ledger)
        return cast("OutT", output.read(result.text) if output is not None and typed else result.text)

    def has_handed_over(self, ledger: Iterable[LedgerEntry]) -> bool:
        """Whether a run with this ledger handed its conversation to another agent instead of answering."""
        finished = (self.tools.get(entry.name) for entry in ledger if entry.state is LedgerState.FINISHED)
        return any(tool is not None and tool.hands_over for tool in finished)

    def __repr__(self) -> str:
        return f"<Agent {self.name!r} on {self.models[0].name}>"


def _checked_settings(settings: ModelSettings | None) -> ModelSettings | None:
    return checked_kind("settings", settings, (ModelSettings, NoneType), "ModelSettings(…)")


def _by_name(tools: Sequence[BaseTool]) -> dict[str, BaseTool]:
    found: dict[str, BaseTool] = {}
    for tool in tools:
        if not isinstance(tool, BaseTool):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"{tool!r} is not a tool: write {_right_form(tool)}")
        if tool.name in found:
            raise ValueError(f"two tools are named {tool.name!r}: give one another name with @tool(name='…')")
        found[tool.name] = tool
    return found


def _right_form(given: object) -> str:
    if isinstance(given, list | tuple):
        return "a star before a list of tools, as in tools=[*files('notes')]"
    if hasattr(given, "__aenter__"):
        return "`async with … as tools:` around it, and tools=tools"
    return "@tool above the function, or agent.as_tool()"
