"""Several asks become one request: a pure fold that does not depend on their order and only ever gets stronger."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint._core.asklog import ActedOn, AskLog
from safepoint._core.asks import Ask, Request, fold, hand_down, join, stronger_at
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


@slow_machines_too
@given(some)
def test_those_that_hit_a_place_are_those_that_hit_it_by_themselves(given_asks: list[Ask]) -> None:
    request = folded(given_asks)
    for now in (0.0, 1.0, 50.0, 100.0):
        for name in (*NAMES, None):
            alone = {ask.id for ask in given_asks if folded([ask]).hits(name, now)}
            assert request.hitting(name, now) == alone
            assert request.hits(name, now) is bool(alone)
            assert {ask.id for ask in given_asks if ask.hits(name, now)} == alone


@slow_machines_too
@given(some)
def test_a_child_takes_a_request_as_its_asks_handed_down_one_by_one(given_asks: list[Ask]) -> None:
    request = folded(given_asks)
    for now in (0.0, 1.0, 50.0, 100.0):
        level = request.level(now)
        passed = [ask for ask in given_asks if level is Level.SAFE or ask.hits(None, now)]
        plain = folded([ask.handed_down(level) for ask in passed])
        handed = hand_down(request, level, now)
        again = hand_down(handed, handed.level(now), now)
        for each in (handed, again):
            assert each == plain
            assert (each.ids, each.reasons, each.reason) == (plain.ids, plain.reasons, plain.reason)
            assert (each.asked_at, each.mildest(), each.level(now)) == (plain.asked_at, plain.mildest(), level)
            for name in (*NAMES, None):
                assert each.hitting(name, now) == plain.hitting(name, now)


@slow_machines_too
@given(some, st.lists(asks, max_size=3), some)
def test_joined_requests_are_in_everything_what_their_asks_are(one: list[Ask], both: list[Ask], two: list[Ask]) -> None:
    joined, plain = join(fold([*one, *both]), fold([*both, *two])), folded([*one, *both, *two])
    assert joined is not None
    assert (joined.ids, joined.asks, joined.deadline) == (plain.ids, plain.asks, plain.deadline)
    assert (joined.reasons, joined.reason, joined.asked_at) == (plain.reasons, plain.reason, plain.asked_at)
    assert joined.mildest() is plain.mildest()
    assert [joined.find(ask.id) for ask in plain.asks] == list(plain.asks)
    assert joined.find("no such ask") is None
    for now in (0.0, 50.0):
        for name in (*NAMES, None):
            assert joined.hitting(name, now) == plain.hitting(name, now)


def test_a_request_of_asks_for_which_a_node_has_stopped_takes_effect_everywhere() -> None:
    here, there = Ask(SafePoint.AFTER_TOOLS), Ask(SafePoint.AFTER_TOOL)
    log = AskLog()
    for entry in (here, there, ActedOn(frozenset({here.id}))):
        log.append(entry)
    request = log.standing().request
    assert request is not None
    assert request.at == SafePoint.ANY
    assert request.hitting("after_model", 0.0) == {here.id}
    assert request.hitting("after_tool", 0.0) == {here.id, there.id}
    assert request.hitting("after_tool", 0.0) is request.hitting("after_tool", 0.0), "it is worked out once"
    assert request.hitting("now", 0.0) == request.hitting(None, 0.0) == frozenset()
    assert [ask.at for ask in request.asks] == [SafePoint.ANY, SafePoint.AFTER_TOOL]
    assert repr(request).startswith("Request(SafePoint.ANY, deadline=None, recursive=False, asks=(Ask(")
    assert request in {request}
    assert request != "a request"
    assert request != fold([here, there]), "that one is for two places only"
    assert len({request, fold([here, there]), fold([here])}) == 3


def test_what_hits_is_worked_out_anew_once_a_deadline_may_have_come() -> None:
    timed, endless = Ask(SafePoint.AFTER_TOOLS, deadline=50.0), Ask(SafePoint.AFTER_TOOL)
    request = folded([timed, endless])
    assert request.hitting("after_model", 0.0) == frozenset()
    assert request.hitting("after_tool", 0.0) == {endless.id}
    assert request.hitting("after_tool", 50.0) == {endless.id, timed.id}
    assert request.hitting("after_tool", 0.0) == {endless.id}


def test_an_ask_for_which_a_node_has_stopped_hits_at_every_safe_point_and_only_there() -> None:
    endless, timed = Ask(SafePoint.AFTER_TOOLS), Ask(SafePoint.AFTER_TOOL, deadline=50.0)
    log = AskLog()
    for entry in (endless, timed, ActedOn(frozenset({endless.id}))):
        log.append(entry)
    request = log.standing().request
    assert request is not None
    for place in (None, "now", "force"):
        assert request.hitting(place, 50.0) == {timed.id}, "only its deadline makes it NOW"
    assert request.hitting("after_model", 50.0) == {endless.id, timed.id}


def test_points_of_which_one_has_all_of_the_other_are_joined_in_either_order() -> None:
    wide, narrow = SafePoint.AFTER_TOOL | SafePoint.named("page"), SafePoint.AFTER_TOOL
    assert stronger_at(wide, narrow) == stronger_at(narrow, wide) == wide
    assert stronger_at(wide, narrow) is stronger_at(wide, wide) is wide, "nothing is made that is there already"
