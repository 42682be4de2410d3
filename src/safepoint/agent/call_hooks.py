"""The hooks around one tool call, and what those before it say together.

They run one after the other, inside the call's own task. What becomes of the call is decided afterwards, in a plain
function of their verdicts: the first one that settles it counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from safepoint.agent.events import HookFailed
from safepoint.agent.hooks import (
    AskFirst,
    Deny,
    Replace,
    in_context,
    is_its_own,
    leaves,
    overridden,
    told,
    words_unwrapped,
)
from safepoint.agent.run_context import RunContext
from safepoint.agent.tool_context import ToolContext


@dataclass(frozen=True, slots=True)
class Allowed:
    """The call may be made, with these arguments."""

    args: Mapping[str, Any]  # Any: decoded JSON


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The check of that number asks a person, and nobody has answered yet."""

    number: int
    question: str


def decide(
    verdicts: Iterable[object],
    args: Mapping[str, Any],  # Any: decoded JSON
    approvals: Sequence[Any],  # Any: True, False, or a reason
) -> Allowed | Deny | Replace | Unanswered:
    """What becomes of a call with these arguments. Checks that ask are answered by order, as interrupts are.

    A `Replace` that comes out has a result.
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
    """`being_stopped`: whether the call is on its way out; then none of them starts any more."""

    def __init__(self, record: RunContext, context: ToolContext[Any], being_stopped: Callable[[], bool]) -> None:
        self._record = record
        self._context = context
        self._being_stopped = being_stopped

    async def run(self, name: str, subject: object) -> list[object]:
        """What each of them says. They see a copy: arguments are plain dicts, and what was asked for is a record.

        Cancellation: cuts the hook that is running.
        """
        verdicts: list[object] = []
        for hooks in self._record.agent.hooks:
            if not overridden(hooks, name) or self._being_stopped():
                continue
            try:
                with in_context(self._context), words_unwrapped():
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
                self._record.emit(HookFailed, hook=name, error=told(name, error))
                verdict = Deny(f"the check {type(hooks).__name__}.{name} failed") if name == "before_tool" else None
            verdicts.append(verdict)
        return verdicts
