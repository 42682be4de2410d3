"""One agent after another: each works on the answer of the one before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload

from safepoint._core.groups import Group
from safepoint._core.ladder import Ladder
from safepoint.agent.base import BaseAgent
from safepoint.agent.budget import Budget
from safepoint.agent.hooks import Hooks
from safepoint.agent.result import OutT, StopReason
from safepoint.agent.validation import checked_function
from safepoint.compose.composite import Composite, checked_member, keyed, opening, words
from safepoint.compose.plan import Answer, Child, EndAs, Finished, Move, Progress, RunChildren
from safepoint.history.parts import Message, Prompt, user_message
from safepoint.tools.context import DepsT

_NextT = TypeVar("_NextT")
_MadeT = TypeVar("_MadeT")


@dataclass(frozen=True, slots=True)
class _Stage:
    """`input` makes its prompt from the answer before; `combine` makes its output from both."""

    agent: BaseAgent[Any, Any]  # Any: checked where the stage is added, which knows both types
    input: Callable[[Any], Prompt] | None = None
    combine: Callable[[Any, Any], Any] | None = None


class Sequential(Composite[DepsT, OutT]):
    """`Sequential("pipeline", researcher).then(writer, input=lambda found: f"Write about {found.output}")`.

    The first agent gets the prompt, with the conversation so far; each later one gets what `input` makes of the one
    before, or simply its text. The output is that of the last one. Between two of them is a safe point for every `at`.
    """

    example = "Sequential('pipeline', researcher)"

    def __init__(
        self,
        name: str,
        first: BaseAgent[DepsT, OutT],
        *,
        input: Callable[[str], Prompt] | None = None,
        budget: Budget | None = None,
        hooks: Sequence[Hooks] = (),
        ladder: Ladder | None = None,
    ) -> None:
        self._stages: tuple[_Stage, ...] = (_Stage(checked_member(first), checked_function("input", input)),)
        self._keys = keyed([first.name])
        super().__init__(name, budget=budget, hooks=hooks, ladder=ladder)

    @overload
    def then(
        self,
        agent: BaseAgent[DepsT, _NextT],
        *,
        input: Callable[[Finished[OutT]], Prompt] | None = None,
        combine: None = None,
    ) -> Sequential[DepsT, _NextT]: ...

    @overload
    def then(
        self,
        agent: BaseAgent[DepsT, _NextT],
        *,
        input: Callable[[Finished[OutT]], Prompt] | None = None,
        combine: Callable[[Finished[OutT], Finished[_NextT]], _MadeT],
    ) -> Sequential[DepsT, _MadeT]: ...

    def then(
        self,
        agent: BaseAgent[DepsT, Any],
        *,
        input: Callable[[Any], Prompt] | None = None,
        combine: Callable[[Any, Any], Any] | None = None,
    ) -> Sequential[DepsT, Any]:  # Any: the overloads say which
        """The same sequence with one more agent. `combine` makes the output of the one before and of this one."""
        longer = cast("Sequential[DepsT, Any]", copy(self))
        runner = _Stage(checked_member(agent), checked_function("input", input), checked_function("combine", combine))
        longer._stages = (*self._stages, runner)
        longer._keys = keyed(runner.agent.name for runner in longer._stages)
        longer.budget, longer.group = longer.checked_budget(self.budget), Group()
        return longer

    def members(self) -> Iterable[BaseAgent[Any, Any]]:  # Any: stages of every type
        return [runner.agent for runner in self._stages]

    def member(self, key: str) -> BaseAgent[Any, Any]:
        return dict(zip(self._keys, self._stages, strict=True))[key].agent

    def expected(self) -> tuple[str, ...]:
        return self._keys

    def plan(self, progress: Progress) -> Move:
        before: Finished[Any] | None = None
        for number, (key, runner) in enumerate(zip(self._keys, self._stages, strict=True), 1):
            result = progress.ended.get(key)
            if result is None:
                last = number == len(self._stages)
                return RunChildren((Child(key, runner.agent, _input(runner, before, progress), speaks=last),))
            if result.stop_reason is not StopReason.END_TURN:
                return EndAs(result.stop_reason)
            finished = progress.finished(key, number)
            before = finished if runner.combine is None else _combined(runner.combine, before, finished)
        assert before is not None
        return Answer(before.text, cast("OutT", before.output))


def _input(runner: _Stage, before: Finished[Any] | None, progress: Progress) -> tuple[Message, ...]:
    if before is None:
        return opening(progress, runner.input)
    return (user_message(words(before.text) if runner.input is None else runner.input(before)),)


def _combined(
    combine: Callable[[Any, Any], Any], before: Finished[Any] | None, finished: Finished[Any]
) -> Finished[Any]:
    made = combine(before, finished)
    return Finished(finished.name, finished.number, finished.prompt, words(made), made)
