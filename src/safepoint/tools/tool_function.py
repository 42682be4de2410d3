"""A callable seen through its wrappers: partials, bound methods, decorators, objects with ``__call__``.

Each wrapper may hide the name, the docstring or the parameters of the function inside; here they are found again. An
argument that a partial has bound is no longer a parameter: the model neither sees nor overrides it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard, cast

from safepoint.errors import ToolDefinitionError

_MAX_LAYERS = 50  # an object that answers every attribute would never end


class ToolFunction:
    """Refuses at once what can never be a tool: a class, a generator, an object that cannot be called."""

    def __init__(self, function: Any) -> None:  # Any: an untyped caller's value
        if isinstance(function, staticmethod):
            function = cast("staticmethod[..., Any]", function).__func__
        if isinstance(function, type) or not callable(function):
            raise ToolDefinitionError(
                f"{function!r} is not a function; write a typed `def` or `async def`, or pass a bound method"
            )
        self._function: Callable[..., Any] = function
        self._layers = list(_layers(function))
        if any(_is_of_kind(kind, function) for kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction)):
            raise ToolDefinitionError(f"{self.label}: a generator has no one result for the model; return a list")

    @property
    def label(self) -> str:
        """Its name in error messages."""
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
        """The outermost docstring that was written for this tool, not for `functools.partial` or another class."""
        for layer in self._layers:
            has_docstring = inspect.isroutine(layer) or "__doc__" in getattr(layer, "__dict__", {})
            text = inspect.getdoc(layer) if has_docstring else None
            if text and text != type.__call__.__doc__:  # the docstring that every __call__ without one inherits
                return text
        for layer in self._layers:
            if not inspect.isroutine(layer) and not _is_partial(layer):
                return inspect.getdoc(type(cast(object, layer))) or ""
        return ""

    def parameters(self) -> list[inspect.Parameter]:
        """The parameters that are not bound."""
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


def _is_of_kind(kind: Callable[[Any], bool], function: object) -> bool:
    """Whether the function itself, or the ``__call__`` of an object, is of this kind. A class itself never is."""
    call = getattr(function, "__call__", None)  # noqa: B004  # this reads its kind, not whether there is one
    return not isinstance(function, type) and (kind(function) or kind(call))


def _layers(function: Any) -> Iterator[Any]:
    """The wrappers from outside to inside."""
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


def _is_partial(function: Any) -> TypeGuard[functools.partial[Any]]:
    return isinstance(function, functools.partial)


def _without_shortcut(function: Callable[..., Any]) -> Callable[..., Any]:
    """`inspect` follows a partial's ``__wrapped__``, if it has one, and ignores the bound arguments."""
    if _is_partial(function) and hasattr(function, "__wrapped__"):
        return functools.partial(function.func, *function.args, **function.keywords)
    return function
