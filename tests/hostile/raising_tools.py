"""Tools that raise: each kind of error once by itself, and once instead of the cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Never

from safepoint import Retry, ToolContext, tool
from tests.hostile.row import Fate, Hostile, ends, stops
from tests.hostile.visit import World


class Rude(BaseException):
    """Not an Exception, and not asyncio's."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


class UnprintableForGood(Exception):
    def __str__(self) -> str:
        raise SystemExit("not even that")

    __repr__ = __str__


class UnprintableRetry(Retry):
    def __str__(self) -> str:
        raise ValueError("no words")


def _error(error: BaseException) -> Callable[[], Never]:
    def throw() -> Never:
        raise error

    return throw


def _recursion() -> Never:
    _recursion()


_KINDS: dict[str, tuple[Callable[[], Never], str]] = {
    "value_error": (_error(ValueError("a usual one")), "a usual one"),
    "cancelled_error": (_error(asyncio.CancelledError()), "it had not been asked"),
    "base_exception": (_error(Rude("rude")), "rude"),
    "system_exit": (_error(SystemExit(3)), "SystemExit"),
    "recursion_error": (_recursion, "RecursionError"),
    "stop_iteration": (_error(StopIteration(1)), "StopIteration"),
    "stop_async_iteration": (_error(StopAsyncIteration(1)), "StopAsyncIteration"),
    "generator_exit": (_error(GeneratorExit()), "GeneratorExit"),
    "exception_group": (_error(ExceptionGroup("several", [ValueError("first"), OSError("second")])), "second"),
    "cancel_in_a_group": (_error(BaseExceptionGroup("several", [asyncio.CancelledError()])), "several"),
    "unprintable": (_error(Unprintable()), "Unprintable"),
    "unprintable_for_good": (_error(UnprintableForGood()), "UnprintableForGood"),
    "unprintable_retry": (_error(UnprintableRetry()), ""),
    "keyboard_interrupt": (_error(KeyboardInterrupt("Ctrl-C")), "KeyboardInterrupt"),
    "timeout_error": (_error(TimeoutError("its own")), "its own"),
    "assertion_error": (_error(AssertionError()), "AssertionError"),
}


def _by_itself(kind: str) -> Hostile:
    throw, says = _KINDS[kind]

    @tool(name=f"raises_{kind}")
    async def raises(ctx: ToolContext[World]) -> str:
        ctx.deps.reach()
        throw()

    if kind == "keyboard_interrupt":
        return stops(raises, "cut", "outcome unknown", interrupts=True)
    return ends(raises, "failed", says)


def _instead(kind: str) -> Hostile:
    throw, says = _KINDS[kind]

    @tool(name=f"{kind}_when_cut")
    async def raises(ctx: ToolContext[World]) -> str:
        ctx.deps.reach()
        try:
            await ctx.deps.over.wait()
        except asyncio.CancelledError:
            throw()
        return "late"

    plain = kind == "cancelled_error"
    return Hostile(
        raises, Fate("cut"), says="outcome unknown" if plain else says, interrupts=kind == "keyboard_interrupt"
    )


RAISING_TOOLS: list[Hostile] = [*map(_by_itself, _KINDS), *map(_instead, _KINDS)]
