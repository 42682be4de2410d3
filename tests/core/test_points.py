"""Where a cancel may take effect, and how such places join."""

from __future__ import annotations

import copy
import itertools
import pickle
import tracemalloc
from typing import Any, cast

import pytest

from safepoint._core.points import BETWEEN, NAMED, Level, SafePoint, check_point

PLACES = {
    "after_tools": SafePoint.AFTER_TOOLS,
    "after_tool": SafePoint.AFTER_TOOL,
    "after_model": SafePoint.AFTER_MODEL,
    "before_effect": SafePoint.BEFORE_EFFECT,
    f"{NAMED}page": SafePoint.named("page"),
}


def untyped(value: object) -> Any:  # Any: what a caller without a type checker passes
    return value


@pytest.mark.parametrize("place", PLACES)
def test_a_safe_point_covers_its_own_place_and_no_other(place: str) -> None:
    assert [other for other in PLACES if PLACES[place].covers(other)] == [place]


@pytest.mark.parametrize("place", [*PLACES, f"{NAMED}anything"])
def test_any_covers_every_place(place: str) -> None:
    assert SafePoint.ANY.covers(place)


@pytest.mark.parametrize("at", [SafePoint.NOW, SafePoint.FORCE])
def test_now_and_force_are_no_places(at: SafePoint) -> None:
    assert not any(at.covers(place) for place in (*PLACES, BETWEEN, "now", "force", "any"))


@pytest.mark.parametrize("at", [SafePoint.ANY, *PLACES.values()])
def test_every_safe_point_covers_what_lies_between_whole_pieces_of_work_and_none_covers_now(at: SafePoint) -> None:
    assert at.covers(BETWEEN)
    assert BETWEEN == "between_children", "a cancellation says so"
    assert not at.covers("now")
    assert not at.covers("force")


def test_joined_points_cover_what_each_of_them_covers() -> None:
    joined = SafePoint.AFTER_TOOL | SafePoint.named("page")
    assert [place for place in PLACES if joined.covers(place)] == ["after_tool", f"{NAMED}page"]
    assert joined.level is Level.SAFE


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations([SafePoint.ANY, *PLACES.values()], 2)))
def test_joining_does_not_depend_on_the_order(one: SafePoint, other: SafePoint) -> None:
    assert one | other == other | one
    assert (one | other == SafePoint.ANY) is (SafePoint.ANY in (one, other))


@pytest.mark.parametrize("hard", [SafePoint.NOW, SafePoint.FORCE])
@pytest.mark.parametrize("other", [SafePoint.NOW, SafePoint.FORCE, SafePoint.ANY])
def test_now_and_force_join_with_nothing(hard: SafePoint, other: SafePoint) -> None:
    for one, two in ((hard, other), (other, hard)):
        with pytest.raises(ValueError, match=r"join with nothing; write SafePoint.NOW alone") as caught:
            one | two  # pyright: ignore[reportUnusedExpression]  # it raises
        assert str(caught.value).startswith(f"{one!r} | {two!r}: ")


def test_a_point_does_not_join_with_a_word() -> None:
    with pytest.raises(TypeError):
        SafePoint.AFTER_TOOL | untyped("after_model")  # pyright: ignore[reportUnusedExpression]  # it raises


@pytest.mark.parametrize("name", ["", "  ", None, 7])
def test_a_named_point_needs_a_name(name: object) -> None:
    with pytest.raises(ValueError, match=r"a named point needs a name, as in SafePoint.named\('page'\)") as caught:
        SafePoint.named(untyped(name))
    assert str(caught.value).startswith(f"SafePoint.named({name!r}): ")


def test_equal_points_are_one_key() -> None:
    assert SafePoint.named("page") == SafePoint.named("page") != SafePoint.named("line")
    assert len({SafePoint.named("page"), SafePoint.named("page"), SafePoint.named("line")}) == 2
    assert cast(object, SafePoint.NOW) != "now"
    assert SafePoint.NOW != SafePoint.FORCE


def test_a_point_reads_as_it_is_written() -> None:
    assert repr(SafePoint.NOW) == "SafePoint.NOW"
    assert repr(SafePoint.FORCE) == "SafePoint.FORCE"
    assert repr(SafePoint.ANY) == "SafePoint.ANY"
    assert repr(SafePoint.AFTER_TOOLS) == "SafePoint.AFTER_TOOLS"
    joined = SafePoint.named("page") | SafePoint.AFTER_TOOL | SafePoint.BEFORE_EFFECT
    assert repr(joined) == "SafePoint.AFTER_TOOL | SafePoint.BEFORE_EFFECT | SafePoint.named('page')"
    assert repr(SafePoint.AFTER_MODEL) == "SafePoint.AFTER_MODEL"


def test_levels_are_ordered_from_nothing_to_force() -> None:
    assert [level.name for level in sorted(Level)] == ["NONE", "SAFE", "NOW", "FORCE"]
    assert SafePoint.ANY.level is Level.SAFE
    assert SafePoint.NOW.level is Level.NOW
    assert SafePoint.FORCE.level is Level.FORCE


def test_a_named_point_is_no_builtin_place() -> None:
    assert not SafePoint.named("after_tool").covers("after_tool")
    assert not SafePoint.named("any").covers("after_tool")


def test_a_point_that_is_one_comes_back_from_the_check() -> None:
    assert check_point(SafePoint.ANY) is SafePoint.ANY


def joined_in_turn(number: int) -> list[SafePoint]:
    """Each with one point more than the one before."""
    points = [SafePoint.named("page 0")]
    for at in range(1, number):
        points.append(points[-1] | SafePoint.named(f"page {at}"))
    return points


def test_thousands_of_points_are_joined_without_copying_them_again_and_again() -> None:
    def size(number: int) -> int:
        tracemalloc.start()
        try:
            kept = joined_in_turn(number)
            return tracemalloc.get_traced_memory()[0] if kept else 0
        finally:
            tracemalloc.stop()

    assert size(4000) < 12 * size(400)  # copies would make it a hundred times as much


def test_however_many_points_are_joined_each_is_covered_and_no_other() -> None:
    points = joined_in_turn(200)
    for number, point in reversed(list(enumerate(points))):  # the longest first: the others are parts of it
        assert point.places == {f"{NAMED}page {at}" for at in range(number + 1)}
        assert point.covers(f"{NAMED}page {number}")
        assert not point.covers(f"{NAMED}page {number + 1}")
    assert points[150] | points[199] == points[199] == points[199] | points[150]
    assert points[199] != points[198]


def test_many_points_and_any_are_any_and_join_with_neither_now_nor_force() -> None:
    many = joined_in_turn(200)[-1]
    assert many | SafePoint.ANY is SafePoint.ANY
    assert SafePoint.ANY | many is SafePoint.ANY
    for at in (SafePoint.NOW, SafePoint.FORCE):
        with pytest.raises(ValueError, match="join with nothing"):
            _ = many | at


def test_a_hundred_thousand_points_can_be_copied_stored_and_forgotten() -> None:
    points = joined_in_turn(100_000)
    stored = pickle.dumps(points[-1])
    assert copy.deepcopy(points[-1]) == pickle.loads(stored)
    assert len(points[-1].places) == 100_000
