"""A typed Python function, read as a tool: its name, what it does, what it takes.

What the function says is what the model sees: name, docstring and annotations; nothing is said twice. A parameter
annotated with `ToolContext` is the runtime's to fill and does not exist for the model; it is known by the mark
``__tool_context__ = True`` on its class. Arguments bound by `functools.partial` do not exist for the model either.

What cannot work is refused here, when the tool is defined, with the function, the parameter and what to write.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from safepoint.errors import ToolDefinitionError
from safepoint.tools.annotations import Names, is_context
from safepoint.tools.arguments import Arguments, Parameter
from safepoint.tools.bad_arguments import BadArguments
from safepoint.tools.docstring import Docstring
from safepoint.tools.tool_function import ToolFunction

__all__ = ["BadArguments", "Signature"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Signature:
    """What a tool is to a model (`name`, `description`, `parameters`) and to its caller (the rest).

    `parameters` is a JSON schema. `context_parameter` names the parameter that takes the ToolContext, if any.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]  # Any: a JSON schema
    context_parameter: str | None
    is_async: bool
    _arguments: Arguments = field(repr=False, compare=False)

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],  # Any: every function may be a tool
        *,
        name: str | None = None,
        description: str | None = None,
    ) -> Signature:
        """Read a function, a bound method, a `functools.partial`, or (with a name) an object with ``__call__``."""
        read = ToolFunction(function)
        tool_name = _checked_name(read.label, name if name is not None else read.name)
        doc = Docstring.parse(read.documentation)
        context, parameters = _parameters(read, doc.parameters)
        arguments = Arguments(read.label, parameters)
        words = description if description is not None else doc.description
        return cls(
            name=tool_name,
            description=words.strip() or tool_name.replace("_", " "),
            parameters=arguments.schema,
            context_parameter=context,
            is_async=read.is_async,
            _arguments=arguments,
        )

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON in, typed values out
        """The keyword arguments for the call, without the context; what was left out keeps the function's default.

        Raises `BadArguments`, whose text is for the model.
        """
        return self._arguments.validate(args)


def _checked_name(label: str, name: str | None) -> str:
    if name is None:
        raise ToolDefinitionError(f"{label}: an object with __call__ has no name of its own; write name='...'")
    if not _NAME.fullmatch(name):
        raise ToolDefinitionError(
            f"{label}: {name!r} cannot be a tool's name, which is 1 to 64 of the characters A-Z a-z 0-9 _ -; "
            "write name='...', or `def` with such a name"
        )
    return name


def _parameters(read: ToolFunction, meanings: Mapping[str, str]) -> tuple[str | None, list[Parameter]]:
    context: str | None = None
    taken: list[Parameter] = []
    names = Names.around(read.innermost)
    for parameter in read.parameters():
        _check_fillable(read.label, parameter)
        annotation = names.resolve(read.label, parameter)
        if not is_context(annotation):
            taken.append(Parameter(parameter.name, annotation, parameter.default, meanings.get(parameter.name)))
        elif context is None:
            context = parameter.name
        else:
            raise ToolDefinitionError(
                f"{read.label}: parameters '{context}' and '{parameter.name}' both take the ToolContext; keep one"
            )
    return context, taken


def _check_fillable(label: str, parameter: inspect.Parameter) -> None:
    name = parameter.name
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL:
            raise ToolDefinitionError(
                f"{label}: a model cannot fill '*{name}'; write each parameter by name, or '{name}: list[...]'"
            )
        case inspect.Parameter.VAR_KEYWORD:
            raise ToolDefinitionError(
                f"{label}: a model cannot fill '**{name}'; write each parameter by name, or '{name}: dict[str, ...]'"
            )
        case inspect.Parameter.POSITIONAL_ONLY:
            raise ToolDefinitionError(
                f"{label}: parameter '{name}' is positional-only and tools are called by name; remove the '/'"
            )
        case _ if parameter.annotation is not inspect.Parameter.empty:
            return
        case _ if name in ("self", "cls"):
            raise ToolDefinitionError(
                f"{label}: parameter '{name}' is unbound; make the tool from the bound method, `thing.method`"
            )
        case _:
            kind = "ToolContext" if name in ("ctx", "context") else "str"
            raise ToolDefinitionError(
                f"{label}: parameter '{name}' has no annotation; write its type, for example '{name}: {kind}'"
            )
