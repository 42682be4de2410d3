"""Why somebody asked, and whose word counts most."""

from __future__ import annotations

from typing import Any

import pytest

from safepoint._core.reasons import Reason, Source, as_reason, from_parent, headline

STRONGEST_FIRST = [
    *("user", "caller", "policy", "budget", "deadline"),
    *("parent", "preempt", "disconnect", "freeze", "shutdown"),
]


def untyped(value: object) -> Any:  # Any: what a caller without a type checker passes
    return value


def test_sources_are_ordered_strongest_first() -> None:
    assert [source.value for source in Source] == STRONGEST_FIRST
    ranked = sorted(Source, key=lambda source: Reason(source=source).strength, reverse=True)
    assert [source.value for source in ranked] == STRONGEST_FIRST


def test_a_reason_is_the_users_unless_it_says_otherwise() -> None:
    assert Reason() == Reason("", Source.USER, None)
    assert as_reason(None) == Reason()
    assert as_reason("lunch") == Reason("lunch", Source.USER)


def test_a_ready_made_reason_is_taken_as_it_is() -> None:
    reason = Reason("too dear", Source.BUDGET, by="accounting")
    assert as_reason(reason) is reason


def test_a_source_may_be_written_as_its_word() -> None:
    assert Reason("bye", untyped("disconnect")).source is Source.DISCONNECT


def test_a_source_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match="source='operator' is not a source: write one of user, caller, ") as caught:
        Reason("bye", untyped("operator"))
    assert str(caught.value).endswith(", ".join(STRONGEST_FIRST))


@pytest.mark.parametrize("text", [None, 7, b"bytes"])
def test_a_reasons_text_is_a_str(text: object) -> None:
    with pytest.raises(ValueError, match="a reason's text is a str, not ") as caught:
        Reason(untyped(text))
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("reason", [7, ["a"], b"lunch"])
def test_anything_else_is_no_reason(reason: object) -> None:
    with pytest.raises(ValueError, match=r"is not a reason: write reason='…' or reason=Reason\('…', source=") as caught:
        as_reason(untyped(reason))
    assert str(caught.value).startswith(f"reason={reason!r} ")


@pytest.mark.parametrize("by", [5, b"ann", ["ann"]])
def test_who_asked_is_told_in_words(by: object) -> None:
    """What is no str would break the notice, and with it the end of the run."""
    with pytest.raises(ValueError, match=r"^by=.*: who asked is a str, write by='"):
        Reason("x", by=untyped(by))
    assert Reason("x", by="ann").by == "ann"
    assert Reason("x").by is None


def test_a_child_sees_all_reasons_of_its_parent_in_their_order_and_the_same_one_only_once_made() -> None:
    lunch, fire, above = Reason("lunch", by="ann"), Reason("fire", Source.POLICY), Reason("so be it", Source.PARENT)
    handed = from_parent([lunch, fire, lunch, above])
    assert handed == (
        Reason("lunch", Source.PARENT, "ann"),
        Reason("fire", Source.PARENT),
        Reason("lunch", Source.PARENT, "ann"),
        above,
    )
    assert handed[0] is handed[2]
    assert from_parent([lunch, lunch]) == (handed[0], handed[0])
    assert from_parent([above]) == (above,)
    assert from_parent([fire, lunch, lunch]) == (handed[1], handed[0], handed[0])


def test_the_headline_is_the_first_of_those_with_the_strongest_source() -> None:
    weak, one, other = Reason("bye", Source.SHUTDOWN), Reason("one"), Reason("other")
    assert headline([weak, one, other, one]) is one
    assert headline([weak]) is weak
