"""A typed Python function, read as a tool: its name, its description, its parameters.

The function itself tells the model everything: name, docstring and annotations; nothing is written twice. A parameter
annotated with `ToolContext` is the runtime's to fill and does not exist for the model; it is known by the mark
``__tool_context__ = True`` on its class. Arguments bound by `functools.partial` do not exist for the model either.

What cannot work is refused here, when the tool is defined, with the function, the parameter and what to write.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from safepoint._values import Value
from safepoint.errors import ToolDefinitionError
from safepoint.tools.bad_arguments import BadArguments
from safepoint.tools.tool_function import ToolFunction

if TYPE_CHECKING:
    from safepoint.tools.arguments import Arguments, Parameter

# A docstring, split into the tool's description and the meaning of each parameter.
#
# Three styles are recognised by their own marks, without a setting: Google (``Args:`` and an indented list), NumPy
# (``Parameters`` underlined with dashes) and Sphinx (``:param name: ...``). Everything else stays in the description
# word for word, including other sections: what a tool returns or raises helps the model.

_GOOGLE_HEADING = re.compile(
    r"(?:Args|Arguments|Params|Parameters|Keyword Args|Keyword Arguments|Other Parameters):\s*"
)
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\((?P<type>.*?)\))?\s*:(?:\s+|$)(?P<text>.*)")
_NUMPY_HEADING = re.compile(r"(?:Parameters|Other Parameters|Keyword Arguments)\s*")
_NUMPY_ENTRY = re.compile(r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_UNDERLINE = re.compile(r"\s*-{3,}\s*")
_SPHINX_PARAM = re.compile(
    r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(?P<name>\w+)\s*:(?P<text>.*)"
)
_SPHINX_TYPE = re.compile(r":(?:type|kwtype)\s+\w+\s*:.*")


class Docstring(Value, frozen=True):
    """`description` is empty if the docstring has only parameters."""

    description: str
    parameters: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> Docstring:
        """Read a docstring whose indentation is already taken away, as `inspect.getdoc` does."""
        reader = _Reader(text.splitlines())
        reader.read()
        description = re.sub(r"\n{3,}", "\n\n", "\n".join(reader.kept)).strip()
        meanings = {name: " ".join(" ".join(lines).split()) for name, lines in reader.meanings.items()}
        return cls(description, {name: meaning for name, meaning in meanings.items() if meaning})


class _Reader:
    """One pass over the lines; each line is kept or belongs to a parameter."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0
        self.kept: list[str] = []
        self.meanings: dict[str, list[str]] = {}

    def read(self) -> None:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if _GOOGLE_HEADING.fullmatch(line) and self._next_is_indented():
                self._at += 1
                self._read_google()
            elif _NUMPY_HEADING.fullmatch(line) and self._is_underline(self._at + 1):
                self._at += 2
                self._read_numpy()
            elif found := _SPHINX_PARAM.fullmatch(line):
                self._at += 1
                self.meanings[found["name"]] = [found["text"], *self._take_indented()]
            elif _SPHINX_TYPE.fullmatch(line):
                self._at += 1
                self._take_indented()
            else:
                self.kept.append(line)
                self._at += 1

    def _read_google(self) -> None:
        """Entries share one indentation; deeper lines continue the entry above."""
        section = self._take_indented(blank_lines=True)
        depth = min((_indent(line) for line in section if line.strip()), default=0)
        current: list[str] = []
        for line in section:
            found = _GOOGLE_ENTRY.fullmatch(line.strip()) if _indent(line) == depth else None
            if found:
                current = self.meanings.setdefault(found["name"], [])
                current.append(found["text"])
            else:
                current.append(line)
        self.kept.append("")

    def _read_numpy(self) -> None:
        """Entries stand at the margin, their meanings are indented; another underlined heading ends the section."""
        while self._at < len(self._lines) and not self._is_underline(self._at + 1):
            line = self._lines[self._at]
            found = _NUMPY_ENTRY.fullmatch(line)
            if line.strip() and not found:
                break
            self._at += 1
            if found:
                meaning = self._take_indented(blank_lines=True)
                for name in found["names"].split(","):
                    self.meanings[name.strip().lstrip("*")] = meaning
        self.kept.append("")

    def _take_indented(self, *, blank_lines: bool = False) -> list[str]:
        found: list[str] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if not (_indent(line) if line.strip() else blank_lines):
                break
            found.append(line)
            self._at += 1
        return found

    def _next_is_indented(self) -> bool:
        following = next((line for line in self._lines[self._at + 1 :] if line.strip()), "")
        return _indent(following) > 0

    def _is_underline(self, at: int) -> bool:
        return at < len(self._lines) and _UNDERLINE.fullmatch(self._lines[at]) is not None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


# Annotations as types: strings and forward references are resolved, and the ToolContext is recognised.


class Names(Value, frozen=True):
    """The names that an annotation written as text can mean: its module's, and those of the scopes around it."""

    module: dict[str, Any]  # Any: a namespace
    local: dict[str, Any]

    @classmethod
    def around(cls, function: Any) -> Names:  # Any: a function of any kind
        """The names around a function. A tool made inside a function or a class finds that scope on the stack.

        The scope is matched by its qualified name, so any number of decorators may lie between it and this call.
        """
        module: dict[str, Any] = getattr(function, "__globals__", {})
        qualified_name: str = getattr(function, "__qualname__", "")
        scopes: list[Mapping[str, Any]] = []
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


__all__ = ["BadArguments", "Signature"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Signature(Value, frozen=True):
    """A tool as the model sees it (`name`, `description`, `parameters`) and as its caller needs it (the rest).

    `parameters` is a JSON schema. `context_parameter` names the parameter that takes the ToolContext, if any.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]  # Any: a JSON schema
    context_parameter: str | None
    is_async: bool
    _arguments: Arguments

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],  # Any: every function may be a tool
        *,
        name: str | None = None,
        description: str | None = None,
    ) -> Signature:
        """Read a function, a bound method, a `functools.partial`, or (with a name) an object with ``__call__``."""
        from safepoint.tools.arguments import Arguments  # loads pydantic's internals: a program without tools has none

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
        """The keyword arguments for the call, without the context; omitted arguments keep the function's defaults.

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
    from safepoint.tools.arguments import Parameter  # as above

    found: list[Parameter] = []
    names = Names.around(read.innermost)
    for parameter in read.parameters():
        _check_fillable(read.label, parameter)
        annotation = names.resolve(read.label, parameter)
        if not is_context(annotation):
            found.append(Parameter(parameter.name, annotation, parameter.default, meanings.get(parameter.name)))
        elif context is None:
            context = parameter.name
        else:
            raise ToolDefinitionError(
                f"{read.label}: parameters '{context}' and '{parameter.name}' both take the ToolContext; keep one"
            )
    return context, found


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
