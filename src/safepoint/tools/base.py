"""What the runtime needs to know of everything that a model may call."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from safepoint._core.ladder import Ladder, StopPolicy
from safepoint._core.tree import Propagation
from safepoint._values import Value
from safepoint.history.check import TOOL_NAME
from safepoint.tools.options import ToolOptions

if TYPE_CHECKING:
    from safepoint.tools.context import CallContext


def checked_tool_name(name: str) -> str:
    if not TOOL_NAME.fullmatch(name):
        raise ValueError(f"name={name!r} cannot be a tool's name: write 1 to 64 of the characters A-Z a-z 0-9 _ -")
    return name


class ToolSpec(Value, frozen=True):
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # Any: a JSON schema


class BaseTool(ABC):
    """A tool: its description for the model, its options, and how to carry out one call."""

    spec: ToolSpec
    options: ToolOptions
    ladder: Ladder | None = None
    propagation: Propagation = Propagation.NOTHING
    # Whether the run ends when such a call has finished, because another agent continues the conversation.
    hands_over: bool = False
    # A program outside this process runs it: the fate of a cut call cannot be known here.
    remote: bool = False
    # A text about the tool for the instructions of its agent.
    guidance: str | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the parameters."""
        parameters = json.dumps(dict(self.spec.parameters), sort_keys=True, default=str)
        return hashlib.sha256(parameters.encode()).hexdigest()[:16]

    def model_names(self) -> Iterable[str]:
        """The models that a call is known to use: a budget needs their prices."""
        return ()

    @property
    @abstractmethod
    def stop_policy(self) -> StopPolicy:
        """How a running call is to be stopped."""

    @abstractmethod
    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: decoded JSON in, typed values out
        """Check the model's arguments. Raises `BadArguments`, whose text the model can act on."""

    @abstractmethod
    def body(self, context: CallContext[Any], args: dict[str, Any]) -> Awaitable[object]:
        """One call, as the body of its own task."""

    def undo(self, context: CallContext[Any], args: dict[str, Any]) -> Awaitable[object]:
        """The compensation of a cut call, of a tool whose options have one."""
        raise NotImplementedError(f"{self!r} has no undo")

    def __repr__(self) -> str:
        return f"<Tool {self.name!r} ({self.options.effect})>"
