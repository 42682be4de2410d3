"""A command whose options are one frozen dataclass, a field each, so that they travel as one thing.

@dataclass(frozen=True)
class Options:
    port: Annotated[int, typer.Option(help="…")] = 8000

@app.command()
@takes(Options)
def serve(options: Options) -> None: ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature
from typing import Any, NoReturn, TypeVar, get_type_hints

import typer

from safepoint.cli.sanitize import sanitize

T = TypeVar("T")

REFUSED = 1  # the server said no
MISUSED = 2  # what was written, or what was found here, is no good
UNREACHABLE = 3
NOT_ALLOWED = 4
NOT_YET = 5  # asked, and not done when the wait was over


def takes(kind: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """The function as typer wants it: a parameter for each field of `kind`, which is a dataclass."""
    assert dataclasses.is_dataclass(kind)
    hints = get_type_hints(kind, include_extras=True)
    parameters = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=_default(field), annotation=hints[field.name])
        for field in dataclasses.fields(kind)
    ]

    def spread(function: Callable[[T], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**given: Any) -> None:  # Any: values of every option
            function(kind(**given))

        vars(command)["__signature__"] = Signature(parameters)
        command.__annotations__ = hints
        return command

    return spread


def _default(field: dataclasses.Field[Any]) -> Any:  # Any: as above
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else Parameter.empty


def fail(message: str, code: int = MISUSED) -> NoReturn:
    """One line on stderr, and the exit code. Parts of it come from a server, so it is sanitised."""
    typer.echo(f"safepoint: {sanitize(' '.join(message.split()))}", err=True)
    raise typer.Exit(code)
