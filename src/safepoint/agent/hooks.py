"""Your code around a run. Derive from `Hooks` and override what you need; every method may be sync or async.

A hook runs as a piece of supervised work: NOW cuts it like any other. A hook that raises is reported as a `HookFailed`
event and changes nothing, except `before_tool`: a check that failed to run has not passed, so the call is denied.

`self.ctx` gives a hook what a tool's context gives a tool: a named safe point and, in a before-hook, a question to a
person.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from safepoint._values import Value
from safepoint.errors import AskPerson, CutShort, Retry, StopTool, UsageError
from safepoint.history.parts import Prompt

if TYPE_CHECKING:
    from safepoint._core.asks import Ask
    from safepoint.agent.ledger import LedgerEntry
    from safepoint.agent.model import ModelRequest
    from safepoint.agent.result import RunResult
    from safepoint.agent.run import Run
    from safepoint.agent.tool_context import ToolContext
    from safepoint.history.parts import Message, ToolCall


class Deny(Value, frozen=True):
    """The call is not made; the model is told why."""

    reason: str


class Replace(Value, frozen=True):
    """The call is made with other arguments, or not at all, with `result` as its result.

    As for a tool, the result is text, or a list of `Text`, `Image` and `File`.
    """

    args: Mapping[str, Any] | None = None  # Any: decoded JSON
    result: Prompt | None = None

    def __post_init__(self) -> None:
        if (self.args is None) == (self.result is None):
            raise ValueError("Replace takes args=… or result=…, exactly one of them")


class AskFirst(Value, frozen=True):
    """A person decides: the run ends `interrupted`. The answer True makes the call; False or a reason denies it."""

    question: str


Verdict: TypeAlias = Deny | Replace | AskFirst | None

# Any: hooks work for runs of every dependency and output type.
AnyRun: TypeAlias = "Run[Any, Any]"


_PREFIXES = ("before_", "after_", "on_")

# The value of `self.ctx` in the hook that runs now.
_context: ContextVar[ToolContext[Any] | None] = ContextVar("safepoint_hook_context", default=None)  # Any: of every run


class Hooks:
    """All methods do nothing by default. A class with a misspelt hook is refused, because it would guard nothing."""

    def __init_subclass__(cls, **more: Any) -> None:  # Any: arguments of other base classes
        super().__init_subclass__(**more)
        for name, given in vars(cls).items():
            if name.startswith(_PREFIXES) and inspect.isfunction(given):  # a field may have any name
                _check(cls.__name__, name, given)

    @property
    def ctx(self) -> ToolContext[Any]:
        """The context of the hook that runs now: `await self.ctx.safe_point("x")`, `await self.ctx.interrupt("…")`.

        Around a tool call it is the call's own context. `interrupt` works in `before_run`, `before_model` and
        `before_tool`; on resume with the answer, the hook runs again from its first line. There is no context outside a
        hook, nor in the `on_…` hooks.
        """
        context = _context.get()
        if context is None:
            raise UsageError("self.ctx is for before_… and after_… hooks, while they run: there is no context here")
        return context

    def before_run(self, run: AnyRun) -> object:
        """Before the first model call."""

    def after_run(self, run: AnyRun, text: str) -> object:
        """The answer is complete and recorded, the run is not sealed yet. Not called for a run that was stopped."""

    def before_model(self, run: AnyRun, request: ModelRequest) -> object:
        """Before each model call."""

    def after_model(self, run: AnyRun, message: Message) -> object:
        """After each complete reply."""

    def before_tool(self, run: AnyRun, call: ToolCall) -> object:
        """Before each tool call. Return `Deny`, `Replace`, `AskFirst`, or None to allow the call."""

    def after_tool(self, run: AnyRun, entry: LedgerEntry) -> object:
        """After a tool call has finished or failed and is recorded."""

    def on_cancel_requested(self, run: AnyRun, ask: Ask) -> object:
        """An ask arrived and has had no effect yet. This hook runs beside the run's work and does not delay it.

        An ask that a hook makes is reported here as well: check `ask.reason` before asking again, to avoid a loop.
        """

    def on_stopped(self, run: AnyRun, result: RunResult[Any]) -> object:
        """The run was cancelled and everything is recorded."""


def _check(owner: str, name: str, given: Callable[..., object]) -> None:
    if not hasattr(Hooks, name):
        known = ", ".join(each for each in vars(Hooks) if each.startswith(_PREFIXES))
        raise UsageError(
            f"{owner}.{name} is no hook and would never be called: write one of {known}, or a name that does not begin "
            f"with {', '.join(_PREFIXES)}"
        )
    right = list(inspect.signature(getattr(Hooks, name)).parameters)
    try:
        inspect.signature(given).bind(*right)
    except TypeError as problem:
        raise UsageError(f"{owner}.{name}: {problem}; write {name}({', '.join(right)})") from None


@contextmanager
def in_context(context: ToolContext[Any] | None) -> Generator[None]:
    """Set `self.ctx` to this context inside the block."""
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)


def leaves(name: str, error: BaseException) -> bool:
    """Whether the hook leaves because it stops at its safe point, or because it asks a person before anything began."""
    return isinstance(error, StopTool) or (isinstance(error, AskPerson) and name.startswith("before_"))


class _WordsUnwrapped:
    """A task group wraps Safepoint's own signals like errors: unwrap a group of only those into its first one."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, trace: object) -> None:
        word = _word_in(raised) if raised is not None else None
        if word is not None and word is not raised:
            raise word from None


WORDS_UNWRAPPED = _WordsUnwrapped()


def _word_in(error: BaseException) -> BaseException | None:
    if not isinstance(error, BaseExceptionGroup):
        return error
    words, rest = cast("BaseExceptionGroup[BaseException]", error).split((StopTool, AskPerson, Retry, CutShort))
    return None if words is None or rest is not None else _word_in(words.exceptions[0])


def hook_failure(name: str, error: BaseException) -> BaseException:
    """The error that a `HookFailed` event reports."""
    if isinstance(error, AskPerson):
        return UsageError(f"ctx.interrupt(…) in {name}: ask in a before_… hook, nothing has happened then")
    return error


def overridden(hooks: Hooks, name: str) -> bool:
    """Whether the method differs from the default, also if it was set on this object alone."""
    return getattr(getattr(hooks, name), "__func__", None) is not getattr(Hooks, name)


def is_its_own(error: BaseException) -> bool:
    """Whether the hook itself raised this. A cut, a Ctrl-C or the end of the interpreter must pass."""
    if isinstance(error, asyncio.CancelledError):
        return not is_being_cut()
    return not isinstance(error, KeyboardInterrupt | GeneratorExit)


def is_being_cut() -> bool:
    """Whether the task that runs the hooks was cancelled. Then no further hook starts."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
