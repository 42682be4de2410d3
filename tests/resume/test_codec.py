"""Checkpoints and messages as bytes and back: nothing is lost, damage is named, one bad value costs only itself."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint import (
    Checkpoint,
    File,
    Image,
    LedgerEntry,
    LedgerState,
    Message,
    Notice,
    Question,
    Reason,
    Reasoning,
    Source,
    StopReason,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from safepoint.agent.checkpoint import OpenCall
from safepoint.agent.codec import MAGIC, decode, decode_dropped, encode
from safepoint.errors import CheckpointError
from safepoint.history.encoding import Lost, decode_value, encode_value
from safepoint.history.json_codec import decode_message, encode_message
from safepoint.tools.call_state import CallState
from safepoint.tools.options import Effect
from tests.resume.write_data import COMPOSITES, Notes
from tests.virtual import virtual

words = st.text(max_size=12)
maybe = st.none() | words
json_values: st.SearchStrategy[Any] = st.recursive(  # Any: JSON
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
values: st.SearchStrategy[Any] = st.recursive(  # Any: values of the user's own
    json_values | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(words, json_values, max_size=3)
attachments = st.lists(
    st.builds(Image, st.binary(max_size=8)) | st.builds(File, st.binary(max_size=8), words, maybe), max_size=2
).map(tuple)
parts = st.one_of(
    st.builds(Text, words, st.booleans()),
    st.builds(Image, st.binary(max_size=8)),
    words.map(lambda url: Image(url=url)),
    st.builds(File, st.binary(max_size=8), words, maybe),
    st.builds(Reasoning, words, maybe),
    st.builds(ToolCall, words, words, objects, maybe),
    st.builds(ToolResult, words, words, words, words, attachments),
    st.builds(Notice, words),
)
messages = st.builds(Message, st.sampled_from(["user", "assistant", "tool"]), st.lists(parts, max_size=3).map(tuple))
memories = st.builds(
    CallState,
    values,
    st.lists(values, max_size=2).map(tuple),
    st.dictionaries(words, values, max_size=2),
    st.lists(values, max_size=2).map(tuple),
)
questions = st.builds(Question, words, words, values, st.sampled_from(["interrupt", "check", "unknown"]))
entries = st.builds(
    LedgerEntry,
    words,
    words,
    objects,
    st.sampled_from(LedgerState),
    st.sampled_from(Effect),
    maybe,
    maybe,
    st.booleans(),
    maybe,
    st.none() | st.floats(0, 1e9),
    st.none() | st.floats(0, 1e9),
)
few = st.lists(messages, max_size=2).map(tuple)


def checkpoints(child: st.SearchStrategy[Checkpoint | None]) -> st.SearchStrategy[Checkpoint]:
    calls = st.lists(st.builds(OpenCall, words, words, memories, st.none() | questions, child), max_size=2)
    return st.builds(
        Checkpoint,
        words,
        words,
        words,
        st.sampled_from(StopReason),
        few,
        few,
        st.lists(entries, max_size=2).map(tuple),
        calls.map(lambda made: {call.call_id: call for call in made}),
        st.integers(0, 99),
        st.builds(Usage, st.integers(0), st.integers(0), model_calls=st.integers(0), estimated=st.booleans()),
        st.none() | st.builds(Reason, words, st.sampled_from(Source), maybe),
        few,
        st.dictionaries(words, st.floats(0, 1e9), max_size=2),
    )


@given(checkpoints(st.none() | checkpoints(st.none())))
@settings(max_examples=80, deadline=None)
def test_a_checkpoint_comes_back_as_it_was(checkpoint: Checkpoint) -> None:
    assert Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint


@given(checkpoints(st.none()), few, few, st.integers(0, 6))
@settings(max_examples=80, deadline=None)
def test_messages_that_stand_in_a_session_are_left_out_and_put_back(
    made: Checkpoint, before: tuple[Message, ...], own: tuple[Message, ...], known: int
) -> None:
    closed, open_view = (*before, *own, *made.messages), (*before, *own, *made.open_messages)
    checkpoint, known = replace(made, messages=closed, open_messages=open_view), min(known, len(closed))
    data = encode(checkpoint, known=known)
    assert decode(data, closed) == decode(data, closed[:known]) == checkpoint
    assert decode_dropped(data) == checkpoint.drop()
    if known:
        with pytest.raises(CheckpointError, match=f"stored in a session, without the {known} messages"):
            decode(data, closed[: known - 1])


def test_the_two_views_of_a_stop_are_written_once_as_far_as_they_are_the_same() -> None:
    long = Message("user", (Text("word " * 10_000),))
    alike = plain(messages=(long, long), open_messages=(long,))
    assert len(alike.to_bytes()) < 2.1 * 50_000
    assert Checkpoint.from_bytes(alike.to_bytes()) == alike


@given(messages)
@settings(deadline=None)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    assert decode_message(json.loads(json.dumps(encode_message(message)))) == message


@given(values)
@settings(deadline=None)
def test_a_value_comes_back_as_it_was(value: object) -> None:
    assert decode_value(json.loads(json.dumps(encode_value(value), allow_nan=False))) == value


def plain(**changes: Any) -> Checkpoint:  # Any: a checkpoint's own fields
    hello = Message("user", (Text("hello"),))
    return replace(Checkpoint("checkpoint_1", "a", "run_1", StopReason.CANCELLED, (hello,), (hello,)), **changes)


def remembering(**memory: Any) -> Checkpoint:  # Any: whatever a tool remembers
    return plain(calls={"c": OpenCall("c", "", CallState(**memory))})


def memory_of(checkpoint: Checkpoint) -> CallState:
    return Checkpoint.from_bytes(checkpoint.to_bytes()).calls["c"].memory


class Hostile(dict[str, Any]):  # Any: it holds nothing
    def items(self) -> Any:  # Any: it never returns
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, math.nan, math.inf, 10**5000, {1: 2}, Hostile(a=1), ValueError("x"), print],
    ids=["object", "set", "nan", "inf", "huge int", "int key", "raising dict", "error", "function"],
)
def test_a_value_without_a_json_form_costs_only_itself(value: object) -> None:
    memory = memory_of(remembering(saved={"bad": value, "good": [1, {"deep": value}]}, once={"k": value, "l": 2}))
    assert isinstance(memory.saved["bad"], Lost)
    assert memory.saved["good"][0] == 1
    assert isinstance(memory.saved["good"][1]["deep"], Lost)
    assert isinstance(memory.once["k"], Lost)
    assert memory.once["l"] == 2


def test_a_value_that_contains_itself_costs_only_itself() -> None:
    cycle: list[object] = ["here"]
    cycle += [cycle, cycle]
    saved = memory_of(remembering(saved={"cycle": cycle, "good": 1})).saved
    assert saved["good"] == 1
    assert saved["cycle"][0] == "here"
    assert isinstance(saved["cycle"][1], Lost)


def test_keys_that_look_like_our_own_marks_come_back_as_they_were() -> None:
    tricky = {"$bytes": "not base64!", "$lost": 1, "$": 2, "$$lost": {"$bytes": b"\x00"}}
    memory = memory_of(remembering(saved=tricky, once=tricky))
    assert memory.saved == memory.once == tricky


def test_arguments_without_a_json_form_do_not_lose_the_checkpoint() -> None:
    call = ToolCall("c", "t", {"x": math.inf, "y": {1, 2}, "z": 3})
    entry = LedgerEntry("c", "t", call.args)
    found = Checkpoint.from_bytes(plain(messages=(Message("assistant", (call,)),), ledger=(entry,)).to_bytes())
    assert found.messages[0].tool_calls[0].args["z"] == found.ledger[0].args["z"] == 3


def test_a_tuple_comes_back_as_a_list_and_a_lost_value_stays_lost() -> None:
    memory = memory_of(remembering(saved=(1, (2,)), approvals=(Lost("gone"),)))
    assert (memory.saved, memory.approvals) == ([1, [2]], (Lost("gone"),))


# -- damage ------------------------------------------------------------------------------------------------------------


def test_every_cut_and_every_flipped_bit_is_found() -> None:
    data = plain().to_bytes()
    for end in range(len(data)):
        with pytest.raises(CheckpointError):
            Checkpoint.from_bytes(data[:end])
    for place in range(len(data)):
        flipped = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        with pytest.raises(CheckpointError):
            Checkpoint.from_bytes(flipped)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a checkpoint"),
        (b"\x80\x04\x95pickle.", "not a checkpoint"),
        (b"{}\n", "not a checkpoint"),
        (b"safepoint-checkpoint 1\n{}", "not a checkpoint"),
        (b"safepoint-checkpoint 4 abc\n{}", "version 4, this Safepoint reads 3"),
        (b"safepoint-checkpoint " + b"9" * 5000 + b" abc\n{}", "version 999"),
        (b"safepoint-checkpoint 1 abc\n{}", "damaged"),
    ],
)
def test_bytes_of_another_kind_are_named(data: bytes, says: str) -> None:
    with pytest.raises(CheckpointError, match=says) as raised:
        Checkpoint.from_bytes(data)
    assert len(str(raised.value)) < 300


def test_a_str_or_none_is_no_checkpoint() -> None:
    for wrong in ("text", None, 7):
        with pytest.raises(CheckpointError, match="bytes"):
            Checkpoint.from_bytes(wrong)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("body", [b"[]", b"null", b"{}", b'{"id": 1}', b"[" * 100_000, b"\xff", b"nonsense"])
def test_a_body_that_fits_its_digest_and_is_no_checkpoint_is_refused(body: bytes) -> None:
    from safepoint.agent.codec import digest

    with pytest.raises(CheckpointError, match="can't be read"):
        Checkpoint.from_bytes(f"{MAGIC} 1 {digest(body)}\n".encode() + body)


# -- files that must stay readable ------------------------------------------------------------------------------------

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize("path", sorted(DATA.glob("*.checkpoint")), ids=lambda path: path.stem)
def test_a_checkpoint_that_an_earlier_version_wrote_can_still_be_read(path: Path) -> None:
    checkpoint = Checkpoint.from_bytes(path.read_bytes())
    expected = json.loads(path.with_suffix(".json").read_text())
    assert checkpoint.stop_reason == expected["stop_reason"]
    assert [entry.state for entry in checkpoint.ledger] == expected["states"]
    assert [question.id for question in checkpoint.questions] == expected["questions"]
    assert [message.text for message in checkpoint.messages] == expected["texts"]
    assert len(checkpoint.open_messages) == expected["open"]


CONTINUED = {
    "interrupted-sequential": "end",
    "interrupted-loop": "asker is done",
    "interrupted-handoff": "billed",
    "interrupted-composite-tool": "all done",
}


@pytest.mark.parametrize("name", COMPOSITES)
def test_a_composite_that_an_earlier_version_stopped_can_still_go_on(name: str) -> None:
    @virtual
    async def body() -> None:
        checkpoint = Checkpoint.from_bytes((DATA / f"{name}.checkpoint").read_bytes())
        answers = {question.id: "yes" for question in checkpoint.questions}
        result = await COMPOSITES[name]().resume(checkpoint, answers=answers, fork=True)
        if name == "cancelled-parallel":  # its branch asks only now
            assert result.checkpoint is not None
            again = {question.id: "yes" for question in result.questions}
            result = await COMPOSITES[name]().resume(result.checkpoint, answers=again)
        assert result.stop_reason == "end_turn"
        assert {str(entry.state) for entry in result.ledger} == {"finished"}
        if name in CONTINUED:
            assert result.text == CONTINUED[name]
        else:
            assert result.output == {"notes": Notes(topic="tea"), "asker": "asker is done", "reader": "read"}

    body()
