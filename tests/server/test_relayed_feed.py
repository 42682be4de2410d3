"""A relayed feed has several sources that tell the same events: each is shown once, and every number leads back."""

from __future__ import annotations

from typing import Any

import pytest

from safepoint.history.parts import Message, Text
from safepoint.serving.config import split_address
from safepoint.serving.events import MessageEvent, PartialText, RunEnd, Turn
from safepoint.serving.feed import Cursor, Feed
from safepoint.serving.relay import STORED, RelayedFeed

TURN = Turn("run_1", "agent")


def said(position: int, text: str = "", **more: Any) -> MessageEvent:  # Any: fields of it
    return MessageEvent(
        TURN, position, float(position), Message("assistant", (Text(text or f"message {position}"),)), **more
    )


def relayed() -> RelayedFeed:
    return RelayedFeed(TURN, 0, lambda watched: None)


def numbers(feed: Feed, after: int = 0) -> list[tuple[int, int]]:
    """(number, position) of what a viewer gets that comes back with a number."""
    with feed.view(after) as viewer:
        frames = iter(viewer.take, None)
        return [(frame.seq, frame.event.position) for frame in frames]


def test_what_two_sources_tell_is_shown_once() -> None:
    feed = relayed()
    feed.tell(said(1), "a/0", 1)
    feed.tell(said(1), STORED, 1)
    feed.tell(said(2), STORED, 2)
    feed.tell(said(2), "a/0", 2)
    feed.tell(said(3), "a/0", 3)
    assert numbers(feed) == [(1, 1), (2, 2), (3, 3)]


def test_a_source_that_knows_less_of_the_state_takes_nothing_away() -> None:
    feed = relayed()
    feed.tell(said(1, state={"a": 1}), "a/0", 1)
    feed.tell(said(1), STORED, 1)
    assert feed.whole == [said(1, state={"a": 1})]


def test_what_its_own_source_tells_again_has_changed_and_is_shown_again() -> None:
    feed = relayed()
    feed.tell(said(1), "a/0", 1)
    feed.tell(said(1, waiting_calls=("call",)), "a/0", 2)
    feed.tell(said(1, state={"a": 1}), "a/0", 3)
    assert numbers(feed) == [(1, 1), (2, 1), (3, 1)]


def test_another_source_may_say_more_of_an_end_or_another_message() -> None:
    feed = relayed()
    feed.tell(said(1), "a/0", 1)
    feed.tell(said(1, end=RunEnd("end_turn")), STORED, 1)
    feed.tell(said(2, "closed for now"), "a/0", 2)
    feed.tell(said(2, "said in the end"), "b/1", 1_000_002)
    assert [event.position for event in feed.whole] == [1, 1, 2, 2]


def test_a_viewer_comes_back_with_the_number_of_any_owner() -> None:
    feed = relayed()
    for number in (1, 2, 3):
        feed.tell(said(number), "a/0", number)
    for number in (1, 2, 3, 4):
        feed.tell(said(number), "b/1", 1_000_000 + number)
    assert [position for _, position in numbers(feed, 2)] == [3, 4]
    assert [position for _, position in numbers(feed, 1_000_002)] == [3, 4]
    assert numbers(feed, 1_000_003) == [(1_000_004, 4)]
    assert [position for _, position in numbers(feed, 77)] == [1, 2, 3, 4], "an unknown number: everything again"


def test_a_cursor_goes_on_in_the_middle_of_a_text() -> None:
    feed = Feed(TURN)
    for word in ("one ", "two "):
        feed.append_partial(PartialText(TURN, 1, 0.0, word))
    with feed.view() as viewer:
        viewer.take()
        cursor = viewer.cursor
    feed.append_partial(PartialText(TURN, 1, 0.0, "three "))
    with feed.view_from(cursor) as viewer:
        frame = viewer.take()
        assert frame is not None
        assert isinstance(frame.event, PartialText)
        assert frame.event.text == "three "
        assert viewer.take() is None
    assert cursor == Cursor(0, 0, feed.under_way, 2)


@pytest.mark.parametrize(("given", "told"), [("here", "HOST:PORT"), ("h:99999", "HOST:PORT"), ("0.0.0.0:1", "find it")])
def test_an_address_for_peers_that_cannot_be_used_is_refused(given: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        split_address(given)
    assert split_address("[::1]:0") == ("::1", 0)
