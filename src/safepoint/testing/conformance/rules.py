"""Rules for implementations. Each is checked by itself, so that one report names all that are broken.

A rule is a sentence, advice, and a check on a loop of its own, with objects made for it alone. A check complains with
an AssertionError; any other exception, and a wait that never ends, is a complaint as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from safepoint.errors import UsageError
from safepoint.testing.clock import Stuck, VirtualLoop

S = TypeVar("S")
T = TypeVar("T")
# The function that a check returns is called after its loop is closed: some facts are known only then.
Check: TypeAlias = Callable[[S], Coroutine[Any, Any, Callable[[], object] | None]]  # Any: what a coroutine yields

# Limits for code that is busy for ever on the virtual clock, and for a wait that never ends on the real one.
_ROUNDS = 500_000
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Rule(Generic[S]):
    """`name` states what is true of a good implementation, `advice` what to do where it is not."""

    name: str
    advice: str
    check: Check[S]


class Rules(Generic[S]):
    """The rules of one kind of thing, in the order in which they are checked."""

    def __init__(self, *rules: Rule[S]) -> None:
        self.all: tuple[Rule[S], ...] = rules

    def rule(self, name: str, advice: str) -> Callable[[Check[S]], Check[S]]:
        """Make a rule of the check below it."""

        def add(check: Check[S]) -> Check[S]:
            self.all = (*self.all, Rule(name, advice, check))
            return check

        return add

    def hold(self, kind: str, subject: S, *, virtual: bool) -> None:
        """Raise one AssertionError that lists every rule that is broken."""
        if asyncio._get_running_loop() is not None:
            raise UsageError(
                f"check_{kind}() brings its own loops and one is already running here: "
                "call it from a plain function (`def test_…():`, without async)"
            )
        if not __debug__:
            raise UsageError(f"check_{kind}() is made of assertions, and Python was told to leave them out: drop -O")
        found = [(rule, _complaint(rule, subject, virtual=virtual)) for rule in self.all]
        broken = [(rule, complaint) for rule, complaint in found if complaint is not None]
        if broken:
            lines = [f"this {kind} breaks {len(broken)} of {len(self.all)} rules:"]
            for rule, complaint in broken:
                lines += [f"- {rule.name}: {complaint}", f"  what to do: {rule.advice}"]
            raise AssertionError("\n".join(lines))


def _complaint(rule: Rule[S], subject: S, *, virtual: bool) -> str | None:
    try:
        with _runner(virtual=virtual) as runner:
            afterwards = runner.run(_bounded(rule.check(subject), virtual=virtual))
        if afterwards is not None:
            afterwards()
    except AssertionError as broken:
        return str(broken) or "an assertion without words failed"
    except Stuck as stuck:
        return f"it does not end: {stuck}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    except asyncio.CancelledError:
        return "CancelledError came out without a cancel"
    return None


async def _bounded(check: Coroutine[Any, Any, T], *, virtual: bool) -> T:
    """Run a check with a time limit."""
    # On the virtual clock a timer would jump ahead of a slow network; there, `Deadlock` is the bound.
    async with asyncio.timeout(None if virtual else _PATIENCE):
        return await check


def _runner(*, virtual: bool) -> AbstractContextManager[asyncio.Runner]:
    return asyncio.Runner(loop_factory=partial(VirtualLoop, max_rounds=_ROUNDS) if virtual else None)
