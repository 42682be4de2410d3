"""Checks of a caller's arguments, made where they are passed; a refusal names the value and the right form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeVar

from safepoint._core.ladder import Ladder
from safepoint.agent.hooks import Hooks
from safepoint.agent.model import Model
from safepoint.history.check import TOOL_NAME
from safepoint.tools.base import BaseTool
from safepoint.tools.tool_function import is_async_function

_T = TypeVar("_T")
_SHOWN = 200  # characters of a value in an error: a longer one would hide what to write instead


def listed(option: str, value: Iterable[_T], right: str = "[…]") -> tuple[_T, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):  # a str is a list of letters
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else f"{type(value).__name__}(…)"
        raise ValueError(f"{option}={shown} is not a list: write {option}={right}")
    return tuple(value)


def checked_kind(
    option: str, value: _T, kinds: type[Any] | tuple[type[Any], ...], right: str
) -> _T:  # Any: of every type
    if not (_are_kind(value.__class__, kinds) or isinstance(value, kinds)):  # type: ignore[arg-type]  # classes are hashable
        raise ValueError(f"{option}={value!r}: write {option}={right}")
    return value


@lru_cache(maxsize=256)
def _are_kind(kind: type[Any], kinds: type[Any] | tuple[type[Any], ...]) -> bool:
    """Whether all objects of that class are of these kinds. Cached: for a protocol the check is slow."""
    return issubclass(kind, kinds)


def checked_function(option: str, function: _T) -> _T:
    """A plain function of the user's, or None. An async function returns a coroutine, which is always true."""
    if function is not None and (not callable(function) or is_async_function(function)):
        raise ValueError(
            f"{option}={function!r} is not a plain function: write a `def` or a lambda that does not await"
        )
    return function


# The only name of the outer ring in this package. The module is not loaded before a string chooses a model.
_CHOOSING = "safepoint.models.registry"


def checked_model(model: Model | str) -> Model:
    if isinstance(model, str):
        choose: Callable[[str], Model] = import_module(_CHOOSING).choose_model
        return choose(model)
    # A class has the right attributes too, but cannot be called like an instance.
    if not isinstance(model, Model) or isinstance(model, type):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(
            f"model={model!r} is not a model: write a str like 'openai:gpt-5', or pass an object that has "
            "stream(request), which opens a stream of chunks"
        )
    return model


def checked_instructions(instructions: _T) -> _T:
    if instructions is not None and not isinstance(instructions, str) and not callable(instructions):
        raise ValueError(
            f"instructions={instructions!r}: write a str, or a function that takes the run and returns one"
        )
    return instructions


def checked_tool_name(name: str) -> str:
    if not TOOL_NAME.fullmatch(checked_kind("name", name, str, "'…'")):
        raise ValueError(
            f"{name!r} cannot be a tool's name, which is 1 to 64 of the characters A-Z a-z 0-9 _ -: "
            "write agent.as_tool(name='…')"
        )
    return name


def checked_ladder(ladder: Ladder | None, tools: Iterable[BaseTool]) -> Ladder | None:
    """Return the ladder; refuse a value that is none, or a tool whose grace is above its cap."""
    if ladder is not None:
        checked_kind("ladder", ladder, Ladder, "Ladder(…)")
        for tool in tools:
            tool.options.check_grace((tool.ladder or ladder).cap)
    return ladder


def checked_name(kind: str, name: str, example: str) -> str:
    if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"{kind}({name!r}): an agent needs a name, as in {example}")
    return name


def checked_hooks(hooks: Hooks) -> Hooks:
    if not isinstance(hooks, Hooks):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"{hooks!r} is no Hooks object: derive its class from Hooks, and pass an instance")
    return hooks


def checked_count(option: str, value: int, *, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"{option}={value!r}: write a whole number from {least} up")
    return value
