"""Annotations as types: text and forward references resolved, and the one that means the ToolContext recognised."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from safepoint.errors import ToolDefinitionError


@dataclass(frozen=True, slots=True)
class Names:
    """The names that an annotation written as text can mean: its module's, and those of the scopes around it."""

    module: dict[str, Any]  # Any: a namespace
    local: dict[str, Any]  # Any: as above

    @classmethod
    def around(cls, function: Any) -> Names:  # Any: a function of any kind
        """A tool made inside a function or a class body finds that scope on the stack by its qualified name.

        So it does not matter how many decorators lie between the scope and this call.
        """
        module: dict[str, Any] = getattr(function, "__globals__", {})  # Any: as above
        qualified_name: str = getattr(function, "__qualname__", "")
        scopes: list[Mapping[str, Any]] = []  # Any: as above
        frame = inspect.currentframe()
        while frame is not None:
            if frame.f_globals is module and qualified_name.startswith(f"{frame.f_code.co_qualname}."):
                scopes.append(frame.f_locals)
            frame = frame.f_back
        return cls(module, {name: value for scope in reversed(scopes) for name, value in scope.items()})

    def resolve(self, label: str, parameter: inspect.Parameter) -> Any:  # Any: an annotation
        holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
        try:
            hints = typing.get_type_hints(holder, self.module, self.local, include_extras=True)
        except Exception as error:
            written = parameter.annotation if isinstance(parameter.annotation, str) else repr(parameter.annotation)
            raise ToolDefinitionError(
                f"{label}: the annotation '{written}' of parameter '{parameter.name}' cannot be read: {error}; "
                "define or import its names before the tool, and not under TYPE_CHECKING"
            ) from error
        return hints[parameter.name]


def is_context(annotation: Any) -> bool:  # Any: an annotation
    """Whether it is a class marked ``__tool_context__ = True``, also inside Annotated, an alias or ``| None``."""
    if typing.get_origin(annotation) is Annotated:
        return is_context(typing.get_args(annotation)[0])
    if hasattr(annotation, "__value__"):  # a named alias: `type Ctx = ToolContext[Deps]`
        return is_context(annotation.__value__)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not type(None)]
        return len(members) == 1 and is_context(members[0])
    return getattr(typing.get_origin(annotation) or annotation, "__tool_context__", False) is True
