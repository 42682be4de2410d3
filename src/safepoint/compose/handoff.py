"""Agents that hand one conversation to each other, within what each of them is permitted.

An agent that may transfer gets one tool for each agent on its list. Its call and a truthful result stay in the
conversation, which the other agent then continues under its own instructions and with its own tools.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from safepoint._core.ladder import CUT_AT_ONCE, Ladder, StopPolicy
from safepoint.agent.agent import Agent
from safepoint.agent.base import BaseAgent
from safepoint.agent.budget import Budget
from safepoint.agent.hooks import Hooks
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import OutT, StopReason
from safepoint.agent.tool_choice import TRANSFER, check_tool_choice
from safepoint.agent.tool_context import ToolContext
from safepoint.agent.validation import checked_count, listed
from safepoint.compose.composite import Composite, checked_member, keyed
from safepoint.compose.plan import Answer, Child, EndAs, Move, Progress, RunChildren
from safepoint.history.parts import Message, Notice, common
from safepoint.history.states import LedgerState
from safepoint.tools.bad_arguments import BadArguments
from safepoint.tools.base import BaseTool, ToolSpec
from safepoint.tools.context import CallContext, DepsT
from safepoint.tools.options import Effect, ToolOptions

_NO_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}  # Any: a JSON schema


class TransferTool(BaseTool):
    """Hands the conversation to another agent, once in a run: a second transfer gets an error."""

    hands_over = True

    def __init__(self, target: str, key: str) -> None:
        self.key = key
        self.options = ToolOptions(effect=Effect.PURE, final=True)
        name = TRANSFER + re.sub(r"[^A-Za-z0-9_-]", "_", key)[:52]
        self.spec = ToolSpec(name, f"Hand the conversation over to {target!r}, who continues it.", _NO_PARAMETERS)

    @property
    def stop_policy(self) -> StopPolicy:
        return CUT_AT_ONCE

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: decoded JSON
        if args:
            raise BadArguments("write {} and nothing else")
        return {}

    def body(self, context: CallContext[Any], args: dict[str, Any]) -> Awaitable[object]:
        assert isinstance(context, ToolContext), "a transfer is made by a run"
        return self._transfer(context)

    async def _transfer(self, context: ToolContext[Any]) -> str:  # Any: the caller's own dependencies
        """Record the transfer."""
        if _target(context.run.agent, context.run.ledger) is not None:
            raise ValueError("this transfer did not happen: the conversation is being handed to another agent already")
        return f"The conversation was handed over to {self.key!r}."


class Handoff(Composite[DepsT, OutT]):
    """`Handoff("desk", triage, to={triage: [billing, repairs], billing: [triage]})`.

    `to`: which agent may hand the conversation to which others. An agent that answers without handing it on ends the
    run, and that answer is the output. `max_transfers` bounds a conversation that goes round in circles, as a budget of
    steps does: beyond it the run ends with `max_steps`. Between two agents is a safe point for every `at`.
    """

    example = "Handoff('desk', triage, to={triage: [billing]})"

    def __init__(
        self,
        name: str,
        first: BaseAgent[DepsT, OutT],
        *,
        to: Mapping[BaseAgent[DepsT, OutT], Sequence[BaseAgent[DepsT, OutT]]],
        max_transfers: int = 20,
        budget: Budget | None = None,
        hooks: Sequence[Hooks] = (),
        ladder: Ladder | None = None,
    ) -> None:
        if not isinstance(to, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"to={to!r} does not say who may hand over to whom: write to={{first: [others]}}")
        to = {agent: listed(f"to[{agent!r}]", targets) for agent, targets in to.items()}
        everybody = list(dict.fromkeys([first, *to, *(each for targets in to.values() for each in targets)]))
        self._names: dict[BaseAgent[Any, Any], str] = dict(
            zip(everybody, keyed(checked_member(each).name for each in everybody), strict=True)
        )
        self._first = first
        self._to = {agent: self._transfers(agent, targets) for agent, targets in to.items()}
        for each in map(self._able, everybody):
            if isinstance(each, Agent):
                check_tool_choice(each.settings.tool_choice, each.tools)
        self._max_transfers = checked_count("max_transfers", max_transfers, least=1)
        super().__init__(name, budget=budget, hooks=hooks, ladder=ladder)

    def _transfers(self, agent: BaseAgent[Any, Any], targets: Sequence[BaseAgent[Any, Any]]) -> list[TransferTool]:
        if not isinstance(agent, Agent):
            raise ValueError(
                f"{agent!r} calls no model, so it can't hand anything over: leave it out of the keys of to="
            )
        tools = [TransferTool(self._names[target], self._names[target]) for target in targets]
        names = [*agent.tools, *(tool.name for tool in tools)]
        if len(set(names)) < len(names):
            raise ValueError(
                f"two tools of {agent.name!r} have one name: {sorted(names)}; rename the agent or its tool"
            )
        return tools

    def members(self) -> Iterable[BaseAgent[Any, Any]]:  # Any: agents of every type
        return list(self._names)

    def member(self, key: str) -> BaseAgent[Any, Any]:
        name = key.rpartition("#")[0]
        return self._able({known: agent for agent, known in self._names.items()}[name])

    def _able(self, agent: BaseAgent[Any, Any]) -> BaseAgent[Any, Any]:
        """The agent with a transfer tool for each permitted target."""
        tools = self._to.get(agent, [])
        if not tools or not isinstance(agent, Agent):
            return agent
        # The same agent, with the same live runs; it only has a few more tools.
        able = copy(agent)  # pyright: ignore[reportUnknownVariableType]  # of any type
        able.tools = MappingProxyType({**agent.tools, **{tool.name: tool for tool in tools}})
        return able  # pyright: ignore[reportUnknownVariableType]  # as above

    def plan(self, progress: Progress) -> Move:
        if not progress.ended:
            return self._turn(1, self._names[self._first], progress.messages)
        number = len(progress.ended)
        key, result = list(progress.ended.items())[-1]
        if result.stop_reason is not StopReason.END_TURN:
            return EndAs(result.stop_reason)
        target = _target(self.member(key), result.ledger)
        if target is None:
            return Answer(result.text, result.output, _conversation(progress))
        if number > self._max_transfers:
            return EndAs(StopReason.MAX_STEPS)
        return self._turn(number + 1, target, _up_to_transfer(_conversation(progress)))

    def _turn(self, number: int, name: str, messages: tuple[Message, ...]) -> RunChildren:
        key = f"{name}#{number}"
        return RunChildren((Child(key, self.member(key), messages, speaks=True),))

    def conversation(self, progress: Progress) -> tuple[Message, ...] | None:
        if not progress.ended:
            return None
        key, last = list(progress.ended.items())[-1]
        conversation = _conversation(progress)
        if last.stop_reason is StopReason.END_TURN:
            return conversation if _target(self.member(key), last.ledger) is None else _up_to_transfer(conversation)
        *before, closing = conversation
        parts = tuple([part for part in closing.parts if not isinstance(part, Notice)])  # the composite has its own
        return (*before, replace(closing, parts=parts)) if parts else tuple(before)


def _target(agent: BaseAgent[Any, Any], ledger: Iterable[LedgerEntry]) -> str | None:  # Any: agents of every type
    """The target of the transfer, if there was one. The user's own tools may have any name."""
    for entry in ledger:
        tool = agent.tools.get(entry.name)
        if entry.state is LedgerState.FINISHED and isinstance(tool, TransferTool):
            return tool.key
    return None


def _conversation(progress: Progress) -> tuple[Message, ...]:
    """The conversation of the last child, with its own messages under its name."""
    *before, (key, last) = progress.ended.items()
    start = len(before[-1][1].messages) - 1 if before else common(progress.messages, last.messages)
    name = key.rpartition("#")[0]
    said = [message if message.role == "user" else replace(message, author=name) for message in last.messages[start:]]
    return (*last.messages[:start], *said)


def _up_to_transfer(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages without the runtime's closing text, which is no answer of the agent."""
    return messages[:-1]
