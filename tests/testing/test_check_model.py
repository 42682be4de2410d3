"""`check_model`: our own models keep every rule, and a model that breaks one is told which."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from safepoint.errors import ModelError, ModelUnavailable, UsageError
from safepoint.models import TextDelta
from safepoint.testing import (
    ModelSetup,
    ScriptedModel,
    Situation,
    call,
    check_model,
    fail,
    raw,
    run_virtual,
    say,
    stall,
)
from safepoint.testing.conformance.model import RULES
from safepoint.testing.models import Reply
from tests.testing.broken_models import BROKEN, Good

SCRIPTS: dict[Situation, Reply] = {
    Situation.ANSWER: say("Dust and mice.", pieces=3),
    Situation.TOOL_CALL: call("look", place="attic"),
    Situation.SILENT: stall(),
    Situation.STALLS: [say("Dust"), stall()],
    Situation.BUSY: fail(ModelUnavailable("429")),
    Situation.BREAKS: [say("Dust"), fail(ModelError("lost"))],
    Situation.ENDS_EARLY: raw(TextDelta("Dust")),
}


@asynccontextmanager
async def scripted(situation: Situation) -> AsyncGenerator[ModelSetup]:
    model = ScriptedModel(SCRIPTS[situation], repeat=True)
    yield ModelSetup(model, lambda: model.open_streams)


def maker(kind: type[Good]) -> Callable[[Situation], AbstractAsyncContextManager[ModelSetup]]:
    @asynccontextmanager
    async def make(situation: Situation) -> AsyncGenerator[ModelSetup]:
        model = kind(situation)
        yield ModelSetup(model, lambda: model.open)

    return make


def test_the_scripted_model_keeps_every_rule() -> None:
    check_model(scripted)


def test_a_good_model_keeps_every_rule() -> None:
    check_model(maker(Good))


@pytest.mark.parametrize("model", BROKEN)
def test_a_model_that_breaks_one_rule_is_told_that_one(model: type[Good]) -> None:
    with pytest.raises(AssertionError) as error:
        check_model(maker(model))
    assert re.findall(r"^- (.*?): ", str(error.value), re.MULTILINE) == [model.__doc__], error.value
    assert "what to do: " in str(error.value)


def test_every_rule_is_broken_by_some_model() -> None:
    assert {rule.name for rule in RULES.rules.all} == {model.__doc__ for model in BROKEN}


def test_rules_that_need_what_was_left_out_are_left_out() -> None:
    asked: set[Situation] = set()

    def make(situation: Situation) -> AbstractAsyncContextManager[ModelSetup]:
        asked.add(situation)
        return scripted(situation)

    check_model(make, situations=[Situation.ANSWER])
    assert asked == {Situation.ANSWER}
    with pytest.raises(ValueError, match="no rule can be checked"):
        check_model(make, situations=[])
    with pytest.raises(ValueError, match="'sunny' is not a valid Situation"):
        check_model(make, situations=["sunny"])  # type: ignore[list-item]  # what an untyped caller may write


def test_inside_a_running_loop_it_says_where_to_call_it() -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="call it from a plain function"):
            check_model(scripted)

    run_virtual(main)
