"""What `check_history` refuses, and what it lets pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safepoint import errors
from safepoint.history import (
    CLOSED_STATES,
    File,
    Image,
    LedgerState,
    Message,
    Notice,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    check_history,
)
from safepoint.history.check import check_continued
from tests.history.conversations import PATIENT, histories
from tests.history.tables import BROKEN, VALID, Wrong, as_is, assistant, call, result, tool, user


@pytest.mark.parametrize(("messages", "complaint"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_history_is_refused_with_its_place_and_a_remedy(messages: Wrong, complaint: str) -> None:
    with pytest.raises(errors.HistoryError) as caught:
        check_history(messages)
    assert str(caught.value) == complaint


@pytest.mark.parametrize("messages", VALID.values(), ids=VALID.keys())
def test_a_valid_history_passes(messages: list[Message]) -> None:
    check_history(messages)


@pytest.mark.parametrize("state", sorted(CLOSED_STATES))
def test_every_state_of_an_ended_call_passes(state: LedgerState) -> None:
    check_history([user(), assistant(call()), tool(result(state=state))])
    check_history([user(), assistant(call()), tool(result(state=str(state)))])


def test_the_refusal_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="the first message must be user"):
        check_history([assistant()])


@PATIENT
@given(histories())
def test_random_valid_histories_pass(messages: list[Message]) -> None:
    check_history(messages)


@PATIENT
@given(histories(), st.data())
def test_a_history_that_lost_a_message_in_the_middle_of_a_step_is_refused(
    messages: list[Message], data: st.DataObject
) -> None:
    results = [index for index, message in enumerate(messages) if message.role == "tool"]
    if not results:
        return
    lost = data.draw(st.sampled_from(results))
    with pytest.raises(errors.HistoryError):
        check_history(messages[:lost] + messages[lost + 1 :])
    with pytest.raises(errors.HistoryError):
        check_history(messages[: lost - 1] + messages[lost:])


junk = st.sampled_from([None, 0, "", b"", [], {}, (), object(), object, True, 1.5, {"role": "user"}])
something = junk.filter(lambda value: value is not None)
wrong_parts = st.one_of(
    junk,
    st.builds(as_is(Text), junk, junk),
    st.builds(as_is(ToolCall), junk, junk, junk, junk),
    st.builds(as_is(ToolResult), junk, junk, junk, junk),
    st.builds(as_is(Reasoning), junk, junk),
    st.builds(as_is(Notice), junk),
    st.builds(as_is(Image), data=something, media_type=junk),
    st.builds(as_is(File), url=something, media_type=junk, name=junk),
)
roles = junk | st.sampled_from(["user", "assistant", "tool"])


@PATIENT
@given(st.lists(junk | st.builds(as_is(Message), roles, junk | st.tuples(wrong_parts)), min_size=1, max_size=3))
def test_wrong_types_anywhere_are_a_history_error_and_nothing_else(messages: Wrong) -> None:
    with pytest.raises(errors.HistoryError):
        check_history(messages)


def test_a_long_conversation_that_goes_on_is_checked_where_it_is_new() -> None:
    long = [speak() for _ in range(50) for speak in (user, assistant)]
    for _ in range(2):
        check_continued([*long, user()])
        with pytest.raises(errors.HistoryError, match=r"messages\[100\]"):
            check_continued([*long, assistant()])
        with pytest.raises(errors.HistoryError, match=r"messages\[51\]"):
            check_continued([*long[:51], user(), *long[52:], user()])
    check_continued([*long, user(), assistant(), user()])


def test_a_long_conversation_may_go_on_in_two_ways_with_the_same_call_id() -> None:
    long = [speak() for _ in range(50) for speak in (user, assistant)]
    check_continued([*long, user()])
    for _ in range(2):
        called = [user(), assistant(call("one")), tool(result("one")), assistant()]
        check_continued([*long, *called, user()])
        with pytest.raises(errors.HistoryError, match="is taken"):
            check_continued([*long, *called, *called, user()])
