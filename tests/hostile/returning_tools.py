"""Tools that return what cannot be shown to a model as it is."""

from __future__ import annotations

import math
from collections.abc import Callable

from safepoint import ToolContext, tool
from tests.hostile.row import Hostile, ends
from tests.hostile.visit import World


class Opaque:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class Liar:
    """It claims to be of another class, and raises when asked."""

    def __getattribute__(self, name: str) -> object:
        raise ValueError("who knows")


class Shouting(str):
    def __str__(self) -> str:
        raise ValueError("no words")


def _recursive() -> list[object]:
    inner: list[object] = []
    inner.append(inner)
    return inner


def _nested() -> list[object]:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    return value


def _generator() -> object:
    yield 1


class _Later:
    """Awaitable, like the coroutine that a forgetful author returns, and without its warning."""

    def __await__(self) -> object:
        yield None


_VALUES: dict[str, tuple[Callable[[], object], str]] = {
    "huge_text": (lambda: "x" * 5_000_000, "left out"),
    "huge_list": (lambda: list(range(2_000_000)), "left out"),
    "object": (object, "object"),
    "opaque_object": (Opaque, "Opaque"),
    "liar": (Liar, "Liar"),
    "recursive_list": (_recursive, ""),
    "deep_list": (_nested, ""),
    "generator": (_generator, "generator"),
    "awaitable": (_Later, "_Later"),
    "nan": (lambda: {"value": math.nan}, "NaN"),
    "bytes": (lambda: b"\x00\xff", "bytes"),
    "lone_surrogate": (lambda: "half \ud83d", "half"),
    "blank": (lambda: " \n", "empty"),
    "shouting_text": (lambda: Shouting("loud"), "loud"),
    "exception": (lambda: ValueError("returned"), ""),
    "huge_number": (lambda: 10**10_000, ""),
    "function": (lambda: _recursive, ""),
}


def _row(kind: str) -> Hostile:
    make, says = _VALUES[kind]

    @tool(name=f"returns_{kind}")
    async def returns(ctx: ToolContext[World]) -> object:
        ctx.deps.reach()
        return make()

    return ends(returns, "finished", says)


RETURNING_TOOLS: list[Hostile] = [*map(_row, _VALUES)]
