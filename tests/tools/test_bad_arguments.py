from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from safepoint.tools.bad_arguments import MAX_PROBLEM_CHARS, MAX_PROBLEMS
from safepoint.tools.signature import BadArguments, Signature


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Address(pydantic.BaseModel):
    street: str
    lines: list[Point] = []


def order(
    item: str,
    count: Annotated[int, Field(gt=0)],
    colour: Colour = Colour.RED,
    where: Address | None = None,
    by: int | Point | Literal["air", "sea"] = 1,
    tags: set[str] | None = None,
    extra: dict[str, int] | None = None,
    gift: bool = False,
    due: datetime.date | None = None,
) -> None: ...


ORDER = Signature.of(order)


def problems(args: dict[str, Any], function: Callable[..., object] = order) -> list[str]:  # Any: JSON
    signature = ORDER if function is order else Signature.of(function)
    with pytest.raises(BadArguments) as bad:
        signature.validate(args)
    return str(bad.value).split("\n")


def wrong(**args: Any) -> list[str]:  # Any: JSON
    return problems({"item": "pen", "count": 1, **args})


def test_what_is_sent_arrives_typed_and_what_is_not_sent_keeps_the_functions_default() -> None:
    assert ORDER.validate({"item": "pen", "count": 2}) == {"item": "pen", "count": 2}


def test_values_are_taken_as_leniently_as_models_send_them() -> None:
    args = {"item": "pen", "count": "5", "colour": "blue", "tags": ["a", "a"], "gift": "true", "due": "2026-01-02"}
    assert ORDER.validate(args) == {
        "item": "pen",
        "count": 5,
        "colour": Colour.BLUE,
        "tags": {"a"},
        "gift": True,
        "due": datetime.date(2026, 1, 2),
    }


def test_strict_models_take_what_json_can_say() -> None:
    class Strict(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(strict=True)
        due: datetime.date
        point: tuple[int, int]

    def f(strict: Strict) -> None: ...

    values = Signature.of(f).validate({"strict": {"due": "2026-01-02", "point": [1, 2]}})
    assert values == {"strict": Strict(due=datetime.date(2026, 1, 2), point=(1, 2))}


def test_the_default_of_the_function_is_neither_copied_nor_passed() -> None:
    shared: list[int] = []

    def f(a: list[int] = shared, b: Any = object) -> None: ...  # Any: its default has no type of its own

    assert Signature.of(f).validate({}) == {}
    assert Signature.of(f).validate({"a": []})["a"] is not shared


def test_a_default_that_only_pydantic_knows_is_passed() -> None:
    def f(
        a: int = Field(default=3),
        b: list[int] = Field(default_factory=list[int]),  # noqa: B008  # pydantic's own way
        c: Annotated[int, Field(default=4)] = 5,
    ) -> None: ...

    signature = Signature.of(f)
    assert signature.validate({}) == {"a": 3, "b": []}
    assert signature.validate({"a": 1})["b"] is not signature.validate({"a": 1})["b"]


def test_a_missing_argument_is_named_with_its_schema() -> None:
    assert problems({}) == [
        'item: missing, but required; expected {"type": "string"}',
        'count: missing, but required; expected {"exclusiveMinimum": 0, "type": "integer"}',
    ]


def test_a_wrong_value_is_shown_as_it_came_with_what_is_expected() -> None:
    assert wrong(item=5) == ["item: came 5; expected a valid string"]
    assert wrong(count="many") == ['count: came "many"; expected a valid integer, unable to parse string as an integer']
    assert wrong(count=0) == ["count: came 0; expected greater than 0"]
    assert wrong(colour="green") == ["colour: came \"green\"; expected 'red' or 'blue'"]


def test_an_unknown_argument_is_named_with_those_that_exist() -> None:
    assert wrong(colr="red") == [
        "colr: unknown argument; the arguments are: item, count, colour, where, by, tags, extra, gift, due"
    ]

    def nothing() -> None: ...

    assert problems({"x": 1}, nothing) == ["x: unknown argument; this tool takes no arguments"]


def test_a_problem_deep_inside_is_found_by_its_path() -> None:
    assert wrong(where={"street": 5, "lines": [{"x": 1}, {"y": 2}]}) == [
        "where.street: came 5; expected a valid string",
        "where.lines[1].x: missing, but required",
    ]
    assert wrong(extra={"a": 1, "b": "c"})[0].startswith('extra.b: came "c"; expected a valid integer')

    class Closed(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="forbid")
        x: int

    def f(points: list[Closed]) -> None: ...

    assert problems({"points": [{"x": 1, "z": 2}]}, f) == ["points[0].z: unknown key; leave it out"]


def test_the_branches_of_a_union_make_one_line_with_the_models_own_path() -> None:
    (line,) = wrong(by="rail")
    assert line.startswith('by: came "rail"; expected a valid integer')
    assert "or expected an object" in line
    assert line.endswith("or expected 'air' or 'sea'")


def test_null_where_a_default_exists_is_told_to_be_left_out() -> None:
    assert wrong(gift=None) == ["gift: came null; expected a valid boolean; leave it out to use its default"]
    assert wrong(item=None) == ["item: came null; expected a valid string"]


def test_a_validators_own_words_reach_the_model() -> None:
    def even(value: int) -> int:
        if value % 2:
            raise ValueError("send an even number")
        return value

    def f(a: Annotated[int, pydantic.AfterValidator(even)]) -> None: ...

    assert problems({"a": 3}, f) == ["a: came 3; send an even number"]


def test_a_validators_long_words_are_cut() -> None:
    def never(value: int) -> int:
        raise ValueError("no " * 10_000)

    def f(a: Annotated[int, pydantic.AfterValidator(never)]) -> None: ...

    (line,) = problems({"a": 3}, f)
    assert len(line) <= MAX_PROBLEM_CHARS


def test_a_validator_that_breaks_is_a_problem_of_the_arguments_and_not_a_crash() -> None:
    def broken(value: int) -> int:
        raise KeyError(value)

    def f(a: Annotated[int, pydantic.AfterValidator(broken)]) -> None: ...

    assert problems({"a": 3}, f) == ["arguments: could not be checked: KeyError: 3"]


@pytest.mark.parametrize("value", ["\ud800", {1, 2}.__iter__, object()])
def test_what_cannot_be_json_is_a_problem_of_the_arguments_and_not_a_crash(value: object) -> None:
    (line,) = wrong(item=value)
    assert line.startswith("arguments: cannot be written as JSON:")
    line.encode()


def test_no_link_to_pydantic_is_shown() -> None:
    assert "http" not in "\n".join(wrong(item=1, count="x", colour=1, where=1, by=[], tags=1, extra=1, due="soon"))


def test_many_problems_are_counted_and_not_all_told() -> None:
    lines = wrong(extra={f"key{number}": "x" for number in range(1000)})
    assert len(lines) == MAX_PROBLEMS + 1
    assert lines[-1] == f"and {1000 - MAX_PROBLEMS} more problems"


def test_every_line_is_short_however_long_the_arguments_are() -> None:
    long = "x" * 100_000
    for lines in (wrong(count=long), wrong(extra={long: long}), wrong(**{long: 1}), wrong(where={"street": [long]})):
        assert all(len(line) <= MAX_PROBLEM_CHARS for line in lines)


def test_a_line_stays_one_line() -> None:
    (line,) = wrong(**{"a\nb": 1})
    assert line.startswith("a b: unknown argument")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["red", "1", "2026-01-02"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "street", "lines"]), inner),
    max_leaves=8,
)  # fmt: skip


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*ORDER.parameters["properties"], "other"]) | st.text(), json_values))
def test_any_json_gives_typed_values_or_a_bounded_text(args: dict[str, Any]) -> None:
    outcome = validated(args)
    if isinstance(outcome, str):
        assert 0 < len(outcome.encode()) < 4 * (MAX_PROBLEMS + 1) * (MAX_PROBLEM_CHARS + 1)
        assert all(": " in line or line.startswith("and ") for line in outcome.split("\n"))
    else:
        assert outcome.keys() <= ORDER.parameters["properties"].keys()
        assert isinstance(outcome["count"], int)


def validated(args: dict[str, Any]) -> dict[str, Any] | str:  # Any: JSON in, typed values out
    try:
        return ORDER.validate(args)
    except BadArguments as bad:
        return str(bad)
