from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import inspect
import itertools
import json
import math
import pathlib
import sys
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint.history.bounded_json import MAX_DEPTH, MAX_REPR_CHARS
from safepoint.history.rendering import EMPTY_RESULT, MAX_RESULT_CHARS, NO_RESULT, Rendered, render_result


class Colour(enum.Enum):
    RED = "red"
    BOTH = ("red", 1)


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Book:
    title: str
    price: decimal.Decimal
    shelf: dict[str, object] = dataclasses.field(default_factory=dict[str, object])


class Order(pydantic.BaseModel):
    number: int
    when: datetime.date
    payload: bytes = b""
    token: pydantic.SecretStr = pydantic.SecretStr("")
    anything: object = None


class Weight(pydantic.BaseModel):
    grams: float


class Login(pydantic.BaseModel):
    user: str
    password: str
    extra: object = None

    @pydantic.computed_field
    def initial(self) -> str:
        return self.user[:1]

    @pydantic.field_serializer("password", when_used="json")
    def hide(self, password: str) -> str:
        return "hidden"


@pydantic.dataclasses.dataclass
class Line:
    price: decimal.Decimal


class Opaque:
    def __repr__(self) -> str:
        return "Opaque(1)"


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


class Liar:
    """Says it is something else, and raises when it is asked what."""

    @property  # type: ignore[misc]  # the lie is the point
    def __class__(self) -> NoReturn:  # type: ignore[override]  # as above
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")


class NumberForRepr:
    def __repr__(self) -> str:
        return 5  # type: ignore[return-value]  # the mistake under test


class RudeText(str):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__
    __format__ = None  # type: ignore[assignment]  # as rude as it gets


class BrokenSequence(Sequence[int]):
    def __getitem__(self, index: Any) -> Any:  # Any: the overloads of Sequence
        if index > 1:
            raise RuntimeError("no")
        return index

    def __len__(self) -> int:
        raise RuntimeError("no")


class BrokenMapping(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise RuntimeError("no")

    def __iter__(self) -> Iterator[str]:
        return iter("ab")

    def __len__(self) -> int:
        return 2


class Counted(Sequence[int]):
    """Endless, and counts how much of it was read."""

    def __init__(self) -> None:
        self.read = 0

    def __getitem__(self, index: Any) -> Any:  # Any: the overloads of Sequence
        self.read += 1
        return 7

    def __len__(self) -> int:
        return 10**15


class EndlessMapping(Mapping[int, str]):
    def __getitem__(self, key: int) -> str:
        return "x"

    def __iter__(self) -> Iterator[int]:
        return itertools.count()

    def __len__(self) -> int:
        return 1


class Deeper(Sequence[Any]):
    """Each item is a new container: a cycle that no identity reveals."""

    def __getitem__(self, index: Any) -> Any:  # Any: the overloads of Sequence
        return Deeper()

    def __len__(self) -> int:
        return 1


def text(value: object) -> str:
    rendered = render_result(value)
    assert not rendered.truncated
    return rendered.text


def cyclic() -> list[object]:
    ring: list[object] = [1]
    ring.append({"again": ring})
    return ring


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("value", ["word", " padded ", "two\nlines", '{"a": 1}', "é 😀"])
def test_a_string_is_shown_as_it_is(value: str) -> None:
    assert render_result(value) == Rendered(value)


def test_no_result_is_said_and_not_shown_as_a_value() -> None:
    assert render_result(None) == Rendered(NO_RESULT)
    assert text([None]) == "[null]"


@pytest.mark.parametrize("value", ["", " ", "\n\t", pathlib.PurePath("\t"), collections.UserString("")])
def test_a_blank_result_is_said_to_be_empty(value: object) -> None:
    assert text(value) == EMPTY_RESULT


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "true"),
        (0, "0"),
        (2.5, "2.5"),
        ([], "[]"),
        ({}, "{}"),
        ({"a": [1, (2, None)], "é": 'say "hi"\n'}, '{"a":[1,[2,null]],"é":"say \\"hi\\"\\n"}'),
        ({1: "a", None: "b", False: "c", 2.5: "d"}, '{"1":"a","null":"b","false":"c","2.5":"d"}'),
        ({Colour.RED: 1, datetime.date(2026, 1, 2): 2}, '{"red":1,"2026-01-02":2}'),
        ({7}, "[7]"),
        (frozenset("a"), '["a"]'),
        (range(3), "[0,1,2]"),
        (collections.deque([1, 2]), "[1,2]"),
        ({"a": 1}.keys(), '["a"]'),
        ({"a": 1}.values(), "[1]"),
        (Point(1, 2), '{"x":1,"y":2}'),
        (Colour.RED, "red"),
        ([Colour.RED, Colour.BOTH], '["red",["red",1]]'),
        (datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC), "2026-01-02T03:04:00Z"),
        (datetime.timedelta(minutes=90), "PT1H30M"),
        (decimal.Decimal("1.10"), "1.10"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ([pathlib.PurePosixPath("a/b")], '["a/b"]'),
        (Book("A", decimal.Decimal("9.90"), {"row": Point(1, 2)}),
         '{"title":"A","price":"9.90","shelf":{"row":{"x":1,"y":2}}}'),
        (Order(number=1, when=datetime.date(2026, 1, 2), token=pydantic.SecretStr("hush")),
         '{"number":1,"when":"2026-01-02","payload":"","token":"**********","anything":null}'),
        ([Line(decimal.Decimal("1.5"))], '[{"price":"1.5"}]'),
        ([Login(user="ann", password="1234")], '[{"user":"ann","password":"hidden","extra":null,"initial":"a"}]'),
        (10**40, "1" + "0" * 40),
    ],
)  # fmt: skip
def test_data_is_shown_as_json_without_a_note(value: object, expected: str) -> None:
    assert render_result(value) == Rendered(expected)


@settings(deadline=None)
@given(
    st.recursive(
        st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="utf-8")),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    )
)  # fmt: skip
def test_inside_a_container_the_text_is_the_same_json_that_json_writes(value: object) -> None:
    assert json.loads(text([value])) == [value]


def test_numbers_that_are_not_finite_are_named_and_never_null() -> None:
    assert text(math.nan) == "NaN"
    assert json.loads(text([math.inf, {"a": -math.inf}, math.nan])) == ["Infinity", {"a": "-Infinity"}, "NaN"]
    assert text(Weight(grams=math.inf)) == '{"grams":"Infinity"}'


@pytest.mark.parametrize(
    "value", [b"\xff" * 9, bytearray(9), memoryview(bytearray(9)), memoryview(bytearray(36)).cast("i")]
)
def test_bytes_are_described_and_not_shown(value: bytes) -> None:
    rendered = render_result({"data": value})
    assert f"{memoryview(value).nbytes} bytes, not shown" in rendered.text
    assert rendered.note == "bytes were described, not shown"


def test_bytes_that_are_no_text_do_not_cost_the_rest_of_a_model() -> None:
    rendered = render_result(Order(number=1, when=datetime.date(2026, 1, 2), payload=b"\xff"))
    shown = json.loads(rendered.text)
    assert (shown["number"], shown["when"], shown["anything"]) == (1, "2026-01-02", None)
    assert "this bytes could not be read" in shown["payload"]
    assert "this bytes could not be read" in (rendered.note or "")


@pytest.mark.parametrize("extra", [b"\xff", Opaque(), cyclic()])
def test_what_a_models_serialiser_hides_stays_hidden_when_another_field_cannot_be_written(extra: object) -> None:
    rendered = render_result([Login(user="ann", password="1234", extra=extra)])
    (shown,) = json.loads(rendered.text)
    assert (shown["user"], shown["password"], shown["initial"]) == ("ann", "hidden", "a")
    assert rendered.note


def test_a_model_that_holds_what_its_annotations_do_not_allow_is_shown_without_a_warning() -> None:
    with warnings.catch_warnings(record=True, action="always") as warned:
        assert json.loads(text(order_of(1)))["number"] == "no"
    assert warned == []


def test_a_generator_is_described_and_not_consumed() -> None:
    numbers = (number for number in range(3))
    rendered = render_result([numbers])
    assert "generator: not consumed" in rendered.text
    assert "return a list" in (rendered.note or "")
    assert list(numbers) == [0, 1, 2]


def test_an_async_generator_a_coroutine_and_an_open_file_are_described() -> None:
    async def stream() -> AsyncIterator[int]:
        yield 1

    async def later() -> None: ...

    coroutine = later()
    try:
        assert "not consumed" in text(coroutine)
    finally:
        coroutine.close()
    assert "not consumed" in text(stream())
    with pathlib.Path(__file__).open() as file:
        assert "not consumed" in text(file)
        assert file.tell() == 0


def test_what_has_no_json_form_is_shown_as_its_repr_with_a_note() -> None:
    rendered = render_result({"a": 1, "b": Opaque()})
    assert json.loads(rendered.text) == {"a": 1, "b": "Opaque(1)"}
    assert rendered.note == "Opaque has no JSON form and is shown as its repr"


def test_a_value_without_json_form_inside_a_model_does_not_cost_the_rest() -> None:
    rendered = render_result(Order(number=1, when=datetime.date.min, anything=Opaque()))
    assert json.loads(rendered.text)["number"] == 1
    assert json.loads(rendered.text)["anything"] == "Opaque(1)"
    assert "Opaque" in (rendered.note or "")


def test_a_long_repr_is_cut_and_says_by_how_much() -> None:
    class Long:
        def __repr__(self) -> str:
            return "x" * (MAX_REPR_CHARS + 5)

    rendered = render_result([Long(), 1])
    assert "5 more characters of this repr were left out" in rendered.text
    assert rendered.text.endswith(",1]")
    assert "repr of Long was cut" in (rendered.note or "")


@pytest.mark.parametrize("kind", [Unspeakable, Liar, NumberForRepr])
def test_an_object_that_raises_is_named_by_its_type(kind: type[object]) -> None:
    name, value = kind.__name__, kind()
    for rendered in (render_result(value), render_result([value])):
        assert name in rendered.text
        assert "raised" in rendered.text
        assert rendered.note


def test_one_value_that_raises_does_not_cost_its_neighbours() -> None:
    assert json.loads(text([1, Unspeakable(), 2]))[::2] == [1, 2]


def test_a_container_that_breaks_half_way_shows_what_it_gave() -> None:
    assert json.loads(text(BrokenSequence())) == [0, 1, "<the rest could not be read: it raised RuntimeError>"]
    assert json.loads(text(BrokenMapping())) == {"...": "<the rest could not be read: it raised RuntimeError>"}


def test_a_string_subclass_is_shown_by_its_characters() -> None:
    assert text(RudeText("plain")) == "plain"
    assert text({RudeText("k"): RudeText("v")}) == '{"k":"v"}'


def test_a_number_with_too_many_digits_is_described() -> None:
    assert "about 5000 digits" in text(10**5000)
    assert "about 5000 digits" in text([-(10**5000)])


def test_a_cycle_is_named_where_it_closes() -> None:
    rendered = render_result(cyclic())
    assert rendered.text == '[1,{"again":"<the same list again>"}]'
    assert "reference back" in (rendered.note or "")


def test_the_same_object_twice_is_no_cycle() -> None:
    shared = [1]
    assert text([shared, shared, {"a": shared}]) == '[[1],[1],{"a":[1]}]'


@pytest.mark.parametrize("value", [deep(10_000), Deeper()])
def test_nesting_has_a_limit_and_says_so(value: object) -> None:
    rendered = render_result(value)
    assert rendered.text.startswith("[" * MAX_DEPTH + '"<')
    assert "nested too deeply" in rendered.text
    assert str(MAX_DEPTH) in (rendered.note or "")


def test_nesting_below_the_limit_is_shown_whole() -> None:
    assert render_result(deep(MAX_DEPTH - 1)) == Rendered("[" * MAX_DEPTH + "]" * MAX_DEPTH)


def test_a_string_up_to_the_limit_is_whole_and_beyond_it_says_how_much_is_missing() -> None:
    assert render_result("x" * MAX_RESULT_CHARS) == Rendered("x" * MAX_RESULT_CHARS)
    rendered = render_result("x" * (MAX_RESULT_CHARS + 1))
    assert rendered.truncated
    assert len(rendered.text) <= MAX_RESULT_CHARS
    shown, tail = rendered.text.split("\n")
    assert tail == f"[cut here: {MAX_RESULT_CHARS + 1 - len(shown)} more characters were left out]"


def test_a_container_that_is_somewhat_too_long_says_exactly_how_much_is_missing() -> None:
    value = ["x" * 100] * (MAX_RESULT_CHARS // 100)
    whole = json.dumps(value, separators=(",", ":"))
    rendered = render_result(value)
    assert rendered.truncated
    shown, tail = rendered.text.split("\n")
    assert whole.startswith(shown)
    assert tail == f"[cut here: {len(whole) - len(shown)} more characters of this list of 2000 items were left out]"


def test_a_container_at_the_limit_is_whole() -> None:
    assert not render_result(["x" * (MAX_RESULT_CHARS - 4)]).truncated
    assert render_result(["x" * (MAX_RESULT_CHARS - 3)]).truncated


@pytest.mark.parametrize(
    "value",
    [[0] * 10**7, range(10**15), Counted(), EndlessMapping(), ["x" * 10**7], {"x" * 10**7: 1}, {"a": [[1.5] * 10**6]}],
    ids=["ten million items", "range", "counted", "endless mapping", "long string", "long key", "nested"],
)
def test_a_huge_container_is_cut_and_says_at_least_how_much_is_missing(value: object) -> None:
    rendered = render_result(value)
    assert rendered.truncated
    assert MAX_RESULT_CHARS * 0.99 < len(rendered.text) <= MAX_RESULT_CHARS
    assert "[cut here: at least 200" in rendered.text[-200:]


def test_of_a_huge_container_no_more_is_read_than_is_shown_and_counted() -> None:
    value = Counted()
    render_result(value)
    assert 0 < value.read <= MAX_RESULT_CHARS + 1  # each item is two characters, and twice the limit is counted


def test_lone_surrogates_are_replaced_and_pairs_are_joined() -> None:
    assert text("a\ud800b") == "a\ufffdb"
    assert text("\ud83d\ude00") == "😀"
    assert text(["\udfff"]) == '["\ufffd"]'
    assert text({"\udfff": 1}) == '{"\ufffd":1}'


def test_nul_never_reaches_the_text() -> None:
    assert text("a\x00b") == "a\ufffdb"
    assert text(["a\x00b"]) == '["a\\u0000b"]'
    assert text("\x00") == "\ufffd"


def test_a_stack_that_is_almost_full_costs_the_text_and_raises_nothing() -> None:
    def descend(levels: int) -> Rendered:
        return descend(levels - 1) if levels else render_result(deep(50))

    rendered = descend(sys.getrecursionlimit() - len(inspect.stack()) - 100)
    assert "list: the tool returned it, but it could not be shown: RecursionError" in rendered.text


class Hostile(enum.Enum):
    ENDLESS = Counted()
    RING = cyclic()


def ten_million_digits() -> int:
    return 1 << 33_000_000


# By their makers, because Hypothesis shows what it chooses from, and most of these cannot be shown.
HOSTILE: list[Callable[[], object]] = [
    Unspeakable,
    lambda: [Liar()],
    NumberForRepr,
    BrokenSequence,
    BrokenMapping,
    Counted,
    EndlessMapping,
    Deeper,
    cyclic,
    ten_million_digits,
    itertools.count,
    lambda: RudeText("x\ud800"),
    lambda: Hostile.ENDLESS,
    lambda: Hostile.RING,
    lambda: b"\x00\xff",
    lambda: Unspeakable,
    lambda: ValueError(Unspeakable()),
    lambda: {Unspeakable(): Unspeakable()},
]


def order_of(value: object) -> Order:
    """A model that holds what its annotations do not allow."""
    return Order.model_construct(number="no", anything=value)


@pytest.mark.parametrize(
    "endless",
    [
        itertools.count,
        lambda: [itertools.count()],
        lambda: {"n": itertools.count()},
        lambda: order_of(itertools.count()),
    ],
    ids=["itself", "in a list", "in a dict", "in a model"],
)
def test_an_iterator_without_an_end_is_not_handed_to_a_models_own_serialiser(endless: Callable[[], object]) -> None:
    rendered = render_result(order_of(endless()))
    assert '"number":"no"' in rendered.text
    assert "not consumed" in rendered.text


any_text = st.text(st.characters() | st.sampled_from("\ud800\udfff\ud83d\ude00\x00 "))
leaves = (
    st.sampled_from(range(len(HOSTILE))).map(lambda number: HOSTILE[number]())
    | st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.complex_numbers() | st.fractions()
    | st.datetimes() | st.timedeltas() | st.decimals() | st.uuids()
    | any_text
)  # fmt: skip
keys = any_text | st.integers() | st.floats() | st.none() | st.tuples(st.text()) | st.dates()
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.builds(Book, st.text(), st.decimals(), st.dictionaries(st.text(), inner, max_size=2))
        | st.builds(order_of, inner)
    ),
    max_leaves=6,
)


@settings(deadline=None)  # endless values take their tenth of a second
@given(values)
def test_any_value_becomes_a_bounded_text_that_is_not_blank_and_can_be_sent(value: object) -> None:
    rendered = render_result(value)
    assert rendered.text.strip()
    assert len(rendered.text) <= MAX_RESULT_CHARS
    assert "\x00" not in rendered.text
    rendered.text.encode()
    if rendered.note is not None:
        assert 0 < len(rendered.note.encode()) < 5_000
