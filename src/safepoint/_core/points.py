"""Where a run may be stopped without losing anything, and the two ways that do not wait for such a place.

A `SafePoint` is a set of places, joined with `|`; whichever comes first counts. NOW and FORCE are not places and
join with nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Final, final

NAMED: Final = "point:"
# No work is under way here, so it is a safe point for every request.
BETWEEN: Final = "between_children"
# Where a held run stands. It waits there, so it is a safe point for every request too.
HELD: Final = "held"


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
        return place in BOUNDARIES or place in places or EVERYWHERE in places

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
    found = _CONSTANTS.get(name)
    if found is None:
        raise ValueError(f"at: {name!r} is no safe point: write one of {', '.join(POINT_NAMES)} or {NAMED}NAME")
    return found


def _spell(place: str) -> str:
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
