"""What checks before a tool call decide together: a plain function of what each of them said."""

from __future__ import annotations

import pytest

from safepoint.agent.call_hooks import Allowed, Unanswered, decide
from safepoint.agent.hooks import AskFirst, Deny, Replace

FIRST, SECOND = AskFirst("may it?"), AskFirst("really?")
OTHER, GIVEN = Replace(args={"a": 2}), Replace(result="made up")
NO = Deny("no")


@pytest.mark.parametrize(
    ("verdicts", "approvals", "decided"),
    [
        ([], (), Allowed({"a": 1})),
        ([None, OTHER, None], (), Allowed({"a": 2})),
        ([OTHER, Replace(args={"a": 3})], (), Allowed({"a": 3})),
        ([None, NO, GIVEN], (), NO),
        ([GIVEN, NO], (), GIVEN),
        ([OTHER, FIRST], (), Unanswered(1, "may it?")),
        ([FIRST, NO], (), Unanswered(1, "may it?")),
        ([NO, FIRST], (), NO),
        ([FIRST, OTHER, SECOND], (True,), Unanswered(2, "really?")),
        ([FIRST, OTHER, SECOND], (True, True), Allowed({"a": 2})),
        ([FIRST, SECOND], (False, True), Deny("a person said no")),
        ([FIRST, SECOND], (True, "not today"), Deny("not today")),
        ([FIRST], ("",), Deny("a person said no")),
    ],
)
def test_the_first_verdict_that_settles_the_call_counts(
    verdicts: list[object], approvals: tuple[object, ...], decided: object
) -> None:
    assert decide(verdicts, {"a": 1}, approvals) == decided
