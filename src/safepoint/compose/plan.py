"""What a composite may do next, as its plan says it. A plan is a plain function of what has been done so far.

Because it is that and nothing else, a resumed run needs no state of its own: it hands the plan what the children have
left, and the plan says where to go on.
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
    """One child to run. `key` is its name within the composite, for ever; `messages` is what it starts with.

    `speaks`: its words are the composite's own answer.
    """

    key: str
    agent: BaseAgent[Any, Any]  # Any: children of every type
    messages: tuple[Message, ...]
    speaks: bool = False


@dataclass(frozen=True, slots=True)
class RunChildren:
    """Run these, so many at once. `stop_others`: if one fails, the others are asked to stop at a safe point."""

    children: tuple[Child, ...]
    limit: int | None = None
    stop_others: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer is there. `messages`: the whole conversation, where it is more than the prompt and the answer."""

    text: str
    value: object
    messages: tuple[Message, ...] | None = None


@dataclass(frozen=True, slots=True)
class EndAs:
    """There is no answer, and there will be none: end for this reason."""

    stop_reason: StopReason
    text: str = ""


Move: TypeAlias = RunChildren | Answer | EndAs


@dataclass(frozen=True, slots=True)
class Progress:
    """The composite's own conversation, and the results of the children that have ended, by key."""

    messages: tuple[Message, ...]
    ended: Mapping[str, RunResult[Any]]  # Any: as above

    @property
    def prompt(self) -> str:
        """The words that the composite itself was asked with."""
        return next((message.text for message in reversed(self.messages) if message.role == "user"), "")

    def finished(self, key: str, number: int) -> Finished[Any]:  # Any: as above
        result = self.ended[key]
        return Finished(key, number, self.prompt, result.text, result.output)


@dataclass(frozen=True, slots=True)
class Finished(Generic[OutT]):
    """A child that has finished, as the function that makes the next one's input sees it.

    `number` counts stages or rounds from 1. `prompt` is what the composite itself was asked.
    """

    name: str
    number: int
    prompt: str
    text: str
    output: OutT
