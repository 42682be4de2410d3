from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, NotRequired, Optional, TypeVar

import pydantic
import pytest
from pydantic import Field
from typing_extensions import TypeAliasType, TypedDict

from safepoint.errors import ToolDefinitionError
from safepoint.tools.signature import Signature

if TYPE_CHECKING:
    from pathlib import Path as OnlyForCheckers

Deps = TypeVar("Deps")
Args = dict[str, Any]  # Any: JSON


class Context(Generic[Deps]):
    """Stands for the runtime's ToolContext, which is known by this mark alone."""

    __tool_context__ = True


ContextAlias = TypeAliasType("ContextAlias", Context[int])


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Address(pydantic.BaseModel):
    street: str
    next_door: Address | None = None


class Filters(TypedDict):
    colour: str
    limit: NotRequired[int]


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    def find(self, query: str) -> str:
        """Find something in the shop."""
        return f"{query} at {self.name}"

    @staticmethod
    async def wait(seconds: float) -> None:
        """Wait a while."""

    @classmethod
    def open(cls, day: str) -> str:
        """Tell when it opens."""
        return day

    def __call__(self, order: str) -> str:
        """Order something."""
        return order


class Documented:
    """What the class says."""

    async def __call__(self, word: str) -> str:
        return word


def properties(function: Callable[..., object]) -> Args:
    return dict(Signature.of(function).parameters["properties"])


def refusal(function: Any) -> str:  # Any: wrong functions are the subject
    with pytest.raises(ToolDefinitionError) as refused:
        Signature.of(function)
    return str(refused.value)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:  # Any: any function
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:  # Any: passed through
        return function(*args, **kwargs)

    return wrapper


async def search(query: str, limit: int = 5) -> list[str]:
    """Search the catalogue.

    Looks at titles only.

    Args:
        query: What to look for.
        limit: How many at most.
    """
    return [query] * limit


def test_a_function_is_read_as_the_model_shall_see_it() -> None:
    signature = Signature.of(search)
    assert signature.name == "search"
    assert signature.description == "Search the catalogue.\n\nLooks at titles only."
    assert signature.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "What to look for."},
            "limit": {"type": "integer", "description": "How many at most.", "default": 5},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert signature.context_parameter is None
    assert signature.is_async


def test_a_function_without_parameters_takes_an_empty_object() -> None:
    def now() -> str:
        """Tell the time."""
        return "noon"

    signature = Signature.of(now)
    assert signature.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert not signature.is_async
    assert signature.validate({}) == {}


def test_a_function_without_words_is_described_by_its_name() -> None:
    def read_the_news(day: str) -> None: ...

    def only_parameters(day: str) -> None:
        """
        Args:
            day: Which day.
        """

    assert Signature.of(read_the_news).description == "read the news"
    assert Signature.of(only_parameters).description == "only parameters"


def test_name_and_description_can_be_given() -> None:
    signature = Signature.of(search, name="look-up_2", description="  Look it up. ")
    assert (signature.name, signature.description) == ("look-up_2", "Look it up.")


@pytest.mark.parametrize(
    "style",
    [
        "Args:\n        seconds (float): How long.\n",
        "Parameters\n    ----------\n    seconds : float\n        How long.\n",
        ":param seconds: How long.\n",
    ],
)
def test_each_docstring_style_describes_its_parameter(style: str) -> None:
    def nap(seconds: float) -> None: ...

    nap.__doc__ = f"Nap.\n\n    {style}"
    signature = Signature.of(nap)
    assert signature.description == "Nap."
    assert signature.parameters["properties"]["seconds"]["description"] == "How long."


def test_metadata_in_the_annotation_wins_over_the_docstring() -> None:
    def f(
        a: Annotated[int, Field(description="field", gt=0, le=9)],
        b: Annotated[int, "plain words"],
        c: int = Field(description="default", default=3),
        d: int = 4,
    ) -> None:
        """Do.

        :param a: doc
        :param b: doc
        :param c: doc
        :param d: doc
        """

    found = properties(f)
    assert [found[name]["description"] for name in "abcd"] == ["field", "plain words", "default", "doc"]
    assert found["a"] == {"type": "integer", "exclusiveMinimum": 0, "maximum": 9, "description": "field"}
    assert found["c"]["default"] == 3
    assert Signature.of(f).parameters["required"] == ["a", "b"]


def test_the_usual_types_have_their_schemas() -> None:
    def f(
        a: str | None,
        b: Optional[int],  # noqa: UP045  # the old spelling is the subject
        c: Literal["x", "y"],
        d: Size,
        e: Point,
        g: Address,
        h: Filters,
        i: list[dict[str, float]],
        j: tuple[int, ...],
        k: Any,  # Any: one of the usual types
    ) -> None: ...

    found = properties(f)
    assert found["a"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert found["b"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert found["c"] == {"enum": ["x", "y"], "type": "string"}
    assert found["d"] == {"$ref": "#/$defs/Size"}
    assert found["i"] == {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "number"}}}
    assert found["j"] == {"type": "array", "items": {"type": "integer"}}
    assert found["k"] == {}
    defs = Signature.of(f).parameters["$defs"]
    assert defs["Size"]["enum"] == ["small", "large"]
    assert defs["Point"]["required"] == ["x"]
    assert defs["Address"]["properties"]["next_door"]["anyOf"][0] == {"$ref": "#/$defs/Address"}
    assert defs["Filters"]["required"] == ["colour"]
    json.dumps(dict(Signature.of(f).parameters))


def test_the_arguments_of_those_types_arrive_as_python_values() -> None:
    def f(d: Size, e: Point, g: Address, h: Filters, j: tuple[int, ...], k: Literal["x"]) -> None: ...

    values = Signature.of(f).validate(
        {"d": "large", "e": {"x": 1}, "g": {"street": "S"}, "h": {"colour": "red"}, "j": [1, "2"], "k": "x"}
    )
    expected = {
        "d": Size.LARGE,
        "e": Point(1),
        "g": Address(street="S"),
        "h": {"colour": "red"},
        "j": (1, 2),
        "k": "x",
    }
    assert values == expected


def test_parameters_may_have_names_that_pydantic_keeps_for_itself() -> None:
    def f(schema: str, model_config: str, json: int, copy: bool, _hidden: int, self: str, p0: int) -> None: ...

    args = {"schema": "a", "model_config": "b", "json": 1, "copy": True, "_hidden": 2, "self": "c", "p0": 3}
    assert list(properties(f)) == list(args)
    assert Signature.of(f).validate(args) == args


def test_an_alias_is_the_name_for_the_model_only() -> None:
    def f(from_: Annotated[str, Field(alias="from")], to: str = Field(validation_alias="to-whom")) -> None: ...

    signature = Signature.of(f)
    assert list(signature.parameters["properties"]) == ["from", "to-whom"]
    assert signature.validate({"from": "a", "to-whom": "b"}) == {"from_": "a", "to": "b"}


def test_a_default_without_json_form_is_left_out_of_the_schema_and_not_of_the_function() -> None:
    marker = object()

    def f(a: Any = marker, b: int | None = None) -> None: ...  # Any: takes the marker

    signature = Signature.of(f)
    assert signature.parameters["properties"]["a"] == {}
    assert "required" not in signature.parameters
    assert signature.validate({}) == {}


@pytest.mark.parametrize(
    "annotation",
    [
        Context,
        Context[str],
        Annotated[Context[str], "the context"],
        Context[str] | None,
        Optional[Context[str]],  # noqa: UP045  # the old spelling is the subject
        ContextAlias,
        "Context[str]",
        "Annotated[Context, 1]",
    ],
)
def test_the_context_is_found_in_every_spelling_and_left_out(annotation: object) -> None:
    def f(a: int, ctx: object, b: int = 1) -> None:
        """Do.

        Args:
            ctx: The context.
        """

    f.__annotations__["ctx"] = annotation
    signature = Signature.of(f)
    assert signature.context_parameter == "ctx"
    assert list(signature.parameters["properties"]) == ["a", "b"]
    assert "context" not in json.dumps(dict(signature.parameters)) + signature.description
    assert signature.validate({"a": 1}) == {"a": 1}


def test_a_context_that_is_only_mentioned_is_not_taken_for_one() -> None:
    def f(ctx: str, contexts: dict[str, str]) -> None: ...

    assert Signature.of(f).context_parameter is None


def test_types_of_the_scope_around_a_tool_are_found() -> None:
    class Local(pydantic.BaseModel):
        word: str

    class Maker:
        class Inner(pydantic.BaseModel):
            number: int

        def method(self: object, inner: Inner, local: list[Local]) -> None: ...

        signature = Signature.of(functools.partial(method, None))

    def f(local: Local, also: list["Local"] | None = None) -> None: ...  # noqa: UP037  # quotes inside text

    assert Signature.of(decorated(f)).validate({"local": {"word": "a"}}) == {"local": Local(word="a")}
    assert Maker.signature.validate({"inner": {"number": 1}, "local": []}) == {
        "inner": Maker.Inner(number=1),
        "local": [],
    }


def test_a_reference_to_a_class_that_is_defined_later_is_found() -> None:
    def f(later: Later) -> None: ...

    assert Signature.of(f).validate({"later": {"word": "a"}}) == {"later": Later(word="a")}


class Later(pydantic.BaseModel):
    word: str


def test_a_bound_method_has_no_self() -> None:
    signature = Signature.of(Shop("A").find)
    assert (signature.name, signature.description) == ("find", "Find something in the shop.")
    assert list(signature.parameters["properties"]) == ["query"]
    assert Signature.of(Shop.open).validate({"day": "Monday"}) == {"day": "Monday"}


def test_a_static_method_is_read_on_the_class_and_inside_its_body() -> None:
    inside: Any = vars(Shop)["wait"]  # Any: a staticmethod object, as a decorator inside the class body sees it
    for function in (Shop.wait, inside):
        signature = Signature.of(function)
        assert (signature.name, signature.is_async) == ("wait", True)


def test_what_a_partial_has_bound_is_hidden_from_the_model() -> None:
    def fetch(url: str, retries: int, *, key: str, depth: int = 1) -> None:
        """Fetch a page."""

    signature = Signature.of(functools.partial(fetch, "https://example.org", key="secret"))
    assert signature.name == "fetch"
    assert signature.description == "Fetch a page."
    assert list(signature.parameters["properties"]) == ["retries", "depth"]
    assert "secret" not in json.dumps(dict(signature.parameters))


def test_a_partial_that_took_over_the_looks_of_its_function_still_hides_what_it_has_bound() -> None:
    def fetch(url: str, key: str, depth: int = 1) -> None:
        """Fetch a page."""

    bound = functools.partial(fetch, "https://example.org", key="secret")
    functools.update_wrapper(bound, fetch)
    assert list(properties(bound)) == ["depth"]


def test_a_partial_of_an_async_function_is_async() -> None:
    signature = Signature.of(functools.partial(search, limit=1))
    assert signature.is_async
    assert list(signature.parameters["properties"]) == ["query"]


def test_a_decorated_function_keeps_its_parameters_and_the_decorators_kind() -> None:
    signature = Signature.of(decorated(search))
    assert list(signature.parameters["properties"]) == ["query", "limit"]
    assert not signature.is_async


def test_an_object_that_can_be_called_needs_a_name() -> None:
    assert "name='...'" in refusal(Shop("A"))
    signature = Signature.of(Shop("A"), name="order")
    assert (signature.name, signature.description, signature.is_async) == ("order", "Order something.", False)
    assert list(signature.parameters["properties"]) == ["order"]
    signature = Signature.of(Documented(), name="echo")
    assert (signature.description, signature.is_async) == ("What the class says.", True)


def test_a_parameter_without_annotation_is_refused_with_what_to_write() -> None:
    def f(a: int, b) -> None: ...  # type: ignore[no-untyped-def]  # the mistake under test

    def g(ctx) -> None: ...  # type: ignore[no-untyped-def]  # as above

    assert "f(): parameter 'b' has no annotation" in refusal(f)
    assert "'b: str'" in refusal(f)
    assert "'ctx: ToolContext'" in refusal(g)


def test_a_method_that_is_not_bound_is_refused_with_what_to_write() -> None:
    assert "Shop.find(): parameter 'self' is unbound" in refusal(Shop.find)
    assert "bound method" in refusal(vars(Shop)["open"])


def test_stars_and_positional_only_parameters_are_refused() -> None:
    def stars(*words: str) -> None: ...

    def keywords(**options: str) -> None: ...

    def positional(a: int, /) -> None: ...

    assert "'*words'" in refusal(stars)
    assert "'words: list[...]'" in refusal(stars)
    assert "'**options'" in refusal(keywords)
    assert "'options: dict[str, ...]'" in refusal(keywords)
    assert "parameter 'a' is positional-only" in refusal(positional)
    assert "remove the '/'" in refusal(positional)


@pytest.mark.parametrize("name", ["<lambda>", "a b", "", "é", "a.b", "x" * 65, "a\n"])
def test_a_name_that_providers_refuse_is_refused(name: str) -> None:
    with pytest.raises(ToolDefinitionError, match="cannot be a tool's name") as refused:
        Signature.of(search, name=name)
    assert repr(name) in str(refused.value)
    assert Signature.of(search, name="x" * 64).name == "x" * 64


def test_a_lambda_is_refused_by_its_name() -> None:
    assert "'<lambda>'" in refusal(lambda: None)


class NoSchema:
    """Nothing that JSON could hold."""


@pytest.mark.parametrize(
    ("annotation", "hint"),
    [
        (NoSchema, "NoSchema"),
        (list[NoSchema], "NoSchema"),
        (NoSchema | None, "NoSchema"),
        (Callable[[int], int], "CallableSchema"),
        (Callable[[int], int] | None, "CallableSchema"),
        (Callable[[int], int] | int, "one choice of the union"),
        (collections.abc.Iterable[int] | str, "write list[...]"),
        (collections.abc.Iterable[int], "write list[...]"),
        (list[collections.abc.Generator[int]], "write list[...]"),
        (type[int], "a class cannot come from JSON"),
        (Literal[Size.SMALL], "write Literal['small']"),
        (list[Context[int]], "Context"),
        (Context[int] | int, "Context"),
        (ClassVar[int], "ClassVar"),
    ],
)
def test_a_type_without_a_schema_is_refused_with_the_parameter_and_the_types_that_work(
    annotation: object, hint: str
) -> None:
    def f(fine: int, odd: object) -> None: ...

    f.__annotations__["odd"] = annotation
    told = refusal(f)
    assert "f(): " in told
    assert "parameter 'odd'" in told
    assert hint in told
    assert "https://" not in told


def test_a_name_that_cannot_be_resolved_is_refused_with_the_parameter() -> None:
    def f(fine: int, where: OnlyForCheckers) -> None: ...

    told = refusal(f)
    assert "f(): the annotation 'OnlyForCheckers' of parameter 'where'" in told
    assert "not under TYPE_CHECKING" in told


def test_the_return_annotation_is_nobodys_business() -> None:
    def f(fine: int) -> OnlyForCheckers:
        raise NotImplementedError

    assert Signature.of(f).name == "f"


def test_two_contexts_are_refused() -> None:
    def f(ctx: Context[int], other: Context[int]) -> None: ...

    assert "'ctx' and 'other'" in refusal(f)


def test_a_generator_is_refused() -> None:
    def numbers(limit: int) -> collections.abc.Iterator[int]:
        yield limit

    async def stream(limit: int) -> collections.abc.AsyncIterator[int]:
        yield limit

    for function in (numbers, stream, functools.partial(numbers, limit=1)):
        assert "return a list" in refusal(function)


@pytest.mark.parametrize("thing", [Shop, int, "search", None, 5])
def test_what_is_no_function_is_refused(thing: object) -> None:
    assert "is not a function" in refusal(thing)


@pytest.mark.parametrize("function", [len, print, dict.fromkeys])
def test_a_builtin_that_cannot_be_called_by_name_is_refused(function: object) -> None:
    assert refusal(function)


def test_parameter_names_that_providers_refuse_are_refused() -> None:
    def f(größe: int) -> None: ...

    def g(a: Annotated[int, Field(alias="b")], b: int) -> None: ...

    def h(a: Annotated[int, Field(validation_alias=pydantic.AliasChoices("b", "c"))]) -> None: ...

    assert "'größe'" in refusal(f)
    assert "two parameters have the name 'b'" in refusal(g)
    assert "parameter 'a'" in refusal(h)


def test_an_object_that_answers_every_attribute_is_refused_and_does_not_hang() -> None:
    class Yes:
        def __getattr__(self, name: str) -> Yes:
            return Yes()

        def __call__(self) -> None: ...

    assert "wrapped too many times" in refusal(Yes())


@pytest.mark.parametrize("annotation", [list["Later"], "list[Later]", list[Later], dict[str, "Later"]])
def test_references_inside_other_types_are_found(annotation: object) -> None:
    def f(many: object) -> None: ...

    f.__annotations__["many"] = annotation
    assert Signature.of(f).parameters["$defs"].keys() == {"Later"}
