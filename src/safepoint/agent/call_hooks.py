"""The hooks around one tool call, and the decision that the ones before it make together.

They run one after the other, inside the call's own task. A plain function then decides from their verdicts: the first
verdict that settles the call counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from safepoint._values import Value
from safepoint.agent.events import HookFailed
from safepoint.agent.hooks import (
    WORDS_UNWRAPPED,
    AskFirst,
    Deny,
    Replace,
    hook_failure,
    in_context,
    is_its_own,
    leaves,
    overridden,
)
from safepoint.agent.run_context import RunContext
from safepoint.agent.tool_context import ToolContext


class Allowed(Value, frozen=True):
    """The call may be made, with these arguments."""

    args: Mapping[str, Any]  # Any: decoded JSON


class Unanswered(Value, frozen=True):
    """The check with that number asks a person, and there is no answer yet."""

    number: int
    question: str


def decide(
    verdicts: Iterable[object],
    args: Mapping[str, Any],  # Any: decoded JSON
    approvals: Sequence[Any],  # Any: True, False, or a reason
) -> Allowed | Deny | Replace | Unanswered:
    """Decide a call with these arguments. Checks that ask are matched to answers by order, as interrupts are.

    A returned `Replace` always has a result.
    """
    asked = 0
    for verdict in verdicts:
        if isinstance(verdict, AskFirst):
            asked += 1
            if asked > len(approvals):
                return Unanswered(asked, verdict.question)
            answer = approvals[asked - 1]
            if answer is not True:
                return Deny(answer or "a person said no")
        elif isinstance(verdict, Replace) and verdict.args is not None:
            args = verdict.args
        elif isinstance(verdict, Deny | Replace):
            return verdict
    return Allowed(args)


class CallHooks:
    """`being_stopped`: whether the call is being stopped; then no further hook starts."""

    def __init__(self, record: RunContext, context: ToolContext[Any], being_stopped: Callable[[], bool]) -> None:
        self._record = record
        self._context = context
        self._being_stopped = being_stopped

    async def run(self, name: str, subject: object) -> list[object]:
        """The verdict of each hook. Hooks see a copy: arguments are plain dicts, and the request is already recorded.

        Cancellation: cuts the hook that is running.
        """
        verdicts: list[object] = []
        for hooks in self._record.agent.hooks:
            if not overridden(hooks, name) or self._being_stopped():
                continue
            try:
                with in_context(self._context), WORDS_UNWRAPPED:
                    verdict: object = getattr(hooks, name)(self._record.run, deepcopy(subject))
                    if inspect.isawaitable(verdict):
                        verdict = await verdict
                if name == "before_tool" and not isinstance(verdict, Deny | Replace | AskFirst | None):
                    raise TypeError(
                        f"before_tool returned {verdict!r}: return Deny(…), Replace(…), AskFirst(…) or None"
                    )
            except BaseException as error:
                if self._being_stopped() or leaves(name, error) or not is_its_own(error):
                    raise
                self._record.emit(HookFailed, hook=name, error=hook_failure(name, error))
                verdict = Deny(f"the check {type(hooks).__name__}.{name} failed") if name == "before_tool" else None
            verdicts.append(verdict)
        return verdicts
