"""Tools that the front end carries out: to the run, a call of one is a question to a person.

The client sends its tools with every request. The run ends with the calls as pending; the client carries them out, and
its next request has their results as messages with the role `tool`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeAlias

from safepoint._core.ladder import StopPolicy
from safepoint.agent.agent import Agent
from safepoint.agent.base import BaseAgent
from safepoint.agent.checkpoint import Question
from safepoint.protocols.ag_ui.requests import FrontEndTool, RunAgentInput, ToolMessage
from safepoint.protocols.message_parts import own_call_id
from safepoint.serving.events import call_of
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.run_manager import RunManager
from safepoint.serving.submission import Answer
from safepoint.tools.base import BaseTool, ToolSpec
from safepoint.tools.context import CallContext
from safepoint.tools.options import ToolOptions

AnyAgent: TypeAlias = BaseAgent[Any, Any]  # Any: agents of every kind
_ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}  # Any: a JSON schema


class RemoteCall(BaseTool):
    """A tool of the front end. Its call asks, and returns what comes back."""

    def __init__(self, tool: FrontEndTool) -> None:
        self.spec = ToolSpec(tool.name, tool.description, tool.parameters or _ANY_ARGUMENTS)
        self.options = ToolOptions.parse(effect="effectful")

    @property
    def stop_policy(self) -> StopPolicy:
        return StopPolicy(grace=self.options.grace)

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: decoded JSON
        """The front end checks them: it has the function."""
        return dict(args)

    def body(self, context: CallContext[Any], args: dict[str, Any]) -> Awaitable[object]:  # Any: as above
        return context.interrupt({"tool": self.name, "args": args})


def with_tools(agent: AnyAgent, tools: Sequence[FrontEndTool]) -> AnyAgent:
    """The agent with the front end's tools beside its own. Raises ValueError with what can't be taken."""
    if not isinstance(agent, Agent):
        raise ValueError("tools: this agent is made of several, which share no tools: send an empty list")
    plain: Agent[Any, Any] = agent  # Any: as above  # pyright: ignore[reportUnknownVariableType]  # of any kind
    tools_here: list[BaseTool] = [tool for tool in plain.tools.values() if tool is not plain.output_tool]
    return plain.for_run({"tools": [*tools_here, *map(RemoteCall, tools)]})


def lend_tools(manager: RunManager, key: SessionKey, body: RunAgentInput) -> None:
    """The session's agent has these tools from now on, until `return_tools`. Raises ValueError."""
    if body.tools:
        manager.session_agents[key] = with_tools(manager.agent(key.app), body.tools)
    else:
        manager.session_agents.pop(key, None)


def return_tools(manager: RunManager, managed: ManagedRun) -> None:
    """Once the run is over, its session needs them no more; one that waits for a person still does."""

    def forget() -> None:
        if not managed.paused and not manager.live_of(managed.key):
            manager.session_agents.pop(managed.key, None)

    managed.over.when_set(forget)


def tool_answers(body: RunAgentInput, turn_id: str, questions: Sequence[Question]) -> tuple[Answer, ...]:
    """What the client's messages answer of these questions."""
    given = {own_call_id(turn_id, each.tool_call_id): each for each in body.messages if isinstance(each, ToolMessage)}
    asked = {call_of(each.id): each.id for each in questions}
    return tuple(Answer(asked[call], _value(message)) for call, message in given.items() if call in asked)


def _value(message: ToolMessage) -> object:
    return f"Error: {message.error}" if message.error is not None else message.content
