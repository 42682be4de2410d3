"""Parts open, grow and close, whatever a feed tells and in whichever order it is read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint.history.parts import File, Message, Notice, Reasoning, Text, ToolCall, ToolResult
from safepoint.protocols.message_parts import (
    CallClosed,
    CallOpened,
    CallOutput,
    FileSaid,
    PartEvent,
    PartMapper,
    StateChanged,
    StepClosed,
    StepOpened,
    TextAdded,
    TextClosed,
    TextOpened,
    UserSaid,
    own_call_id,
    wire_call_id,
)
from safepoint.serving.events import FeedEvent, MessageEvent, PartialText, ToolOutput, Turn

TURN = Turn("run_1", "clerk")
CALL = ToolCall("c1", "nap", {"seconds": 3})
RESULT = ToolResult("c1", "nap", "rested")


def piece(text: str, position: int = 1, *, thought: bool = False) -> PartialText:
    return PartialText(TURN, position, 0.0, text, thought)


def whole(
    position: int, *parts: Text | Reasoning | ToolCall | Notice | File, waiting: tuple[str, ...] = ()
) -> MessageEvent:
    return MessageEvent(TURN, position, 0.0, Message("assistant", parts), waiting_calls=waiting)


def results(position: int, *parts: ToolResult) -> MessageEvent:
    return MessageEvent(TURN, position, 0.0, Message("tool", parts))


def play(*events: FeedEvent) -> list[PartEvent]:
    mapper = PartMapper()
    return [part for event in events for part in mapper.map(event)] + mapper.close()


def check(parts: list[PartEvent]) -> None:
    """Opened before it grows, closed once, nothing left open, and texts and calls only inside a step."""
    step, text, calls = 0, "", set[str]()
    for part in parts:
        match part:
            case StepOpened(number):
                assert step == 0
                step = number
            case StepClosed(number):
                assert step == number
                assert not text
                step = 0
            case TextOpened(id):
                assert step
                assert not text
                text = id
            case TextAdded(id):
                assert text == id
            case TextClosed(id):
                assert text == id
                text = ""
            case CallOpened(id):
                assert step
                assert not text
                calls.add(id)
            case CallOutput(id):
                assert id in calls
            case CallClosed(id):
                calls.discard(id)
            case FileSaid() | UserSaid() | StateChanged():
                pass
    assert (step, text, calls) == (0, "", set())


def texts(parts: list[PartEvent], *, thought: bool = False) -> list[str]:
    """The words of each text."""
    found = {part.id: "" for part in parts if isinstance(part, TextOpened) and part.thought is thought}
    for part in parts:
        if isinstance(part, TextAdded) and part.thought is thought:
            found[part.id] += part.text
    return list(found.values())


def test_text_that_was_streamed_is_not_sent_again_when_its_message_is_whole() -> None:
    parts = play(piece("Hel"), piece("lo"), whole(1, Text("Hello")))
    assert [type(part) for part in parts] == [StepOpened, TextOpened, TextAdded, TextAdded, TextClosed, StepClosed]
    assert texts(parts) == ["Hello"]


def test_what_is_missing_of_a_text_is_sent_with_its_message() -> None:
    parts = play(piece("Hel"), whole(1, Text("Hello")))
    assert texts(parts) == ["Hello"]


def test_words_of_a_second_attempt_are_a_text_of_their_own() -> None:
    parts = play(piece("Hm, I"), whole(1, Text("Hello")))
    assert texts(parts) == ["Hm, I", "Hello"]
    check(parts)


def test_a_text_that_was_cut_is_closed_as_incomplete() -> None:
    parts = play(piece("Hel"), whole(1, Text("Hel", incomplete=True), Notice("stopped")))
    assert [part.incomplete for part in parts if isinstance(part, TextClosed)] == [True]


def test_thoughts_and_words_are_texts_of_their_own() -> None:
    parts = play(piece("hm", thought=True), piece("Yes"), whole(1, Reasoning("hm"), Text("Yes")))
    assert (texts(parts, thought=True), texts(parts)) == (["hm"], ["Yes"])
    check(parts)


def test_a_call_is_opened_with_its_message_and_closed_with_its_result() -> None:
    parts = play(whole(1, CALL), ToolOutput(TURN, 2, 0.0, "c1", "nap", "zzz"), results(2, RESULT))
    assert [part for part in parts if isinstance(part, CallOpened | CallOutput | CallClosed)] == [
        CallOpened("run_1:c1", TURN.event_id(1), CALL),
        CallOutput("run_1:c1", "zzz", "zzz"),
        CallClosed("run_1:c1", f"{TURN.event_id(2)}-c1", RESULT),
    ]
    check(parts)


def test_a_call_without_a_result_is_closed_as_unknown() -> None:
    (closed,) = [part for part in play(whole(1, CALL)) if isinstance(part, CallClosed)]
    assert closed.result.is_error
    assert "not known" in closed.result.content


def test_a_call_that_waits_for_a_person_stays_open_and_its_result_comes_in_another_stream() -> None:
    waiting = ToolResult("c1", "nap", "", "waiting")
    parts = play(whole(1, CALL), whole(1, CALL, waiting=("c1",)), results(2, waiting))
    assert [type(part) for part in parts] == [StepOpened, CallOpened, StepClosed]
    later = play(results(2, RESULT))
    assert [type(part) for part in later] == [CallClosed]


def test_an_event_that_is_told_again_opens_and_closes_nothing_twice() -> None:
    events = (whole(1, Text("a"), CALL), results(2, RESULT), whole(3, Text("b")))
    assert play(*events, whole(1, Text("a"), CALL), results(2, RESULT)) == play(*events)


def test_each_reply_is_a_step() -> None:
    parts = play(whole(1, CALL), results(2, RESULT), piece("so", 3), whole(3, Text("so")))
    steps = [part for part in parts if isinstance(part, StepOpened | StepClosed)]
    assert steps == [StepOpened(1), StepClosed(1), StepOpened(2), StepClosed(2)]


def test_words_of_the_user_files_and_changes_of_the_state_are_told() -> None:
    said = MessageEvent(TURN, 1, 0.0, Message("user", (Text("wait"), Notice("n"))), state={"a": None})
    parts = play(said, whole(2, File(b"x", "text/plain")))
    assert parts[:2] == [UserSaid(TURN.event_id(1), (Text("wait"),)), StateChanged({"a": None})]
    assert FileSaid(File(b"x", "text/plain")) in parts


def test_the_name_of_a_call_can_be_read_back() -> None:
    assert own_call_id("run_1", wire_call_id("run_1", "c:1")) == "c:1"
    assert own_call_id("run_1", "other") == "other"


def _call(id: str) -> ToolCall:
    return ToolCall(id, "nap", {})


def _piece(text: str, position: int, thought: bool) -> PartialText:
    return piece(text, position, thought=thought)


def _whole(position: int, parts: list[Text | Reasoning | ToolCall | Notice]) -> MessageEvent:
    return whole(position, *parts)


def _results(position: int, ids: list[str]) -> MessageEvent:
    return results(position, *(ToolResult(id, "nap", "r") for id in ids))


def _output(id: str) -> ToolOutput:
    return ToolOutput(TURN, 2, 0.0, id, "nap", "o")


_words = st.text(alphabet="ab", max_size=3)
_ids = st.sampled_from(["c1", "c2"])
_parts = st.one_of(
    st.builds(Text, _words, st.booleans()),
    st.builds(Reasoning, _words),
    st.builds(_call, _ids),
    st.builds(Notice, _words),
)
_position = st.integers(1, 4)
_events = st.one_of(
    st.builds(_piece, _words, _position, st.booleans()),
    st.builds(_whole, _position, st.lists(_parts, max_size=4)),
    st.builds(_results, _position, st.lists(_ids, max_size=2, unique=True)),
    st.builds(_output, _ids),
)


@given(st.lists(_events, max_size=12))
@settings(max_examples=300, deadline=None)
def test_whatever_a_feed_tells_everything_is_closed(events: list[FeedEvent]) -> None:
    check(play(*events))
