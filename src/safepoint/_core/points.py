"""Where a run may be stopped without losing anything, and the two ways that do not wait for such a place.

A `SafePoint` is a set of places, joined with `|`; whichever comes first counts. NOW and FORCE are not places and
join with nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from enum import IntEnum
from typing import Any, ClassVar, Final, TypeAlias, final

NAMED: Final = "point:"
AFTER_STEP: Final = "after_step:"
WHEN: Final = "when:"
# No work is under way here, so it is a safe point for every request.
BETWEEN: Final = "between_children"
# Where a held run stands. It waits there, so it is a safe point for every request too.
HELD: Final = "held"


# A test of where a run is. What it is given is the run's own: `RunState`.
Test: TypeAlias = Callable[[Any], object]
_numbers = itertools.count(1)


class Condition(str):
    """A place that has no fixed spot: a run stands there whenever the test holds at one of its safe points."""

    test: Test

    def __new__(cls, place: str, test: Test) -> Condition:
        condition = super().__new__(cls, place)
        condition.test = test
        return condition

    def __reduce__(self) -> tuple[type[Condition], tuple[str, Test]]:
        return Condition, (str(self), self.test)


class _AfterStep:
    """The test of `SafePoint.after_step(n)`, in a form that can be pickled."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, state: Any) -> bool:  # Any: as above
        return bool(state.step >= self.step and state.place == "after_tools")


class Level(IntEnum):
    """How hard a request pushes. Zero is the mildest: nothing was asked."""

    NONE = 0
    SAFE = 1
    NOW = 2
    FORCE = 3


@final
class SafePoint:
    """When a cancel takes effect. Use the constants, `SafePoint.named("x")`, and `|` between safe points."""

    __slots__ = ("_joined", "_places", "level")

    AFTER_TOOLS: ClassVar[SafePoint]
    AFTER_TOOL: ClassVar[SafePoint]
    AFTER_MODEL: ClassVar[SafePoint]
    BEFORE_EFFECT: ClassVar[SafePoint]
    ANY: ClassVar[SafePoint]
    NOW: ClassVar[SafePoint]
    FORCE: ClassVar[SafePoint]

    level: Level

    def __init__(self, level: Level, places: frozenset[str]) -> None:
        self.level = level
        self._places: frozenset[str] | None = places
        # Two points whose places are merged on first read. Thousands of asks, each for a point of its own, are joined
        # one after another: merging at once would copy every set for the next one.
        self._joined: tuple[SafePoint, SafePoint] | None = None

    @property
    def places(self) -> frozenset[str]:
        """The names of all places. Two threads may both merge them; they get the same set."""
        places = self._places
        if places is None:
            places = self._places = self._gather()
            self._joined = None  # after the places: a thread that finds no pair finds the places
        return places

    @property
    def is_merged(self) -> bool:
        """Whether its places are one set, so that reading them costs nothing."""
        return self._places is not None

    def _gather(self) -> frozenset[str]:
        parts: list[frozenset[str]] = []
        left: list[SafePoint] = [self]
        while left:
            point = left.pop()
            if (joined := point._joined) is not None:
                left += joined
            elif point._places is not None:  # always
                parts.append(point._places)
        return frozenset[str]().union(*parts)

    @staticmethod
    def named(name: str) -> SafePoint:
        """The place that a tool or a hook marks with `await ctx.safe_point(name)`."""
        if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"SafePoint.named({name!r}): a named point needs a name, as in SafePoint.named('page')")
        return SafePoint(Level.SAFE, frozenset({NAMED + name}))

    @staticmethod
    def when(test: Test, *, name: str | None = None) -> SafePoint:
        """The first safe point at which `test(state)` is true: it reads a `RunState`, such as `state.step`.

        `name` is what receipts and events call the place; without it, the function's own. A test that raises counts as
        true: whoever asked wants the run to stop, and the error is told as `HookFailed`.
        """
        if not callable(test):
            raise ValueError(f"SafePoint.when({test!r}): write a function, such as lambda state: state.step > 3")
        label = name or getattr(test, "__name__", "test").strip("<>")
        return SafePoint(Level.SAFE, frozenset({Condition(f"{WHEN}{label}#{next(_numbers)}", test)}))

    @staticmethod
    def after_step(step: int) -> SafePoint:
        """The end of that step, counted from the run's first one: its model call and all tool calls are complete.

        If the run is further already, the end of its present step.
        """
        if not isinstance(step, int) or isinstance(step, bool) or step < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"SafePoint.after_step({step!r}): write the number of a step, from 1 up")
        return SafePoint(Level.SAFE, frozenset({Condition(f"{AFTER_STEP}{step}", _AfterStep(step))}))

    @staticmethod
    def parse(*names: str) -> SafePoint:
        """Parse names as in `places`: `"now"`, `"after_tools"`, `"point:page"`. Several names are joined.

        Raises ValueError, which says what to write instead.
        """
        if not names:
            raise ValueError("at: [] is nowhere: write 'now', or one or more safe points")
        found = [_parse(name) for name in names]
        point = found[0]
        for other in found[1:]:
            point = point | other
        return point

    def covers(self, place: str) -> bool:
        if self.level is not Level.SAFE or place in NO_PLACES:
            return False
        places = self._places if self._places is not None else self.places
        if place in BOUNDARIES:
            return place == HELD or not all(isinstance(each, Condition) for each in places)
        return place in places or EVERYWHERE in places

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Those of its places that are tests."""
        return tuple([place for place in self.places if isinstance(place, Condition)])

    def __or__(self, other: SafePoint) -> SafePoint:
        if not isinstance(other, SafePoint):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            return NotImplemented
        if self.level is not Level.SAFE or other.level is not Level.SAFE:
            raise ValueError(f"{self!r} | {other!r}: NOW and FORCE join with nothing; write SafePoint.NOW alone")
        first, second = self._places, other._places
        if first is None or second is None or len(first) + len(second) > _FEW:
            return self._with(other)
        places = first | second
        return SafePoint.ANY if EVERYWHERE in places else SafePoint(Level.SAFE, places)

    def _with(self, other: SafePoint) -> SafePoint:
        # A joined pair never contains "everywhere": such a join becomes ANY at once.
        if EVERYWHERE in (self._places or ()) or EVERYWHERE in (other._places or ()):
            return SafePoint.ANY
        both = SafePoint(Level.SAFE, frozenset())
        both._joined, both._places = (self, other), None
        return both

    def includes(self, other: SafePoint) -> bool:
        """Whether this point is known to have every place of the other; False where finding out would take long."""
        return self is other or (self._places is not None and other.places <= self._places)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SafePoint) and (self.level, self.places) == (other.level, other.places)

    def __hash__(self) -> int:
        return hash((self.level, self.places))

    def __reduce__(self) -> tuple[type[SafePoint], tuple[Level, frozenset[str]]]:
        return SafePoint, (self.level, self.places)

    def __repr__(self) -> str:
        return " | ".join(f"SafePoint.{_spell(place)}" for place in sorted(self.places))


def check_point(at: SafePoint) -> SafePoint:
    """Return the point, or refuse a value that is none: a typo must not become a cancel that never takes effect."""
    if not isinstance(at, SafePoint):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(
            f"at={at!r} is not a safe point: write SafePoint.NOW, SafePoint.AFTER_TOOLS or SafePoint.named('x'), and | "
            "between several"
        )
    return at


def _parse(name: str) -> SafePoint:
    if name.startswith(NAMED):
        return SafePoint.named(name.removeprefix(NAMED))
    if name.startswith(AFTER_STEP):
        step = name.removeprefix(AFTER_STEP)
        return SafePoint.after_step(int(step) if step.isascii() and step.isdecimal() else 0)
    found = _CONSTANTS.get(name)
    if found is None:
        names = f"{', '.join(POINT_NAMES)}, {AFTER_STEP}N or {NAMED}NAME"
        raise ValueError(f"at: {name!r} is no safe point: write one of {names}")
    return found


def _spell(place: str) -> str:
    if place.startswith(AFTER_STEP):
        return f"after_step({place.removeprefix(AFTER_STEP)})"
    if place.startswith(WHEN):
        return f"when({place.removeprefix(WHEN).rpartition('#')[0]})"
    return f"named({place.removeprefix(NAMED)!r})" if place.startswith(NAMED) else place.upper()


EVERYWHERE: Final = "any"
# Safe points for every request, whatever it names.
BOUNDARIES: Final = frozenset({BETWEEN, HELD})
# Up to this many places are merged at once.
_FEW: Final = 32
NO_PLACES: Final = frozenset({"now", "force"})
SafePoint.NOW = SafePoint(Level.NOW, frozenset({"now"}))
SafePoint.FORCE = SafePoint(Level.FORCE, frozenset({"force"}))
SafePoint.AFTER_MODEL = SafePoint(Level.SAFE, frozenset({"after_model"}))
SafePoint.AFTER_TOOL = SafePoint(Level.SAFE, frozenset({"after_tool"}))
SafePoint.AFTER_TOOLS = SafePoint(Level.SAFE, frozenset({"after_tools"}))
SafePoint.BEFORE_EFFECT = SafePoint(Level.SAFE, frozenset({"before_effect"}))
SafePoint.ANY = SafePoint(Level.SAFE, frozenset({EVERYWHERE}))
# The names of the constants above, in their order: clients write them, and `--help` lists them.
_CONSTANTS: Final = {
    place: each for each in vars(SafePoint).values() if isinstance(each, SafePoint) for place in each.places
}
POINT_NAMES: Final = tuple(_CONSTANTS)
# The default of `cancel(at)`: NOW, and distinguishable from a NOW that the caller wrote.
UNWRITTEN: Final = SafePoint(Level.NOW, frozenset({"now"}))
