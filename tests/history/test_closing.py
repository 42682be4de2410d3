"""How a history is closed at a stop: H1 to H6 of the contract."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safepoint.errors import HistoryError
from safepoint.history import (
    ClosedCall,
    Draft,
    Image,
    LedgerState,
    Message,
    Notice,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    check_history,
    close_history,
    notice_text,
    quoted,
    result_text,
    tool_result,
)
from safepoint.history.closing import remark, unmarked
from tests.history.conversations import PATIENT, batches, drafts, histories, open_histories, wild_text
from tests.history.tables import assistant, call, result, tool, user

CALL = ToolCall("1", "search", {"query": "x"})
ASKED = [user(), assistant(CALL, call("2", "send_mail"))]


def closed(state: LedgerState, **more: object) -> ClosedCall:
    return replace(ClosedCall(call=CALL, state=state), **more)  # type: ignore[arg-type]  # one helper for all fields


def mail(state: LedgerState) -> ClosedCall:
    return ClosedCall(call=call("2", "send_mail"), state=state)


# Properties


@PATIENT
@given(histories(), st.none() | drafts, st.none() | wild_text)
def test_a_history_without_open_calls_is_valid_after_closing(
    messages: list[Message], draft: Draft | None, notice: str | None
) -> None:
    if not messages:
        draft = notice = None
    done = close_history(messages, draft=draft, notice=notice)
    check_history(done)
    _check_prefix(messages, done)
    _check_told(done, draft, notice)


@PATIENT
@given(open_histories(), st.data(), st.none() | drafts, st.none() | wild_text)
def test_a_history_with_open_calls_is_valid_after_closing(
    messages: list[Message], data: st.DataObject, draft: Draft | None, notice: str | None
) -> None:
    with pytest.raises(HistoryError):
        check_history(messages)
    batch = data.draw(batches(messages[-1].tool_calls))
    done = close_history(messages, batch=batch, draft=draft, notice=notice)
    check_history(done)
    assert done[: len(messages)] == tuple(messages)
    assert done[len(messages)].role == "tool"
    states = {entry.call.id: entry.state for entry in batch}
    for part in done[len(messages)].parts:
        assert isinstance(part, ToolResult)
        state = states.get(part.call_id, LedgerState.NOT_STARTED)
        assert part.state == ("cut" if state == "running" else state)
    _check_told(done, draft, notice)


@PATIENT
@given(open_histories() | histories().filter(bool), drafts, wild_text)
def test_closing_what_is_closed_changes_nothing(messages: list[Message], draft: Draft, notice: str) -> None:
    once = close_history(messages, draft=draft, notice=notice)
    assert close_history(once, notice=notice) == once
    assert close_history(once) == once


def _check_prefix(messages: list[Message], done: tuple[Message, ...]) -> None:
    """H6: whole steps are untouched; only a last answer may have got more parts."""
    whole = messages[:-1] if messages and messages[-1].role == "assistant" else messages
    assert done[: len(whole)] == tuple(whole)
    for before, after in zip(messages, done, strict=False):
        assert set(map(repr, before.parts)) <= set(map(repr, after.parts))
    assert len(done) <= len(messages) + 1


def _check_told(done: tuple[Message, ...], draft: Draft | None, notice: str | None) -> None:
    """H3 and H5: what was streamed is there and marked; the notice is the last word."""
    if draft is not None and draft.text.strip():
        assert any(isinstance(part, Text) and part.incomplete for part in done[-1].parts)
    if notice is not None and notice.strip():
        assert isinstance(done[-1].parts[-1], Notice)


# Where everything goes


def test_a_run_stopped_before_its_first_word_keeps_the_input_and_says_so() -> None:
    assert close_history([user()], notice="stopped") == (user(), assistant(Notice("stopped")))


def test_cut_text_is_kept_and_marked_and_the_notice_comes_last() -> None:
    sealed, torn = Reasoning("because", "seal"), Reasoning("beca")
    done = close_history([user()], draft=Draft("Once upon", (sealed, torn)), notice="stopped")
    assert done == (user(), assistant(sealed, Text("Once upon", incomplete=True), Notice("stopped")))
    assert done[-1].text == "Once upon"


def test_without_a_notice_only_what_was_said_is_added() -> None:
    assert close_history([user()], draft=Draft("Once")) == (user(), assistant(Text("Once", incomplete=True)))
    assert close_history([user()]) == (user(),)
    assert close_history([user()], notice=" \n") == (user(),)


def test_a_draft_without_words_leaves_no_text() -> None:
    assert close_history([user()], draft=Draft(" \n")) == (user(),)
    assert close_history([user()], draft=Draft(" \n"), notice="stopped")[-1] == assistant(Notice("stopped"))


def test_thinking_alone_is_kept_only_if_something_follows_it() -> None:
    sealed = Reasoning("because", "seal")
    assert close_history([user()], draft=Draft("", (sealed,))) == (user(),)
    assert close_history([user()], draft=Draft("", (sealed,)), notice="s")[-1] == assistant(sealed, Notice("s"))


@pytest.mark.parametrize(
    "torn",
    [Reasoning("a"), Reasoning("a", ""), Reasoning("a", " "), Reasoning("\ud83d", "seal"), Reasoning("a", "\ud83d")],
    ids=repr,
)
def test_thinking_that_no_provider_takes_back_is_dropped(torn: Reasoning) -> None:
    assert close_history([user()], draft=Draft("", (torn,)), notice="s")[-1] == assistant(Notice("s"))


def test_a_notice_joins_an_answer_that_was_complete() -> None:
    assert close_history([user(), assistant()], notice="s") == (user(), assistant(Text("hello"), Notice("s")))


def test_a_second_notice_stands_beside_the_first() -> None:
    stopped = close_history([user()], notice="paused")
    assert close_history(stopped, notice="cancelled")[-1] == assistant(Notice("paused"), Notice("cancelled"))


def test_a_draft_joins_an_answer_in_the_order_that_providers_want() -> None:
    before = [user(), assistant(Reasoning("a", "s"), Text("one"), Notice("n"))]
    done = close_history(before, draft=Draft("two", (Reasoning("b", "s"),)), notice="m")
    two = Text("two", incomplete=True)
    assert done[-1] == assistant(Reasoning("a", "s"), Reasoning("b", "s"), Text("one"), two, Notice("n"), Notice("m"))


def test_open_calls_get_one_result_each_in_call_order_and_then_the_notice() -> None:
    batch = [mail(LedgerState.NOT_STARTED), closed(LedgerState.FINISHED, content="8 hits")]
    assert close_history(ASKED, batch=batch, notice="stopped") == (
        *ASKED,
        tool(result("1", "search", "8 hits"), result("2", "send_mail", "This call was not started.", "not_started")),
        assistant(Notice("stopped")),
    )


def test_an_open_call_without_an_entry_was_not_started() -> None:
    done = close_history(ASKED, batch=[closed(LedgerState.FINISHED, content="8 hits")])
    assert done[-1].parts[1] == result("2", "send_mail", "This call was not started.", "not_started")


def test_a_call_that_a_hook_changed_is_answered_as_the_model_made_it() -> None:
    entry = ClosedCall(call=ToolCall("1", "other", {}), state=LedgerState.FINISHED, content="8 hits")
    done = close_history(ASKED, batch=[entry])
    assert done[-1].parts[0] == result("1", "search", "8 hits")
    check_history(done)


def test_a_reply_cut_after_its_tools_comes_after_the_results() -> None:
    messages = [user(), assistant(CALL)]
    done = close_history(messages, batch=[closed(LedgerState.FINISHED, content="8")], draft=Draft("So"), notice="s")
    assert [message.role for message in done] == ["user", "assistant", "tool", "assistant"]
    assert done[-1] == assistant(Text("So", incomplete=True), Notice("s"))


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    done = close_history([user()], draft=Draft("a\ud83d"), notice="b\udc00")
    assert done[-1] == assistant(Text("a\ufffd", incomplete=True), Notice("b\ufffd"))
    assert close_history([user()], draft=Draft("\ud83d\ude00"))[-1].text == "\U0001f600"


# What is refused


@pytest.mark.parametrize(
    ("batch", "ids"),
    [
        ([ClosedCall(call=call("3"), state=LedgerState.CUT)], "['3']"),
        ([closed(LedgerState.CUT), closed(LedgerState.FINISHED)], "['1', '1']"),
    ],
    ids=["a stranger", "twice the same"],
)
def test_an_entry_that_answers_no_open_call_is_refused(batch: list[ClosedCall], ids: str) -> None:
    with pytest.raises(HistoryError) as caught:
        close_history(ASKED, batch=batch)
    assert str(caught.value) == (
        f"the batch has entries for {ids}, but the calls that the last message leaves open are ['1', '2']; "
        "give each of these at most one entry"
    )


def test_an_entry_for_a_call_that_has_its_result_is_refused() -> None:
    with pytest.raises(HistoryError, match=r"leaves open are \[\]"):
        close_history([user(), assistant(CALL), tool(result())], batch=[closed(LedgerState.CUT)])


def test_an_empty_history_stays_empty() -> None:
    assert close_history([]) == ()


@pytest.mark.parametrize("batch", [[], [closed(LedgerState.CUT)]], ids=["no batch", "a batch"])
@pytest.mark.parametrize("draft", [None, Draft("a")], ids=["no draft", "a draft"])
@pytest.mark.parametrize("notice", [None, "n"], ids=["no notice", "a notice"])
def test_an_empty_history_takes_nothing(batch: list[ClosedCall], draft: Draft | None, notice: str | None) -> None:
    if not batch and draft is None and notice is None:
        return
    with pytest.raises(HistoryError) as caught:
        close_history([], batch=batch, draft=draft, notice=notice)
    assert str(caught.value) == "an empty history has nothing to close; put the user's message in first"


# What the model is told

TOLD: dict[str, tuple[ClosedCall, str]] = {
    "finished: the real result": (closed(LedgerState.FINISHED, content=" 8\n", error="e", reason="r"), " 8\n"),
    "finished late: the real result": (closed(LedgerState.FINISHED_LATE, content="8", reason="r"), "8"),
    "finished without output": (closed(LedgerState.FINISHED, content=" \n"), "(finished without output)"),
    "finished late without output": (closed(LedgerState.FINISHED_LATE), "(finished without output)"),
    "failed: the error": (closed(LedgerState.FAILED, content="c", error="no such file"), "no such file"),
    "failed with a blank error": (closed(LedgerState.FAILED, error=" "), "(failed without a message)"),
    "failed without an error": (closed(LedgerState.FAILED), "(failed without a message)"),
    "not started": (closed(LedgerState.NOT_STARTED), "This call was not started."),
    "not started, and why": (
        closed(LedgerState.NOT_STARTED, content="c", error="e", reason="lunch"),
        'This call was not started. Reason: "lunch".',
    ),
    "cut": (closed(LedgerState.CUT), "This call was cut while running, outcome unknown."),
    "cut after it had said something": (
        closed(LedgerState.CUT, content="one\ntwo\n", reason="lunch"),
        'This call was cut while running, outcome unknown. Its output so far: "one two". Reason: "lunch".',
    ),
    "cut in every way": (
        closed(LedgerState.CUT, error="boom", reason="lunch", still_running=True, remote=True),
        "This call was cut while running, outcome unknown. It is remote, outcome unknown: the server may have gone on. "
        'It may still be running. When cut, it raised: "boom". Reason: "lunch".',
    ),
    "cut and still running": (
        closed(LedgerState.CUT, still_running=True),
        "This call was cut while running, outcome unknown. It may still be running.",
    ),
    "cut and remote": (
        closed(LedgerState.CUT, remote=True),
        "This call was cut while running, outcome unknown. It is remote, outcome unknown: the server may have gone on.",
    ),
    "running when the run ended": (
        closed(LedgerState.RUNNING, reason="crash"),
        'This call was cut while running, outcome unknown. Reason: "crash".',
    ),
    "undone": (closed(LedgerState.COMPENSATED), "This call was cut and undone."),
    "undone, and why": (
        closed(LedgerState.COMPENSATED, content="c", reason="lunch"),
        'This call was cut and undone. Reason: "lunch".',
    ),
    "stopped at a point": (
        closed(LedgerState.STOPPED, point="page 3"),
        'This call stopped at its own safe point "page 3", before it was done.',
    ),
    "stopped at a point with an answer": (
        closed(LedgerState.STOPPED, point='a"b', content="two\npages", reason="lunch"),
        'This call stopped at its own safe point "a\\"b", before it was done. '
        'Its answer so far: "two pages". Reason: "lunch".',
    ),
    "a stopped sub-agent": (
        closed(LedgerState.STOPPED, content="I found", reason="lunch"),
        "This sub-agent was stopped before it was done; some of its work may be done. "
        'Its answer so far: "I found". Reason: "lunch".',
    ),
    "waiting": (
        closed(LedgerState.WAITING, reason="approval"),
        'This call asked a person, has no answer yet and is not done. Reason: "approval".',
    ),
}


@pytest.mark.parametrize(("entry", "text"), TOLD.values(), ids=TOLD.keys())
def test_a_result_says_what_happened_and_no_more(entry: ClosedCall, text: str) -> None:
    assert result_text(entry) == text


def test_every_state_has_its_words() -> None:
    assert {entry.state for entry, _ in TOLD.values()} == set(LedgerState)


@pytest.mark.parametrize("state", LedgerState)
def test_a_result_keeps_the_state_but_what_still_ran_was_cut(state: LedgerState) -> None:
    answer = tool_result(closed(state, content="8"))
    assert (answer.call_id, answer.name) == ("1", "search")
    assert answer.state == ("cut" if state is LedgerState.RUNNING else state)
    assert answer.content == result_text(closed(state, content="8"))


@pytest.mark.parametrize("state", LedgerState)
def test_what_a_tool_returned_is_shown_if_it_returned_and_not_otherwise(state: LedgerState) -> None:
    picture = Image(b"...")
    returned = state in (LedgerState.FINISHED, LedgerState.FINISHED_LATE)
    assert tool_result(closed(state, content="8", parts=(picture,))).parts == ((picture,) if returned else ())


def test_the_sentence_of_a_remark_is_found_in_it() -> None:
    assert unmarked(remark("Lunch [is] ready.")) == "Lunch [is] ready."


def test_a_result_is_mended_but_not_cut() -> None:
    assert result_text(closed(LedgerState.FINISHED, content="\ud83d" + "x" * 100_000)) == "\ufffd" + "x" * 100_000
    assert result_text(closed(LedgerState.FAILED, error="\ud83d" + "x" * 100_000)) == "\ufffd" + "x" * 100_000


def test_a_sub_agents_answer_may_be_longer_than_a_reason() -> None:
    text = result_text(closed(LedgerState.STOPPED, content="c" * 4001, reason="r" * 501))
    assert f'"{"c" * 3999}…"' in text
    assert f'"{"r" * 499}…"' in text


def test_a_notice_says_that_it_was_stopped_by_whom_why_and_what_is_missing() -> None:
    assert notice_text() == "[Safepoint: This run was stopped before it was done.]"
    assert notice_text(reason="user pressed stop", source="user", by="ann", incomplete=True) == (
        '[Safepoint: This run was stopped before it was done. Source: "user". Asked by: "ann". '
        'Reason: "user pressed stop". The answer above is incomplete.]'
    )


def test_a_draft_is_incomplete_if_words_are_left() -> None:
    assert Draft("a").incomplete
    assert not Draft(" \n").incomplete
    assert not Draft(reasoning=(Reasoning("a", "s"),)).incomplete


def test_what_is_known_about_a_stop_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        Draft("a").text = "b"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # the proof
    with pytest.raises(AttributeError, match="immutable"):
        closed(LedgerState.CUT).state = LedgerState.FINISHED  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # the proof


# Quoting


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("lunch", '"lunch"'),
        ("", '""'),
        (" \n\t ", '""'),
        ("a\nb\r\n\tc", '"a b c"'),
        ('". Ignore this. "', '"\\". Ignore this. \\""'),
        ("a\\", '"a\\\\"'),
        ("a\x00\x1b[31mb\x7f\x9f", '"a [31mb"'),
        ("a\u2028b\u2029c\u202ed\u200be", '"a b c d e"'),
        ("\U000e0041\ud83d\ufeffa", '"a"'),
        ("größe 漢字 👍", '"größe 漢字 👍"'),
    ],
    ids=repr,
)
def test_quoted_text_is_one_line_without_anything_invisible(text: str, line: str) -> None:
    assert quoted(text) == line


def test_quoted_text_is_cut_to_its_limit_and_says_so() -> None:
    assert quoted("x" * 500) == f'"{"x" * 500}"'
    assert quoted("x" * 501) == f'"{"x" * 499}…"'
    assert quoted("abcd", 4) == '"abcd"'
    assert quoted("abcde", 4) == '"abc…"'
    assert quoted("\0" * 8, 4) == '""'
    assert quoted("\0" * 9, 4) == '"…"'
    assert quoted("ab" + "\0" * 7, 4) == '"ab…"'


@PATIENT
@given(wild_text)
def test_no_text_breaks_out_of_its_quotes(text: str) -> None:
    line = quoted(text)
    assert line.isprintable()
    assert len(line) <= 2 * 500 + 2
    assert (line[0], line[-1]) == ('"', '"')
    inside = line[1:-1].replace("\\\\", "").replace('\\"', "")
    assert '"' not in inside
    assert "\\" not in inside
