"""Where a run may be stopped without losing anything, and the two ways that do not wait for such a place.

A `SafePoint` is a set of places, joined with `|`; whichever comes first counts. NOW and FORCE are not places and
join with nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Final, final

NAMED: Final = "point:"
# Nothing is under way here, so it is a safe point whatever the request waits for.
BETWEEN: Final = "between_children"


class Level(IntEnum):
    """How hard a request pushes. Zero is the mildest: nothing was asked."""

    NONE = 0
    SAFE = 1
    NOW = 2
    FORCE = 3


@final
class SafePoint:
    """When a cancel takes effect. Use the constants, `SafePoint.named("x")`, and `|` between safe points."""

    __slots__ = ("level", "places")

    AFTER_TOOLS: ClassVar[SafePoint]
    AFTER_TOOL: ClassVar[SafePoint]
    AFTER_MODEL: ClassVar[SafePoint]
    BEFORE_EFFECT: ClassVar[SafePoint]
    ANY: ClassVar[SafePoint]
    NOW: ClassVar[SafePoint]
    FORCE: ClassVar[SafePoint]

    level: Level
    places: frozenset[str]

    def __init__(self, level: Level, places: frozenset[str]) -> None:
        self.level = level
        self.places = places

    @staticmethod
    def named(name: str) -> SafePoint:
        """The place that a tool or hook marks with `await ctx.safe_point(name)`."""
        if not isinstance(name, str) or not name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"SafePoint.named({name!r}): a named point needs a name, as in SafePoint.named('page')")
        return SafePoint(Level.SAFE, frozenset({NAMED + name}))

    def covers(self, place: str) -> bool:
        if self.level is not Level.SAFE or place in _NO_PLACES:
            return False
        return place == BETWEEN or place in self.places or _EVERYWHERE in self.places

    def __or__(self, other: SafePoint) -> SafePoint:
        if not isinstance(other, SafePoint):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            return NotImplemented
        if self.level is not Level.SAFE or other.level is not Level.SAFE:
            raise ValueError(f"{self!r} | {other!r}: NOW and FORCE join with nothing; write SafePoint.NOW alone")
        if _EVERYWHERE in self.places | other.places:
            return SafePoint.ANY
        return SafePoint(Level.SAFE, self.places | other.places)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SafePoint) and (self.level, self.places) == (other.level, other.places)

    def __hash__(self) -> int:
        return hash((self.level, self.places))

    def __repr__(self) -> str:
        return " | ".join(f"SafePoint.{_spell(place)}" for place in sorted(self.places))


def check_point(at: SafePoint) -> SafePoint:
    """The same, or a refusal: a typo in a string must not become a cancel that never comes."""
    if not isinstance(at, SafePoint):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(
            f"at={at!r} is not a safe point: write SafePoint.NOW, SafePoint.AFTER_TOOLS or SafePoint.named('x'), and | "
            "between several"
        )
    return at


def _spell(place: str) -> str:
    return f"named({place.removeprefix(NAMED)!r})" if place.startswith(NAMED) else place.upper()


_EVERYWHERE: Final = "any"
_NO_PLACES: Final = frozenset({"now", "force"})
SafePoint.AFTER_TOOLS = SafePoint(Level.SAFE, frozenset({"after_tools"}))
SafePoint.AFTER_TOOL = SafePoint(Level.SAFE, frozenset({"after_tool"}))
SafePoint.AFTER_MODEL = SafePoint(Level.SAFE, frozenset({"after_model"}))
SafePoint.BEFORE_EFFECT = SafePoint(Level.SAFE, frozenset({"before_effect"}))
SafePoint.ANY = SafePoint(Level.SAFE, frozenset({_EVERYWHERE}))
SafePoint.NOW = SafePoint(Level.NOW, frozenset({"now"}))
SafePoint.FORCE = SafePoint(Level.FORCE, frozenset({"force"}))
