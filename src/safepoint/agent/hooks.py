"""Your code around a run. Derive from `Hooks` and override what you need; every method may be sync or async.

A hook runs as a piece of supervised work: NOW cuts it like anything else. A hook that raises is reported as a
`HookFailed` event and changes nothing, except `before_tool`: a check that broke is not a check that passed, so that
call is denied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from safepoint._core.asks import Ask
    from safepoint.agent.ledger import LedgerEntry
    from safepoint.agent.model import ModelRequest
    from safepoint.agent.result import RunResult
    from safepoint.agent.run import Run
    from safepoint.history.parts import Message, ToolCall


@dataclass(frozen=True, slots=True)
class Deny:
    """The call is not made; the model is told why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Replace:
    """The call is made with other arguments, or not at all and `result` is taken for its result."""

    args: Mapping[str, Any] | None = None  # Any: decoded JSON
    result: str | None = None

    def __post_init__(self) -> None:
        if (self.args is None) == (self.result is None):
            raise ValueError("Replace takes args=… or result=…, exactly one of them")


@dataclass(frozen=True, slots=True)
class AskFirst:
    """A person decides: the run ends `interrupted`. Answered True the call is made, False or a reason denies it."""

    question: str


Verdict: TypeAlias = Deny | Replace | AskFirst | None

# Any: Hooks work for runs of every dependency and output type.
AnyRun: TypeAlias = "Run[Any, Any]"


class Hooks:
    """All methods do nothing by default."""

    def before_run(self, run: AnyRun) -> object:
        """Before the first model call."""

    def after_run(self, run: AnyRun, text: str) -> object:
        """The answer is complete and recorded, the run is not sealed yet. Not called for a run that was stopped."""

    def before_model(self, run: AnyRun, request: ModelRequest) -> object:
        """Before each model call."""

    def after_model(self, run: AnyRun, message: Message) -> object:
        """After each complete reply."""

    def before_tool(self, run: AnyRun, call: ToolCall) -> object:
        """Before each tool call. Return `Deny`, `Replace`, `AskFirst`, or None to let it be."""

    def after_tool(self, run: AnyRun, entry: LedgerEntry) -> object:
        """After a tool call has finished or failed and is recorded."""

    def on_cancel_requested(self, run: AnyRun, ask: Ask) -> object:
        """Somebody asked; nothing has come of it yet. It runs beside the run's work and holds nothing."""

    def on_stopped(self, run: AnyRun, result: RunResult[Any]) -> object:  # Any: as above
        """The run was cancelled and everything is recorded."""


def overridden(hooks: Hooks, name: str) -> bool:
    return getattr(type(hooks), name) is not getattr(Hooks, name)


def is_its_own(error: BaseException) -> bool:
    """Did the hook raise this by itself? If not, it is a cut, a Ctrl-C or the end of the interpreter: let it pass."""
    if isinstance(error, asyncio.CancelledError):
        return not is_being_cut()
    return not isinstance(error, KeyboardInterrupt | GeneratorExit)


def is_being_cut() -> bool:
    """Has somebody cancelled the task that runs the hooks? Then none of them starts any more."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
