"""A sequence of asks is what a plain list of them is, at any length and whichever are taken out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint._core.asklog import Amount, AskSequence
from safepoint._core.asks import Ask, fold
from safepoint._core.points import SafePoint

ATS = [SafePoint.NOW, SafePoint.FORCE, SafePoint.ANY, SafePoint.AFTER_TOOL, SafePoint.named("x")]
asks = st.builds(
    Ask, at=st.sampled_from(ATS), deadline=st.sampled_from([None, None, 1.0, 2.0]), recursive=st.booleans()
)


def check(sequence: AskSequence, plain: dict[int, Ask], alike: bool) -> None:
    left = tuple(plain.values())
    request = fold(left)
    assert sequence.asks() == left
    assert sequence.asks() is sequence.asks(), "it is listed once"
    assert sequence.ids() == {ask.id for ask in left}
    assert sequence.amount() == (None if request is None else Amount.of(request))
    assert sequence.alike is alike


@settings(deadline=None)
@given(st.lists(asks, max_size=40), st.data())
def test_it_is_what_a_plain_list_is_whichever_are_taken_out(given_asks: list[Ask], data: st.DataObject) -> None:
    sequence, plain, made = AskSequence(), dict[int, Ask](), list[Ask]()
    for ask in given_asks:
        if len(plain) > 0 and data.draw(st.booleans()):
            place = data.draw(st.sampled_from(sorted(plain)))
            before = sequence.asks()
            shorter = sequence.minus(place)
            assert sequence.asks() == before, "nothing is changed in place"
            sequence = shorter
            del plain[place]
        plain[sequence.count] = ask
        made.append(ask)
        sequence = sequence.plus(ask)
        check(sequence, plain, all(each.at is made[0].at and each.deadline is None for each in made))


@pytest.mark.parametrize("number", [0, 1, 2, 3, 7, 8, 9, 100])
def test_every_one_can_be_taken_out_of_a_sequence_of_every_length(number: int) -> None:
    made = [Ask(SafePoint.ANY) for _ in range(number)]
    sequence = AskSequence()
    for ask in made:
        sequence = sequence.plus(ask)
    assert sequence.count == number
    assert len(sequence._trees) == number.bit_count(), "a hundred are a few trees"  # pyright: ignore[reportPrivateUsage]  # only its price shows it
    for place, ask in enumerate(made):
        check(sequence.minus(place), {each: made[each] for each in range(number) if each != place}, alike=True)
        sequence.minus(place).plus(ask)
    for place in range(number):
        sequence = sequence.minus(place)
    check(sequence, {}, alike=True)
    assert sequence.count == number, "a place is never given twice"
