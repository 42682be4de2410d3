"""The next move of a composite, as its plan decides it. A plan is a plain function of the progress so far.

So a resumed run needs no state of its own: it passes the children's results to the plan, and the plan decides where to
continue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias

from safepoint.agent.base import BaseAgent
from safepoint.agent.result import OutT, RunResult, StopReason
from safepoint.history.parts import Message


@dataclass(frozen=True, slots=True)
class Child:
    """One child to run. `key` is its permanent name within the composite; `messages` are its first messages.

    `speaks`: its words are the composite's own answer.
    """

    key: str
    agent: BaseAgent[Any, Any]  # Any: children of every type
    messages: tuple[Message, ...]
    speaks: bool = False


@dataclass(frozen=True, slots=True)
class RunChildren:
    """Run these, at most `limit` at once. `stop_others`: if one fails, ask the others to stop at a safe point."""

    children: tuple[Child, ...]
    limit: int | None = None
    stop_others: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer. `messages`: the whole conversation, if it is more than the prompt and the answer."""

    text: str
    value: object
    messages: tuple[Message, ...] | None = None


@dataclass(frozen=True, slots=True)
class EndAs:
    """There is no answer and none can follow: end for this reason."""

    stop_reason: StopReason
    text: str = ""


Move: TypeAlias = RunChildren | Answer | EndAs


@dataclass(frozen=True, slots=True)
class Progress:
    """The composite's own conversation, and the results of the children that have ended, by key."""

    messages: tuple[Message, ...]
    ended: Mapping[str, RunResult[Any]]  # Any: of every output type

    @property
    def prompt(self) -> str:
        """The text of the composite's own prompt."""
        return next((message.text for message in reversed(self.messages) if message.role == "user"), "")

    def finished(self, key: str, number: int) -> Finished[Any]:
        result = self.ended[key]
        return Finished(key, number, self.prompt, result.text, result.output)


@dataclass(frozen=True, slots=True)
class Finished(Generic[OutT]):
    """A child that has finished, as the function that makes the next one's input sees it.

    `number` counts stages or rounds from 1. `prompt` is the composite's own prompt.
    """

    name: str
    number: int
    prompt: str
    text: str
    output: OutT
