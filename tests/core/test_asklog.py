"""The order of one append-only list answers every question of timing."""

from __future__ import annotations

import sys
import threading
import tracemalloc
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import FrameType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from safepoint._core.asklog import ActedOn, AskLog, Entry, Mark, Standing, Withdrawn, replay
from safepoint._core.asks import Ask, Request, fold, join
from safepoint._core.points import Level, SafePoint
from safepoint._core.reasons import Reason

A, B = Ask(SafePoint.NOW, id="a"), Ask(SafePoint.ANY, id="b")
ANSWERED, SEALED = Mark.ANSWERED, Mark.SEALED
ACTED_A, ACTED_B = ActedOn(frozenset("a")), ActedOn(frozenset("b"))


@dataclass(frozen=True)
class Case:
    """A log, and what it amounts to: ids of asks that stand, that came late, and so on."""

    log: list[Entry]
    asks: str = ""
    late: str = ""
    acted: str = ""
    withdrawn: str = ""
    refused: str = ""


ORDERS = {
    "nothing": Case([]),
    "an ask stands": Case([A], asks="a"),
    "two asks stand in their order": Case([B, A], asks="ba"),
    "an ask made twice stands once": Case([A, A], asks="a"),
    "made again after the answer: it was in time": Case([A, ANSWERED, A], asks="a"),
    "made again after the seal: it was in time": Case([A, SEALED, A], asks="a"),
    "late, made again after the seal: it was late": Case([ANSWERED, A, SEALED, A], late="a"),
    "taken back, made again: it stays taken back": Case([A, Withdrawn("a"), A], withdrawn="a"),
    "an ask after the answer is late": Case([A, ANSWERED, B], asks="a", late="b"),
    "an ask after the seal is refused": Case([A, SEALED, B], asks="a", refused="b"),
    "an ask after answer and seal is refused": Case([ANSWERED, SEALED, B], refused="b"),
    "taken back": Case([A, B, Withdrawn("a")], asks="b", withdrawn="a"),
    "taken back after the answer": Case([A, ANSWERED, B, Withdrawn("a"), Withdrawn("b")], withdrawn="ab"),
    "taken back twice": Case([A, Withdrawn("a"), Withdrawn("a")], withdrawn="a"),
    "acted on, then taken back: it stands": Case([A, ACTED_A, Withdrawn("a")], asks="a", acted="a"),
    "taken back, then acted on: it is gone": Case([A, Withdrawn("a"), ACTED_A], withdrawn="a"),
    "late, acted on, then taken back: it stands": Case([ANSWERED, A, ACTED_A, Withdrawn("a")], late="a", acted="a"),
    "sealed, then taken back: it stands": Case([A, SEALED, Withdrawn("a")], asks="a"),
    "refused, then taken back: it stays refused": Case([SEALED, A, Withdrawn("a")], refused="a"),
    "what was never asked cannot be taken back": Case([Withdrawn("a"), A], asks="a"),
    "acted on for one of two": Case([A, B, ACTED_B, Withdrawn("a")], asks="b", acted="b", withdrawn="a"),
}


def ids(asks: tuple[Ask, ...]) -> str:
    return "".join(ask.id for ask in asks)


@pytest.mark.parametrize("name", ORDERS)
def test_the_order_of_entries_decides(name: str) -> None:
    case = ORDERS[name]
    standing = replay(case.log)
    assert (ids(standing.asks), ids(standing.late)) == (case.asks, case.late)
    assert (standing.acted, standing.withdrawn, standing.refused) == (
        frozenset(case.acted),
        frozenset(case.withdrawn),
        frozenset(case.refused),
    )
    assert standing.sealed is (SEALED in case.log)
    pressing = standing.pressing.ids if standing.pressing is not None else frozenset[str]()
    assert pressing == {*case.asks, *case.late}


def test_acting_on_now_changes_nothing_that_was_made_of_the_request() -> None:
    log = AskLog()
    for entry in (A, B):
        log.append(entry)
    before = log.standing()
    log.append(ACTED_A)
    assert log.standing().request is before.request
    assert log.standing().pressing is before.pressing


C = Ask(SafePoint.AFTER_TOOLS, Reason("lunch"), 50.0, True, id="c")
D = Ask(SafePoint.named("page"), deadline=20.0, id="d")
BOTH = ActedOn(frozenset("bc"))


def acts_after_asks(log: list[Entry]) -> bool:
    """What is marked as acted on was read before."""
    asked = set[str]()
    for entry in log:
        if isinstance(entry, Ask):
            asked.add(entry.id)
        elif isinstance(entry, ActedOn) and not entry.ask_ids <= asked:
            return False
    return True


some: list[Entry] = [A, B, C, D, *map(Withdrawn, "abcd"), ACTED_A, ACTED_B, BOTH, ANSWERED, SEALED]
# Asks first, so that many logs have something to act on.
entries: st.SearchStrategy[list[Entry]] = st.tuples(
    st.lists(st.sampled_from([A, B, C, D])), st.lists(st.sampled_from(some), max_size=14)
).map(lambda parts: [*parts[0], *parts[1]])
true_entries = entries.filter(acts_after_asks)


def expected(asks: Iterable[Ask], acted: frozenset[str]) -> Request | None:
    """What asks amount to, folded at once: a safe-point ask for which somebody has stopped is for every place."""
    safe = {ask.id for ask in (B, C, D)} & acted
    return fold([replace(ask, at=SafePoint.ANY) if ask.id in safe else ask for ask in asks])


@settings(deadline=None)
@given(true_entries)
def test_the_requests_are_the_folds_of_the_asks_that_stand(log: list[Entry]) -> None:
    for count in range(len(log) + 1):
        standing = replay(log[:count])
        assert standing.request == expected(standing.asks, standing.acted)
        assert standing.pressing == join(standing.request, fold(standing.late))
        assert standing.has_late is bool(standing.late)


@settings(deadline=None)
@given(true_entries)
@example([A, ACTED_A, Withdrawn("a"), ACTED_A])
@example([ANSWERED, A, B, Withdrawn("a"), SEALED, C])
def test_a_thread_that_reads_an_entry_late_comes_to_the_same(log: list[Entry]) -> None:
    """Another thread has read the whole log meanwhile, and noted all there is to know of every ask."""
    slow = AskLog()
    readings = [slow.standing()]
    for entry in log:
        slow.append(entry)
        readings.append(slow.standing())
    for count in (*reversed(range(len(log))), *range(len(log))):
        again = readings[count].after(log[count])
        assert views(again) == views(replay(log[: count + 1]))


@settings(deadline=None)
@given(entries)
def test_every_ask_that_stands_is_found_once_however_few_are_taken_at_once(log: list[Entry]) -> None:
    whole = AskLog()
    for entry in log:
        whole.append(entry)
    standing = whole.standing()
    there = list(dict.fromkeys(each for each in log if isinstance(each, Ask)))
    stand = [ask.id for ask in there if ask in (*standing.asks, *standing.late)]
    for most in (1, 2, 100):
        found, index = list[str](), 0
        while index < standing.length:
            asks, after = whole.asks_from(index, most=most)
            assert len(asks) <= most
            assert after > index
            found += [ask.id for ask in asks]
            index = after
        assert index == standing.length
        assert found == stand
    for level in Level:
        levels = [ask.id for ask in there if ask.id in stand and ask.at.level is level]
        first = whole.first_ask(level, 0)
        assert (first.id if first is not None else None) == (levels[0] if levels else None)
        assert whole.first_ask(level, standing.length) is None


def test_what_can_still_be_taken_back_is_neither_acted_on_nor_taken_back_nor_refused() -> None:
    log = AskLog()
    for entry in (A, B, C, ACTED_A, Withdrawn("b"), ANSWERED, D):
        log.append(entry)
    standing = log.standing()
    assert standing.open_among(frozenset("abcdx")) == {"c", "d"}
    assert standing.not_acted_on(frozenset("abcdx")) == set("bcdx")
    assert [standing.was_acted_on(id) for id in "abcd"] == [True, False, False, False]
    assert [standing.was_withdrawn(id) for id in "abcd"] == [False, True, False, False]
    sealed = AskLog()
    for entry in (B, SEALED, A):
        sealed.append(entry)
    assert sealed.standing().open_among(frozenset("ab")) == {"b"}
    assert AskLog().standing().open_among(frozenset("ab")) == set()
    assert [sealed.standing().was_refused(id) for id in "ab"] == [True, False]


@settings(deadline=None)
@given(entries)
def test_nothing_that_was_acted_on_is_ever_withdrawn(log: list[Entry]) -> None:
    standing = replay(log)
    assert not standing.acted & standing.withdrawn


@settings(deadline=None)
@given(entries, entries)
def test_a_seal_is_final(log: list[Entry], more: list[Entry]) -> None:
    sealed = replay([*log, SEALED])
    after = replay([*log, SEALED, *more])
    assert (after.asks, after.late, after.withdrawn) == (sealed.asks, sealed.late, sealed.withdrawn)
    known = {ask.id for ask in (*sealed.asks, *sealed.late)} | sealed.withdrawn
    assert after.refused == sealed.refused | ({entry.id for entry in more if isinstance(entry, Ask)} - known)


def views(standing: Standing) -> tuple[object, ...]:
    """Everything that can be seen of it."""
    sets = (standing.acted, standing.withdrawn, standing.refused)
    each = [(standing.was_acted_on(id), standing.was_withdrawn(id), standing.was_refused(id)) for id in "abcd"]
    return standing.asks, standing.late, sets, each, standing.sealed, standing.request, standing.pressing


@settings(deadline=None)
@given(entries)
def test_a_log_amounts_at_every_moment_to_the_replay_of_its_entries(log: list[Entry]) -> None:
    growing = AskLog()
    assert views(growing.standing()) == views(replay([]))
    for count, entry in enumerate(log, 1):
        growing.append(entry)
        assert views(growing.standing()) == views(replay(log[:count]))


def test_a_log_that_did_not_grow_is_not_read_again() -> None:
    log = AskLog()
    log.append(A)
    assert log.standing() is log.standing()


def test_asks_of_many_threads_all_stand() -> None:
    log = AskLog()
    together = threading.Barrier(8)
    seen: list[Standing] = []

    def ask() -> None:
        together.wait()
        for _ in range(50):
            ask = Ask(SafePoint.NOW)
            log.append(ask)
            standing = log.standing()
            assert ask in standing.asks, "whoever asked sees the own ask at once"
            seen.append(standing)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(log.standing().asks) == 400
    assert len(seen) == 400


def test_asks_for_thousands_of_points_are_folded_without_copying_the_points_again_and_again() -> None:
    def size(number: int) -> int:
        log, kept = AskLog(), list[Request | None]()
        tracemalloc.start()
        try:
            for each in range(number):
                log.append(Ask(SafePoint.named(f"page {each}"), id=f"{each}"))
                kept.append(log.standing().request)
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert size(4000) < 14 * size(400)  # copies would make it a hundred times as much


def test_which_asks_hit_a_place_is_found_once_also_if_one_is_acted_on() -> None:
    log, looks = AskLog(), 0

    def look(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal looks
        looks += event == "call"

    for each in range(1000):
        log.append(Ask(SafePoint.named(f"page {each}"), id=f"{each}"))
    log.append(Ask(SafePoint.AFTER_TOOLS, id="last"))
    before = log.standing().request
    assert before is not None
    assert before.hitting("after_tools", 0.0) == {"last"}
    log.append(ActedOn(frozenset({"last"})))
    after = log.standing().request
    assert after is not None
    assert after is not before
    sys.setprofile(look)
    try:
        hitting = after.hitting("after_tools", 0.0)
    finally:
        sys.setprofile(None)
    assert hitting == {"last"}
    assert looks < 100  # not one for each ask
