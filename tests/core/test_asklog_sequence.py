"""A sequence of asks is what a plain list of them is, at any length and whichever are taken out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint._core.asklog import Amount, AskSequence
from safepoint._core.asks import Ask, fold
from safepoint._core.points import BETWEEN, SafePoint

ATS = [SafePoint.NOW, SafePoint.FORCE, SafePoint.ANY, SafePoint.AFTER_TOOL, SafePoint.named("x")]
asks = st.builds(
    Ask, at=st.sampled_from(ATS), deadline=st.sampled_from([None, None, 1.0, 2.0]), recursive=st.booleans()
)


PLACES = ["after_tool", "after_tools", "point:x", "any", "now", "force", BETWEEN]


def check(sequence: AskSequence, plain: dict[int, Ask]) -> None:
    left = tuple(plain.values())
    request = fold(left)
    assert sequence.asks() == left
    assert sequence.asks() is sequence.asks(), "it is listed once"
    assert sequence.ids() == {ask.id for ask in left}
    assert sequence.amount() == (None if request is None else Amount.of(request))
    for place in PLACES:
        assert sequence.covers(place) is any(ask.at.covers(place) for ask in left)
    for where in (None, *PLACES):
        for now in (0.5, 1.5, 2.0):
            assert sequence.hitting(where, now) == {ask.id for ask in left if ask.hits(where, now)}


@settings(deadline=None)
@given(st.lists(asks, max_size=40), st.data())
def test_it_is_what_a_plain_list_is_whichever_are_taken_out(given_asks: list[Ask], data: st.DataObject) -> None:
    sequence, plain = AskSequence(), dict[int, Ask]()
    for ask in given_asks:
        if len(plain) > 0 and data.draw(st.booleans()):
            place = data.draw(st.sampled_from(sorted(plain)))
            before = sequence.asks()
            shorter = sequence.minus(place)
            assert sequence.asks() == before, "nothing is changed in place"
            sequence = shorter
            del plain[place]
        plain[sequence.count] = ask
        sequence = sequence.plus(ask)
        check(sequence, plain)


@pytest.mark.parametrize("number", [0, 1, 2, 3, 7, 8, 9, 100])
def test_every_one_can_be_taken_out_of_a_sequence_of_every_length(number: int) -> None:
    made = [Ask(SafePoint.ANY) for _ in range(number)]
    sequence = AskSequence()
    for ask in made:
        sequence = sequence.plus(ask)
    assert sequence.count == number
    assert len(sequence._trees) == number.bit_count(), "a hundred are a few trees"  # pyright: ignore[reportPrivateUsage]  # only its price shows it
    for place, ask in enumerate(made):
        check(sequence.minus(place), {each: made[each] for each in range(number) if each != place})
        sequence.minus(place).plus(ask)
    for place in range(number):
        sequence = sequence.minus(place)
    check(sequence, {})
    assert sequence.count == number, "a place is never given twice"
