"""One agent again and again: until its answer is good enough, until it says that it is done, or a number of times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from safepoint._core.ladder import Ladder
from safepoint.agent.base import BaseAgent
from safepoint.agent.budget import Budget
from safepoint.agent.hooks import Hooks
from safepoint.agent.result import OutT, RunResult, StopReason
from safepoint.agent.validation import checked_count, checked_function
from safepoint.compose.composite import Composite, checked_member, words
from safepoint.compose.plan import Answer, Child, EndAs, Finished, Move, Progress, RunChildren
from safepoint.history.parts import Message, Prompt, user_message
from safepoint.history.states import LedgerState
from safepoint.tools.context import DepsT
from safepoint.tools.function import tool


@tool(name="loop_done", effect="pure")
async def loop_done() -> str:
    """Say that the work is done: no further round follows this one."""
    return "This is the last round. Give your answer now."


class Loop(Composite[DepsT, OutT]):
    """`Loop("improve", writer, until=lambda draft: draft.output.good, max_rounds=5)`.

    The first round gets the prompt, with the conversation so far; each later one gets what `again` makes of the round
    before, or simply its text. The output is that of the last round. It ends when `until` says so, or when the agent
    has called the tool `loop_done`, which you give it. After `max_rounds` the last one is the answer; but if there is
    an `until` that was never met, the run ends with `max_steps`, which has no output. Between two rounds is a safe
    point for every `at`.
    """

    example = "Loop('improve', writer, max_rounds=5)"

    def __init__(
        self,
        name: str,
        agent: BaseAgent[DepsT, OutT],
        *,
        max_rounds: int,
        until: Callable[[Finished[OutT]], bool] | None = None,
        again: Callable[[Finished[OutT]], Prompt] | None = None,
        budget: Budget | None = None,
        hooks: Sequence[Hooks] = (),
        ladder: Ladder | None = None,
    ) -> None:
        self._agent: BaseAgent[Any, OutT] = checked_member(agent)
        self._max_rounds = checked_count("max_rounds", max_rounds, least=1)
        self._until = checked_function("until", until)
        self._again = checked_function("again", again)
        super().__init__(name, budget=budget, hooks=hooks, ladder=ladder)

    def members(self) -> Iterable[BaseAgent[Any, Any]]:  # Any: an agent of every type
        return [self._agent]

    def member(self, key: str) -> BaseAgent[Any, Any]:
        return {self._agent.name: self._agent}[key.rpartition("#")[0]]

    def plan(self, progress: Progress) -> Move:
        rounds = len(progress.ended)
        if not rounds:
            return self._round(1, progress.messages)
        key = self._key(rounds)
        result = progress.ended[key]
        if result.stop_reason is not StopReason.END_TURN:
            return EndAs(result.stop_reason)
        last: Finished[OutT] = progress.finished(key, rounds)
        if said_done(self._agent, result) or (self._until is not None and self._until(last)):
            return Answer(words(last.text), last.output)
        if rounds < self._max_rounds:
            asked = words(last.text) if self._again is None else self._again(last)
            return self._round(rounds + 1, (user_message(asked),))
        if self._until is None:
            return Answer(words(last.text), last.output)
        return EndAs(StopReason.MAX_STEPS, last.text)

    def _round(self, number: int, messages: tuple[Message, ...]) -> RunChildren:
        return RunChildren((Child(self._key(number), self._agent, messages),))

    def _key(self, number: int) -> str:
        return f"{self._agent.name}#{number}"


def said_done(agent: BaseAgent[Any, Any], result: RunResult[Any]) -> bool:  # Any: agents of every type
    """Whether this agent, or a member of it, has called `loop_done`. A call inside an inner loop does not count."""
    if isinstance(agent, Loop):
        return False
    if any(entry.name == loop_done.name and entry.state is LedgerState.FINISHED for entry in result.ledger):
        return True
    return any(said_done(agent.member(child.name), child.result) for child in result.children)
