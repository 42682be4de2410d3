"""Agents that were written with other frameworks, run and stopped by Safepoint.

    agent = adapt(my_langgraph_graph, effects={"pay": "irreversible"})
    async with agent.start("…") as run:
        run.cancel(SafePoint.AFTER_TOOLS)

The framework's own loop, model and tools stay as they are. What an adapter cannot do is in `agent.promises`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Unpack

from safepoint.adapters.options import AdaptOptions
from safepoint.agent.foreign import ForeignAgent, ForeignOptions
from safepoint.agent.foreign_loop import Answered, ForeignLoop, Outcome
from safepoint.agent.foreign_tool import CallResult, in_call_thread, tool_context
from safepoint.agent.promises import Promises
from safepoint.errors import UsageError

# The adapter for agents whose class, or a class that it derives from, comes from this package.
ADAPTERS = {
    "pydantic_ai": "pydantic_ai",
    "langgraph": "langgraph",
    "agents": "openai_agents",
    "strands": "strands",
    "google.adk": "adk",
}


def adapter_for(agent: object) -> str | None:
    """The name of the adapter for this object; None if there is none."""
    for kind in type(agent).__mro__:
        for package, adapter in ADAPTERS.items():
            if kind.__module__ == package or kind.__module__.startswith(f"{package}."):
                return adapter
    return None


def adapt(agent: object, **options: Unpack[AdaptOptions]) -> ForeignAgent[Any, Any]:
    """The agent of another framework as an agent of Safepoint's. The framework is recognized by the object's type.

    `name`: the agent's name here; by default its own. `run_options`: what the framework's own run is called with.
    `effects`: what calls of a tool do outside, by the tool's name; a call that the framework says nothing about counts
    as effectful. `tools`: more that the framework does not know, as `{"pay": {"undo": refund, "timeout": 5}}`.
    `remote`: tools that another program runs. `budget`, `hooks`, `ladder`: as for `Agent`.
    """
    found = adapter_for(agent)
    if found is None:
        names = "Pydantic AI, LangGraph, OpenAI Agents, Strands and ADK"
        raise UsageError(f"{type(agent).__name__} is no agent that can be adapted: there are adapters for {names}")
    adapter: Any = import_module(f"safepoint.adapters.{found}")  # Any: each takes an object of its framework's
    made: ForeignAgent[Any, Any] = adapter.adapt(agent, **options)
    return made


__all__ = [
    "AdaptOptions",
    "Answered",
    "CallResult",
    "ForeignAgent",
    "ForeignLoop",
    "ForeignOptions",
    "Outcome",
    "Promises",
    "adapt",
    "adapter_for",
    "in_call_thread",
    "tool_context",
]
