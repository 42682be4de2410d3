"""An agent as a tool of another agent: its run is part of the caller's tree, and stops at its own safe points."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from safepoint._core.ladder import StopPolicy, WorkKind
from safepoint._core.tree import Propagation
from safepoint.agent.resume import Resume
from safepoint.agent.run import Run, RunSetup
from safepoint.agent.tool_context import ToolContext
from safepoint.tools.bad_arguments import BadArguments
from safepoint.tools.base import BaseTool, ToolSpec
from safepoint.tools.context import CallContext
from safepoint.tools.options import ToolOptions

if TYPE_CHECKING:
    from safepoint.agent.base import BaseAgent

_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The task, with everything the agent needs to know."}},
    "required": ["input"],
    "additionalProperties": False,
}


class AgentTool(BaseTool):
    """Made by `agent.as_tool()`. The sub-agent gets the caller's dependencies, and a conversation of its own."""

    propagation = Propagation.RECURSIVE

    def __init__(self, agent: BaseAgent[Any, Any], name: str, description: str) -> None:  # Any: agents of every type
        self.agent = agent
        self.options = ToolOptions()
        self.spec = ToolSpec(name, description, _PARAMETERS)

    def model_names(self) -> Iterable[str]:
        return self.agent.model_names()

    @property
    def stop_policy(self) -> StopPolicy:
        return StopPolicy(WorkKind.CHILD)

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: decoded JSON
        if set(args) != {"input"} or not isinstance(args["input"], str) or not args["input"].strip():
            raise BadArguments('write {"input": "the task"} and nothing else')
        return dict(args)

    def body(self, context: CallContext[Any], args: dict[str, Any]) -> Awaitable[object]:
        assert isinstance(context, ToolContext), "a sub-agent's call is made by a run"
        resume = context.child if isinstance(context.child, Resume) else None
        messages = resume.messages() if resume is not None else RunSetup.of(args["input"], None)
        ladder = self.agent.ladder
        options = RunSetup(
            messages,
            context.deps,
            resume,
            ladder=ladder,
            budget=self.agent.budget,
            parent=context.node,
            inside=context.inside,
        )
        return Run(self.agent, options).drive_inside()
