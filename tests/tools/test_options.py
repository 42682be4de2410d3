from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from safepoint import ToolContext, tool
from safepoint.errors import ToolDefinitionError
from safepoint.tools.options import Effect, OnCancel, RunIn, ToolOptions


async def undo(order: str) -> None:
    """Take it back."""


class Undoer:
    async def __call__(self, order: str) -> None:
        """Take it back."""


def parse(**options: Any) -> ToolOptions:  # Any: wrong values are the subject
    return ToolOptions.parse(**options)


def test_a_tool_that_declares_nothing_is_effectful_and_cut_on_cancel() -> None:
    options = ToolOptions()
    assert (options.effect, options.on_cancel) == (Effect.EFFECTFUL, OnCancel.CUT)
    assert (options.grace, options.timeout, options.undo, options.run_in, options.final) == (None,) * 4 + (False,)
    assert ToolOptions.parse() == options


def test_plain_words_become_members() -> None:
    for word in ("pure", "idempotent", "effectful", "irreversible"):
        assert parse(effect=word).effect is Effect(word)
    for word in ("cut", "finish"):
        assert parse(on_cancel=word).on_cancel is OnCancel(word)
    for word in ("async", "thread"):
        assert parse(run_in=word).run_in is RunIn(word)


def test_members_are_taken_as_they_are() -> None:
    assert ToolOptions.parse(effect=Effect.PURE, on_cancel=OnCancel.FINISH, run_in=RunIn.THREAD) == ToolOptions(
        effect=Effect.PURE, on_cancel=OnCancel.FINISH, run_in=RunIn.THREAD
    )


@pytest.mark.parametrize(
    ("option", "value", "right"),
    [
        ("effect", "Pure", "'pure'"),
        ("effect", "safe", "'idempotent'"),
        ("effect", None, "'effectful'"),
        ("effect", True, "'irreversible'"),
        ("effect", ["pure"], "'pure'"),
        ("effect", OnCancel.CUT, "'pure'"),
        ("on_cancel", "stop", "'finish'"),
        ("on_cancel", 1, "'cut'"),
        ("run_in", "threads", "'thread'"),
        ("run_in", "", "'async'"),
    ],
)
def test_a_wrong_word_is_refused_with_the_value_and_the_right_words(option: str, value: object, right: str) -> None:
    with pytest.raises(ValueError, match=option) as refused:
        parse(**{option: value})
    assert repr(value) in str(refused.value)
    assert right in str(refused.value)


def test_the_dataclass_itself_takes_members_only() -> None:
    plain: Any = "pure"  # Any: what a type checker would refuse
    with pytest.raises(ValueError, match=r"effect='pure'.*Effect\.PURE"):
        ToolOptions(effect=plain)


@pytest.mark.parametrize("option", ["grace", "timeout"])
@pytest.mark.parametrize("value", [0, -1, 0.0, -0.5, math.inf, -math.inf, math.nan, True, False, "5", [1]])
def test_seconds_that_are_no_positive_finite_number_are_refused(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option) as refused:
        parse(**{option: value})
    assert f"{option}={value!r}" in str(refused.value)
    assert f"write for example {option}=2.5" in str(refused.value)


@pytest.mark.parametrize("option", ["grace", "timeout"])
@pytest.mark.parametrize("value", [1, 0.001, 3600])
def test_seconds_above_zero_are_kept(option: str, value: float) -> None:
    assert getattr(parse(**{option: value}), option) == value


def test_a_grace_above_the_cap_is_refused_where_the_cap_is_known() -> None:
    parse(grace=10).check_grace()
    parse(grace=60).check_grace(cap=60)
    parse().check_grace(cap=0.1)
    with pytest.raises(ValueError, match=r"grace=10\.5 is above the ladder's cap of 10 s; write grace=10 or less"):
        parse(grace=10.5).check_grace()
    with pytest.raises(ValueError, match=r"grace=2 .* cap of 1.5 s"):
        parse(grace=2).check_grace(cap=1.5)


def test_a_function_runs_where_its_kind_belongs_unless_told() -> None:
    assert parse().placed_for("f", is_async=True).run_in is RunIn.ASYNC
    assert parse().placed_for("f", is_async=False).run_in is RunIn.THREAD
    assert parse(run_in="thread").placed_for("f", is_async=False).run_in is RunIn.THREAD
    assert parse(run_in="async").placed_for("f", is_async=True).run_in is RunIn.ASYNC
    assert parse(run_in="process").placed_for("f", is_async=False).run_in is RunIn.PROCESS


def test_a_place_that_does_not_fit_the_function_is_refused_with_the_one_that_does() -> None:
    with pytest.raises(ValueError, match=r"run_in='async' does not fit pay\(\), which is a plain .*run_in='thread'"):
        parse(run_in="async").placed_for("pay", is_async=False)
    with pytest.raises(ValueError, match=r"run_in='thread' does not fit pay\(\), which is an async .*run_in='async'"):
        parse(run_in="thread").placed_for("pay", is_async=True)
    with pytest.raises(ValueError, match=r"run_in='process' does not fit pay\(\), which is an async .*make it `def`"):
        parse(run_in="process").placed_for("pay", is_async=True)


@pytest.mark.parametrize("run_in", ["async", "thread"])
def test_finish_is_allowed_in_the_loop_and_in_a_thread(run_in: str) -> None:
    placed = parse(on_cancel="finish", run_in=run_in).placed_for("f", is_async=run_in == "async")
    assert placed.on_cancel is OnCancel.FINISH


def test_every_kind_of_async_function_can_undo() -> None:
    for function in (undo, functools.partial(undo, "7"), Undoer(), Undoer().__call__):
        assert parse(undo=function).undo is function


def test_an_undo_that_is_not_async_is_refused() -> None:
    def plain(order: str) -> None:
        """Take it back."""

    for function in (plain, Undoer, "undo", functools.partial(plain, "7"), lambda: undo("7")):
        with pytest.raises(ToolDefinitionError, match=r"undo=.*write `async def`"):
            parse(undo=function)


def test_final_is_a_bool_and_nothing_like_one() -> None:
    assert parse(final=True).final is True
    for value in (1, "yes", None):
        with pytest.raises(ValueError, match="write final=True"):
            parse(final=value)


def test_options_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        setattr(ToolOptions(), "final", True)  # noqa: B010  # a type checker refuses the plain way


def test_a_function_may_be_handed_over_with_its_options() -> None:
    async def look(place: str) -> str:
        """Look somewhere."""
        return place

    made = tool(look, name="peek", effect="pure")
    assert (made.name, made.options.effect) == ("peek", Effect.PURE)


@pytest.mark.parametrize(("option", "value"), [("name", 5), ("description", 5), ("ladder", 5), ("ladder", 0)])
def test_words_and_ladders_of_another_kind_are_refused(option: str, value: object) -> None:
    options: dict[str, Any] = {option: value}  # Any: wrong ones
    with pytest.raises(ValueError, match=rf"^{option}={value}.*write {option}=.* or leave {option} out$"):
        tool(print_it, **options)


def test_an_option_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    misspelt: dict[str, Any] = {"effects": "pure"}  # Any: wrong ones
    with pytest.raises(ToolDefinitionError, match=r"^@tool\(effects=…\): there is no such option; .* effect, "):
        tool(print_it, **misspelt)
    nameless: Any = "peek"  # Any: as above
    with pytest.raises(ToolDefinitionError, match=r"write @tool\(name='peek'\)$"):
        tool(nameless)


def test_an_undo_that_can_not_be_called_with_the_arguments_of_the_call_is_refused() -> None:
    async def other_name(word: str) -> None: ...
    async def no_context(text: str) -> None: ...
    async def fits(text: str, ctx: object, hint: str = "") -> None: ...
    async def takes_all(**arguments: object) -> None: ...

    for undo in (other_name, no_context):
        with pytest.raises(
            ToolDefinitionError, match=rf"^undo={undo.__name__} is called with .* print_it.*parameters \(text, ctx\)$"
        ):
            tool(print_it, undo=undo)
    for right in (fits, takes_all):
        assert tool(print_it, undo=right).options.undo is right


async def print_it(text: str, ctx: ToolContext) -> None:
    """Print it."""
