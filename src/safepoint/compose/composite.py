"""The shared part of the composites: they are agents, and differ only in their plan."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from safepoint._core.tree import Propagation
from safepoint.agent.base import BaseAgent
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.result import OutT, RunResult
from safepoint.agent.resume import Resume
from safepoint.agent.run_context import RunContext
from safepoint.compose.driver import CompositeDriver
from safepoint.compose.plan import Answer, Move, Progress
from safepoint.errors import CheckpointError
from safepoint.history.parts import Message, Prompt, user_message
from safepoint.history.rendering import render_result
from safepoint.tools.context import DepsT

_AgentT = TypeVar("_AgentT", bound=BaseAgent[Any, Any])  # Any: agents of every type


class Composite(BaseAgent[DepsT, OutT]):
    """An agent made of agents. Its hooks see its own run; model and tool hooks belong to its children."""

    propagation = Propagation.RECURSIVE
    # Whether it continues when one of its children was stopped alone.
    goes_on_without = False

    @abstractmethod
    def plan(self, progress: Progress) -> Move:
        """The next move. A plain function of the progress: a resumed run calls it again."""

    @abstractmethod
    def members(self) -> Iterable[BaseAgent[Any, Any]]:
        """The agents that it is made of."""

    def expected(self) -> tuple[str, ...]:
        """The keys of the children that are certain to run, if all goes well."""
        return ()

    def conversation(self, progress: Progress) -> tuple[Message, ...] | None:
        """The whole conversation, where children continue it; None where it is the prompt and the answer."""
        return None

    def driver(self, record: RunContext, resume: Resume | None) -> CompositeDriver:
        return CompositeDriver(self, record, resume)

    def check_children(self, checkpoint: Checkpoint) -> None:
        for entry in checkpoint.ledger:
            try:
                member = self.member(entry.call_id)
            except KeyError as missing:
                raise CheckpointError(
                    f"the checkpoint is of a child {entry.call_id!r}, which {self.name!r} has no longer: "
                    "continue it with the composite as it was"
                ) from missing
            inside = checkpoint.calls.get(entry.call_id)
            if inside is not None and inside.child is not None:
                member.check_children(inside.child)

    def model_names(self) -> Iterable[str]:
        return [name for member in self.members() for name in member.model_names()]

    def output_of(self, result: RunResult[Any]) -> OutT:  # Any: as it was stored
        """The plan makes the output again, from the answers of the children."""
        ended = {child.name: child.result for child in result.children}
        move = self.plan(Progress(tuple(result.messages), ended))
        if not isinstance(move, Answer):
            raise CheckpointError(f"the plan of {self.name!r} has changed since: its answer can't be made again")
        value: OutT = move.value  # type: ignore[assignment]  # what the plan answers is the output
        return value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {', '.join(repr(each.name) for each in self.members())}>"


def keyed(names: Iterable[str]) -> tuple[str, ...]:
    """A key for each name: the name, with a number if it occurs again."""
    keys: dict[str, None] = {}  # in their order
    for name in names:
        key, number = name, 1
        while key in keys:
            number += 1
            key = f"{name}#{number}"
        keys[key] = None
    return tuple(keys)


def checked_member(member: _AgentT) -> _AgentT:
    if not isinstance(member, BaseAgent):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"{member!r} is not an agent: write Agent('…', model=…), or another composite")
    return member


def opening(progress: Progress, make: Callable[[str], Prompt] | None) -> tuple[Message, ...]:
    """The first messages of a child that works on the composite's own prompt: it sees the conversation before."""
    if make is None:
        return progress.messages
    asked = user_message(make(progress.prompt))
    before = progress.messages[:-1] if progress.messages[-1].role == "user" else progress.messages
    return (*before, asked)


def words(value: object) -> str:
    """An answer as text. Never blank, because no provider takes a blank message."""
    text = value if isinstance(value, str) else render_result(value).text
    return text if text.strip() else "(an answer without words)"
