"""The options that a tool declares: how harmful it is to cut it, how long it may take, where it runs.

Every value is checked when the options are made, so an object of this type is always coherent by itself. Two facts are
known only later and have their own check: the ladder's cap (`check_grace`) and the function (`placed_for`).
An option is honoured or refused; none is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec.structs import replace

from safepoint._values import Value
from safepoint.errors import ToolDefinitionError
from safepoint.tools.tool_function import is_async_function

DEFAULT_GRACE_CAP = 10.0


class Effect(StrEnum):
    """The effect of a call on the outside, mildest first."""

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    EFFECTFUL = "effectful"
    IRREVERSIBLE = "irreversible"


class OnCancel(StrEnum):
    """What a cancel does to a call that runs: cut it, or let it finish within its grace."""

    CUT = "cut"
    FINISH = "finish"


class RunIn(StrEnum):
    """Where the function runs."""

    ASYNC = "async"
    THREAD = "thread"
    PROCESS = "process"


EffectLike: TypeAlias = Effect | Literal["pure", "idempotent", "effectful", "irreversible"]
OnCancelLike: TypeAlias = OnCancel | Literal["cut", "finish"]
RunInLike: TypeAlias = RunIn | Literal["async", "thread", "process"]
Undo: TypeAlias = Callable[..., Awaitable[object]]

_Choice = TypeVar("_Choice", bound=StrEnum)


class ToolOptions(Value, frozen=True, kw_only=True):
    """A tool's declarations. `grace` None means the ladder's own; `run_in` None means by the kind of function."""

    effect: Effect = Effect.EFFECTFUL
    on_cancel: OnCancel = OnCancel.CUT
    grace: float | None = None
    timeout: float | None = None
    undo: Undo | None = None
    run_in: RunIn | None = None
    final: bool = False
    raise_in_thread: bool = False

    def __post_init__(self) -> None:
        _check_member("effect", self.effect, Effect)
        _check_member("on_cancel", self.on_cancel, OnCancel)
        _check_seconds("grace", self.grace)
        _check_seconds("timeout", self.timeout)
        _check_undo(self.undo)
        if self.run_in is not None:
            _check_member("run_in", self.run_in, RunIn)
        if not isinstance(self.final, bool):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"final={self.final!r} is not a bool; write final=True or final=False")
        if not isinstance(self.raise_in_thread, bool):  # pyright: ignore[reportUnnecessaryIsInstance]  # as above
            raise ValueError(f"raise_in_thread={self.raise_in_thread!r} is not a bool; write True, or leave it out")

    @classmethod
    def parse(
        cls,
        *,
        effect: EffectLike = Effect.EFFECTFUL,
        on_cancel: OnCancelLike = OnCancel.CUT,
        grace: float | None = None,
        timeout: float | None = None,
        undo: Undo | None = None,
        run_in: RunInLike | None = None,
        final: bool = False,
        raise_in_thread: bool = False,
    ) -> ToolOptions:
        """Make options from plain words for the enums: ``parse(effect="pure")``."""
        return cls(
            effect=_member("effect", effect, Effect),
            on_cancel=_member("on_cancel", on_cancel, OnCancel),
            grace=grace,
            timeout=timeout,
            undo=undo,
            run_in=None if run_in is None else _member("run_in", run_in, RunIn),
            final=final,
            raise_in_thread=raise_in_thread,
        )

    def check_grace(self, cap: float = DEFAULT_GRACE_CAP) -> None:
        """Refuse a grace above the ladder's cap: it could not be given."""
        if self.grace is not None and self.grace > cap:
            raise ValueError(
                f"grace={self.grace!r} is above the ladder's cap of {cap:g} s; "
                f"write grace={cap:g} or less, or raise the ladder's cap"
            )

    def placed_for(self, function_name: str, *, is_async: bool) -> ToolOptions:
        """These options with `run_in` decided for this function. Refuses a place where it cannot run."""
        natural = RunIn.ASYNC if is_async else RunIn.THREAD
        if self.raise_in_thread and (is_async or self.run_in is RunIn.PROCESS):
            raise ValueError(f"raise_in_thread=True is for threads, and {function_name}() runs in none: leave it out")
        if self.run_in is None:
            return replace(self, run_in=natural)
        if self.run_in is not natural and (is_async or self.run_in is not RunIn.PROCESS):
            kind = "an async function" if is_async else "a plain function"
            other = "def" if is_async else "async def"
            raise ValueError(
                f"run_in='{self.run_in}' does not fit {function_name}(), which is {kind}: "
                f"write run_in='{natural}', leave run_in out, or make it `{other}`"
            )
        return self


def _member(option: str, value: str, kind: type[_Choice]) -> _Choice:
    try:
        return kind(value)
    except ValueError:
        raise _wrong_choice(option, value, [repr(member.value) for member in kind]) from None


def _check_member(option: str, value: object, kind: type[_Choice]) -> None:
    if not isinstance(value, kind):
        raise _wrong_choice(option, value, [f"{kind.__name__}.{member.name}" for member in kind])


def _wrong_choice(option: str, value: object, right: Sequence[str]) -> ValueError:
    return ValueError(f"{option}={value!r} is not a choice; write one of {', '.join(right)}")


def _check_seconds(option: str, value: Any) -> None:  # Any: an untyped caller's value
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{option}={value!r} is not a number of seconds; write for example {option}=2.5")
    if not math.isfinite(value) or value <= 0:
        raise ValueError(
            f"{option}={value!r} must be a finite number of seconds above 0; "
            f"write for example {option}=2.5, or leave {option} out"
        )


def _check_undo(undo: Any) -> None:  # Any: an untyped caller's value
    if undo is None or is_async_function(undo):
        return
    name = getattr(undo, "__name__", None) or repr(undo)
    raise ToolDefinitionError(f"undo={name} is not an async function; write `async def` for the function that undoes")
