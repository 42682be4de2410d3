"""A callable with its wrappings seen through: partials, bound methods, decorators, objects with ``__call__``.

Each wrapping may hide the name, the docstring or the parameters that belong to the function inside; here they are
found again. What a partial has bound is not a parameter any more: neither seen by the model nor overridden by it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard, cast

from safepoint.errors import ToolDefinitionError

_MAX_LAYERS = 50  # an object that answers every attribute has no end


class ToolFunction:
    """Refuses at once what can never be a tool: a class, a generator, what cannot be called."""

    def __init__(self, function: Any) -> None:  # Any: whatever an untyped caller passed
        if isinstance(function, staticmethod):
            function = cast("staticmethod[..., Any]", function).__func__  # Any: as above
        if isinstance(function, type) or not callable(function):
            raise ToolDefinitionError(
                f"{function!r} is not a function; write a typed `def` or `async def`, or pass a bound method"
            )
        self._function: Callable[..., Any] = function  # Any: as above
        self._layers = list(_layers(function))
        if any(_is_of_kind(kind, function) for kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)):
            raise ToolDefinitionError(f"{self.label}: a generator has no one result for the model; return a list")

    @property
    def label(self) -> str:
        """What errors call it."""
        return f"{getattr(self.innermost, '__qualname__', None) or type(self._function).__name__}()"

    @property
    def innermost(self) -> Any:  # Any: a function of any kind
        return self._layers[-1]

    @property
    def name(self) -> str | None:
        """None for an object with ``__call__``: it has no name of its own."""
        for layer in self._layers:
            if not _is_partial(layer) or hasattr(layer, "__name__"):
                return getattr(layer, "__name__", None)
        return None

    @property
    def is_async(self) -> bool:
        return is_async_function(self._function)

    @property
    def documentation(self) -> str:
        """The outermost docstring that was written for this tool, and not for `functools.partial` or another class."""
        for layer in self._layers:
            own = inspect.isroutine(layer) or "__doc__" in getattr(layer, "__dict__", {})
            text = inspect.getdoc(layer) if own else None
            if text and text != type.__call__.__doc__:  # what every __call__ without a docstring inherits
                return text
        for layer in self._layers:
            if not inspect.isroutine(layer) and not _is_partial(layer):
                return inspect.getdoc(type(cast(object, layer))) or ""
        return ""

    def parameters(self) -> list[inspect.Parameter]:
        """Those that are still open."""
        bound = {name for layer in self._layers if _is_partial(layer) for name in layer.keywords}
        try:
            signature = inspect.signature(_without_shortcut(self._function))
        except (TypeError, ValueError, NameError) as error:
            raise ToolDefinitionError(
                f"{self.label}: Python cannot tell its parameters ({error}); wrap it in a typed `def`"
            ) from error
        return [parameter for parameter in signature.parameters.values() if parameter.name not in bound]


def is_async_function(function: object) -> bool:
    return _is_of_kind(inspect.iscoroutinefunction, function)


def _is_of_kind(kind: Callable[[Any], bool], function: object) -> bool:  # Any: as above
    """Whether the function itself, or the ``__call__`` of an object, is of this kind. A class itself never is."""
    call = getattr(function, "__call__", None)  # noqa: B004  # its kind is asked for, not whether there is one
    return not isinstance(function, type) and (kind(function) or kind(call))


def _layers(function: Any) -> Iterator[Any]:  # Any: as above
    """From outside to inside."""
    for _ in range(_MAX_LAYERS):
        yield function
        if _is_partial(function):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif inspect.isroutine(function) or isinstance(function, type):
            return
        else:
            function = type(function).__call__
    raise ToolDefinitionError("this callable is wrapped too many times; write a plain `def` or `async def` around it")


def _is_partial(function: Any) -> TypeGuard[functools.partial[Any]]:  # Any: as above
    return isinstance(function, functools.partial)


def _without_shortcut(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: as above
    """`inspect` follows a partial's ``__wrapped__``, if it has one, and forgets what the partial has bound."""
    if _is_partial(function) and hasattr(function, "__wrapped__"):
        return functools.partial(function.func, *function.args, **function.keywords)
    return function
