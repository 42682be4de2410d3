"""A module with an idea opens with it, and every public awaitable says what its cancellation means."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping

import safepoint
from tests.house.tree import Source, sources

LINES_WITHOUT_AN_IDEA = 60


def awaitables(name: str, thing: object) -> Iterator[tuple[str, object]]:
    """The `async def`s a user can reach by this name: the function itself, or a class's public methods."""
    if inspect.isclass(thing):
        for member in dir(thing):
            if not member.startswith("_"):
                yield from awaitables(f"{name}.{member}", inspect.getattr_static(thing, member))
        return
    inner: object = getattr(thing, "__func__", thing)  # what a classmethod or a staticmethod wraps
    if callable(inner):
        function = inspect.unwrap(inner)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            yield name, function


def without_cancellation(public: Mapping[str, object]) -> list[str]:
    return [
        f'{name}: say in its docstring what being cancelled means ("Cancellation: ...")'
        for top, thing in public.items()
        for name, function in awaitables(top, thing)
        if "Cancellation:" not in (inspect.getdoc(function) or "")
    ]


def modules_without_an_idea(files: list[Source]) -> list[str]:
    long = [source for source in files if len(source.text.splitlines()) > LINES_WITHOUT_AN_IDEA]
    return [source.path for source in long if ast.get_docstring(source.parse()) is None]


def test_every_public_awaitable_says_what_its_cancellation_means() -> None:
    names: list[str] = getattr(safepoint, "__all__", [])
    assert without_cancellation({name: getattr(safepoint, name) for name in names}) == []


def test_every_module_of_some_length_opens_with_its_idea() -> None:
    assert modules_without_an_idea(sources("src/safepoint")) == []


class Sample:
    async def told(self) -> None:
        """Wait. Cancellation: nothing is lost."""

    async def silent(self) -> None:
        """Wait."""

    @classmethod
    async def made(cls) -> None: ...

    async def _private(self) -> None: ...

    def plain(self) -> None: ...


async def bare() -> None: ...


def test_an_awaitable_that_does_not_say_is_named() -> None:
    complaints = without_cancellation({"Sample": Sample, "bare": bare, "number": 1})
    assert [line.split(":")[0] for line in complaints] == ["Sample.made", "Sample.silent", "bare"]


def test_a_long_module_without_a_docstring_is_named() -> None:
    silent = "x = 1\n" * 61
    files = [Source("long.py", silent), Source("told.py", f'"""An idea."""\n{silent}'), Source("short.py", "x = 1\n")]
    assert modules_without_an_idea(files) == ["long.py"]
