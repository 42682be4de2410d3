"""Several asks become one request: a pure fold that does not depend on their order and only ever gets stronger."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint._core.asks import Ask, Request, fold, join
from safepoint._core.points import Level, SafePoint
from safepoint._core.reasons import Reason, Source

PLACES = [
    SafePoint.AFTER_TOOLS,
    SafePoint.AFTER_TOOL,
    SafePoint.AFTER_MODEL,
    SafePoint.BEFORE_EFFECT,
    SafePoint.named("page"),
    SafePoint.named("line"),
    SafePoint.ANY,
]
NAMES = ["after_tools", "after_tool", "after_model", "before_effect", "point:page", "point:line", "point:other"]


ATS = [*PLACES, SafePoint.AFTER_TOOL | SafePoint.named("page"), SafePoint.NOW, SafePoint.FORCE]
REASONS = [Reason(text, source) for source in Source for text in ("", "lunch", "fire")]

asks = st.builds(
    Ask,
    at=st.sampled_from(ATS),
    reason=st.sampled_from(REASONS),
    deadline=st.sampled_from([None, None, 1.0, 50.0, 100.0]),
    recursive=st.booleans(),
)
some = st.lists(asks, min_size=1, max_size=6)
slow_machines_too = settings(deadline=None)


def folded(asks: list[Ask]) -> Request:
    request = fold(asks)
    assert request is not None
    return request


def gist(request: Request | None) -> tuple[object, ...] | None:
    """Everything a request amounts to; of several reasons with the strongest source, the first is the headline."""
    if request is None:
        return None
    ids = frozenset(ask.id for ask in request.asks)
    return request.at, request.deadline, request.recursive, request.reason.source, ids


def again(request: Request) -> list[Ask]:
    """A request as asks that another fold can take, as a parent hands it on."""
    return list(request.asks)


def test_nothing_asked_is_no_request() -> None:
    assert fold([]) is None


@slow_machines_too
@given(some, st.randoms(use_true_random=False))
def test_the_order_of_the_asks_does_not_matter(given_asks: list[Ask], random: Random) -> None:
    shuffled = list(given_asks)
    random.shuffle(shuffled)
    assert gist(fold(shuffled)) == gist(fold(given_asks))


@slow_machines_too
@given(some, some, some)
def test_folding_in_groups_amounts_to_the_same(one: list[Ask], two: list[Ask], three: list[Ask]) -> None:
    left = folded([*again(folded([*one, *two])), *three])
    right = folded([*one, *again(folded([*two, *three]))])
    assert gist(left) == gist(right) == gist(fold([*one, *two, *three]))


@slow_machines_too
@given(some, st.lists(asks, max_size=3), some)
def test_joining_two_requests_is_folding_all_their_asks(one: list[Ask], both: list[Ask], two: list[Ask]) -> None:
    joined = join(fold([*one, *both]), fold([*both, *two]))
    assert gist(joined) == gist(fold([*one, *both, *two]))
    assert joined is not None
    assert len(joined.asks) == len(one) + len(both) + len(two), "an ask that both have counts once"


def test_joined_with_a_recursive_request_any_request_is_recursive() -> None:
    deep, flat = fold([Ask(SafePoint.AFTER_TOOLS, recursive=True)]), fold([Ask(SafePoint.ANY)])
    for joined, expected in ((join(deep, flat), True), (join(flat, deep), True), (join(flat, flat), False)):
        assert joined is not None
        assert joined.recursive is expected


def test_an_ask_says_no_more_than_it_was_told() -> None:
    ask = Ask(SafePoint.AFTER_TOOLS)
    assert (ask.deadline, ask.recursive, ask.asked_at, ask.reason) == (None, False, 0.0, Reason())


@slow_machines_too
@given(some)
def test_an_ask_seen_twice_counts_once(given_asks: list[Ask]) -> None:
    assert fold([*given_asks, *given_asks]) == fold(given_asks)
    assert fold(again(folded(given_asks))) == fold(given_asks)


@slow_machines_too
@given(some, asks)
def test_one_more_ask_only_makes_it_stronger(given_asks: list[Ask], more: Ask) -> None:
    before, after = folded(given_asks), folded([*given_asks, more])
    assert after.at.level >= max(before.at.level, more.at.level)
    assert after.recursive >= before.recursive
    assert after.reason.strength >= before.reason.strength
    for now in (0.0, 1.0, 50.0, 100.0):
        assert after.level(now) >= before.level(now)
        for name in (*NAMES, None):
            assert after.hits(name, now) >= before.hits(name, now)
    if before.deadline is not None:
        assert after.deadline is not None
        assert after.deadline <= before.deadline


@slow_machines_too
@given(some)
def test_the_request_is_what_the_words_say(given_asks: list[Ask]) -> None:
    request = folded(given_asks)
    assert request.at.level is max(ask.at.level for ask in given_asks)
    if request.at.level is Level.SAFE:
        for name in NAMES:
            assert request.at.covers(name) is any(ask.at.covers(name) for ask in given_asks)
    else:
        assert request.at in (SafePoint.NOW, SafePoint.FORCE)
    deadlines = [ask.deadline for ask in given_asks if ask.deadline is not None]
    assert request.deadline == (min(deadlines) if deadlines else None)
    assert request.recursive is any(ask.recursive for ask in given_asks)
    assert request.reason.strength == max(ask.reason.strength for ask in given_asks)
    assert request.asks == tuple(given_asks), "all asks are kept, in the order they were made"
    assert request.mildest() is min(ask.at.level for ask in given_asks)


def test_of_equally_strong_reasons_the_first_is_the_headline() -> None:
    first, second = Ask(SafePoint.NOW, Reason("first")), Ask(SafePoint.NOW, Reason("second"))
    weaker = Ask(SafePoint.NOW, Reason("bye", Source.SHUTDOWN))
    assert folded([weaker, first, second]).reason.text == "first"
    assert folded([second, weaker, first]).reason.text == "second"


def test_an_ask_that_arrives_on_two_ways_counts_as_the_stronger_of_them() -> None:
    own = Ask(SafePoint.AFTER_TOOLS, Reason("lunch", Source.USER))
    inherited = own.handed_down(Level.NOW)
    for pair in ([own, inherited], [inherited, own]):
        request = folded(pair)
        assert request.at == SafePoint.NOW
        assert request.reason == Reason("lunch", Source.USER), "it was asked of this very node"
        assert len(request.asks) == 1
